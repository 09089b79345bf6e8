"""Stock SGLang from disk, ours filling, ours attaching: the same tokens, the same rounds, the same pools."""

from __future__ import annotations

import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_engine.reference.randoms import TEXT

from . import ties
from .asking import Answer, Failed, get
from .stock import Stock

if TYPE_CHECKING:
    from pathlib import Path

    from .lab import Lab, Slot
    from .report import Report

LEAST = {"None": 0.0, "NEXTN": 2.5, "DSPARK": 3.5}  # accept length that makes a comparison mean something


@dataclass(slots=True)
class Pair:
    """What a mode's engines are, once they serve."""

    mode: str
    stock: Stock | None
    slot: Slot | None
    pod: str

    @property
    def engine(self) -> Slot | Stock | None:
        """One of them."""
        return self.slot or self.stock


def prompts(count: int = 8, seed: int = 1) -> list[list[int]]:
    """Of ids that the checkpoints treat as text; the last is long (LING_LONGEST tokens: a CPU reads slowly)."""
    drawing = random.Random(seed)
    longest = int(os.environ.get("LING_LONGEST", "700"))
    lengths = [min(drawing.randint(8, 160), longest) for _ in range(count - 1)] + [longest]
    return [[drawing.choice(TEXT) for _ in range(length)] for length in lengths]


def answers(engine: Stock | Slot, new: int) -> list[Answer]:
    return [engine.ask(prompt, new) for prompt in prompts()]


def ours_alone(lab: Lab, report: Report, model: Path, mode: str, *, patience: float) -> Pair:
    """Our engine of a mode, without a stock one; the container again where there was one. Raises Failed."""
    name, pod = mode.lower(), f"ours-{mode}".lower()
    slot = lab.slots.get(name) or lab.slot(name)
    began = time.monotonic()
    if pod in slot.flags:
        slot.again(pod)
    else:
        slot.engine(pod, model, mode)
    slot.serves(pod, patience)
    report.row(f"{mode} start of ours", time.monotonic() - began, phases=slot.phases(pod))
    return Pair(mode=mode, stock=None, slot=slot, pod=pod)


def start(lab: Lab, report: Report, model: Path, mode: str, *, patience: float, tag: str = "") -> Pair:
    """Disk-loaded and filling engines of a mode, at the same time; each may fail by itself."""
    pod = f"{tag}ours-{mode}".lower()

    def disk() -> Stock | None:
        if lab.runtime == "reference":
            return None
        stock = Stock(lab, f"{tag}stock-{mode}".lower(), model, mode)
        with report.part(f"{mode} disk-loaded start"):
            report.row(f"{mode} disk-loaded ready", stock.ready(patience))
            return stock
        return None

    def ours() -> Slot | None:
        with report.part(f"{mode} filling start"):
            began = time.monotonic()
            slot = lab.slot(f"{tag}{mode}".lower())
            slot.engine(pod, model, mode)
            slot.serves(pod, patience)
            report.row(f"{mode} filling serves", time.monotonic() - began, phases=slot.phases(pod))
            return slot
        return None

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(disk), pool.submit(ours)
        return Pair(mode=mode, stock=one.result(), slot=two.result(), pod=pod)


def compare(report: Report, what: str, found: list[Answer], wanted: list[Answer]) -> None:
    """Tokens and rounds, position by position."""
    firsts = [first_difference(one, two) for one, two in zip(found, wanted, strict=True)]
    same = [one is None for one in firsts]
    more = {} if all(same) else {"first_difference": firsts, "answers": [spelled(found), spelled(wanted)]}
    report.row(f"{what}: equal answers", f"{sum(same)} of {len(same)}", "all", all(same), **more)
    rounds = [one.rounds == two.rounds for one, two in zip(found, wanted, strict=True)]
    report.row(f"{what}: equal rounds", f"{sum(rounds)} of {len(rounds)}", "all", all(rounds))


def first_difference(one: Answer, two: Answer) -> int | None:
    """The first position with different tokens (the shorter one's end counts); None = equal."""
    if one.tokens == two.tokens:
        return None
    pairs = enumerate(zip(one.tokens, two.tokens, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one.tokens), len(two.tokens)))


def spelled(found: list[Answer]) -> list[str]:
    """Tokens as lines of a report."""
    return [" ".join(map(str, one.tokens)) for one in found]


