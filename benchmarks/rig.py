"""The spine as plain processes for the benchmarks: agent, keeper, one engine; and the moments that its logs tell.

Everything is what the product runs: `ling-nodeagent serve`, the keeper, `ling-engine run` with the reference runtime.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.ports import free_port
from hack.spine import BIN, REVISION, Spine, children, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHE = Path(os.environ.get("LING_CACHE", Path.home() / ".cache" / "ling")) / "bench"
STATIC = f"""
slots:
  bench-0: {{deployment: bench, revision: {REVISION}, capacity: 8Gi, graceSeconds: 10, holdSeconds: 600}}
callers:
  d000: {{pod: bench-0, uid: u0, slot: bench-0, component: slot}}
  d001: {{pod: one, uid: u1, slot: bench-0, component: engine, revision: {REVISION}}}
"""
PHASES = ("opened", "answered", "fetched", "read", "mapped", "bound", "checked", "attached", "warm", "accepting")


def model(preset: str) -> Path:
    """A random checkpoint of that size, made once and kept."""
    folder = CACHE / preset
    if not (folder / "config.json").exists():
        argv = [str(BIN / "ling-engine"), "make-model", str(folder), "--preset", preset, "--force"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return folder


class Rig(Spine):
    """One slot on this machine; engine `one` on d001."""

    def begin(self, preset: str) -> None:
        """Agent, keeper and engine; returns once the engine serves."""
        self.model = model(preset)
        static = self.folder / "static.yaml"
        static.write_text(STATIC)
        self.start("agent", str(BIN / "ling-nodeagent"), "serve", "--static", str(static), "--run-dir", str(self.run))
        until(lambda: (self.run / "d" / "d001" / "fd.sock").exists(), "the agent's folders")
        env = {"LING_RUN": str(self.run / "d" / "d000"), "LING_PORT": str(self.port), "LING_ADDRESS": "127.0.0.1"}
        self.start("keeper", sys.executable, "-m", "ling_nodeagent.keeper", **env, LING_PROBE_PORT=str(free_port()))
        self.engine("one", "d001")
        until(lambda: self.status().get("active", {}).get("pod") == "one", "the engine to serve", 240)

    def settled(self) -> None:
        """Waits until the agent knows that this server has answered: its next death is then the first again."""
        self.complete(1)
        until(lambda: self.engine_status("one").get("requests"), "the agent to hear of the answer")

    def kill_server(self) -> float:
        """SIGKILL; the wall-clock time of it."""
        pid = self.server_pid("one")
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        return killed

    def kill_launcher(self) -> float:
        """SIGKILL to PID 1 of the engine pod, as the kernel then does to all of the container; waits for the end."""
        launcher = self.processes["one"]
        all_pids = [launcher.pid, *(each for each in children(launcher.pid)), self.server_pid("one")]
        killed = time.time()
        for pid in all_pids:
            os.kill(pid, signal.SIGKILL)
        launcher.wait()
        return killed

    def first_token(self, tokens: int = 1) -> float:
        """Sends a streaming request; the wall-clock time of its first token."""
        return self.stream(tokens)[0]

    def stream(self, tokens: int) -> list[float]:
        """The wall-clock time of every token of a streamed completion."""
        body = {"model": "try", "prompt": "12345678", "max_tokens": tokens, "temperature": 0, "stream": True}
        times = []
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(answer.read())
            while line := answer.readline():
                if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                    times.append(time.time())
        return times

    def phases(self) -> dict[str, float]:
        """Of the live server, milliseconds since its fork; waits until it accepts."""
        until(lambda: "accepting" in self.engine_status("one").get("phases", {}), "the server to accept")
        found: dict[str, Any] = self.engine_status("one")["phases"]
        return {name: float(value) for name, value in found.items()}

    def moment(self, log: str, text: str, after: float) -> float:
        """When a line with that pattern was logged first after `after` (both wall clock, s; of a line: to 1 ms)."""
        pattern = re.compile(text)
        clock = re.compile(r"(\d\d):(\d\d):(\d\d)[.,](\d\d\d)")
        midnight = datetime.datetime.fromtimestamp(after).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        for line in (self.folder / f"{log}.log").read_text(errors="replace").splitlines():
            stamp = clock.search(line)
            if stamp is None or not pattern.search(line):
                continue
            hours, minutes, seconds, milliseconds = map(int, stamp.groups())
            when = midnight + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
            if when >= after - 0.001:
                return when
        raise AssertionError(f"{log}.log has no line {text!r} after the event")


def rig(preset: str) -> contextlib.AbstractContextManager[Rig]:
    """A slot that serves that preset; everything ends with the block."""
    return begun(Rig, lambda made: made.begin(preset))


@contextlib.contextmanager
def begun[R: Rig](kind: type[R], begin: Callable[[R], None]) -> Iterator[R]:
    """Processes in a folder of their own, begun; everything ends with the block, and an error tells the logs."""
    with tempfile.TemporaryDirectory(prefix="ling-bench-") as folder:
        made = kind(Path(folder))
        try:
            begin(made)
            yield made
        except BaseException:
            for log in sorted(Path(folder).glob("*.log")):
                sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}\n")
            raise
        finally:
            made.end()
