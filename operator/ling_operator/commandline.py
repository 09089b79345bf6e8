"""The command line of `ling-engine` for a part of a LingDeployment, and where its checkpoints are mounted. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api import names
from ling_api.engine import SGLANG
from ling_operator.views import FILL

if TYPE_CHECKING:
    from ling_api.v1alpha1 import EnginePart

RUN: Final = "run"
_LIVES: Final = (RUN, FILL)  # commands that talk to the agent, so that they must say who they are


def model_path(part: EnginePart) -> str:
    """Where an engine finds its checkpoint."""
    return _inside(names.PVC_DIR if part.model.claim else names.MODELS_DIR, part.model.path)


def draft_path(part: EnginePart) -> str:
    """Where an engine finds its external draft, "" when none is named."""
    draft = part.decoding.draft
    if draft is None:
        return ""
    if not draft.claim:
        return _inside(names.MODELS_DIR, draft.path)
    return _inside(names.PVC_DIR if draft.claim == part.model.claim else names.DRAFT_DIR, draft.path)


def _inside(root: str, path: str) -> str:
    return f"{root}/{path}".rstrip("/")


def _decoding_args(part: EnginePart) -> list[str]:
    """Nothing for plain decoding: an engine's image may be older than the flags."""
    decoding = part.decoding
    if decoding.algorithm == "None":
        return []
    flags = {
        "--num-steps": decoding.num_steps,
        "--num-draft-tokens": decoding.num_draft_tokens,
        "--draft": draft_path(part),
    }
    return [f"--decoding={decoding.algorithm}", *(f"{flag}={value}" for flag, value in flags.items() if value)]


def _runtime_args(part: EnginePart) -> list[str]:
    """What only SGLang understands; the reference engine's runtime is its image's own choice."""
    engine = part.engine
    if engine.runtime != SGLANG:
        return []
    flags = {
        "--runtime": "sglang",
        "--tp": part.tp,
        "--concurrency": engine.concurrency,
        "--dtype": part.model.dtype,
        "--router-dtype": part.model.router_dtype,
        "--weight-cache": part.cache_policy,
    }
    words = [f"--extra-arg={word}" for word in engine.extra_args]
    return [*(f"{flag}={value}" for flag, value in flags.items() if value), *words]


def engine_args(deployment: str, revision: str, part: EnginePart, grace_seconds: int, command: str = RUN) -> list[str]:
    """The command line of `ling-engine`."""
    stated = [f"--model-revision={part.model.revision}"] if part.model.revision else []
    lives = [f"--revision={revision}", f"--grace-seconds={grace_seconds}"] if command in _LIVES else []
    return [
        command,
        f"--model={model_path(part)}",
        *stated,
        f"--context-length={part.engine.context_length}",
        f"--max-queue={part.engine.max_queue}",
        *lives,
        f"--served-model-name={deployment}",
        *_decoding_args(part),
        *_runtime_args(part),
    ]
