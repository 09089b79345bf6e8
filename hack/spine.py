"""The spine without a cluster: `make try`.

An agent (static mode), a keeper and two engines of the reference runtime as plain processes. The first engine fills the
weights and serves; its server is killed while clients ask; the second attaches the same memory and answers them. Then
the figures. Everything lies in one temporary folder and ends with this program.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.ports import free_port

from ling_api import names
from ling_api.errors import AgentUnreachable
from ling_nodeagent import __main__ as nodeagent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
BEGAN = time.monotonic()
REVISION = "0123abcd"
STATIC = f"""
slots:
  try-0: {{deployment: try, revision: "{REVISION}", capacity: 2Gi, graceSeconds: 10, holdSeconds: 60}}
callers:
  d000: {{pod: try-0, uid: u-keeper, slot: try-0, component: slot}}
"""


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


class Failed(Exception):
    """The spine does not hold; its one line is for the person who looks."""


def until[T](look: Callable[[], T], what: str, seconds: float = 240.0) -> T:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise Failed(f"waited {seconds:.0f} s in vain for: {what}")
        time.sleep(0.01)
    return found


class Spine:
    """The processes, and what is asked of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.model = folder / "model"
        self.port = free_port()
        self.static = folder / "static.yaml"
        self.static.write_text(STATIC)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *argv: str, **env: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
            )

    def engine(self, pod: str, device: str) -> None:
        """Told to the agent first: one that expects pods waits for all of them before it decides anything."""
        caller = f'{{pod: {pod}, uid: u-{pod}, slot: try-0, component: engine, revision: "{REVISION}"}}'
        new = self.static.with_suffix(".new")
        new.write_text(f"{self.static.read_text()}  {device}: {caller}\n")
        new.replace(self.static)
        flags = ["--model", str(self.model), "--revision", REVISION, "--run-dir", str(self.run / "d" / device)]
        flags += ["--probe-port", "0", "--grace-seconds", "10", "--served-model-name", "try"]
        self.start(pod, str(BIN / "ling-engine"), "run", *flags)

    def status(self) -> dict[str, Any]:
        """Of the slot, as the agent tells it; empty until it knows."""
        try:
            slots = nodeagent.ask(self.run / names.STATUS_SOCKET)["slots"]
        except AgentUnreachable:
            return {}
        return next(iter(slots.values()), {})

    def engine_status(self, pod: str) -> dict[str, Any]:
        return next((one for one in self.status().get("engines", []) if one["pod"] == pod), {})

    def server_pid(self, pod: str) -> int:
        """The server is the zygote's child, the zygote the launcher's."""
        for zygote in children(self.processes[pod].pid):
            for server in children(zygote):
                return server
        return 0

    def complete(self, tokens: int = 8) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            body = {"model": "try", "prompt": "The slot stays.", "max_tokens": tokens, "temperature": 0}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            if answer.status != 200:
                raise Failed(f"HTTP {answer.status}: {data.decode(errors='replace')[:200]}")
            return str(json.loads(data)["choices"][0]["text"])

    def end(self) -> None:
        """Engines first, so that they drain; then all the rest."""
        for name in ("one", "two", "keeper", "agent"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20 if name != "keeper" else 2)
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


class Clients:
    """Ask all the time, each request on its own connection; keep when each began, ended, and how."""

    def __init__(self, spine: Spine, count: int = 3) -> None:
        self._spine = spine
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.requests: list[tuple[float, float, str]] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            began, how = time.monotonic(), "answered"
            try:
                self._spine.complete(2)
            except ConnectionRefusedError:
                how = "refused"
            except (OSError, http.client.HTTPException, Failed):
                how = "failed"
            with self._lock:
                self.requests.append((began, time.monotonic(), how))

    def count(self, how: str) -> int:
        with self._lock:
            return sum(one[2] == how for one in self.requests)

    def answered_after(self, when: float) -> float:
        """When the first request was answered that ended after `when`; 0 if none was."""
        with self._lock:
            return min((end for _, end, how in self.requests if how == "answered" and end > when), default=0.0)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def play(spine: Spine, preset: str) -> list[tuple[str, str]]:
    """The story; returns the rows of the closing table."""
    table = prepare(spine, preset)
    first = time.monotonic()
    spine.engine("one", "d001")
    until(lambda: spine.engine_status("one").get("role", "gated") != "gated", "the word to go for the first engine")
    spine.engine("two", "d002")  # it imports meanwhile
    until(lambda: spine.status().get("active", {}).get("pod") == "one", "the first engine to serve")
    text = spine.complete()
    filled = spine.engine_status("one")["phases"]
    say(f"engine one filled the weights and answers: {text!r}")
    table.append(("first start: process to first answer", f"{time.monotonic() - first:.2f} s"))
    table.append(("  of which reading the checkpoint", f"{filled['loaded'] - filled['stored']:.0f} ms"))
    until(lambda: spine.engine_status("two").get("role") == "gated", "the second engine to be gated")
    say("engine two is gated: imported, checked, no weight memory of its own")
    table += kill(spine)
    if spine.complete() != text:
        raise Failed("the second engine answers otherwise than the first")
    say("same prompt, same answer, same bytes")
    return table


