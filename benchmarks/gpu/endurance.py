"""The parts that break things: bits, processes at every step; and what is left at the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .asking import Failed
from .lab import ROOT, Lab, gpu_mib
from .parity import prompts

if TYPE_CHECKING:
    from .asking import Answer
    from .lab import Slot
    from .stage import Stage


def bits(stage: Stage) -> None:
    """One flipped bit in a tensor of each kind is found; a set left wrong is condemned and filled again by itself."""
    mode = "NEXTN" if "NEXTN" in stage.modes else stage.modes[0]
    pair, lab, report = stage.pair(mode), stage.lab, stage.report
    slot = pair.slot
    if slot is None:
        raise Failed("no slot")
    keeper = lab.processes[f"keeper-{slot.name}"].pid
    argv = [sys.executable, "-m", "benchmarks.gpu.flip", "--keeper", str(keeper), "--leave", "target"]
    done = subprocess.run(argv, env=lab.env, cwd=ROOT, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise Failed(f"flip: {done.stderr[-600:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    kinds = told["kinds"]
    report.row("flipped bits found, kinds", f"{sum(v == 'found' for v in kinds.values())} of {len(kinds)}", "all",
               bool(kinds) and all(v == "found" for v in kinds.values()), told=told)  # fmt: skip
    before = slot.server(pair.pod)
    killed = slot.kill_server(pair.pod)
    answer = slot.ask(prompts()[0], stage.args.new)
    report.row("after a flipped bit: SIGKILL to the first right token, s", answer.times[0] - killed)
    wanted = stage.expected.get(mode)
    right = bool(wanted) and answer.tokens == wanted[0].tokens if wanted else None
    report.row("after a flipped bit: the next start answers right", answer.tokens[:8], "as before", right)
    lab.until(lambda: slot.server(pair.pod) not in (0, before), "a new server", 60, pair.pod)
    phases = slot.phases(pair.pod)
    report.row("after a flipped bit: filled again", "filling" in phases, "yes", "filling" in phases, phases=phases)


def deaths(stage: Stage) -> None:
    """SIGKILL of each process at each step: the weights stay, or are filled once more; nobody sees an unsealed set."""
    lab, report = stage.lab, stage.report
    mode = "NEXTN" if "NEXTN" in stage.modes else stage.modes[0]
    slot = lab.slot("deaths")
    pod = "ours-deaths"
    slot.engine(pod, stage.model, mode)
    last = ""
    for step in ("filling", "stored", "loaded", "sealed"):
        with report.part(f"death of a filler at {step}"):
            last = dies_at(lab, slot, pod, step, last)
            report.row(f"filler killed at {step}: another comes", last, "a new server", True)
    slot.serves(pod, stage.args.patience)
    wanted = slot.ask(prompts()[0], 32).tokens
    without_cuda(stage)
    for who in ("server", "rank", "launcher", "agent", "keeper", "keeper and server", "agent and server"):
        with report.part(f"death of {who}"):
            began = time.monotonic()
            if who == "rank":
                rank_dies(stage, slot, pod)
            else:
                kill(stage, slot, pod, who)
            answer = asked(slot, 32)
            slot.serves(pod, 60)
            phases = slot.phases(pod)
            ok = answer.tokens == wanted and not any(name.endswith("filling") for name in phases)
            value = f"{answer.times[0] - began:.2f} s to a token"
            report.row(f"death of {who}: attached again, same answer", value, "yes", ok, phases=phases)
    lab.stop(pod)


def without_cuda(stage: Stage) -> None:
    """Agent and keeper hold descriptors of the GPU's memory, and nothing else of it: no CUDA library, so no context."""
    holders = {name: one.pid for name, one in stage.lab.processes.items() if name == "agent" or "keeper" in name}
    found = [name for name, pid in holders.items() if "libcuda" in Path(f"/proc/{pid}/maps").read_text()]
    stage.report.row("agent and keeper: those with a CUDA library", found or 0, "0", not found, holders=list(holders))


def dies_at(lab: Lab, slot: Slot, pod: str, step: str, last: str) -> str:
    """Kills the server that has reached a step; the pid of the next one, as text."""

    def reached() -> bool:
        new = str(slot.server(pod)) not in ("0", last) or not last
        return new and any(name.endswith(step) for name in slot.phases(pod))

    lab.until(reached, f"the step {step}", 120, pod)
    before = slot.server(pod)
    slot.kill_server(pod)
    lab.until(lambda: slot.server(pod) not in (0, before), "the next server", 60, pod)
    return str(before)


def asked(slot: Slot, new: int) -> Answer:
    """The first answer: a request that was accepted by a dying server fails, so ask again."""
    for _ in range(3):
        with contextlib.suppress(OSError, Failed, http.client.HTTPException):
            return slot.ask(prompts()[0], new)
    return slot.ask(prompts()[0], new)


def kill(stage: Stage, slot: Slot, pod: str, who: str) -> None:
    lab = stage.lab
    if who == "launcher":
        lab.stop(pod)
        slot.again(pod)
    if "agent" in who:
        lab.stop("agent")
        lab.agent()
    if "keeper" in who:
        lab.stop(f"keeper-{slot.name}")
        slot.keeper()
    if "server" in who:
        slot.kill_server(pod)


def rank_dies(stage: Stage, slot: Slot, pod: str) -> None:
    """SIGKILL of a rank: from the kernel's word on, how soon its server ends, and the agent calls it active no more."""
    server, rank = slot.server(pod), slot.ranks(pod)[0]
    watched = {name: os.pidfd_open(pid) for name, pid in (("rank", rank), ("server", server))}
    gone: dict[str, float] = {}
    os.kill(rank, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while len(gone) < 3 and time.monotonic() < deadline:
        ready, _, _ = select.select([fd for name, fd in watched.items() if name not in gone], [], [], 0.001)
        gone |= {name: time.monotonic() for name, fd in watched.items() if fd in ready}
        if "rank" in gone and "agent" not in gone and slot.engine_status(pod).get("role") != "active":
            gone["agent"] = time.monotonic()
    for fd in watched.values():
        os.close(fd)
    if len(gone) < 3:
        raise Failed(f"10 s after a rank's SIGKILL only these knew: {sorted(gone)}")
    began = gone["rank"]
    for name, goal in (("server", "the server's end"), ("agent", "the agent's word")):
        took = (gone[name] - began) * 1000
        stage.report.row(f"a rank's death to {goal}, ms", took, "<= 50", took <= 50)


def end(stage: Stage) -> None:
    """Everything ends: no byte is left on the GPU."""
    stage.lab.end()
    deadline = time.monotonic() + 10
    while gpu_mib() > stage.idle_mib and time.monotonic() < deadline:
        time.sleep(0.2)
    left = gpu_mib() - stage.idle_mib
    stage.report.row("GPU MiB left when all has ended", left, "0", left <= 0)
