"""Which weight sets are condemned, in a file of the run folder: an agent that starts anew must not give them out again.

Not with the keeper: keepers outlive agents by many releases, and one of an earlier release would not know the word. The
folder is in memory, like the sets themselves: a node that starts anew has neither.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LOG = logging.getLogger(__name__)
FILE: Final = "condemned.json"


class Ledger:
    """Reasons by set id, by slot. What cannot be written is told and tried again with the next change."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / FILE
        self._slots: dict[str, dict[str, str]] = _read(self._file)

    def of(self, slot: str) -> Mapping[str, str]:
        return dict(self._slots.get(slot, {}))

    def keep(self, slot: str, doomed: Mapping[str, str]) -> None:
        """What is to be known of the slot from now on; written only when it changed."""
        if self._slots.get(slot, {}) == doomed:
            return
        self._slots = {name: known for name, known in self._slots.items() if name != slot}
        if doomed:
            self._slots[slot] = dict(doomed)
        new = self._file.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._slots))
            new.chmod(0o600)
            new.replace(self._file)
        except OSError as error:
            LOG.warning("event=not-remembered file=%s reason=%r", self._file, str(error))


def _read(file: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(file.read_text())
        return {str(slot): {str(name): str(why) for name, why in sets.items()} for slot, sets in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        LOG.warning("event=memory-unreadable file=%s reason=%r", file, str(error))
        return {}
