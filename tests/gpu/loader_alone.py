"""SGLang's loader of a slot alone, without agent or server: filled here, attached in a second process, compared.

    python -m tests.gpu.loader_alone --model DIR [--draft DIR] [--algorithm NEXTN|DSPARK] [--device cuda|cpu]

In SGLang's environment, from the repository's root. Three models of each role: SGLang's own disk load, the filler's,
the attacher's (a process of its own, which gets descriptors and manifest). All reachable tensors must be equal in
path, dtype, shape, strides and bytes, all plain values too. Prints a table of milliseconds, exits 1 on a difference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--trust-remote-code", "--skip-tokenizer-init", "--tp-size", "1", "--disable-radix-cache", "--load-format")
BLOCK = 64 << 20  # bytes summed at once
ROLES = {"": ("target",), "NEXTN": ("target", "nextn"), "DSPARK": ("target", "dspark")}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", default="")
    parser.add_argument("--algorithm", default="", choices=tuple(ROLES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--extra", default="--attention-backend triton")
    parser.add_argument("--sets", type=int, default=-1)
    args = parser.parse_args()
    room = Room(args)
    return room.attach_only(args.sets) if args.sets >= 0 else room.fill_and_compare()


class Side:
    """Stands in for the rank's side: fills what is not there, attaches what is."""

    def __init__(self, memory: Any, sets: dict[str, Any]) -> None:
        self.memory = memory
        self.sets = sets
        self.times: dict[str, float] = {}

    def attach(self, role: str, twin: Any, identity: Any, memory: Any) -> Any:
        from tests.support.twins import fill

        from ling_api import checks
        from ling_engine.cohort import Attached

        if role not in self.sets:
            with self.timed("fill"):
                filled = self.sets[role] = fill(twin, self.memory)
            return Attached(manifest=filled.manifest, mapping=filled.mapping, filled=True)
        held = self.sets[role]
        with self.timed("map"):
            mapping = held.map(self.memory)
        with self.timed("take on"):
            twin.attach(mapping, held.manifest)
        with self.timed("check all bytes"):
            checks.verify(mapping, held.manifest)
        with self.timed("check again"):
            checks.verify(mapping, held.manifest)
        return Attached(manifest=held.manifest, mapping=mapping, filled=False)

    @contextlib.contextmanager
    def timed(self, what: str) -> Any:
        began = time.perf_counter()
        yield
        self.times[what] = (time.perf_counter() - began) * 1000


