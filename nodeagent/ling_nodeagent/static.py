"""The directory as a file: callers, slots, revisions and wishes, for running without a cluster.

    slots:
      prod/chat-0:                  # "namespace/name"; without a namespace it is in "default"
        deployment: chat
        revision: 1a2b3c4d          # the wanted one
        revisions: [1a2b3c4d]       # all whose engines may run; default: the wanted one
        capacity: 1Gi
        graceSeconds: 120           # default 120
        holdSeconds: 60             # default 60
        wish: {pod: chat-0-1a2b3c4d-1, term: 3}   # optional
        standbys: 1                 # default 0: engines kept warm beside the active one
        lameDuckSeconds: 15         # default 0: the last engine accepts that long once the slot is being taken away
        retiring: true              # optional: the slot is being taken away, in good order
        leavesBy: 1764450000        # optional: its node is being left; Unix time from which nothing holds its pods back
        leaving: true               # optional: the slot is being taken away at once
    callers:
      d000: {pod: chat-0, uid: u0, slot: prod/chat-0, component: slot}
      d001: {pod: chat-0-1a2b3c4d-0, uid: u1, slot: prod/chat-0, component: engine, revision: 1a2b3c4d}

The agent remembers the cluster's directory in the same form, for a restart while the API server is away.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from ling_api import names
from ling_api.errors import BadInput
from ling_api.quantity import parse_quantity

from .directory import Caller, SlotSpec, Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

LOG = logging.getLogger("ling.static")
POLL = 0.1  # seconds
REVISION = re.compile(r"[0-9a-f]{8}")
DEVICE = re.compile(r"d(\d{3})")
SLOT_KEYS = {
    "deployment", "revision", "revisions", "capacity", "graceSeconds", "holdSeconds", "wish", "leaving", "standbys",
    "lameDuckSeconds", "retiring", "leavesBy",
}  # fmt: skip
CALLER_KEYS = {"pod", "uid", "slot", "component", "revision"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """Everything that the node's edges tell the agent."""

    callers: Mapping[str, Caller] = field(default_factory=dict)  # by device
    slots: Mapping[str, SlotSpec] = field(default_factory=dict)  # by "namespace/name"


def read(path: Path) -> Directory:
    """The directory in a file. Raises BadInput with one line: which file, which entry, what to write instead."""
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise BadInput(f"{path}: cannot read it: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: it is not YAML: {' '.join(str(error).split())}") from error
    try:
        return parse(data if data is not None else {})
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does; None when there is none. Take it before you read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_ino, stat.st_size)


async def follow(path: Path, seen: tuple[int, int, int] | None, post: Callable[[Directory], None]) -> None:
    """Post the directory again after every change since `seen`; a wrong file changes nothing and is logged once.

    A file that is still being written is not read: in half a file pods are missing, and what is missing is gone.
    """
    now = seen
    while True:
        await asyncio.sleep(POLL)
        before, now = now, stamp(path)
        if now == seen or now != before:
            continue
        seen = now
        try:
            directory = read(path)
        except BadInput as error:
            LOG.error("event=static-file-refused reason=%r kept=%r", str(error), "what was read before")
            continue
        LOG.info("event=static-file-read slots=%d callers=%d", len(directory.slots), len(directory.callers))
        post(directory)


def parse(data: Any) -> Directory:
    """The directory of a parsed document. Raises BadInput."""
    sections = _object(data, "the file", {"slots", "callers"})
    slots = {spec.name: spec for spec in (_slot(str(name), entry) for name, entry in _entries(sections, "slots"))}
    callers = {str(device): _caller(str(device), entry, slots) for device, entry in _entries(sections, "callers")}
    uids = [caller.uid for caller in callers.values()]
    for uid in uids:
        if uids.count(uid) > 1:
            raise BadInput(f"callers: two devices belong to the pod with uid {uid!r}; a pod has one")
    return Directory(callers=callers, slots=slots)


def to_dict(directory: Directory) -> dict[str, Any]:
    """What `parse` reads."""
    return {
        "slots": {name: _slot_to_dict(spec) for name, spec in directory.slots.items()},
        "callers": {
            device: {"pod": c.pod, "uid": c.uid, "slot": c.slot, "component": c.component}
            | ({"revision": c.revision} if c.revision else {})
            for device, c in directory.callers.items()
        },
    }


def _slot_to_dict(spec: SlotSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "deployment": spec.deployment,
        "revision": spec.revision,
        "revisions": sorted(spec.revisions),
        "capacity": spec.capacity,
        "graceSeconds": spec.grace_seconds,
        "holdSeconds": spec.hold_seconds,
        "standbys": spec.standbys,
        "lameDuckSeconds": spec.lame_duck_seconds,
    }
    if spec.leaves_by is not None:
        entry["leavesBy"] = spec.leaves_by
    if spec.wish is not None:
        entry["wish"] = {"pod": spec.wish.pod, "term": spec.wish.term}
    return entry | ({"leaving": True} if spec.leaving else {}) | ({"retiring": True} if spec.retiring else {})


