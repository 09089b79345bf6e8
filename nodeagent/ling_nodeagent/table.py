"""`ling-nodeagent status` for people: the agent's JSON as aligned text. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def render(known: Mapping[str, Any]) -> str:
    """The whole answer; see Agent.describe for its keys."""
    callers: Mapping[str, Any] = known["callers"]
    counts = f"{len(known['slots'])} slots, {len(callers)} callers, {known['streams']} launchers"
    lines = [f"node {known['node'] or '-'}: {counts}, {known['openFds']} descriptors held"]
    for name, status in known["slots"].items():
        lines += ["", *_slot(name, status)]
    if callers:
        rows = [
            (device, f"{each['namespace']}/{each['pod']}", each["component"], each["slot"], each["revision"] or "-")
            for device, each in callers.items()
        ]
        lines += ["", *_columns(("DEVICE", "POD", "COMPONENT", "SLOT", "REVISION"), rows)]
    return "\n".join(lines)


def _slot(name: str, status: Mapping[str, Any]) -> Iterable[str]:
    true = [each["type"] for each in status["conditions"] if each["status"] == "True"]
    capacity, active = status["capacity"], status["active"]
    yield f"slot {name}: {', '.join(true) or 'nothing is true of it'}"
    listener = "held" if status["listener"] else "none"
    weights, plans, total = (amount(capacity[key]) for key in ("weights", "plans", "total"))
    yield f"  active {active['pod'] or 'nobody'} (term {active['term']}), listener {listener}"
    if status["gpus"]:
        yield f"  GPUs {', '.join(status['gpus'])}"
    yield f"  memory {weights} weights + {plans} plans of {total}"
    if status["message"]:
        yield f"  {status['message']}"
    engines = [
        (
            each["pod"], each["revision"], each["role"], each["phase"], amount(each["planBytes"]),
            str(each["requests"]), str(each["inFlight"]), f"{each['ttftMs']:.1f}", f"{each['tpotMs']:.2f}",
            f"{each['acceptLength']:.2f}" if "acceptLength" in each else "-",
            str(each["deaths"]), each.get("lastExit", "-"),
        )
        for each in status["engines"]
    ]  # fmt: skip
    if engines:
        head = (
            "ENGINE",
            "REVISION",
            "ROLE",
            "PHASE",
            "PLAN",
            "REQUESTS",
            "NOW",
            "TTFT ms",
            "TPOT ms",
            "ACCEPT",
            "DEATHS",
            "EXIT",
        )
        yield from (f"  {line}" for line in _columns(head, engines))
    sets = [
        (f"{each['set'][:12]}..:{each['rank']}", each["role"], each["state"], amount(each["bytes"]),
         f"{each['progress']:.0%}", str(each["holders"]))
        for each in status["weightSets"]
    ]  # fmt: skip
    if sets:
        yield from (f"  {line}" for line in _columns(("WEIGHT SET", "ROLE", "STATE", "SIZE", "DONE", "HOLDERS"), sets))


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]


def amount(count: int) -> str:
    """Bytes for a glance: 512.0 MiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
