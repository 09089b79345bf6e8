"""Plain values: what an attribute may be that a manifest can carry and another process can set again.

None, bool, int, float, text, torch dtypes, and lists, tuples and mappings with text keys of those.
"""

from __future__ import annotations

from typing import Any

import torch

from ling_api.errors import BadInput

type Value = bool | int | float | str | list[Value] | dict[str, Value] | None

_MARK = "$"  # the key of a mapping that stands for what JSON does not have


def is_plain(value: object) -> bool:
    """Whether `encode` takes it. Lists, tuples and mappings only when they hold nothing else; exact types only."""
    if value is None or type(value) in (bool, int, float, str) or isinstance(value, torch.dtype):
        return True
    if type(value) in (list, tuple):
        return all(is_plain(one) for one in value)  # type: ignore[attr-defined]  # a list or tuple
    if type(value) is dict:
        return all(type(key) is str and key != _MARK and is_plain(one) for key, one in value.items())
    return False


def encode(value: Any) -> Value:
    """As JSON has it; `value` is plain."""
    if isinstance(value, torch.dtype):
        return {_MARK: "dtype", "name": str(value).removeprefix("torch.")}
    if type(value) is float and (value != value or value in (float("inf"), float("-inf"))):
        return {_MARK: "float", "text": repr(value)}
    if type(value) is tuple:
        return {_MARK: "tuple", "items": [encode(one) for one in value]}
    if type(value) is list:
        return [encode(one) for one in value]
    if type(value) is dict:
        return {key: encode(one) for key, one in value.items()}
    return value  # type: ignore[no-any-return]  # None, bool, int, float, str


def decode(value: Value) -> Any:
    """The inverse of `encode`. Raises BadInput."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    match value.get(_MARK):
        case None:
            return {key: decode(one) for key, one in value.items()}
        case "dtype" if isinstance(found := getattr(torch, str(value.get("name")), None), torch.dtype):
            return found
        case "float":
            return float(str(value.get("text")))
        case "tuple" if isinstance(items := value.get("items"), list):
            return tuple(decode(one) for one in items)
    raise BadInput(f"a plain value {value!r} that this release does not know")
