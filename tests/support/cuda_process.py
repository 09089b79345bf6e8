"""Processes of a GPU test, each with a socket to the test: who fills a set, who attaches it, who only holds it.

`python -m tests.support.cuda_process fill|attach|hold FD [UID]` is the process, `Process` the test's side of it. The
first two use the product's own CudaMemory and no torch, so that they start in a second; `hold` never loads CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ling_api import fdpass
from ling_api.errors import LingError
from ling_api.manifest import Manifest, TensorSpec, plan_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ling_api.identity import Identity
    from ling_api.memory.cuda import CudaMapping, CudaMemory

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
STEP_S = 60  # longer than any step of a process takes
NAMESPACES = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--ipc", "--uts", "--net")


class Process:
    """A process of a role and the socket to it. `visible`: the GPUs that it sees."""

    def __init__(self, role: str, *, prefix: Sequence[str] = (), uid: int = 0, visible: str = "") -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(STEP_S)
        command = [*prefix, sys.executable, "-m", "tests.support.cuda_process", role, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                [*command, *([str(uid)] if uid else [])],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=_environment(visible),
            )

    def ask(self, op: str, fds: Sequence[int] = (), **fields: Any) -> tuple[dict[str, Any], list[int]]:
        """Sends one frame, returns the answer. Raises AssertionError when the process says that it failed."""
        fdpass.send(self.socket, {"op": op, **fields}, fds)
        return self.answer()

    def answer(self) -> tuple[dict[str, Any], list[int]]:
        message, fds = fdpass.receive(self.socket)
        assert message["op"] != "failed", message["reason"]
        return message, fds

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)
        self.socket.close()

    def end(self) -> int:
        """Closes the socket, which ends the process; its exit status."""
        self.socket.close()
        return self.process.wait(60)


@contextlib.contextmanager
def process(role: str, **options: Any) -> Iterator[Process]:
    """A process that is dead afterwards, whatever happens."""
    one = Process(role, **options)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.kill()
        one.socket.close()


def _environment(visible: str) -> dict[str, str]:
    rooms = [str(ROOT / room) for room in ("api", "engine", "nodeagent", "operator")]
    path = os.pathsep.join([*rooms, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}


def identity() -> Identity:
    from ling_api.identity import Identity

    return Identity.of("target", {"model": "gpu-test"})


def layout_of(names: Sequence[str], nbytes: int, memory: CudaMemory) -> Any:
    """One bf16 tensor of `nbytes` a name."""
    specs = [TensorSpec(name, "bfloat16", (nbytes // 2,), (1,)) for name in names]
    return plan_layout(specs, granularity=memory.granularity, max_region=memory.max_region)


def attach(memory: CudaMemory, manifest: Manifest, fds: Sequence[int]) -> tuple[CudaMapping, dict[str, float]]:
    """The mapping and what it took, in ms; `all` from the descriptors to readable addresses."""
    sizes = [region.size for region in manifest.regions]
    began = time.perf_counter()
    mapping = memory.map(fds, sizes, writable=False)
    total = (time.perf_counter() - began) * 1000
    return mapping, {**mapping.phases, "all": total}


# The processes


def fill(sock: socket.socket) -> None:
    """Fills four tensors over regions of 8 MiB and a tail, deposits, seals; at `write` writes where it must not."""
    from ling_api import checks
    from ling_api.memory.cuda import CudaMemory

    class Small(CudaMemory):
        max_region = 8 * MIB

    memory = Small()
    layout = layout_of(["one", "two", "three", "four"], 6 * MIB, memory)
    fds = [memory.create(size) for size in layout.sizes]
    mapping = memory.map(fds, layout.sizes, writable=True)
    fds.append(memory.create(memory.granularity))
    mapping.extend(fds[-1], memory.granularity)
    data = os.urandom(mapping.size)
    device = memory._device
    with device.current():
        device.call("write", "cuMemcpyHtoD", mapping.address, data, len(data))
    mapping.make_read_only(fds)
    manifest = Manifest(
        identity=identity(),
        rank=0,
        kind="cuda",
        tensors=layout.tensors,
        regions=checks.checksum_regions(mapping, [*layout.sizes, memory.granularity]),
    )
    text = manifest.to_bytes().decode()
    fdpass.send(sock, {"op": "sealed", "manifest": text, "pid": os.getpid()}, fds)
    fdpass.close_all(fds)
    fdpass.receive(sock)
    fdpass.send(sock, {"op": "wrote", "copy": _forbidden_copy(mapping), "kernel": _forbidden_kernel(mapping)})
    fdpass.receive(sock)


def _forbidden_copy(mapping: CudaMapping) -> str:
    """A copy from the host onto read-only weights: the driver's error."""
    device = mapping._device
    with device.current():
        try:
            device.call("copy", "cuMemcpyHtoD", mapping.address, bytes(64), 64)
            device.settle()
        except LingError as error:
            return str(error)
    return "nothing"