def prepare(spine: Spine, preset: str) -> list[tuple[str, str]]:
    made = time.monotonic()
    spine.start("make-model", str(BIN / "ling-engine"), "make-model", str(spine.model), "--preset", preset)
    spine.start(
        "agent", str(BIN / "ling-nodeagent"), "serve", "--static", str(spine.static), "--run-dir", str(spine.run)
    )
    until(lambda: (spine.run / "d" / "d002" / "fd.sock").exists(), "the agent's folders")
    env = {"LING_RUN": str(spine.run / "d" / "d000"), "LING_PORT": str(spine.port), "LING_ADDRESS": "127.0.0.1"}
    spine.start("keeper", sys.executable, "-m", "ling_nodeagent.keeper", **env, LING_PROBE_PORT=str(free_port()))
    until(lambda: spine.status().get("listener"), "the keeper's listener")
    say(f"agent and keeper run; the slot listens on 127.0.0.1:{spine.port}, nobody accepts yet")
    if spine.processes["make-model"].wait():
        raise Failed("make-model failed")
    size = sum(file.stat().st_size for file in spine.model.iterdir())
    say(f"made a random checkpoint of the real architecture: {size / (1 << 20):.0f} MiB")
    return [("checkpoint", f"{size / (1 << 20):.0f} MiB, made in {time.monotonic() - made:.1f} s")]


def kill(spine: Spine) -> list[tuple[str, str]]:
    """SIGKILL under load."""
    clients = Clients(spine)
    try:
        until(lambda: clients.count("answered") >= 10, "answers under load")
        victim = spine.server_pid("one")
        before = clients.count("failed")
        say(f"SIGKILL to the server of engine one (pid {victim}) while 3 clients ask")
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        until(lambda: clients.answered_after(killed + 0.001), "an answer after the kill")
        again = clients.answered_after(killed + 0.001)
        until(lambda: clients.count("answered") >= 30, "more answers")
    finally:
        clients.end()
    status = spine.status()
    serving = status["active"]["pod"]
    phases = next(one for one in status["engines"] if one["pod"] == serving)["phases"]
    say(f"engine {serving} attached and answers; waiting clients were held, not refused")
    if "filling" in phases:
        raise Failed("the weights were filled a second time")
    return [
        ("SIGKILL to the next answer", f"{(again - killed) * 1000:.0f} ms"),
        ("  fork to attached", f"{phases['attached']:.0f} ms"),
        ("  agent's answer to last parameter bound", f"{phases['bound'] - phases['answered']:.1f} ms"),
        ("  checked and warmed up", f"{phases['warm'] - phases['bound']:.0f} ms"),
        ("requests answered", str(clients.count("answered"))),
        ("requests failed (in flight in the killed server)", str(clients.count("failed") - before)),
        ("requests refused", str(clients.count("refused"))),
    ]


@contextlib.contextmanager
def stage() -> Iterator[Spine]:
    with tempfile.TemporaryDirectory(prefix="ling-try-") as folder:
        spine = Spine(Path(folder))
        try:
            yield spine
        except Failed:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
            raise
        finally:
            spine.end()


def main() -> int:
    """0; 1 when the spine does not hold, with the logs' ends."""
    parser = argparse.ArgumentParser(prog="hack/try", description="The spine as plain processes.")
    parser.add_argument("--preset", default="small", help="size of the checkpoint (%(default)s)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with stage() as spine:
            table = play(spine, args.preset)
            say("ending: engines drain, everything is removed")
    except Failed as error:
        print(f"hack/try: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    table.append(("all of it", f"{time.monotonic() - BEGAN:.1f} s"))
    width = max(len(what) for what, _ in table)
    print(f"\nMeasured in this run, on {os.cpu_count()} cores of the CPU:")
    for what, value in table:
        print(f"  {what:<{width}}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
