"""A slot without a cluster whose checkpoint has both drafts, right most of the time: agent and keeper as processes."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import pytest
from hack import spine
from hack.ports import free_port
from tests.support.processes import PYTHONPATH
from tests.support.speculation import KEYS

from ling_engine.reference import checkpoint
from ling_engine.reference.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def slot(folder: Path) -> Iterator[spine.Spine]:
    """Everything ends with the block."""
    stage = spine.Spine(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(PRESETS, "tiny", {**KEYS, "vocab_size": 264})
            checkpoint.make_model(stage.model, "tiny", drafts=("nextn", "dspark"), accept=0.8)
        agent = ["-m", "ling_nodeagent", "serve", "--static", str(stage.static), "--run-dir", str(stage.run)]
        start(stage, "agent", *agent)
        spine.until(lambda: (stage.run / "d" / "d002" / "fd.sock").exists(), "the agent's folders")
        env = {"LING_RUN": str(stage.run / "d" / "d000"), "LING_PORT": str(stage.port), "LING_ADDRESS": "127.0.0.1"}
        start(stage, "keeper", "-m", "ling_nodeagent.keeper", **env, LING_PROBE_PORT=str(free_port()))
        spine.until(lambda: stage.status().get("listener"), "the keeper's listener")
        yield stage
    finally:
        stage.end()


def start(stage: spine.Spine, name: str, *argv: str, **env: str) -> None:
    """`python ARGV` of this environment."""
    stage.start(name, sys.executable, *argv, PYTHONPATH=PYTHONPATH, **env)


def engine(stage: spine.Spine, pod: str, device: str, command: str, *flags: str) -> None:
    """`ling-engine run` or `fill` as the pod that has this device."""
    caller = f'{{pod: {pod}, uid: u-{pod}, slot: try-0, component: engine, revision: "{spine.REVISION}"}}'
    new = stage.static.with_suffix(".new")
    new.write_text(f"{stage.static.read_text()}  {device}: {caller}\n")
    new.replace(stage.static)
    argv = ["-m", "ling_engine", command, "--model", str(stage.model), "--revision", spine.REVISION]
    argv += ["--run-dir", str(stage.run / "d" / device), "--probe-port", "0", *flags]
    start(stage, pod, *argv)
