"""The parts that time: token to token in turns, restarts by kind, one engine beside another, the driver alone."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from . import parity, timing
from .asking import Failed
from .lab import ROOT, gpu_mib
from .parity import prompts
from .stock import Stock

if TYPE_CHECKING:
    from .lab import Slot
    from .parity import Pair
    from .stage import Stage


def turns(stage: Stage) -> None:
    """TPOT of attached and disk-loaded engines in turns, one mode after the other."""
    for mode in stage.modes:
        with stage.report.part(f"{mode} TPOT pairs"):
            pair = stage.pairs.get(mode)
            if pair is None or pair.stock is None or pair.slot is None:
                raise Failed("needs the engines of the part `equal`")
            timing.pairs(stage.report, pair, stage.args.pairs, prompt=1024, new=stage.args.long)


def restarts(stage: Stage) -> None:
    """Respawn, go, container restart and a stock start, one at a time and nothing else running; by phase."""
    stage.drop_stock()
    lab, report = stage.lab, stage.report
    for mode in stage.modes:
        with report.part(f"{mode} restarts"):
            pair = stage.pair(mode)
            stage.drop_ours(mode)
            slot = pair.slot
            if slot is None:
                raise Failed("no slot")
            times = [parity.respawn(report, pair) for _ in range(stage.args.repeats)]
            report.row(f"{mode} respawns alone, s", [round(one, 2) for one in times], "< 5 s", max(times) < 5)
            lab.stop(pair.pod)
            began = time.monotonic()
            slot.again(pair.pod)
            first = slot.ask(prompts()[0], 1).times[0] - began
            slot.serves(pair.pod, 60)
            name = f"{mode} container restart to first token"
            report.row(name, first, "< 20 s", first < 20, phases=slot.phases(pair.pod))
            private(stage, slot, pair, mode)
            if mode == stage.args.closest:
                go(stage, slot, pair, mode)
                stock_alone(stage, mode)
            lab.stop(pair.pod)


def private(stage: Stage, slot: Slot, pair: Pair, mode: str) -> None:
    """What the engine holds beside weights, against its plan; nothing else runs."""
    held = sum(weights(one) for one in stage.lab.slots.values()) / (1 << 20)
    plan = slot.engine_status(pair.pod).get("planBytes", 0) / (1 << 20)
    found = gpu_mib() - stage.idle_mib - held
    stage.report.row(f"{mode} private GPU MiB", found, f"<= {plan:.0f}, the plan", found <= plan if plan else None)


def go(stage: Stage, slot: Slot, pair: Pair, mode: str) -> None:
    """A gated launcher stands by; the active pod dies whole."""
    second = f"gated-{mode}".lower()
    slot.engine(second, stage.model, mode)
    gated = lambda: slot.engine_status(second).get("role") == "gated"  # noqa: E731
    stage.lab.until(gated, "the second to be gated", 120, second)
    killed = time.monotonic()
    stage.lab.stop(pair.pod)
    first = slot.ask(prompts()[0], 1).times[0] - killed
    slot.serves(second, 60)
    name = f"{mode} go: SIGKILL of the pod to first token of the gated"
    stage.report.row(name, first, "< 5 s", first < 5, phases=slot.phases(second))
    stage.lab.stop(second)


def stock_alone(stage: Stage, mode: str) -> None:
    if stage.lab.runtime != "sglang":
        return
    stock = Stock(stage.lab, f"stock-alone-{mode}".lower(), stage.model, mode)
    ready = stock.ready(stage.args.patience)
    first = stock.ask(prompts()[0], 1).times[0] - stock.began
    told = re.findall(r"Engine startup timings \(s\): (.*)", stage.lab.log(stock.name))
    said = [round(ready, 1), round(first, 1)]
    stage.report.row(f"{mode} stock start to ready and to first token, bytecode there", said, phases=told)
    stock.stop()


def beside(stage: Stage) -> None:
    """An active engine alone, beside one that is gated, warming, parked; memory of both."""
    mode = "NEXTN" if "NEXTN" in stage.modes else stage.modes[0]
    stage.drop_stock()
    pair, lab, report = stage.pair(mode), stage.lab, stage.report
    stage.drop_ours(mode)
    slot = pair.slot
    if slot is None:
        raise Failed("no slot")
    second = f"second-{mode}".lower()

    busy = timing.Decoding(slot, stage.args.long)
    turns = timing.Turns(busy)
    try:
        for number in range(stage.args.rounds):
            turns.take("alone", lambda: time.sleep(stage.args.window))
            alone = gpu_mib()  # what ended before the first window is gone
            if number:
                slot.again(second)
            else:
                slot.engine(second, stage.model, mode)
            one_round(stage, turns, slot, second)
            if number + 1 < stage.args.rounds:
                lab.warm_standby(slot.name, wanted=False)
                lab.stop(second)
        with_second = gpu_mib()
        lab.stop(second)
        turns.take("alone", lambda: time.sleep(stage.args.window))
    finally:
        busy.end()
        timing.told(report, mode, turns)  # of the rounds there were, also when time was over
    if busy.failed:
        raise Failed(f"an answer failed meanwhile: {busy.failed[0]}")
    second_mib = with_second - alone
    failover(stage, slot, pair.pod, second)
    held = weights(slot) / (1 << 20)
    report.row("a second engine of the slot: GPU MiB more", second_mib, f"< {held / 2:.0f}", second_mib < held / 2)
    report.row("one copy of the weights, MiB", held)


def one_round(stage: Stage, turns: timing.Turns, slot: Slot, second: str) -> None:
    """The second engine is on its way: beside one that is gated, one that warms up, one that is parked."""
    lab = stage.lab

    def until(role: str) -> None:
        lab.until(lambda: slot.engine_status(second).get("role") == role, f"the second to be {role}", 90, second)

    until("gated")
    turns.take("gated", lambda: time.sleep(stage.args.window))

    def warming() -> None:
        lab.warm_standby(slot.name)
        until("warm")

    turns.take("warming", warming)
    turns.take("parked", lambda: time.sleep(stage.args.window))


def failover(stage: Stage, slot: Slot, active: str, second: str) -> None:
    """SIGKILL of the active server while a warm one stands by."""
    lab = stage.lab
    slot.again(second)
    lab.until(lambda: slot.engine_status(second).get("role") == "warm", "the second to be warm", 90, second)
    killed = slot.kill_server(active)
    first = slot.ask(prompts()[0], 1).times[0] - killed
    stage.report.row("failover to a warm standby: SIGKILL to first token, s", first, "< 0.2 s", first < 0.2)
    lab.stop(second)
    lab.warm_standby(slot.name, wanted=False)


def weights(slot: Slot) -> int:
    """Bytes of the sets that the slot holds."""
    return sum(int(one.get("bytes", 0)) for one in slot.status().get("weightSets", []))


def driver(stage: Stage) -> None:
    """60 GiB: import, map, set access, checksum, without SGLang."""
    argv = [sys.executable, "-m", "benchmarks.cuda_attach", "60"]
    done = subprocess.run(argv, env=stage.lab.env, cwd=ROOT, capture_output=True, text=True, timeout=120)
    for line in done.stdout.splitlines():
        name, value, *rest = line.split()
        stage.report.row(f"60 GiB {name}", " ".join([value, *rest]))
    if done.returncode:
        raise Failed(done.stderr[-400:])
