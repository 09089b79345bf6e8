"""A slot with an engine that runs real SGLang on the CPU: agent, keeper and `ling-engine` as processes."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil
from hack import spine
from hack.ports import free_port
from tests.support import sglang_site
from tests.support.processes import PYTHONPATH

from ling_engine.reference import checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT = 128  # tokens of a request
_BOOT_S = 800.0  # importing SGLang on a busy machine, then a Triton interpreter that warms up


class Room(spine.Spine):
    """`up()` starts agent and keeper; `engine(pod, device)` an engine of SGLang on the same slot."""

    def up(self) -> None:
        self.static.write_text(self.static.read_text().replace("graceSeconds: 10,", "graceSeconds: 300,"))
        checkpoint.make_model(self.model, "mini")
        self.python("agent", "-m", "ling_nodeagent", "serve", "--static", str(self.static), "--run-dir", str(self.run))
        spine.until(lambda: (self.run / "d" / "d002" / "fd.sock").exists(), "the agent's folders")
        env = {"LING_RUN": str(self.run / "d" / "d000"), "LING_PORT": str(self.port), "LING_ADDRESS": "127.0.0.1"}
        self.python("keeper", "-m", "ling_nodeagent.keeper", **env, LING_PROBE_PORT=str(free_port()))
        spine.until(lambda: self.status().get("listener"), "the keeper's listener")

    def python(self, name: str, *argv: str, **env: str) -> None:
        self.start(name, spine.sys.executable, *argv, PYTHONPATH=PYTHONPATH, **env)

    def sglang(self, pod: str, device: str, *flags: str) -> None:
        caller = f'{{pod: {pod}, uid: u-{pod}, slot: try-0, component: engine, revision: "{spine.REVISION}"}}'
        known = self.static.read_text()
        if caller not in known:
            new = self.static.with_suffix(".new")
            new.write_text(f"{known}  {device}: {caller}\n")
            new.replace(self.static)
        argv = ["run", "--runtime", "sglang", "--model", str(self.model), "--revision", spine.REVISION]
        argv += ["--run-dir", str(self.run / "d" / device), "--probe-port", "0", "--grace-seconds", "60"]
        argv += ["--served-model-name", "try", "--context-length", str(CONTEXT), "--concurrency", "2", *flags]
        env = sglang_site.environment(self.folder / "site")
        self.start(pod, str(sglang_site.PYTHON), "-W", "ignore", "-m", "ling_engine", *argv, **env)

    def until_active(self, pod: str) -> None:
        def active() -> bool:
            assert self.processes[pod].poll() is None, self.log(pod)
            return self.engine_status(pod).get("role") == "active"

        spine.until(active, f"{pod} to serve", _BOOT_S)

    def log(self, pod: str) -> str:
        return (self.folder / f"{pod}.log").read_text(errors="replace")[-4000:]

    def ask(self, method: str, path: str, body: Any = None, seconds: float = 120.0) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ids(self, prompt: Sequence[int], new: int) -> list[int]:
        """What SGLang answers to ids."""
        parameters = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        status, text = self.ask("POST", "/generate", {"input_ids": list(prompt), "sampling_params": parameters})
        assert status == 200, text
        return list(json.loads(text)["output_ids"])

    def server(self, pod: str) -> list[psutil.Process]:
        """The server's processes, itself first; empty while there is none."""
        for one in psutil.Process(self.processes[pod].pid).children(recursive=True):
            if one.name() == "ling-server":
                return [one, *one.children(recursive=True)]
        return []

    def metric(self, name: str) -> float:
        _, text = self.ask("GET", "/metrics")
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def kill(victim: psutil.Process, group: Sequence[psutil.Process], seconds: float = 60.0) -> dict[int, float]:
    """SIGKILL; milliseconds until the kernel says of each of the group that it is dead, the victim included."""
    waiting = {os.pidfd_open(one.pid): one.pid for one in group}
    poll, gone = select.poll(), {}
    for pidfd in waiting:
        poll.register(pidfd, select.POLLIN)
    began = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    while waiting and time.monotonic() - began < seconds:
        for pidfd, _ in poll.poll(100):
            gone[waiting.pop(pidfd)] = (time.monotonic() - began) * 1000
            poll.unregister(pidfd)
            os.close(pidfd)
    assert not waiting, f"still alive after {seconds} s: {list(waiting.values())}"
    return gone