class Room:
    """SGLang as a scheduler of one rank would have it."""

    def __init__(self, args: argparse.Namespace) -> None:
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.distributed import bootstrap
        from sglang.srt.layers.moe import initialize_moe_config
        from sglang.srt.plugins import load_plugins
        from sglang.srt.runtime_context import SpawnRanks, get_device, publish
        from sglang.srt.server_args import prepare_server_args

        self.args = args
        load_plugins()
        argv = ["--model-path", args.model, *FLAGS, "private", "--device", args.device, *args.extra.split()]
        if args.algorithm:
            argv += ["--speculative-algorithm", args.algorithm]
        if args.draft:
            argv += ["--speculative-draft-model-path", args.draft]
        self.server_args = prepare_server_args(argv)
        self.server_args.resolve_once()
        publish(self.server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        initialize_moe_config()
        self.config = ModelConfig.from_server_args(self.server_args)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        device = get_device().device
        bootstrap.init_parallel_runtime(server_args=self.server_args, device=device, dist_port=port)
        bootstrap.init_layer_runtime(model_config=self.config)
        self._take_seat()

    def _take_seat(self) -> None:
        from ling_api.identity import Identity
        from ling_engine.sglang import plugin, ranks, seat

        plugin.insist()
        kind = "memfd" if self.args.device == "cpu" else "cuda"
        self.side = Side(self._memory(kind), {})
        desk: Any = None
        seat.prepare(
            seat.Seat(
                run_dir=Path(),
                server="alone",
                identities={(role, 0): Identity.of(role, {"model": "alone"}) for role in ROLES[self.args.algorithm]},
                revision="",
                memory=kind,
                desk=desk,
            )
        )
        ranks.side = lambda _rank: self.side  # type: ignore[assignment,return-value]

    def _memory(self, kind: str) -> Any:
        from ling_api.memory.memfd import MemfdMemory

        if kind == "memfd":
            return MemfdMemory()
        from ling_api.memory.cuda import CudaMemory

        return CudaMemory(0)

    def load(self, role: str, load_format: str) -> Any:
        """(model, loader)."""
        from sglang.srt.configs.device_config import DeviceConfig
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.layers.moe import utils
        from sglang.srt.model_loader.loader import get_model_loader

        config = self.config
        with contextlib.ExitStack() as stack:
            if role != "target":
                path = self.args.draft or self.args.model
                config = ModelConfig.from_server_args(self.server_args, model_path=path, is_draft_model=True)
                stack.enter_context(utils.draft_model_build_scope())
                stack.enter_context(utils.speculative_moe_backend_context())
                stack.enter_context(utils.speculative_moe_a2a_backend_context())
            loader = get_model_loader(LoadConfig(load_format=load_format), config)
            began = time.perf_counter()
            model = loader.load_model(model_config=config, device_config=DeviceConfig(self.args.device, 0))
            self.side.times["whole load"] = (time.perf_counter() - began) * 1000
        return model, loader

    def fill_and_compare(self) -> int:
        bad = 0
        for role in ROLES[self.args.algorithm]:
            model, _ = self.load(role, "auto")
            disk = described(model)
            self._say(role, "disk", len(disk))
            del model
            self._forget()
            model, loader = self.load(role, "private")
            self._say(role, "filler", loader.preloaded_weights_bytes)
            bad += differences(role, "filler", disk, described(model))
            path = Path(os.environ.get("OUT", "/tmp")) / f"{role}.described.json"
            path.write_text(json.dumps(disk))
            form = json.loads(self.side.sets[role].manifest.form)
            print(
                f"{role} form: {len(form['members'])} tensors, changed {form['changes'][:8]}, gone {form['gone'][:8]}"
            )
        return bad + self._second_process()

    def _forget(self) -> None:
        import gc

        import torch

        self.side.times.clear()
        gc.collect()
        if self.args.device == "cuda":
            torch.cuda.empty_cache()

    def _say(self, role: str, what: str, more: object) -> None:
        times = "  ".join(f"{name} {value:.1f}" for name, value in self.side.times.items())
        held = self.side.sets.get(role)
        print(f"{role} {what}: ms: {times}  bytes: {held.manifest.nbytes if held else '-'}  ({more})", flush=True)

    def _second_process(self) -> int:
        ours, theirs = socket.socketpair()
        argv = [
            sys.executable,
            "-m",
            "tests.gpu.loader_alone",
            "--sets",
            str(theirs.fileno()),
            "--model",
            self.args.model,
        ]
        argv += ["--draft", self.args.draft, "--algorithm", self.args.algorithm, "--device", self.args.device]
        child = subprocess.Popen([*argv, f"--extra={self.args.extra}"], pass_fds=[theirs.fileno()], cwd=ROOT)
        theirs.close()
        for held in self.side.sets.values():
            text = held.manifest.to_bytes()
            socket.send_fds(ours, [len(text).to_bytes(8, "little")], list(held.fds))
            ours.sendall(text)
        return child.wait()

    def attach_only(self, fd: int) -> int:
        from tests.support.twins import FilledSet

        from ling_api.manifest import Manifest

        peer, bad = socket.socket(fileno=fd), 0
        for role in ROLES[self.args.algorithm]:
            head, fds, _, _ = socket.recv_fds(peer, 8, 128)
            text = b""
            while rest := int.from_bytes(head, "little") - len(text):
                text += peer.recv(rest)
            mapping: Any = None
            self.side.sets[role] = FilledSet(manifest=Manifest.from_bytes(text), mapping=mapping, fds=tuple(fds))
        for role in ROLES[self.args.algorithm]:
            self._forget()
            model, loader = self.load(role, "private")
            self._say(role, "attacher", loader.preloaded_weights_bytes)
            path = Path(os.environ.get("OUT", "/tmp")) / f"{role}.described.json"
            bad += differences(role, "attacher", json.loads(path.read_text()), described(model))
        return bad


def described(model: Any) -> dict[str, Any]:
    """Every reachable tensor: path -> how, dtype, shape, strides, grad, class, attributes, sum; every plain value."""
    from ling_engine.sglang import loader, reach

    found = reach.walk(model, loader._descends)
    tensors = {
        place.path: [
            place.how, str(place.tensor.dtype), list(place.tensor.shape), list(place.tensor.stride()),
            place.tensor.requires_grad, type(place.tensor).__name__, sorted(vars(place.tensor)), _sum(place.tensor),
        ]
        for place in found.places
    }  # fmt: skip
    return {**tensors, **{f"value {path}": value for path, value in found.values.items()}}


def _sum(tensor: Any) -> int | None:
    """Of its bytes as words w[i]: the sum of w[i] * (2 i + 1), modulo 2^64, in blocks."""
    import torch

    if tensor.is_meta:
        return None
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    total = 0
    for at in range(0, data.numel(), BLOCK):
        block = data[at : at + BLOCK]
        block = torch.nn.functional.pad(block, (0, -block.numel() % 8)).view(torch.int64)
        weights = torch.arange(1, 2 * block.numel(), 2, device=block.device, dtype=torch.int64)
        total = (total * 31 + int((block * weights).sum())) % (1 << 64)
    return total


def differences(role: str, who: str, disk: dict[str, Any], other: dict[str, Any]) -> int:
    lent = {"model.word_embeddings.weight", "lm_head.weight"} if role == "nextn" else set()
    paths = sorted((disk.keys() | other.keys()) - lent)
    bad = [path for path in paths if disk.get(path) != other.get(path)]
    for path in bad[:20]:
        print(f"  DIFFERENT {role} {who} {path}: disk {disk.get(path)} here {other.get(path)}")
    print(f"{role} {who}: {len(other)} tensors and values, {len(bad)} differ from the disk load", flush=True)
    return len(bad)


if __name__ == "__main__":
    code = main()
    print("EQUAL" if code == 0 else f"NOT EQUAL ({code})", flush=True)
    os._exit(min(code, 1))  # not by way of destructors: a graph's memory may outlive its mapping
