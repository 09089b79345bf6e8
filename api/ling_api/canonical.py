"""Canonical JSON: the one spelling of a value that is hashed or kept. Keys sorted, no spaces, ASCII, no NaN."""

from __future__ import annotations

import json
import math
from typing import Any

from ling_api.errors import BadInput


def encode(value: object) -> bytes:
    """The value's canonical bytes; floats as their shortest exact decimal (repr). Raises BadInput."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8 form
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"a value has no canonical JSON: {error}") from None
    return text.encode("ascii")


def decode(data: bytes | memoryview, what: str) -> dict[str, Any]:
    """The JSON object in `data`. Raises BadInput with a sentence that begins with `what`."""
    try:
        text = bytes(data).decode()
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8 form
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} is not JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{what} must be a JSON object, not {type(value).__name__}")
    return value


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no JSON number")
    return number