def _forbidden_kernel(mapping: CudaMapping) -> str:
    """A kernel that writes there: the checksum's own, told to put its sums into the weights."""
    import ctypes

    device, sums = mapping._device, mapping._sums
    with device.current():
        loaded = sums._loaded or sums._load()
        args = (mapping.address, 4096, 4096, mapping.address), (ctypes.c_uint64,) * 4
        try:
            device.call("launch", "cuLaunchKernel", loaded.kernel, 1, 1, 1, 256, 1, 1, 0, loaded.stream, args, 0)
            device.call("write with a kernel", "cuStreamSynchronize", loaded.stream)
        except LingError as error:
            return str(error)
    return "nothing"


def attaching(sock: socket.socket) -> None:
    """Attaches what a `set` brings, checks it in full, then does what it is asked until the socket ends."""
    from ling_api import checks
    from ling_api.memory.cuda import CudaMemory

    memory = CudaMemory()
    mapping = manifest = None
    for message, fds in _frames(sock):
        answer: dict[str, Any] = {}
        match message["op"]:
            case "set":
                manifest = Manifest.from_bytes(message["manifest"].encode())
                mapping, answer["ms"] = attach(memory, manifest, fds)
                fdpass.close_all(fds)
                answer["who"] = {"pid": os.getpid(), "uid": os.getuid(), "net": _inode("net"), "ipc": _inode("ipc")}
            case "watch":
                answer["passes"] = _watch(sock, functools.partial(checks.verify, mapping, manifest))
            case "close":
                began = time.perf_counter()
                mapping.close()
                answer["ms"] = (time.perf_counter() - began) * 1000
                mapping = None
        if mapping is not None:
            began = time.perf_counter()
            checks.verify(mapping, manifest)
            answer["verify"] = (time.perf_counter() - began) * 1000
            answer["first"] = mapping.buffer(0, 8).hex()
        fdpass.send(sock, {"op": "done", **answer})


def _watch(sock: socket.socket, look: Any) -> int:
    """Looks again and again until the test says something; how often."""
    passes = 0
    fdpass.send(sock, {"op": "watching"})
    while not select.select([sock], [], [], 0)[0]:
        look()
        passes += 1
    fdpass.receive(sock)
    return passes


def hold(sock: socket.socket) -> None:
    """Keeps descriptors and gives duplicates of them; says whether a GPU library was ever loaded."""
    held: list[int] = []
    for message, fds in _frames(sock):
        held.extend(fds)
        loaded = "libcuda" in Path("/proc/self/maps").read_text()
        give = held if message["op"] == "give" else []
        fdpass.send(sock, {"op": "held", "count": len(held), "cuda": loaded}, give)


def _frames(sock: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    with contextlib.suppress(fdpass.PeerGone):
        while True:
            yield fdpass.receive(sock)


def _inode(namespace: str) -> int:
    return Path(f"/proc/self/ns/{namespace}").stat().st_ino


def _load_all() -> None:
    """Everything that is read from disk, while this process may read it; CUDA itself is not started."""
    from ling_api import checks  # noqa: F401
    from ling_api.memory import cuda  # noqa: F401

    with contextlib.suppress(ImportError, RuntimeError):
        from cuda.bindings import driver

        driver.cuDriverGetVersion()


def main() -> int:
    role, number, *uid = sys.argv[1:]
    if uid:
        _load_all()
        os.setgroups([])
        os.setgid(int(uid[0]))
        os.setuid(int(uid[0]))
    with socket.socket(fileno=int(number)) as sock:
        try:
            {"fill": fill, "attach": attaching, "hold": hold}[role](sock)
        except fdpass.PeerGone:
            return 0
        except LingError as error:
            fdpass.send(sock, {"op": "failed", "reason": f"{type(error).__name__}: {error}"})
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
