"""What the API server refused to do for a LingDeployment: a quota, an admission policy, a webhook, rights. Pure.

The status remembers it, so that neither a restart of the operator nor a look that tries something else forgets it. A
refusal stands while the very same step is still due; once it was done, or is wanted no more, it is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ling_operator.actions import Create, describe

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ling_operator.actions import Step

CREATE: Final = "CreateRefused"
CHANGE: Final = "ChangeRefused"
LONGEST: Final = 512  # characters of the API server's sentence
MOST: Final = 32  # refusals that a status keeps

_CODES: Final = frozenset({400, 403, 422})  # a webhook's no; quota, policy or rights; the object makes no sense
_WEBHOOK: Final = "webhook"  # the word in the message of one that could not be asked, whatever the code
_TAKEN: Final = 409
_NUMBER: Final = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")  # hexadecimal ones too


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """`what` is the step in words, as `create Pod chat-0`; `slot` is "" when it concerns none."""

    what: str
    slot: str
    said: str

    @property
    def reason(self) -> str:
        return CREATE if self.what.startswith("create ") else CHANGE

    @property
    def sentence(self) -> str:
        """For people who know which slot is spoken of."""
        return f"the API server refuses to {self.what}: {self.said}"

    @property
    def message(self) -> str:
        """For people."""
        return f"{self.slot}: {self.sentence}" if self.slot else self.sentence


def refuses(step: Step, status: int, said: str) -> bool:
    """Whether that answer to the step is a no that asking somebody else's step next does not change."""
    if status == _TAKEN:
        return isinstance(step, Create)  # the name is taken; otherwise the object is another one by now
    return status in _CODES or (status >= 500 and _WEBHOOK in said)


def refusal(step: Step, slot: str, status: int, said: str) -> Refusal | None:
    """What is to be remembered; None of a name that is taken, which the next look knows by itself."""
    return None if status == _TAKEN else Refusal(what=describe(step), slot=slot, said=said[:LONGEST])


def together(before: Sequence[Refusal], now: Sequence[Refusal], done: str) -> tuple[Refusal, ...]:
    """What stands after a look: its own, and earlier ones of steps that it did not try. `done` is what it did.

    One whose words differ only in numbers (a port, a time, a uid) is the one that is known, or it would be news, an
    event and a status each, at every look.
    """
    known = {_but_numbers(one): one for one in before}
    tried = {one.what for one in now} | {done}
    mine = (known.get(_but_numbers(one), one) for one in now)
    return (*mine, *(one for one in before if one.what not in tried))[:MOST]


def _but_numbers(one: Refusal) -> tuple[str, str, str]:
    return one.what, one.slot, _NUMBER.sub("#", one.said)


def still_due(before: Sequence[Refusal], due: Collection[str]) -> tuple[Refusal, ...]:
    """Those whose step is still to be done."""
    return tuple(one for one in before if one.what in due)


def from_status(told: Sequence[Mapping[str, Any]]) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(what=one.get("what") or "", slot=one.get("slot") or "", said=one.get("message") or "") for one in told
    )


def to_status(refusals: Sequence[Refusal]) -> list[dict[str, str]]:
    return [{"what": one.what, "slot": one.slot, "message": one.said} for one in refusals]
