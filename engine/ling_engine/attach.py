"""Brings every weight set of a server into its memory: filled here and sealed, or mapped from the slot.

One path: layout, mapping, parameters bound to their addresses. The filler's mapping is writable until its loader is
done, then read-only at the same addresses. An agent that dies in the middle is met again with the same regions; what
cannot be continued ends this server, and the next one starts clean.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from ling_api import checks, fdpass
from ling_api.errors import FillFailed
from ling_api.identity import Identity, set_id

from . import filling, sealed
from .cohort import Attached
from .rank import Declined, LinkLost
from .runtime import SettlingTwin

if TYPE_CHECKING:
    import threading

    from ling_api.manifest import Manifest

    from .cohort import Cohort
    from .rank import RankLink
    from .runtime import WeightTwin
    from .turns import Turns

_log = logging.getLogger(__name__)
_RETRY_S = 0.1
_MAX_DECLINED = 50  # tickets in a row that the agent does not take
SAMPLE = 8  # chunks of host memory checked before serving; a device's memory is checked in full
_PAUSE_S, _PAUSES_S = 0.01, 60.0  # after each chunk of the background check, and of all together


async def attach(cohort: Cohort, twins: dict[str, tuple[WeightTwin, Identity]]) -> dict[str, Attached]:
    """All sets (set id -> twin and identity) of one server, as one.

    Raises Refused, FillFailed, AttachCheckFailed, DeviceError: the server then ends with that exit code.
    """
    attached: dict[str, Attached] = {}
    declined = 0
    while True:
        await cohort.link.welcomed()
        answer = await cohort.ask(list(twins))
        cohort.tell("answered")
        try:
            for name, ticket in answer.granted.items():
                if name not in attached:
                    attached[name] = await _fetch(cohort, name, ticket, *twins[name])
            fill = next((name for name in answer.tickets if name not in attached), "")
            if fill:  # one at a time: by the end of it the other tickets are too old
                attached[fill] = await filling.Fill(cohort, fill, *twins[fill]).run(answer.tickets[fill])
        except LinkLost:
            _log.warning("attach=interrupted reason=agent-gone held=%d of=%d", len(attached), len(twins))
            continue
        except Declined as error:
            declined += 1
            _log.warning("attach=declined reason=%r", str(error))
            if declined > _MAX_DECLINED:
                raise FillFailed(f"the agent takes none of its tickets: {error}") from error
            await asyncio.sleep(_RETRY_S)
            continue
        if len(attached) == len(twins):
            say_mapped(cohort.link, attached)
            return attached


def say_mapped(link: RankLink, attached: dict[str, Attached]) -> None:
    """Tells the agent, a new one again, what this rank holds."""
    for name in attached:
        link.put({"op": "mapped", "set": name})


def check_rest(one: Attached, ending: threading.Event, turns: Turns | None = None) -> None:
    """The chunks that were not looked at before serving, one by one. Raises AttachCheckFailed: it ends the server.

    A standby takes longer than two minutes while the active engine is busy: that one comes first.
    """
    chunks = _rest(one)
    for chunk in chunks:
        began = time.monotonic()
        checks.verify(one.mapping, one.manifest, [chunk])
        rest = turns.rest(time.monotonic() - began) if turns is not None else 0.0
        if ending.wait(max(pause(len(chunks)), rest)):
            return


def pause(chunks: int) -> float:
    """Seconds after each chunk: never a core for itself, and all pauses together at most half of two minutes."""
    return min(_PAUSE_S, _PAUSES_S / max(chunks, 1))


def _rest(one: Attached) -> list[checks.Chunk]:
    if one.filled:
        return []
    looked_at = _sample(one.manifest)
    if looked_at is None:
        return []
    sampled = set(looked_at)
    return [chunk for chunk in checks.all_chunks(one.manifest.regions) if chunk not in sampled]


async def _fetch(cohort: Cohort, name: str, ticket: str, twin: WeightTwin, identity: Identity) -> Attached:
    frames = await cohort.link.request(({"op": "fetch", "ticket": ticket}, ()))
    fds = [fd for _, some in frames for fd in some]
    cohort.tell("fetched")
    try:
        handed = sealed.handed_over(frames)
        manifest = sealed.read_manifest(handed.manifest)
        sealed.check(handed, manifest, identity=identity, rank=twin.rank, kind=cohort.memory.kind)
        if not isinstance(twin, SettlingTwin):
            sealed.check_tensors(twin.specs(), manifest.tensors)
        sealed.check_revision(cohort.revision_of(twin.role), manifest.content)
        cohort.tell("read")
        mapping = await cohort.thread.run(cohort.memory.map, handed.regions, handed.sizes, writable=False)
    finally:
        fdpass.close_all(fds)
    cohort.tell("mapped")
    if isinstance(twin, SettlingTwin):
        await cohort.thread.run(twin.attach, mapping, manifest)
    else:
        await cohort.thread.run(twin.bind, mapping, manifest.layout)
    cohort.tell("bound")
    await cohort.thread.run(checks.verify, mapping, manifest, _sample(manifest))
    cohort.tell("checked")
    _log.info("set=%s role=%s attached=%d", name, twin.role, manifest.nbytes)
    return Attached(manifest=manifest, mapping=mapping, filled=False)


def _sample(manifest: Manifest) -> tuple[checks.Chunk, ...] | None:
    return checks.before_serving(manifest, sample=SAMPLE)


def named(twin: WeightTwin, identity: Identity) -> str:
    """The set id of a twin."""
    return set_id(identity.digest, twin.rank)
