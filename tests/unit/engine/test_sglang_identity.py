"""The identity of SGLang's weight sets: each fact in turn makes another one; what is refused beside cached weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support import flash

from ling_api.errors import BadInput
from ling_api.identity import Identity, difference
from ling_engine.runtime import PREFERRED, REQUIRED
from ling_engine.sglang import allowed
from ling_engine.sglang.identity import Checkpoint, Layout, Machine, identities

DEFAULTS: dict[str, Any] = {"moe_runner_backend": "auto", "cpu_offload_gb": 0, "tp_size": 1, "odd": None, "port": 1}
VERDICT = allowed.judge(DEFAULTS, DEFAULTS, {}, REQUIRED)
TARGET = Checkpoint(
    config=flash.target(),
    index="1" * 64,
    shards={"model.safetensors": {"size": 1, "mtime_ns": 2, "header": "3" * 64}},
    revision="",
)
DRAFT = replace(TARGET, config=flash.draft(), index=None)
FACTS: dict[str, Any] = {
    "roles": ("target", "nextn", "dspark"),
    "layout": Layout(tp=2),
    "target": TARGET,
    "draft": DRAFT,
    "dtype": "bfloat16",
    "router_dtype": "fp32",
    "quantization": "",
    "verdict": VERDICT,
    "machine": Machine(versions={"sglang": "0.5.23"}, sources={"ling": "4" * 64}, kind="cuda", capability="9.0"),
}


def made(**changes: Any) -> dict[str, Identity]:
    return {role: one for (role, rank), one in identities(**{**FACTS, **changes}).items() if rank == 0}


def judged(**resolved: Any) -> allowed.Verdict:
    return allowed.judge({**DEFAULTS, **resolved}, DEFAULTS, {}, PREFERRED)


ALL, DRAFTS = {"target", "nextn", "dspark"}, {"nextn", "dspark"}
SHARD = TARGET.shards["model.safetensors"]


def shard(**changes: Any) -> Checkpoint:
    return replace(TARGET, shards={"model.safetensors": {**SHARD, **changes}})


@pytest.mark.parametrize(
    ("change", "roles"),
    [
        ({"layout": Layout(tp=4)}, ALL),
        ({"layout": Layout(tp=2, ep=2)}, ALL),
        ({"dtype": "float16"}, ALL),
        ({"router_dtype": "bf16"}, ALL),
        ({"quantization": "fp8"}, ALL),
        ({"machine": replace(FACTS["machine"], capability="10.0")}, ALL),
        ({"machine": replace(FACTS["machine"], kind="cpu")}, ALL),
        ({"machine": replace(FACTS["machine"], versions={"sglang": "0.5.24"})}, ALL),
        ({"machine": replace(FACTS["machine"], sources={"ling": "5" * 64})}, ALL),
        ({"verdict": judged(moe_runner_backend="flashinfer_trtllm")}, ALL),
        ({"verdict": judged(odd=1)}, ALL),
        ({"verdict": judged(speculative_draft_model_quantization="fp8")}, DRAFTS),
        ({"verdict": judged(speculative_num_draft_tokens=9)}, DRAFTS),
        ({"target": replace(TARGET, config=flash.target(routed_scaling_factor=1.0))}, ALL),
        ({"target": replace(TARGET, index=None)}, {"target", "nextn"}),
        ({"target": replace(TARGET, revision="sha256:" + "6" * 64)}, {"target", "nextn"}),
        ({"target": shard(size=9)}, {"target", "nextn"}),
        ({"target": shard(mtime_ns=9)}, {"target", "nextn"}),
        ({"target": shard(header="7" * 64)}, {"target", "nextn"}),
        ({"draft": replace(DRAFT, config=flash.draft(markov_rank=128))}, {"dspark"}),
        ({"draft": shard(size=9)}, {"dspark"}),
    ],
)  # fmt: skip
def test_each_fact_in_turn(change: dict[str, Any], roles: set[str]) -> None:
    before, after = made(), made(**change)
    assert {role for role in before if difference(before[role], after[role])} == roles


def test_ranks_share_an_identity_and_roles_do_not() -> None:
    found = identities(**FACTS)
    assert set(found) == {(role, rank) for role in ALL for rank in (0, 1)}
    assert found["target", 0] == found["target", 1]
    assert len({one.digest for one in found.values()}) == 3


def test_the_target_is_the_same_however_its_engine_decodes() -> None:
    plain = made(roles=("target",), draft=None, verdict=judged(speculative_algorithm=None))
    assert made(verdict=judged(speculative_algorithm="EAGLE"))["target"] == plain["target"]


def test_sizes_ports_and_free_variables_are_not_in_it() -> None:
    verdict = allowed.judge({**DEFAULTS, "port": 9}, DEFAULTS, {"SGLANG_CACHE_DIR": "/x", "HOME": "/root"}, REQUIRED)
    assert verdict == VERDICT


def test_a_variable_of_the_draft_counts_for_drafts() -> None:
    verdict = allowed.judge(DEFAULTS, DEFAULTS, {"SGLANG_RAGGED_VERIFY_MODE": "compact"}, REQUIRED)
    before, after = made(), made(verdict=verdict)
    assert {role for role in before if before[role] != after[role]} == DRAFTS


@pytest.mark.parametrize(
    ("resolved", "variables", "sentence"),
    [
        ({"cpu_offload_gb": 4}, {}, "cpu_offload_gb is 4: it writes or moves weights"),
        ({"odd": 1}, {}, "odd=1: not known to leave the weights as they are"),
        ({}, {"SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED": "1"}, "it permutes the experts' rows"),
        ({}, {"SGLANG_NEW_THING": "1"}, "SGLANG_NEW_THING=1: not known"),
    ],
    ids=["writes weights", "unknown setting", "interleaved experts", "unknown variable"],
)
def test_what_does_not_go_with_required_weights(
    resolved: dict[str, Any], variables: dict[str, str], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        allowed.judge({**DEFAULTS, **resolved}, DEFAULTS, variables, REQUIRED)


def test_unknown_settings_are_part_of_the_identity_where_they_are_let_through() -> None:
    assert allowed.judge({**DEFAULTS, "odd": 1}, DEFAULTS, {"SGLANG_NEW": "2"}, PREFERRED).common["other"] == {
        "SGLANG_NEW": "2",
        "odd": "1",
    }


def test_a_setting_is_in_one_class_only() -> None:
    classes = [allowed.FREE, set(allowed.IDENTITY), set(allowed.DRAFT_IDENTITY), set(allowed.REFUSED)]
    assert sum(map(len, classes)) == len(set().union(*classes))
