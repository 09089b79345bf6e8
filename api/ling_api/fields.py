"""Reading one field of an object as it came from YAML or the API server: its value, or BadInput with its name. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ling_api.errors import BadInput

type Object = Mapping[str, Any]


def section(data: Object, key: str) -> Object:
    """A sub-object, {} when it is left out; BadInput when it is something else."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadInput(f"{key}: write an object, not {value!r}")
    return value


def text(data: Object, key: str, default: str | None = None, *, one_of: Sequence[str] = ()) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        raise BadInput(f"{key}: write a text" if value is None else f"{key}: write a text, not {value!r}")
    if one_of and value not in one_of:
        raise BadInput(f"{key}: {value!r} is unknown here; write {' or '.join(one_of)}")
    return value


def number(data: Object, key: str, default: int | None = None, *, least: int = 0) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{key}: write a whole number of at least {least}, not {value!r}")
    return value


def measure(data: Object, key: str) -> float | None:
    """A number above 0, None when it is left out."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise BadInput(f"{key}: write a number above 0, not {value!r}")
    return float(value)


def texts(data: Object, key: str) -> tuple[str, ...]:
    """A list of texts, () when it is left out."""
    value = data.get(key) or ()
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise BadInput(f"{key}: write a list of texts, not {value!r}")
    return tuple(value)


def entries(data: Object, key: str) -> tuple[Object, ...]:
    """A list of objects, () when it is left out."""
    value = data.get(key) or ()
    if not isinstance(value, Sequence) or not all(isinstance(one, Mapping) for one in value):
        raise BadInput(f"{key}: write a list of objects, not {value!r}")
    return tuple(value)
