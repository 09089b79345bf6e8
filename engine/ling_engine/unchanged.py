"""A checkpoint is read minutes after its identity was computed, and may be copied then: the filler looks once more.

The launcher has told the agent which sets the old files make, so the error ends its container too (lifecycle.py): the
next one describes the files that are there then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api.errors import BadInput, CheckpointChanged
from ling_api.identity import Identity

from .runtime import ReadingTwin

if TYPE_CHECKING:
    from .runtime import WeightTwin


def insist(twin: WeightTwin, identity: Identity) -> None:
    """After a load: raises CheckpointChanged when the files are others than the identity says."""
    if not isinstance(twin, ReadingTwin):
        return
    try:
        facts = twin.facts()
    except BadInput as error:
        raise CheckpointChanged(f"the checkpoint changed while it was read: {error}") from error
    now = dict(Identity.of(identity.role, facts).fields)
    then = {name: text for name, text in identity.fields if _root(name) in facts}
    changed = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    if changed:
        first, more = changed[0], f" and {len(changed) - 1} more" if changed[1:] else ""
        raise CheckpointChanged(
            f"the checkpoint changed while it was read ({first}{more}: {then.get(first, 'absent')} before, "
            f"{now.get(first, 'absent')} now); what was read is thrown away, the next container reads it anew"
        )


def _root(field: str) -> str:
    """The name under which a field's value was given."""
    return field.split(".", 1)[0].split("[", 1)[0]
