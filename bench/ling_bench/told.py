"""What endpoint and cluster tell of themselves, cut down to what a comparison needs, secrets left out. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# of the some 550 settings in SGLang's /server_info: what decides speed, as it was resolved
_SETTINGS: Final = _words("""
    model_path load_format dtype quantization kv_cache_dtype tp_size pp_size dp_size ep_size context_length
    attention_backend decode_attention_backend prefill_attention_backend linear_attn_backend linear_attn_verify_backend
    moe_runner_backend sampling_backend max_running_requests max_total_tokens chunked_prefill_size mem_fraction_static
    mamba_ssm_dtype linear_replayssm_cache_len disable_radix_cache disable_overlap_schedule stream_interval
    cuda_graph_max_bs_decode num_continuous_decode_steps enable_deterministic_inference sleep_on_idle
    speculative_algorithm speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens
    speculative_draft_model_path speculative_dspark_block_size
""")
_SECRET: Final = ("api-key", "password", "secret", "hf-token", "auth-token")


def sglang(info: Mapping[str, Any]) -> dict[str, Any]:
    """Of /server_info."""
    settings = {name: info[name] for name in _SETTINGS if info.get(name) is not None}
    found: dict[str, Any] = {"engine": "SGLang", "version": info.get("version"), "settings": settings}
    if info.get("launch_command"):
        found["launch_command"] = without_secrets(str(info["launch_command"]))
    return found


def without_secrets(command: str) -> str:
    """The values of flags that name a secret are left out."""
    try:
        words = shlex.split(command)
    except ValueError:
        return "(not told: its quotes are not balanced)"
    shown, hide = list[str](), False
    for word in words:
        name, given, _ = word.partition("=")
        secret = name.startswith("-") and any(part in name.replace("_", "-") for part in _SECRET)
        shown.append("***" if hide else f"{name}=***" if secret and given else word)
        hide = secret and not given
    return " ".join(word if word.endswith("***") else shlex.quote(word) for word in shown)


def sglang_drafts(info: Mapping[str, Any]) -> int | None:
    """SGLang's draft tokens are the rows of a verify round, the anchor among them; 0 where nothing is drafted."""
    if not info.get("speculative_algorithm"):
        return 0
    rows = info.get("speculative_num_draft_tokens")
    return rows - 1 if isinstance(rows, int) and rows > 0 else None


def deployment(found: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a LingDeployment and its LingSlots: revision, decoding, GPUs, and the identity of the weights by digest."""
    spec, status = found["spec"], found.get("status", {})
    return {
        "name": found["metadata"]["name"],
        "generation": found["metadata"]["generation"],
        "revision": status.get("currentRevision"),
        "model": spec["model"],
        "decoding": spec.get("decoding", {}),
        "parallelism": spec.get("parallelism", {}),
        "engine": {name: spec.get("engine", {}).get(name) for name in ("runtime", "image", "extraArgs", "env")},
        "slots": [_slot(one) for one in slots],
    }


def _slot(slot: Mapping[str, Any]) -> dict[str, Any]:
    status = slot.get("status", {})
    sets = sorted((one["role"], one.get("rank", 0), one["set"]) for one in status.get("weightSets", ()))
    return {
        "name": slot["metadata"]["name"],
        "node": status.get("node"),
        "gpus": status.get("gpus", []),
        "computeCapability": status.get("computeCapability"),
        "pod": status.get("active", {}).get("pod"),
        "identity": [{"role": role, "rank": rank, "set": name} for role, rank, name in sets],
    }


def deployment_drafts(decoding: Mapping[str, Any]) -> int | None:
    """At most so many drafts a round, as far as the spec says it."""
    algorithm = decoding.get("algorithm", "None")
    if algorithm == "NEXTN":
        return int(decoding.get("numSteps", 5))
    if algorithm == "DSPARK" and decoding.get("numDraftTokens"):
        return int(decoding["numDraftTokens"]) - 1
    return 0 if algorithm == "None" else None
