"""The parts that start an engine as a pod would be: in namespaces of its own, with kernels that the node keeps."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api import names

from .asking import Failed
from .parity import prompts

if TYPE_CHECKING:
    from .lab import Lab, Slot
    from .parity import Pair
    from .stage import Stage

KINDS = ("pid", "ipc", "net")
_UID = 12345
_APART = (sys.executable, "-m", "benchmarks.gpu.apart")


def apart(stage: Stage) -> None:
    """An engine in namespaces of its own and as another user attaches what was filled outside of them; it stays."""
    pair, slot = closest(stage)
    lab = stage.lab
    wanted = slot.ask(prompts()[0], 32).tokens
    lab.stop(pair.pod)
    subprocess.run(["chmod", "-R", "a+rwX", str(lab.kernels), str(lab.run), str(lab.work)], check=False)
    kernels = compiled(lab.kernels)
    slot.again(pair.pod, *_APART, str(_UID), **keeps(lab))
    lab.until(lambda: slot.reached(pair.pod, "attached"), "the weights to be attached", stage.args.patience, pair.pod)
    phases, pid = slot.phases(pair.pod), slot.server(pair.pod)
    spaces = {kind: Path(f"/proc/{pid}/ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink()
              for kind in KINDS}  # fmt: skip
    uid = Path(f"/proc/{pid}").stat().st_uid
    ok = all(spaces.values()) and uid == _UID and not any(name.endswith("filling") for name in phases)
    name = "own PID, IPC, network namespaces and another uid"
    stage.report.row(f"{name}: attached", f"uid {uid}", "yes", ok, phases=phases, spaces=spaces)
    slot.serves(pair.pod, stage.args.patience)
    answer = slot.ask(prompts()[0], 32)
    stage.report.row(f"{name}: same answer", answer.tokens[:8], "yes", answer.tokens == wanted,
                     phases=slot.phases(pair.pod))  # fmt: skip
    new = sorted(compiled(lab.kernels) - kernels)
    stage.report.row(f"{name}: kernels compiled anew", len(new), "0", not new, new=new[:40])


def new_pod(stage: Stage) -> None:
    """A pod that was never there before: its folder of compiled kernels is empty, and the agent fills it."""
    pair, slot = closest(stage)
    stage.drop_stock()
    stage.drop_ours(pair.mode)
    lab, mode = stage.lab, pair.mode
    wanted = slot.ask(prompts()[0], 32).tokens
    store = lab.run / "jit"
    if not kept(store):
        if not lab.keeping:
            lab.stop(pair.pod)
            slot.again(pair.pod, **keeps(lab))
            slot.serves(pair.pod, stage.args.patience)
        lab.until(lambda: kept(store), "the agent to keep an engine's kernels", 100, pair.pod)
    lab.stop(pair.pod)
    pod = f"new-{mode}".lower()
    began = time.monotonic()
    slot.engine(pod, stage.model, mode, before=(*_APART, "--empty", str(lab.kernels), str(_UID)), **keeps(lab))
    answer = slot.ask(prompts()[0], 32)
    took = answer.times[0] - began
    slot.serves(pod, stage.args.patience)
    inside = Path(f"/proc/{slot.server(pod)}/root{lab.kernels}")
    new = sorted(compiled(inside) - compiled(lab.kernels))
    name = f"{mode} new pod with the node's kernels to first token"
    stage.report.row(name, took, "< 20 s", took < 20 and answer.tokens == wanted, phases=slot.phases(pod),
                     archive=[file.stat().st_size for file in kept(store)])  # fmt: skip
    stage.report.row(f"{mode} new pod: kernels compiled anew", len(new), "0", not new, new=new[:40])
    lab.stop(pod)


def closest(stage: Stage) -> tuple[Pair, Slot]:
    """The engine that is looked at from all sides, serving. Raises Failed."""
    pair = stage.pair(stage.args.closest)
    if pair.slot is None:
        raise Failed("no slot")
    return pair, pair.slot


def keeps(lab: Lab) -> dict[str, str]:
    """What makes a launcher exchange compiled kernels with its agent."""
    lab.keeping = True
    return {names.ENV_CACHE_DIR: str(lab.kernels)}


def kept(store: Path) -> list[Path]:
    """Archives of the agent that are whole."""
    return [file for file in store.rglob("*") if file.is_file() and not file.name.startswith(".")]


def compiled(folder: Path) -> set[str]:
    """What lies in the folder of compiled kernels."""
    kinds = {".so", ".cubin", ".o", ".ptx"}
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.suffix in kinds}
