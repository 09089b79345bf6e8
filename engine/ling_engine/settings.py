"""Flags and environment -> frozen settings of the engine pod; the only place that reads either.

A wrong value ends the program with one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ling_api import names
from ling_api.errors import BadInput

from . import decoding
from .decoding import PLAIN, Decoding
from .runtime import OFF, PREFERRED, REQUIRED, ModelSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS = {
    "run": "serve from a slot: wait for the agent's word, attach the weights, accept when active",
    "check": "say what the model needs and whether the settings are right; touches no agent and no weight",
    "fill": "fill (or attach) the slot's weights once and exit",
}
MAKE_MODEL = "write a random checkpoint of the real architecture"
_REVISION = re.compile(r"[0-9a-f]{8}")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_DTYPES = ("auto", "bfloat16", "float32")
_POLICIES = (REQUIRED, PREFERRED, OFF)
_NAMED = ("reference", "sglang")
_CONTENT = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything that decides what an engine pod does."""

    command: str  # run | check | fill
    model: Path
    revision: str  # of the LingDeployment's engine part, 8 hex digits
    model_revision: str  # "sha256:<64 hex>" or ""
    served_name: str
    context_length: int  # tokens
    max_queue: int  # requests
    grace_seconds: float
    run_dir: Path
    probe_port: int  # 0 = any free port
    runtime: str
    decoding: Decoding = PLAIN
    leave_seconds: float = 60.0  # from SIGTERM until it drains at the latest
    proof_seconds: float = 60.0  # between two proofs of a parked server
    tp: int = 1
    concurrency: int = 4
    dtype: str = "auto"
    router_dtype: str = ""
    weight_cache: str = REQUIRED
    extra_args: tuple[str, ...] = ()
    for_gpu: str = ""  # compute capability, as 9.0; of `check` alone

    def model_settings(self) -> ModelSettings:
        return ModelSettings(
            path=self.model,
            revision=self.model_revision,
            context_length=self.context_length,
            max_queue=self.max_queue,
            served_name=self.served_name,
            decoding=self.decoding,
            tp=self.tp,
            concurrency=self.concurrency,
            dtype=self.dtype,
            router_dtype=self.router_dtype,
            weight_cache=self.weight_cache,
            extra_args=self.extra_args,
            for_gpu=self.for_gpu,
        )

    def to_json(self) -> str:
        """For the zygote's command line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> EngineSettings:
        settings = cls(**json.loads(text))
        spelled: Any = settings.decoding
        return replace(
            settings,
            model=Path(settings.model),
            run_dir=Path(settings.run_dir),
            decoding=Decoding(**spelled),
            extra_args=tuple(settings.extra_args),
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


def parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line; `env` gives the defaults that the pod's manifest sets."""
    top = _Parser(prog="ling-engine", description="The engine pod of a Ling slot.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        _add_flags(commands.add_parser(name, help=text, description=text), name, env)
    commands.add_parser("make-model", help=MAKE_MODEL, add_help=False)
    return top


def make_model_parser() -> argparse.ArgumentParser:
    """Without its flags: those belong to ling_engine.reference.checkpoint."""
    return _Parser(prog="ling-engine make-model", description=MAKE_MODEL)


def _add_flags(command: argparse.ArgumentParser, name: str, env: Mapping[str, str]) -> None:
    add = command.add_argument
    add("--model", required=True, metavar="DIR", help="folder of the checkpoint (config.json, *.safetensors)")
    add("--model-revision", default="", metavar="sha256:HEX", help="refuse the checkpoint if its bytes differ")
    add("--served-model-name", default="", metavar="NAME", help="name in the API (default: the folder's name)")
    add("--context-length", default="4096", metavar="TOKENS")
    add("--max-queue", default="4096", metavar="REQUESTS", help="more than this waiting: answered 429")
    add("--runtime", default=env.get(names.ENV_RUNTIME, "reference"), metavar="reference|sglang|MODULE:ATTRIBUTE")
    decoding.add_flags(command)
    _add_flags_of_big_engines(command)
    if name == "check":
        add("--for-gpu", default="", metavar="X.Y", help="for a GPU of this compute capability, though none is here")
        return
    add("--revision", required=True, metavar="REV8", help="revision of the LingDeployment's engine part, 8 hex digits")
    add("--proof-seconds", default="60", metavar="SECONDS", help="a parked server generates a known token that often")
    add("--grace-seconds", default="120", metavar="SECONDS", help="a request may take this long once draining began")
    leave = env.get(names.ENV_LEAVE_SECONDS, "60")
    add("--leave-seconds", default=leave, metavar="SECONDS", help="after SIGTERM it drains at the latest then")
    add("--run-dir", default=env.get(names.ENV_RUN_DIR, names.RUN_DIR), metavar="DIR", help="folder of the sockets")
    add("--probe-port", default=env.get(names.ENV_PROBE_PORT, str(names.PROBE_PORT)), metavar="PORT")


def _add_flags_of_big_engines(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--tp", default="1", metavar="RANKS", help="tensor parallel ranks, one GPU each")
    add("--concurrency", default="4", metavar="REQUESTS", help="how many run at once; memory is planned for so many")
    add("--dtype", default="auto", metavar="|".join(_DTYPES))
    add("--router-dtype", default="", metavar="fp32|bf16", help="of the MoE router's gate (default: the checkpoint's)")
    add("--weight-cache", default=REQUIRED, metavar="|".join(_POLICIES))
    add("--extra-arg", action="append", default=[], metavar="=FLAG", help="for the runtime's own command line; repeat")


def parse(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> EngineSettings:
    """The settings of `run`, `check` or `fill`; raises BadInput with one sentence."""
    args = parser(env).parse_args(list(argv))
    model = Path(args.model)
    if not model.is_dir():
        raise BadInput(f"--model {args.model}: no such folder; give the folder that holds config.json")
    return EngineSettings(
        command=args.command,
        model=model.absolute(),
        revision=_matching("--revision", getattr(args, "revision", "00000000"), _REVISION, "8 hex digits"),
        model_revision=_content(args.model_revision),
        served_name=args.served_model_name or model.absolute().name,
        context_length=_whole("--context-length", args.context_length, 1, 1 << 24),
        max_queue=_whole("--max-queue", args.max_queue, 1, 1 << 20),
        proof_seconds=_seconds("--proof-seconds", getattr(args, "proof_seconds", "60")),
        grace_seconds=_seconds("--grace-seconds", getattr(args, "grace_seconds", "120")),
        leave_seconds=_seconds("--leave-seconds", getattr(args, "leave_seconds", "60")),
        run_dir=Path(getattr(args, "run_dir", names.RUN_DIR)).absolute(),
        probe_port=_whole("--probe-port", getattr(args, "probe_port", str(names.PROBE_PORT)), 0, 65535),
        runtime=_runtime(args.runtime),
        decoding=decoding.read(args),
        tp=_whole("--tp", args.tp, 1, 64),
        concurrency=_whole("--concurrency", args.concurrency, 1, 4096),
        dtype=_one_of("--dtype", args.dtype, _DTYPES),
        router_dtype=_one_of("--router-dtype", args.router_dtype, ("", "fp32", "bf16")),
        weight_cache=_one_of("--weight-cache", args.weight_cache, _POLICIES),
        extra_args=tuple(args.extra_arg),
        for_gpu=_capability(getattr(args, "for_gpu", "")),
    )


def _capability(text: str) -> str:
    return _matching("--for-gpu", text, _CAPABILITY, "a compute capability like 9.0 or 10.0") if text else ""


def _one_of(flag: str, text: str, known: Sequence[str]) -> str:
    if text not in known:
        raise BadInput(f"{flag} {text!r}: must be {', '.join(filter(None, known[:-1]))} or {known[-1]}")
    return text


def _matching(flag: str, text: str, pattern: re.Pattern[str], wanted: str) -> str:
    if not pattern.fullmatch(text):
        raise BadInput(f"{flag} {text!r}: must be {wanted}")
    return text


def _content(text: str) -> str:
    return _matching("--model-revision", text, _CONTENT, "sha256: and 64 hex digits") if text else ""


def _whole(flag: str, text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise BadInput(f"{flag} {text!r}: must be a whole number from {low} to {high}")
    return int(text)


def _seconds(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86400:
        raise BadInput(f"{flag} {text!r}: must be a number of seconds, more than 0 and at most 86400")
    return value


def _runtime(text: str) -> str:
    module, colon, attribute = text.partition(":")
    named = all(part.isidentifier() for part in module.split("."))
    if text not in _NAMED and not (colon and attribute.isidentifier() and named):
        raise BadInput(f"--runtime {text!r}: must be {', '.join(_NAMED)} or MODULE:ATTRIBUTE")
    return text
