"""The form of a loaded model: where each tensor hangs, what it shares, and the plain values that loading changed.

Written by the one that filled a weight set, into the set's manifest; obeyed by the one that attaches it. A model is
built by the same code on both sides, so paths mean the same; what cannot be said in a form makes a fill fail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ling_api.errors import AttachCheckFailed

if TYPE_CHECKING:
    from .plain import Value

type How = Literal["parameter", "buffer", "attribute", "item"]
type Kind = Literal["shared", "private", "kept", "absent"]
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One place of one tensor.

    `shared`: a view of the set's tensor `entry`. `private`: the same of a copy of it. `kept`: made when the model was
    built, and not changed by loading. `absent`: without storage until somebody else's is put there. `offset` in bytes
    from the entry's first; `item` numbers tensor objects: places with one number hang the same object.
    `fresh`: loading put another object in the place of the parameter that was built. `attributes`: plain ones of the
    parameter object that loading set; all of a fresh one.
    `built`: dtype and shape of the parameter before loading; None = there was none.
    """

    owner: str
    key: str | int
    how: How
    kind: Kind
    item: int
    entry: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    grad: bool
    fresh: bool
    attributes: dict[str, Value]
    built: tuple[str, tuple[int, ...]] | None

    @property
    def path(self) -> str:
        return path_of(self.owner, self.key, self.how)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A plain value that loading changed, made (`had` is False) or took away (`has` is False)."""

    owner: str
    key: str | int
    how: How
    had: bool
    before: Value
    has: bool
    after: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A tensor that loading took away; `none`: None hangs in its place."""

    owner: str
    key: str | int
    how: How
    none: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Everything that an attacher must reproduce."""

    members: tuple[Member, ...]
    changes: tuple[Change, ...]
    gone: tuple[Gone, ...]

    def to_text(self) -> str:
        """JSON."""
        value = {
            "version": _VERSION,
            "members": [_row(one) for one in self.members],
            "changes": [_row(one) for one in self.changes],
            "gone": [_row(one) for one in self.gone],
        }
        return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> Form:
        """Raises AttachCheckFailed for anything that `to_text` would not have written."""
        try:
            value = json.loads(text)
            if value["version"] != _VERSION:
                raise AttachCheckFailed(
                    f"the set's form is of version {value['version']}; this release reads {_VERSION}"
                )
            form = cls(
                members=tuple(_member(row) for row in value["members"]),
                changes=tuple(Change(**_named(Change, row)) for row in value["changes"]),
                gone=tuple(Gone(**_named(Gone, row)) for row in value["gone"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise AttachCheckFailed(f"the set's form cannot be read: {error!r}") from error
        return form


def path_of(owner: str, key: str | int, how: str) -> str:
    """How a place is named to people; reach.py names them the same."""
    if how == "item":
        return f"{owner}[{key!r}]"
    return f"{owner}.{key}" if owner else str(key)


def _row(value: Member | Change | Gone) -> list[Any]:
    return [getattr(value, name) for name in value.__slots__]


def _named(kind: type[Member] | type[Change] | type[Gone], row: list[Any]) -> dict[str, Any]:
    names = kind.__slots__
    if len(row) != len(names):
        raise ValueError(f"a {kind.__name__} of {len(row)} fields instead of {len(names)}")
    return dict(zip(names, row, strict=True))


def _member(row: list[Any]) -> Member:
    fields = _named(Member, row)
    if fields["kind"] not in get_args(Kind.__value__) or fields["how"] not in get_args(How.__value__):
        raise ValueError(f"a tensor of the kind {fields['kind']!r} at a {fields['how']!r}")
    built = fields["built"]
    fields |= {"built": None if built is None else (built[0], tuple(built[1]))}
    return Member(**fields | {"shape": tuple(fields["shape"]), "stride": tuple(fields["stride"])})
