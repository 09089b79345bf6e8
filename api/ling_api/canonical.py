"""Canonical JSON: the one spelling of a value that is hashed or kept. Keys sorted, no spaces, ASCII, no NaN."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from ling_api.errors import BadInput

# What a reader takes in at most, since others write it: a list costs 3 bytes to write and 64 to have. The manifest of
# 31,000 tensors in 60 GiB, every expert of the full model by itself, has 5 MB, 93,000 lists and 265,000 commas.
LONGEST: Final = 16 << 20  # bytes
_CONTAINERS: Final = 400_000
_VALUES: Final = 600_000  # commas, that is


def encode(value: object) -> bytes:
    """The value's canonical bytes; floats as their shortest exact decimal (repr). Raises BadInput."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8 form
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"a value has no canonical JSON: {error}") from None
    return text.encode("ascii")


def decode(data: bytes | memoryview, what: str, longest: int = LONGEST, most_values: int = _VALUES) -> dict[str, Any]:
    """The JSON object in `data`, at most `longest` bytes. Raises BadInput with a sentence that begins with `what`."""
    if len(data) > longest:
        raise BadInput(f"{what} of {len(data)} bytes; at most {longest} are read")
    raw = bytes(data)
    containers = raw.count(b"[") + raw.count(b"{")
    if containers > min(_CONTAINERS, most_values) or raw.count(b",") > most_values:
        raise BadInput(f"{what} has more lists and values than any that is real")
    try:
        text = raw.decode()
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
