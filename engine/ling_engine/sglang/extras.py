"""Flags of SGLang that a user may add: those that change neither the weights nor the sizes that were computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

# name -> whether a value follows
KNOWN: Final = {
    "--reasoning-parser": True,
    "--tool-call-parser": True,
    "--chat-template": True,
    "--sampling-defaults": True,
    "--grammar-backend": True,
    "--stream-interval": True,
    "--log-level": True,
    "--log-requests": False,
    "--log-requests-level": True,
    "--decode-log-interval": True,
    "--schedule-policy": True,
    "--enable-metrics": False,
    "--watchdog-timeout": True,
    "--sleep-on-idle": False,
    "--page-size": True,
    "--attention-backend": True,
    "--sampling-backend": True,
    "--moe-runner-backend": True,
    "--fp8-gemm-backend": True,
    "--bf16-gemm-backend": True,
    "--scheduler-recv-interval": True,
    "--linear-attn-backend": True,
    "--linear-attn-decode-backend": True,
    "--linear-attn-prefill-backend": True,
    "--linear-attn-verify-backend": True,
    "--enable-linear-replayssm-spec": False,
    "--disable-overlap-schedule": False,
    "--disable-custom-all-reduce": False,
    "--flashinfer-allreduce-fusion-backend": True,
    "--speculative-draft-attention-backend": True,
    "--enable-deterministic-inference": False,
}
_OURS: Final = {
    "--model-path": "model.source",
    "--model": "model.source",
    "--served-model-name": "--served-model-name",
    "--context-length": "--context-length",
    "--max-total-tokens": "--context-length and --concurrency",
    "--max-running-requests": "--concurrency",
    "--tp-size": "--tp",
    "--tp": "--tp",
    "--tensor-parallel-size": "--tp",
    "--dtype": "--dtype",
    "--load-format": "--weight-cache",
    "--weight-cache-mode": "--weight-cache",
    "--speculative-algorithm": "--decoding",
    "--speculative-num-steps": "--num-steps",
    "--speculative-num-draft-tokens": "--num-draft-tokens",
    "--speculative-draft-model-path": "--draft",
    "--host": "the slot's own port",
    "--port": "the slot's own port",
}


def checked(extra: Sequence[str]) -> list[str]:
    """As words for SGLang's parser; `--flag=value` is two. Raises BadInput with one sentence."""
    words = [part for word in extra for part in (word.split("=", 1) if word.startswith("--") else [word])]
    at = 0
    while at < len(words):
        name = words[at]
        if name in _OURS:
            raise BadInput(f"--extra-arg {name}: this is set by {_OURS[name]}")
        if name not in KNOWN:
            raise BadInput(
                f"--extra-arg {name}: not among the flags that are known to go with cached weights: "
                f"{', '.join(sorted(KNOWN))}"
            )
        at += 1 + KNOWN[name]
        if at > len(words):
            raise BadInput(f"--extra-arg {name}: a value must follow: --extra-arg={name}=VALUE")
    return words
