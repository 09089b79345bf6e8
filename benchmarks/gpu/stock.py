"""SGLang as it comes, with our recipe's flags or others, loading from disk."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hack.ports import free_port

from ling_engine.decoding import Decoding
from ling_engine.runtime import OFF, ModelSettings
from ling_engine.sglang import describe

from .asking import Answer, ask, get
from .lab import CONTEXT, descendants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ling_engine.sglang.arguments import Arguments

    from .lab import Lab


DRAFTS = 6  # rows of a round of NEXTN, which SGLang counts among a request's tokens


def settings(
    model: Path, mode: str, policy: str = OFF, tp: int = 1, context: int = CONTEXT, concurrency: int = 1
) -> ModelSettings:
    decoding = {
        "None": Decoding(),
        "NEXTN": Decoding(algorithm="NEXTN", num_steps=5, num_draft_tokens=DRAFTS),
        "DSPARK": Decoding(algorithm="DSPARK", num_steps=1, draft=str(model / "dspark")),
    }[mode]
    return ModelSettings(
        path=model, revision="", context_length=context, max_queue=64, served_name="ling", decoding=decoding,
        concurrency=concurrency, weight_cache=policy, tp=tp,
    )  # fmt: skip


def call(lab: Lab, model: Path, mode: str, context: int = CONTEXT) -> Arguments:
    """How our recipe calls SGLang; `context`: tokens of a request."""
    capability = None if lab.cpu else (9, 0)
    wanted = settings(model, mode, tp=lab.tp, context=context, concurrency=lab.concurrency)
    return describe.command(wanted, describe.Device(capability=capability))[1]


class Stock:
    """SGLang as it comes, with the same flags, loading from disk."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        model: Path,
        mode: str,
        *more: str,
        argv: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`argv`: another call than our recipe's, whose environment is then `env` alone."""
        self.lab, self.name, self.port = lab, name, free_port()
        called = call(lab, model, mode)
        found = {} if argv else called.env
        argv = (*(argv or called.argv), "--host", "127.0.0.1", "--port", str(self.port), *more)
        self.began = time.monotonic()
        lab.start(name, sys.executable, "-m", "sglang.launch_server", *argv, **{**found, **(env or {})})

    def ready(self, seconds: float) -> float:
        """Seconds from the start to /ready."""
        self.lab.until(lambda: get(self.port, "/ready") is not None, f"{self.name} to be ready", seconds, self.name)
        return time.monotonic() - self.began

    def ask(self, prompt: Sequence[int], new: int, temperature: float = 0) -> Answer:
        return ask(self.port, prompt, new, temperature=temperature)

    def pids(self) -> list[int]:
        """Of all its processes."""
        process = self.lab.processes[self.name]
        return [process.pid, *descendants(process.pid)]

    def stop(self) -> None:
        self.lab.stop(self.name)
