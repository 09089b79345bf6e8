"""`ling-engine` as a child of a test, with the stand-in runtime."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import psutil
from tests.support.processes import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REV = "0123abcd"


class Engine:
    """`ling-engine COMMAND` as a child of the test."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        *flags: str,
        command: str = "run",
        revision: str = REV,
        gates: Path | None = None,
    ) -> None:
        self._argv = [command, "--model", str(model), "--revision", revision]
        self._argv += ["--run-dir", str(folder)]
        self._argv += ["--probe-port", "0", "--runtime", "tests.support.standin:RUNTIME", *flags]
        self._gates = gates
        self.process: asyncio.subprocess.Process = None  # type: ignore[assignment]
        self.log = ""

    async def start(self) -> Engine:
        env = {**os.environ, "PYTHONPATH": f"{PYTHONPATH}{os.pathsep}{ROOT}"}
        if self._gates is not None:
            env["LING_STANDIN_GATES"] = str(self._gates)
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ling_engine", *self._argv, env=env, stderr=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line.decode()

    async def exit(self) -> int:
        async with asyncio.timeout(90):
            code = await self.process.wait()
            await self._reading
            return code

    async def kill(self) -> None:
        """Ends all of it, whatever state it is in."""
        for name in ("ling-server", "ling-zygote"):
            if pid := self.pid(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process.returncode is None:
            self.process.kill()
        await self.exit()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def send(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends it to the zygote or the server, which must live; its pid."""
        pid = self.pid(name)
        assert pid, f"no {name} lives: {self.log}"  # 0 would be the group of whoever runs the test
        os.kill(pid, number)
        return pid

    def pid(self, name: str) -> int:
        """Of the zygote or the server, by the name that it gave itself; 0 when there is none."""
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # another one, which has just ended
                if child.name() == name and child.status() != psutil.STATUS_ZOMBIE:
                    return child.pid
        return 0

    def probes(self) -> int:
        return int(self.log.split("probes=")[1].split()[0])


async def until(look: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
    try:
        async with asyncio.timeout(seconds):
            while not (found := look()):
                await asyncio.sleep(0.01)
            return found
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s in vain for: {what}") from None