def differ(report: Report, what: str, found: list[Answer], wanted: list[Answer], judge: Stock | Slot | None) -> None:
    """Engines that verify other drafts, or none: how far their greedy answers agree; both are kept.

    No goal but that they part at near ties, as `judge` sees it: in bf16 the target's scores for a row depend on the
    rows that are computed with it.
    """
    firsts = [first_difference(one, two) for one, two in zip(found, wanted, strict=True)]
    equal = sum(one is None for one in firsts)
    value = f"{equal} of {len(firsts)} equal; first difference at {firsts}"
    report.row(f"{what}: answers", value, found=spelled(found), wanted=spelled(wanted))
    if judge is not None and judge.lab.runtime == "sglang":
        pairs = [(one.tokens, two.tokens) for one, two in zip(found, wanted, strict=True)]
        with report.part(f"{what}: near ties"):
            ties.told(report, what, judge.port, prompts(), pairs)


def run(lab: Lab, report: Report, pair: Pair, new: int = 256, tag: str = "") -> dict[str, list[Answer]]:
    """Asks the engines that serve; then kills ours, and asks the one that attached."""
    mode, found = f"{tag}{pair.mode}", dict[str, list[Answer]]()
    if pair.stock is not None:
        found["disk"] = answers(pair.stock, new)
        mean = statistics.fmean(one.accept for one in found["disk"])
        least = LEAST[pair.mode]
        report.row(f"{mode} accept length", mean, f">= {least}", mean >= least)
        again = answers(pair.stock, new)
        compare(report, f"{mode} disk-loaded twice", again, found["disk"])
    if pair.slot is None:
        return found
    found["fill"] = answers(pair.slot, new)
    pools = {"fill": tokens(pair.slot.port)}
    took = respawn(report, pair)
    report.row(f"{mode} respawn: SIGKILL to first token", took, "< 5 s", took < 5)
    found["attach"] = answers(pair.slot, new)
    pools["attach"] = tokens(pair.slot.port)
    if pair.stock is not None:
        pools["disk"] = tokens(pair.stock.port)
        compare(report, f"{mode} filling and disk-loaded", found["fill"], found["disk"])
        compare(report, f"{mode} attached and disk-loaded", found["attach"], found["disk"])
    compare(report, f"{mode} attached and filling", found["attach"], found["fill"])
    told = set(pools.values())
    report.row(f"{mode} token pools", pools, "equal", len(told) == 1 and None not in told)
    return found


def respawn(report: Report, pair: Pair) -> float:
    """SIGKILL to the server; seconds to the first token of a request that was sent at once."""
    slot = pair.slot
    if slot is None:
        raise Failed(f"no engine of ours for {pair.mode}")
    before = slot.server(pair.pod)
    killed = slot.kill_server(pair.pod)
    first = slot.ask(prompts()[0], 1).times[0] - killed
    slot.lab.until(lambda: slot.server(pair.pod) not in (0, before), "the next server", 60, pair.pod)
    slot.serves(pair.pod, 60)
    phases = slot.phases(pair.pod)
    by_time = sorted(phases.items(), key=lambda one: one[1])
    report.row(f"{pair.mode} attached: phases ms", {name: round(ms, 1) for name, ms in by_time})
    if any(name.endswith("filling") for name in phases):
        report.row(f"{pair.mode} respawn fills nothing", "filled again", "attached", False)
    for role in ("", "target-", "nextn-", "dspark-"):
        if {f"{role}answered", f"{role}bound"} <= phases.keys():
            loader = phases[f"{role}bound"] - phases[f"{role}answered"]
            report.row(f"{pair.mode} {role}answer to last parameter bound", loader, "<= 100 ms", loader <= 100)
        if {f"{role}read", f"{role}mapped"} <= phases.keys():
            took = phases[f"{role}mapped"] - phases[f"{role}read"]
            report.row(f"{pair.mode} {role}map ms", took, "<= 10 ms", took <= 10)
    return first


def tokens(port: int) -> int | None:
    """Slots of the token pool, as the engine says."""
    info = get(port, "/server_info")
    if not isinstance(info, dict):
        return None
    inside = info.get("internal_states") or [{}]
    return info.get("max_total_num_tokens") or inside[0].get("max_total_num_tokens") or None
