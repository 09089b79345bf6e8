"""Programs with the real SGLang in them, forked from one process that has imported it: the import is paid once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import sglang_site
from tests.support.nursery import Nursery

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED = (
    *("sglang.srt.managers.scheduler", "sglang.srt.models.bailing_moe_v3", "sglang.srt.models.bailing_moe_nextn"),
    *("sglang.srt.models.dspark", "sglang.benchmark.one_batch"),
)


def require() -> None:
    """Skips when SGLang's environment is not there; where tests run unattended it has to be."""
    if sglang_site.PYTHON.exists():
        return
    what = f"SGLang is not installed in {sglang_site.PYTHON.parents[1]}; install it there by: hack/bootstrap sglang"
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


class Lane:
    """Starts programs by the name of their module; each logs to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nursery = Nursery(*IMPORTED, python=sglang_site.PYTHON, env=sglang_site.environment(folder / "site"))
        self._started = 0

    def start(self, program: str, *argv: str, env: dict[str, str] | None = None) -> Running:
        self._started += 1
        log = self._folder / f"{self._started}-{program.rpartition('.')[2]}.log"
        log.touch()
        return Running(self._nursery, self._nursery.start(program, argv, env or {}, log), log)

    def run(self, program: str, *argv: str, env: dict[str, str] | None = None, seconds: float = 500) -> None:
        """Until it ends, which must be well."""
        running = self.start(program, *argv, env=env)
        assert running.wait(seconds) == 0, running.tail()

    def close(self) -> None:
        self._nursery.close()


def told_by(program: str) -> Any:
    """A fixture `told`: what a program writes as JSON into the file that is its only argument, run once a module."""

    @pytest.fixture(scope="module", name="told")
    def told(lane: Lane, tmp_path_factory: pytest.TempPathFactory) -> Any:
        result = tmp_path_factory.mktemp(program.rpartition(".")[2]) / "told.json"
        lane.run(program, str(result))
        return json.loads(result.read_text())

    return told


class Running:
    """A program that was started, the leader of a process group of its own."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self._nursery, self.pid, self.log = nursery, pid, log

    def wait(self, seconds: float = 500) -> int:
        """Its exit code, that of a signal as a shell says it."""
        return self._nursery.reap(self.pid, seconds)

    def end(self) -> None:
        """Kills it, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]
