"""`kubectl ling restart`: new engines in every slot, one slot at a time; weights, socket and address stay.

Each engine pod is deleted as a drain would do it and the next is waited for. Requests wait in the slot's socket
meanwhile. Interrupted, it has restarted some slots and left the others: nothing has to be undone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ling_api.errors import BadInput

from .seen import span

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cluster import Cluster
    from .seen import Seen, SlotSeen

PAUSE = 0.5  # seconds between two looks


def _uids(slot: SlotSeen) -> frozenset[str]:
    return frozenset(str(pod.body["metadata"]["uid"]) for pod in slot.engine_pods)


def _slot(seen: Seen, name: str) -> SlotSeen | None:
    return next((slot for slot in seen.slots if slot.name == name), None)


def restarted(seen: Seen, name: str, former: frozenset[str]) -> bool:
    """Whether none of the former engine pods is left in the slot and another one serves."""
    slot = _slot(seen, name)
    if slot is None:
        return True
    active = slot.status.active
    return not _uids(slot) & former and slot.serving and active is not None and active.uid not in former


def run(cluster: Cluster, name: str, *, timeout: float, say: Callable[[str], None]) -> None:
    """Raises BadInput when a slot does not serve again within `timeout` seconds."""
    seen = cluster.look(name)
    for slot in seen.slots:
        former = _uids(slot)
        if not former:
            say(f"{slot.name}: no engine runs there")
            continue
        begin = time.monotonic()
        cluster.run("delete", "pod", "--wait=false", *(pod.name for pod in slot.engine_pods))
        while not restarted(cluster.look(name), slot.name, former):
            if time.monotonic() - begin > timeout:
                raise BadInput(f"{slot.name} does not serve again after {timeout:.0f} s: kubectl ling explain {name}")
            time.sleep(PAUSE)
        say(f"{slot.name}: serves again after {span(time.monotonic() - begin)}")
