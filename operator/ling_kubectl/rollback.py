"""`kubectl ling rollback`: the edit that brings a former revision back, as a JSON patch. Pure.

A ControllerRevision keeps the part of the spec that makes engines. Fields of it that the former revision did not state
are taken out, so the object reads as it did then; replicas, drain, service and the rest stay as they are now. Of
weightCache the policy alone belongs to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ling_api.enginepart import BASELINE
from ling_api.errors import BadInput

from .seen import label

if TYPE_CHECKING:
    from .seen import Object, Seen

PARTS: Final = ("model", "decoding", "parallelism", "engine", "gpu")
REVISION: Final = "ling.dev/revision"


def revision_of(body: Object) -> str:
    return label(body, REVISION)


def choose(seen: Seen, wanted: str) -> Object:
    """The revision named, else the newest that is not the one asked for now. Raises BadInput."""
    if not seen.revisions:
        raise BadInput(f"{seen.name} has no revisions yet")
    known = {revision_of(one): one for one in seen.revisions}
    if wanted:
        found = [name for name in known if name.startswith(wanted)]
        if len(found) != 1:
            raise BadInput(f"--to: write one of {', '.join(known)}, not {wanted!r}")
        return known[found[0]]
    now = seen.status.get("updateRevision")
    former = [one for one in seen.revisions if revision_of(one) != now]
    if not former:
        raise BadInput(f"{seen.name} has only one revision, {now}: there is nothing to go back to")
    served = [one for one in former if revision_of(one) == seen.status.get("currentRevision")]
    return served[0] if served else former[-1]


def patch(seen: Seen, revision: Object) -> list[dict[str, Any]]:
    """The JSON patch; it fails if somebody else edits the object meanwhile."""
    version = seen.body["metadata"]["resourceVersion"]
    edits: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    for part in PARTS:
        if part in revision["data"]:
            edits.append({"op": "add", "path": f"/spec/{part}", "value": revision["data"][part]})
        elif part in seen.spec:
            edits.append({"op": "remove", "path": f"/spec/{part}"})
    return [*edits, *_policy_edits(seen, revision)]


def _policy_edits(seen: Seen, revision: Object) -> list[dict[str, Any]]:
    """Of weightCache.policy; a revision that does not state it means what was so when the field came."""
    policy = {**BASELINE["weightCache"], **revision["data"].get("weightCache", {})}["policy"]
    if "weightCache" in seen.spec:
        return [{"op": "add", "path": "/spec/weightCache/policy", "value": policy}]
    return [{"op": "add", "path": "/spec/weightCache", "value": {"policy": policy}}]