def _slot(name: str, entry: Any) -> SlotSpec:
    at = f"slots.{name}"
    values = _object(entry, at, SLOT_KEYS)
    revision = _revision(values.get("revision"), f"{at}.revision")
    listed = values.get("revisions", [revision])
    if not isinstance(listed, list):
        raise BadInput(f"{at}.revisions: write a list such as [{revision}]")
    revisions = frozenset(_revision(each, f"{at}.revisions") for each in listed)
    if revision not in revisions:
        raise BadInput(f"{at}.revisions: name the wanted revision {revision} too")
    if "capacity" not in values:
        raise BadInput(f"{at}.capacity: write the memory that the slot may fill, such as 1Gi")
    try:
        capacity = parse_quantity(values["capacity"])
    except BadInput as error:
        raise BadInput(f"{at}.capacity: {error}") from error
    return SlotSpec(
        name=_full(name),
        deployment=_text(values, "deployment", at),
        revision=revision,
        revisions=revisions,
        capacity=capacity,
        grace_seconds=_seconds(values, "graceSeconds", 120, at),
        hold_seconds=_seconds(values, "holdSeconds", 60, at),
        wish=_wish(values.get("wish"), f"{at}.wish"),
        leaving=_flag(values, "leaving", at),
        standbys=_count(values, "standbys", at),
        lame_duck_seconds=_seconds(values, "lameDuckSeconds", 0, at, least=0),
        retiring=_flag(values, "retiring", at),
        leaves_by=_seconds(values, "leavesBy", 0, at) if "leavesBy" in values else None,
    )


def _caller(device: str, entry: Any, slots: Mapping[str, SlotSpec]) -> Caller:
    at = f"callers.{device}"
    number = DEVICE.fullmatch(device)
    if number is None or int(number[1]) >= names.DEVICES:
        raise BadInput(f"{at}: write a device from d000 to d{names.DEVICES - 1}")
    values = _object(entry, at, CALLER_KEYS)
    slot = _full(_text(values, "slot", at))
    if slot not in slots:
        raise BadInput(f"{at}.slot: there is no slot {slot}; write one of {', '.join(sorted(slots)) or 'slots'}")
    component = _text(values, "component", at)
    if component not in (names.COMPONENT_SLOT, names.COMPONENT_ENGINE):
        raise BadInput(f"{at}.component: write slot or engine, not {component!r}")
    engine = component == names.COMPONENT_ENGINE
    return Caller(
        device=device,
        namespace=slot.split("/")[0],
        pod=_text(values, "pod", at),
        uid=_text(values, "uid", at),
        slot=slot,
        component="engine" if engine else "slot",
        revision=_revision(values.get("revision"), f"{at}.revision") if engine else "",
    )


def _entries(sections: Mapping[str, Any], key: str) -> list[tuple[Any, Any]]:
    section = sections.get(key)
    if section is not None and not isinstance(section, dict):
        raise BadInput(f"{key}: write a mapping from names to entries")
    return list((section or {}).items())


def _object(value: Any, at: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{at}: write a mapping with {', '.join(sorted(known))}")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise BadInput(f"{at}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return value


def _full(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def _text(values: Mapping[str, Any], key: str, at: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value:
        raise BadInput(f"{at}.{key}: write a text" + ("" if value is None else f", not {value!r}"))
    return value


def _revision(value: Any, at: str) -> str:
    if not isinstance(value, str) or REVISION.fullmatch(value) is None:
        raise BadInput(f"{at}: write a revision of 8 hex digits in quotes, not {value!r}")
    return value


def _seconds(values: Mapping[str, Any], key: str, default: float, at: str, *, least: float = 1e-9) -> float:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e11:
        raise BadInput(f"{at}.{key}: write seconds, {'0 or ' if not least else ''}more than 0, not {value!r}")
    return float(value)


def _count(values: Mapping[str, Any], key: str, at: str) -> int:
    value = values.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 256:
        raise BadInput(f"{at}.{key}: write a whole number, not {value!r}")
    return value


def _flag(values: Mapping[str, Any], key: str, at: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(f"{at}.{key}: write true or false, not {value!r}")
    return value


def _wish(value: Any, at: str) -> Wish | None:
    if value is None:
        return None
    values = _object(value, at, {"pod", "term"})
    term = values.get("term")
    if isinstance(term, bool) or not isinstance(term, int) or term < 0:
        raise BadInput(f"{at}.term: write the slot's term as status shows it, not {term!r}")
    return Wish(pod=_text(values, "pod", at), term=term)
