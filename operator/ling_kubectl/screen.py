"""`kubectl ling status`: one LingDeployment on one screen; and the table of `kubectl ling top`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api import names

from . import timeline
from .seen import amount, seconds, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ling_api.slotstatus import EngineStatus, LingSlotStatus

    from .seen import Object, Pod, Seen, SlotSeen

GOOD_WHEN_FALSE: Final = frozenset({names.DEGRADED, names.UPDATE_IN_PROGRESS})
BAR: Final = 20


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Aligned text, the last column as it is."""
    widths = [max(len(row[number]) for row in (head, *rows)) for number in range(len(head))]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def figure(value: float | None, unit: str = "", digits: int = 2) -> str:
    """A measured number, "-" when nobody has measured."""
    return f"{value:.{digits}f}{unit}" if value else "-"


def bar(share: float) -> str:
    full = round(max(0.0, min(1.0, share)) * BAR)
    return "#" * full + "." * (BAR - full)


def render(seen: Seen) -> str:
    """The whole screen."""
    lines = [*_head(seen), "", *_conditions(seen)]
    for slot in seen.slots:
        lines += ["", *_slot(seen, slot)]
    happened = timeline.render(seen)
    if happened:
        lines += ["", "LAST CHANGE", *(f"  {line}" for line in happened)]
    return "\n".join(lines)


def _head(seen: Seen) -> list[str]:
    status, spec = seen.status, seen.spec
    made = seconds(seen.body["metadata"].get("creationTimestamp")) or seen.now
    state = "Ready" if seen.is_true(names.READY) else "NOT READY"
    message = status.get("message") or "the operator has not looked at it yet"
    decoding = (spec.get("decoding") or {}).get("algorithm") or "None"
    runtime = (spec.get("engine") or {}).get("runtime") or "Reference"
    current, wanted = status.get("currentRevision") or "-", status.get("updateRevision") or "-"
    revision = current if current == wanted else f"{current} -> {wanted}"
    told = status.get("performance") or {}
    rate = f" ({told['tokensPerSecond']:.0f} tok/s)" if told.get("tokensPerSecond") else ""
    speed = [
        f"TPOT {figure(told.get('tpotMs'), ' ms')}{rate}",
        f"TTFT {figure(told.get('ttftMs'), ' ms', 1)}",
        f"accept length {figure(told.get('acceptLength'))}",
        f"{told.get('requests', 0)} requests",
    ]
    if told.get("samples"):
        speed.append(f"means of the last {told['samples']}, over {span(told.get('windowSeconds', 0))}")
    return [
        f"{seen.namespace}/{seen.name}: {state}, {message}",
        f"  revision {revision}, serving {status.get('serving') or '-'}, made {span(seen.now - made)} ago",
        f"  model {spec['model']['source']}, runtime {runtime}, decoding {decoding}",
        f"  {', '.join(speed)}",
    ]


def _conditions(seen: Seen) -> list[str]:
    rows = []
    for kind, one in seen.conditions.items():
        bad = one.true if kind in GOOD_WHEN_FALSE else not one.true
        since = seconds(one.last_transition_time)
        age = span(seen.now - since) if since is not None else "-"
        rows.append(("!" if bad else " ", kind, one.status, age, one.reason, one.message))
    return columns((" ", "CONDITION", "IS", "SINCE", "REASON", "MESSAGE"), rows)


def _slot(seen: Seen, slot: SlotSeen) -> list[str]:
    status, room = slot.status, slot.status.capacity
    state = "serves" if slot.serving else "DOES NOT SERVE"
    node = status.node or (slot.slot_pod.node if slot.slot_pod else "") or "no node yet"
    lines = [f"SLOT {slot.name} on {node}: {state}, term {status.active.term if status.active else 0}"]
    if room is not None:
        held, total = room.weights + room.plans, room.total or 1
        sums = f"{amount(room.weights)} weights + {amount(room.plans)} plans of {amount(room.total)}"
        lines.append(f"  memory [{bar(held / total)}] {sums}")
    if status.gpus:
        lines.append(f"  GPUs {', '.join(status.gpus)}")
    if status.message:
        lines.append(f"  {status.message}")
    rows = [_engine(pod, slot.reported(pod.name)) for pod in slot.engine_pods]
    if rows:
        head = ("ENGINE", "REVISION", "ROLE", "PHASE", "PLAN", "IN-FLIGHT", "DEATHS", "RESTARTS", "LAST START, ms")
        lines += columns(head, rows, "  ")
    return lines + _weights(status)


def _engine(pod: Pod, said: EngineStatus | None) -> tuple[str, ...]:
    if said is None:
        state = (pod.unschedulable and "no node") or pod.waiting[0] or str(pod.status.get("phase") or "Pending")
        return pod.name, "-", "-", "leaving" if pod.leaving else state, "-", "-", "-", str(pod.restarts), "-"
    steps = sorted((said.phases or {}).items(), key=lambda step: step[1])
    shown = " ".join(f"{name} {at:.0f}" for name, at in steps if name in ("attached", "warm", "accepting", "filling"))
    role = f"*{said.role}" if said.role == "active" else said.role
    plan = amount(said.plan_bytes) if said.plan_bytes is not None else "-"
    counts = (str(said.in_flight), str(said.deaths), str(pod.restarts))
    return (pod.name, said.revision, role or "-", "leaving" if pod.leaving else said.phase, plan, *counts, shown or "-")


def _weights(status: LingSlotStatus) -> list[str]:
    rows = []
    for one in status.weight_sets:
        done = 1.0 if one.state != "filling" else one.progress or 0.0
        rows.append((
            f"{one.role or 'weights'}:{one.rank}", one.set[:12], amount(one.bytes), one.state,
            f"[{bar(done)}] {done:.0%}", str(one.holders),
        ))  # fmt: skip
    return columns(("WEIGHTS", "IDENTITY", "SIZE", "STATE", "FILLED", "HOLDERS"), rows, "  ") if rows else []


def top(deployments: Iterable[Object], slots: Iterable[Object]) -> str:
    """A line for each LingDeployment: how busy, how fast, how much memory."""
    held: dict[tuple[str, str], list[Object]] = {}
    for one in slots:
        key = (one["metadata"]["namespace"], one["spec"]["deployment"])
        held.setdefault(key, []).append(one.get("status") or {})
    rows = []
    for body in deployments:
        meta, status = body["metadata"], body.get("status") or {}
        own = held.get((meta["namespace"], meta["name"]), [])
        told, engines = status.get("performance") or {}, [each for one in own for each in one.get("engines") or ()]
        ready = next((one["status"] for one in status.get("conditions") or () if one["type"] == names.READY), "-")
        weights = sum((one.get("capacity") or {}).get("weights", 0) for one in own)
        room = sum((one.get("capacity") or {}).get("total", 0) for one in own)
        busy = sum(each.get("inFlight", 0) for each in engines)
        rows.append((
            meta["namespace"], meta["name"], ready, status.get("serving") or "-", str(busy),
            figure(told.get("tpotMs")), figure(told.get("ttftMs"), digits=1), figure(told.get("acceptLength")),
            str(told.get("requests", 0)), f"{amount(weights)} / {amount(room)}",
        ))  # fmt: skip
    if not rows:
        return "no LingDeployment here; -A looks in every namespace"
    head = ("NAMESPACE", "NAME", "READY", "SERVING", "IN-FLIGHT", "TPOT ms", "TTFT ms", "ACCEPT", "REQUESTS", "WEIGHTS")
    return "\n".join(columns(head, sorted(rows)))
