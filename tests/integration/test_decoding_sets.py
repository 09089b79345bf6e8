"""Real processes: an engine that decodes otherwise keeps the target's weights and fills the draft's only."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
from hack import spine
from tests.support.processes import PYTHONPATH
from tests.support.speculation import KEYS

from ling_engine.reference import checkpoint
from ling_engine.reference.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)
_SAID = re.compile(r"set=(\S+) role=(\w+) (filled|attached)=")


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[spine.Spine]:
    """Agent and keeper as children, and a checkpoint with both drafts."""
    stage = spine.Spine(tmp_path)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(PRESETS, "tiny", {**KEYS, "vocab_size": 264})
            checkpoint.make_model(stage.model, "tiny", drafts=("nextn", "dspark"), accept=0.8)
        agent = ["-m", "ling_nodeagent", "serve", "--static", str(stage.static), "--run-dir", str(stage.run)]
        start(stage, "agent", *agent)
        spine.until(lambda: (stage.run / "d" / "d002" / "fd.sock").exists(), "the agent's folders")
        env = {"LING_RUN": str(stage.run / "d" / "d000"), "LING_PORT": str(stage.port), "LING_ADDRESS": "127.0.0.1"}
        start(stage, "keeper", "-m", "ling_nodeagent.keeper", **env, LING_PROBE_PORT=str(spine.free_port()))
        spine.until(lambda: stage.status().get("listener"), "the keeper's listener")
        yield stage
    finally:
        stage.end()


def start(stage: spine.Spine, name: str, *argv: str, **env: str) -> None:
    stage.start(name, sys.executable, *argv, PYTHONPATH=PYTHONPATH, **env)


def fill(stage: spine.Spine, pod: str, device: str, *flags: str) -> dict[str, tuple[str, str]]:
    """role -> (set, filled or attached), after an engine came, attached and went."""
    caller = f'{{pod: {pod}, uid: u-{pod}, slot: try-0, component: engine, revision: "{spine.REVISION}"}}'
    new = stage.static.with_suffix(".new")
    new.write_text(f"{stage.static.read_text()}  {device}: {caller}\n")
    new.replace(stage.static)
    argv = ["-m", "ling_engine", "fill", "--model", str(stage.model), "--revision", spine.REVISION]
    argv += ["--run-dir", str(stage.run / "d" / device), "--probe-port", "0", *flags]
    start(stage, pod, *argv)
    code = stage.processes[pod].wait(120)
    log = (stage.folder / f"{pod}.log").read_text()
    assert code == 0, log
    return {role: (name, how) for name, role, how in _SAID.findall(log)}


def test_another_decoding_keeps_the_target_and_fills_its_draft_only(slot: spine.Spine) -> None:
    first = fill(slot, "one", "d001", "--decoding", "NEXTN")
    assert {role: how for role, (_, how) in first.items()} == {"target": "filled", "nextn": "filled"}
    second = fill(slot, "two", "d002", "--decoding", "DSPARK")
    assert {role: how for role, (_, how) in second.items()} == {"target": "attached", "dspark": "filled"}
    assert second["target"][0] == first["target"][0]
    third = fill(slot, "three", "d003", "--decoding", "NEXTN", "--num-steps", "2")
    assert {role: how for role, (_, how) in third.items()} == {"target": "attached", "nextn": "attached"}
    fourth = fill(slot, "four", "d004")
    assert fourth == {"target": (first["target"][0], "attached")}
    held = {one["role"] for one in slot.status()["weightSets"]}
    assert "target" in held
