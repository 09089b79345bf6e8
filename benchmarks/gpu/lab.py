"""Processes of a measurement on one machine: engines of stock SGLang, and slots with agent, keeper and our engines.

Everything is started in a process group of its own, with its log in the output folder, and ended by that group's id.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.ports import free_port

from ling_api import names
from ling_api.errors import AgentUnreachable
from ling_engine.sglang import caches
from ling_nodeagent import __main__ as nodeagent

from .asking import Answer, Failed, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
REVISION = "0123abcd"
CONTEXT = 4096
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
MODES = ("None", "NEXTN", "DSPARK")
_RANK = "sglang::sched"


@dataclass(slots=True)
class Lab:
    """`cpu`: a rehearsal without a GPU, of the reference runtime (or of SGLang's CPU lane)."""

    out: Path
    work: Path
    cpu: bool = False
    runtime: str = "sglang"
    tp: int = 1
    concurrency: int = 1  # requests that an engine decodes at a time
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    callers: list[str] = field(default_factory=list)
    devices: int = 0
    standbys: set[str] = field(default_factory=set)  # slots that want a warm one
    keeping: bool = False  # an engine runs that offers its compiled kernels to the agent
    lock: threading.RLock = field(default_factory=threading.RLock)
    ends: float = float("inf")  # when the part in hand must be over; monotonic

    def __post_init__(self) -> None:
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        self._write_dist_info()

    @property
    def run(self) -> Path:
        return self.work / "run"

    @property
    def env(self) -> dict[str, str]:
        rooms = [str(ROOT / room) for room in ("engine", "api", "nodeagent", "operator", "")]
        path = ":".join([*rooms, str(self.work / "dist"), os.environ.get("PYTHONPATH", "")])
        found = {**os.environ, **SAFE, "PYTHONPATH": path.strip(":"), "PYTHONUNBUFFERED": "1"}
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        return found | caches.variables(self.kernels)

    @property
    def kernels(self) -> Path:
        """The folder of compiled kernels."""
        return Path(os.environ.get("SGLANG_CACHE_DIR", self.work / "jit"))

    def start(self, name: str, *argv: str, **env: str) -> subprocess.Popen[bytes]:
        with (self.out / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, env=self.env | env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        with (self.work / "groups").open("a") as started:
            started.write(f"{self.processes[name].pid}\n")  # for whoever cleans up behind a run that was killed
        return self.processes[name]

    def alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    def stop(self, name: str, how: int = signal.SIGKILL) -> None:
        """The whole group, and what escaped from it as a child."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        family = [process.pid, *descendants(process.pid)]
        if how == signal.SIGTERM and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def send(self, name: str, number: int) -> None:
        """To the process and all below it."""
        process = self.processes[name]
        for pid in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        for name in sorted(self.processes, key=lambda one: one in ("agent",) or one.startswith("keeper")):
            self.stop(name)

    def until[T](self, look: Callable[[], T], what: str, seconds: float, *alive: str) -> T:
        """Raises Failed when it is not so in time, or one of these processes ends before.

        In threads too: no signal ends their waiting when a part's time is over.
        """
        deadline = min(time.monotonic() + seconds, self.ends)
        while not (found := look()):
            if time.monotonic() > deadline:
                raise Failed(f"waited {seconds:.0f} s in vain for {what}")
            for name in alive:
                if not self.alive(name):
                    raise Failed(f"{name} ended before {what}: {self.tail(name)}")
            time.sleep(0.02)
        return found

    def log(self, name: str) -> str:
        return (self.out / "logs" / f"{name}.log").read_text(errors="replace")

    def tail(self, name: str, size: int = 300) -> str:
        return " ".join(self.log(name)[-size:].split())

    # slots

    def agent(self) -> None:
        self.tell()
        argv = (sys.executable, "-m", "ling_nodeagent", "serve", "--static", str(self.work / "static.yaml"))
        self.start("agent", *argv, "--run-dir", str(self.run))
        self.until(lambda: (self.run / "d" / "d001" / names.FD_SOCKET).exists(), "the agent's folders", 60, "agent")

    def slot(self, name: str, capacity: str = "100Gi") -> Slot:
        """With its keeper; the agent runs."""
        with self.lock:
            made = self.slots[name] = Slot(self, name, capacity)
            self.callers.append(f"  {made.device}: {{pod: {name}-0, uid: k-{name}, slot: {name}, component: slot}}")
            self.tell()
            if not self.alive("agent"):
                self.agent()
        made.keeper()
        return made

    def warm_standby(self, slot: str, *, wanted: bool = True) -> None:
        """From now on that slot keeps one, or none."""
        with self.lock:
            (self.standbys.add if wanted else self.standbys.discard)(slot)
            self.tell()

    def device(self) -> str:
        self.devices += 1
        return f"d{self.devices - 1:03}"

    def tell(self) -> None:
        slots = "\n".join(
            f'  {one.name}: {{deployment: gpu, revision: "{REVISION}", capacity: {one.capacity}, graceSeconds: 5, '
            f"holdSeconds: 3600{', standbys: 1' if one.name in self.standbys else ''}}}"
            for one in self.slots.values()
        )
        new = self.work / "static.new"
        new.write_text(f"slots:\n{slots}\ncallers:\n" + "\n".join(self.callers) + "\n")
        new.replace(self.work / "static.yaml")

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = nodeagent.ask(self.run / names.STATUS_SOCKET)["slots"]
        except (AgentUnreachable, KeyError):
            return {}
        return {name.rpartition("/")[2]: one for name, one in found.items()}

    def _write_dist_info(self) -> None:
        """What an installed package tells of itself, so that SGLang finds our plug-in without an installation."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        folder = self.work / "dist" / f"{project['name']}-{project['version']}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for group, entries in project.get("entry-points", {}).items():
            lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
        (folder / "entry_points.txt").write_text("\n".join(lines))
        text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (folder / "METADATA").write_text(text)


class Slot:
    """One slot of the agent: a keeper, a port, engines."""

    def __init__(self, lab: Lab, name: str, capacity: str) -> None:
        self.lab, self.name, self.capacity = lab, name, capacity
        self.device = lab.device()
        self.port = free_port()
        self.flags: dict[str, list[str]] = {}

    def keeper(self) -> None:
        env = {"LING_RUN": str(self.lab.run / "d" / self.device), "LING_PORT": str(self.port)}
        env |= {"LING_ADDRESS": "127.0.0.1", "LING_PROBE_PORT": str(free_port())}
        self.lab.start(f"keeper-{self.name}", sys.executable, "-m", "ling_nodeagent.keeper", **env)
        self.lab.until(lambda: self.status().get("listener"), "the keeper's listener", 60, "agent")

    def engine(self, pod: str, model: Path, mode: str, *more: str, before: Sequence[str] = (), **env: str) -> None:
        caller = f'{{pod: {pod}, uid: u-{pod}, slot: {self.name}, component: engine, revision: "{REVISION}"}}'
        with self.lab.lock:
            device = self.lab.device()
            self.lab.callers.append(f"  {device}: {caller}")
            self.lab.tell()
        flags = ["--model", str(model), "--revision", REVISION, "--run-dir", str(self.lab.run / "d" / device)]
        flags += ["--probe-port", "0", "--grace-seconds", "5", "--served-model-name", "ling"]
        flags += ["--runtime", self.lab.runtime, "--context-length", str(CONTEXT), "--decoding", mode]
        if self.lab.runtime == "sglang":
            flags += ["--concurrency", str(self.lab.concurrency), "--tp", str(self.lab.tp)]
        self.flags[pod] = [*flags, *more]
        self.again(pod, *before, **env)

    def again(self, pod: str, *before: str, **env: str) -> None:
        """The container of that pod, started (again); `before` stands before the command."""
        self.lab.start(pod, *before, sys.executable, "-m", "ling_engine", "run", *self.flags[pod], **env)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.lab.status().get(self.name, {})
        return found

    def engine_status(self, pod: str) -> dict[str, Any]:
        return next((one for one in self.status().get("engines", []) if one["pod"] == pod), {})

    def serves(self, pod: str, seconds: float) -> None:
        """Waits until it accepts. Raises Failed."""
        look = lambda: self.reached(pod, "accepting")  # noqa: E731
        self.lab.until(look, f"{pod} to accept in slot {self.name}", seconds, pod)

    def reached(self, pod: str, phase: str) -> bool:
        """Of a server that is there: a container that was just stopped is told of for a moment more."""
        return bool(self.server(pod)) and phase in self.engine_status(pod).get("phases", {})

    def server(self, pod: str) -> int:
        """The server's pid; 0 = there is none. Its ranks are its children, and have its name at first."""
        for pid in descendants(self.lab.processes[pod].pid):
            if command(pid) == "ling-server":
                return pid
        return 0

    def ranks(self, pod: str) -> list[int]:
        """Processes of the server that compute, by the name that SGLang gives them. Raises Failed without one."""
        below = children(self.server(pod))
        found = [pid for pid in below if command(pid).startswith(_RANK)]
        if not found:
            raise Failed(f"{pod}'s server has no rank; its children: {[command(pid) for pid in below]}")
        return found

    def kill_server(self, pod: str) -> float:
        """SIGKILL; the monotonic time of it."""
        pid = self.server(pod)
        if not pid:
            raise Failed(f"{pod} has no server to kill")
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return killed

    def phases(self, pod: str) -> dict[str, float]:
        return {name: float(value) for name, value in self.engine_status(pod).get("phases", {}).items()}

    def ask(self, prompt: Sequence[int], new: int) -> Answer:
        return ask(self.port, prompt, new, text=self.lab.runtime == "reference")


def children(pid: int) -> list[int]:
    """Of all its threads: the kernel lists a child with the thread that forked it, and a server forks its ranks in one
    that is not its first."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(one) for one in task.read_text().split()]
    return sorted(found)


def descendants(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def gpu_mib() -> int:
    """MiB that are used on the GPUs that CUDA_VISIBLE_DEVICES names (else on all), by whomever; 0 without a GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={chosen}")
    try:
        return sum(map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))
    except (OSError, subprocess.CalledProcessError):
        return 0
