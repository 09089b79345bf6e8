"""Identity: all that decides the bytes of a weight set, its rank aside. Its sha256 is the set's key.

Fields are text. A nested mapping becomes dotted fields (`loader.version`); every value becomes a text that no other
value has: text stays as it is unless it could be read as a number, list, mapping or constant, then it is quoted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ling_api import canonical
from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

type Value = str | int | float | bool | Mapping[str, Value] | Sequence[Value] | None

LONGEST: Final = 1 << 20  # bytes of an identity: 2500 files, three facts of each
MOST_VALUES: Final = 50_000
_NEEDS_QUOTES: Final = re.compile(r'\Z|[-0-9"{\[]|(?:true|false|null)\Z')
_PLAIN_KEY: Final = re.compile(r'[^."\[\]]+')


@dataclass(frozen=True, slots=True)
class Identity:
    """Which bytes a weight set has. `fields` are sorted by name; build one with `of`."""

    role: str
    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, role: str, fields: Mapping[str, Value]) -> Identity:
        """From nested values. Raises BadInput for NaN, infinity, other types, and a field that appears twice."""
        flat: dict[str, str] = {}
        for name, value in fields.items():
            for field, text in _flatten(name, value):
                if field in flat:
                    raise BadInput(f"identity field {field!r} appears twice: once nested, once with dots in its name")
                flat[field] = text
        identity = cls(role, tuple(sorted(flat.items())))
        identity.to_bytes()  # refuses text without a UTF-8 form
        return identity

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON, 64 hex digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Canonical JSON: `{"fields":{name: text},"role":role}`."""
        return canonical.encode({"role": self.role, "fields": dict(self.fields)})

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Identity:
        """The inverse of `to_bytes`. Raises BadInput for anything that `to_bytes` would not have written."""
        value = canonical.decode(data, "an identity", LONGEST, MOST_VALUES)
        role, fields = value.get("role"), value.get("fields")
        if not isinstance(role, str) or not isinstance(fields, dict) or len(value) != 2:
            raise BadInput("an identity must have the text `role`, the mapping `fields` and nothing else")
        for name, text in fields.items():
            if not isinstance(text, str):
                raise BadInput(f"identity field {name!r} must be text, not {type(text).__name__}")
        identity = cls(role, tuple(sorted(fields.items())))
        if identity.to_bytes() != bytes(data):
            raise BadInput("an identity must be written in canonical JSON: keys sorted, no spaces, ASCII")
        return identity


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field in which two identities differ; "" = the field is absent (an empty text is `""`, quoted)."""

    field: str
    wanted: str
    held: str


def difference(wanted: Identity, held: Identity) -> tuple[FieldDifference, ...]:
    """Every field that differs, sorted by name; the role counts as the field `role`, before all others."""
    ours, theirs = dict(wanted.fields), dict(held.fields)
    roles = () if wanted.role == held.role else (FieldDifference("role", wanted.role, held.role),)
    return roles + tuple(
        FieldDifference(name, ours.get(name, ""), theirs.get(name, ""))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    )


def nearest(wanted: Identity, held: Iterable[Identity]) -> tuple[Identity, tuple[FieldDifference, ...]] | None:
    """The held identity of the same role with the fewest differing fields (equal: the lowest digest), or None."""
    candidates = [(identity, difference(wanted, identity)) for identity in held if identity.role == wanted.role]
    return min(candidates, key=lambda pair: (len(pair[1]), pair[0].digest), default=None)


def set_id(digest: str, rank: int) -> str:
    """The name of a weight set: `<64 hex digits>:<rank>`."""
    return f"{digest}:{rank}"


def _flatten(name: str, value: Value) -> Iterator[tuple[str, str]]:
    if not isinstance(value, Mapping) or not value:
        yield name, _text(name, value)
        return
    for key, inner in value.items():
        if not isinstance(key, str):
            raise BadInput(f"identity field {name!r} has the key {key!r}; keys must be text")
        yield from _flatten(f"{name}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{name}[{json.dumps(key)}]", inner)


def _text(name: str, value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(value) if _NEEDS_QUOTES.match(value) else value
    try:
        return canonical.encode(_plain(value)).decode()
    except BadInput as error:
        raise BadInput(f"identity field {name!r}: {error}") from None


def _plain(value: Value) -> object:
    """Only what JSON has, so that nothing is spelt by accident (bytes, sets, keys that are no text)."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise BadInput("keys must be text")
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(inner) for inner in value]
    raise BadInput(f"{type(value).__name__} is no value for an identity; use text, numbers, lists and mappings")
