"""make-model, config.json and the loader: same seed same bytes, and every misfit is refused by name."""

from __future__ import annotations

import argparse
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.checkpoints import TINY, loaded, save, tensors_of, tiny

from ling_api.errors import BadInput, FillFailed
from ling_engine.reference import checkpoint, config, matching, tokenizer, weights, writer
from ling_engine.reference.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor


def make(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    checkpoint.add_arguments(parser)
    return checkpoint.run(parser.parse_args(argv))


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert make(str(tmp_path / name), "--seed", seed) == 0
    one, two, three = capsys.readouterr().out.split()
    assert one == two != three
    raw = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert one == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_the_bytes_of_a_seed_never_change(tmp_path: Path) -> None:
    """`model.revision` in manifests and examples relies on it."""
    assert checkpoint.make_model(tmp_path).startswith("29aa806dabe6")


def test_dtype_flag_decides_the_weights_but_not_what_is_always_fp32(tmp_path: Path) -> None:
    make(str(tmp_path), "--dtype", "bf16")
    kinds = {name: tensor.dtype for name, tensor in tensors_of(tmp_path).items()}
    assert kinds["lm_head.weight"] == torch.bfloat16
    assert kinds["model.layers.0.attention.A_log"] == torch.float32
    assert kinds["model.layers.4.mlp.gate.weight"] == torch.float32
    assert config.read(tmp_path).dtype == "bfloat16"


def test_a_folder_that_is_not_empty_needs_force(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="--force"):
        make(str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"old")
    make(str(tmp_path), "--force")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "model-00001-of-00002.safetensors").exists()
    loaded(tmp_path)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="no folder that can be written"):
        make(str(tmp_path / "file"))


def test_shards_and_their_index_load_like_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiny(tmp_path / "one")
    monkeypatch.setattr(writer, "_SHARD", 300_000)
    many = tiny(tmp_path / "many")
    shards = sorted(file.name for file in (tmp_path / "many").glob("*.safetensors"))
    assert len(shards) > 3
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    (a, c), (b, _) = loaded(tmp_path / "one"), loaded(tmp_path / "many")
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert weights.load(tmp_path / "many", b, matching.target(c.num_hidden_layers), lambda _done: None) == many != one


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_valid_config_without_bytes_of_weights(preset: str) -> None:
    c = config.parse({**PRESETS[preset], "torch_dtype": "bfloat16"})
    assert c.num_hidden_layers % 6 == 0


@pytest.mark.parametrize(("preset", "gib", "tensors"), [("1g", 1, 585), ("2g", 2, 585), ("4g", 4, 585)])
def test_large_presets_have_the_size_of_their_name(preset: str, gib: int, tensors: int) -> None:
    from ling_engine.reference.model import Ling

    parameters = list(Ling(config.parse({**PRESETS[preset], "torch_dtype": "bfloat16"})).parameters())
    assert len(parameters) == tensors
    assert sum(p.nbytes for p in parameters) / 2**30 == pytest.approx(gib, rel=0.06)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mla-nope": ({"use_mla_nope": True}, "use_mla_nope is true"),
    "q-lora": ({"q_lora_rank": 256}, "q_lora_rank is 256"),
    "multi-gate": ({"multi_gate": True}, "multi_gate is true"),
    "kda-lora": ({"use_kda_lora": True}, "use_kda_lora is true"),
    "kda-lora-otherwise": ({"no_kda_lora": False}, "no_kda_lora is false"),
    "softplus-gate": ({"kda_safe_gate": False}, "kda_safe_gate is false"),
    "rope-scaling": ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling is .*yarn"),
    "rope-halves": ({"rope_interleave": False}, "rope_interleave is false"),
    "tied": ({"tie_word_embeddings": True}, "tie_word_embeddings is true"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is .*fp8"),
    "gelu": ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
    "softmax-router": ({"scoring_func": "softmax"}, 'scoring_func is "softmax"'),
    "no-expert-bias": ({"moe_router_enable_expert_bias": False}, "moe_router_enable_expert_bias is false"),
    "two-shared": ({"num_shared_experts": 2}, "num_shared_experts is 2"),
    "one-is-not-true": ({"norm_topk_prob": 1}, "norm_topk_prob is 1"),
    "bias": ({"use_qkv_bias": True}, "use_qkv_bias is true"),
    "gate-kind": ({"gated_attention_proj_granularity_type": "wise"}, "head_wise, element_wise"),
    "dtype": ({"torch_dtype": "float16"}, 'torch_dtype is "float16"; write one of'),
    "router-dtype": ({"router_dtype": "fp8"}, "router_dtype is"),
    "missing": ({"hidden_size": ...}, "hidden_size is missing; write a whole number"),
    "no-theta": ({"rope_theta": ...}, "rope_theta is missing; write a number"),
    "text": ({"vocab_size": "264"}, 'vocab_size is "264"; write a whole number'),
    "bool": ({"head_dim": True}, "head_dim is true"),
    "negative": ({"num_experts": -8}, "num_experts is -8; write a positive"),
    "zero": ({"kv_lora_rank": 0}, "kv_lora_rank is 0; write a positive"),
    "strong-decay": ({"kda_lower_bound": -6}, "kda_lower_bound is -6"),
    "no-decay": ({"kda_lower_bound": 0}, "kda_lower_bound is 0"),
    "group-size": ({"layer_group_size": 4}, "layer_group_size is 4; write a divisor"),
    "group-list": ({"layer_group_size": [1, 0]}, "needs 6 entries"),
    "experts-in-groups": ({"num_experts": 9}, "num_experts is 9"),
    "groups-of-one": ({"num_experts": 4}, "groups of 2 or more"),
    "kept-groups": ({"topk_group": 5}, "topk_group is 5"),
    "too-many-chosen": ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
    "odd-rope": ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7"),
    "short-kernel": ({"short_conv_kernel_size": 1}, "short_conv_kernel_size is 1"),
    "short-limits": ({"expert_swiglu_limit_list": [1.0]}, "expert_swiglu_limit_list needs an entry for each of 6"),
    "bad-limits": ({"share_expert_swiglu_limit_list": [-1.0] * 6}, "neither null nor a number"),
}


@pytest.mark.parametrize(("keys", "sentence"), REFUSED.values(), ids=REFUSED)
def test_config_that_is_not_implemented_is_refused_by_name(keys: dict[str, Any], sentence: str) -> None:
    changed = {key: value for key, value in {**TINY, **keys}.items() if value is not ...}
    with pytest.raises(BadInput, match=sentence) as caught:
        config.parse(changed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff"], ids=["empty", "list", "cut", "no-utf8"])
def test_an_unreadable_config_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=r"config\.json: "):
        config.read(tmp_path)


def test_unrelated_keys_and_absent_defaults_are_fine() -> None:
    keys = {k: v for k, v in TINY.items() if k not in ("rope_scaling", "q_lora_rank", "hidden_act", "router_dtype")}
    c = config.parse({**keys, "transformers_version": "5.0", "auto_map": {}})
    assert (c.router_dtype, c.kda) == ("float32", (True,) * 5 + (False,))


def change(name: str, new: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def apply(tensors: dict[str, Tensor]) -> None:
        tensors[name] = new(tensors[name])

    return apply


def rename(old: str, new: str) -> Callable[[dict[str, Tensor]], None]:
    def apply(tensors: dict[str, Tensor]) -> None:
        tensors[new] = tensors.pop(old)

    return apply


def both_spellings(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.5.attention.o_proj.weight"] = tensors["model.layers.5.attention.dense.weight"].clone()


EMBED = "model.word_embeddings.weight"
MISFITS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "missing": (lambda t: t.pop(EMBED), f"no tensor for {EMBED}"),
    "unused": (lambda t: t.update(extra=torch.zeros(2)), "no parameter for extra"),
    "misspelt": (rename("model.norm.weight", "model.norms.weight"), "no parameter for model.norms.weight"),
    "bias": (lambda t: t.update({"lm_head.bias": torch.zeros(264)}), "no parameter for lm_head.bias"),
    "inner-layer": (
        lambda t: t.update({"model.layers.5.attention.A_log": torch.zeros(4)}),
        "no parameter for model.layers.5.attention.A_log",
    ),
    "shape": (change("lm_head.weight", lambda x: x[:-1]), r"lm_head.weight has shape \(263, 64\); config.json asks"),
    "narrow": (change("model.layers.0.attention.A_log", torch.Tensor.double), "A_log is stored as float64"),
    "integers": (change("model.norm.weight", lambda x: x.to(torch.int32)), "model.norm.weight is stored as int32"),
    "twice": (both_spellings, "as dense and as o_proj"),
}


@pytest.mark.parametrize(("misfit", "sentence"), MISFITS.values(), ids=MISFITS)
def test_a_misfit_of_tensors_is_named(
    tmp_path: Path, misfit: Callable[[dict[str, Tensor]], object], sentence: str
) -> None:
    tiny(tmp_path)
    tensors = tensors_of(tmp_path)
    misfit(tensors)
    save(tmp_path, tensors)
    with pytest.raises(FillFailed, match=sentence):
        loaded(tmp_path)


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    tiny(tmp_path)
    save(tmp_path, {n: t for n, t in tensors_of(tmp_path).items() if ".layers.1." not in n})
    with pytest.raises(FillFailed, match=r"no tensor for model.layers.1.*and \d+ more"):
        loaded(tmp_path)


def test_bf16_widens_to_fp32_exactly(tmp_path: Path) -> None:
    tiny(tmp_path)
    tensors = tensors_of(tmp_path)
    name = "model.layers.2.mlp.gate.weight"
    tensors[name] = tensors[name].bfloat16()
    save(tmp_path, tensors)
    model, _ = loaded(tmp_path)
    assert torch.equal(dict(model.named_parameters())[name], tensors[name].float())


def test_the_next_token_draft_is_set_aside_but_hashed(tmp_path: Path) -> None:
    before = tiny(tmp_path)
    save(tmp_path, {**tensors_of(tmp_path), "model.layers.6.eh_proj.weight": torch.ones(64, 128)})
    model, c = loaded(tmp_path)
    content = weights.load(tmp_path, model, matching.target(c.num_hidden_layers), lambda _done: None)
    assert content == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest() != before


def cut(raw: bytes) -> bytes:
    return raw[:-100]


def header(**changes: Any) -> Callable[[bytes], bytes]:
    def apply(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        entries = json.loads(raw[8 : 8 + length])
        entries["lm_head.weight"] |= changes
        text = json.dumps(entries).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + length :]

    return apply


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (cut, "copy the file again"),
    "longer": (lambda raw: raw + b"x", "copy the file again"),
    "empty": (lambda raw: b"", "no safetensors file"),
    "only-a-length": (lambda raw: raw[:8], "no safetensors file"),
    "huge-length": (lambda raw: b"\xff" * 8 + raw[8:], "no safetensors file"),
    "no-json": (lambda raw: raw[:8] + b"!" + raw[9:], "no safetensors file"),
    "offsets": (header(data_offsets=[0, 4]), "offsets that do not fit"),
    "negative-offsets": (header(data_offsets=[-4, 67580]), "offsets that do not fit"),
    "no-shape": (header(shape=None), "no safetensors file"),
    "overlap": (header(data_offsets=[0, 264 * 64 * 4]), "overlaps its neighbour or leaves a gap"),
}


@pytest.mark.parametrize(("damage", "sentence"), BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes], sentence: str) -> None:
    tiny(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(FillFailed, match=sentence):
        loaded(tmp_path)


def test_a_checkpoint_without_shards_is_refused(tmp_path: Path) -> None:
    tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FillFailed, match=r"model.safetensors: cannot be read \(No such file"):
        loaded(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../x"}}'])
def test_a_bad_index_is_refused(tmp_path: Path, text: str) -> None:
    tiny(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(FillFailed, match=r"index\.json"):
        loaded(tmp_path)


def test_progress_rises_to_one(tmp_path: Path) -> None:
    tiny(tmp_path)
    model, c = loaded(tmp_path)
    seen: list[float] = []
    weights.load(tmp_path, model, matching.target(c.num_hidden_layers), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_the_tokenizer_file_is_read_back_and_others_are_refused(tmp_path: Path) -> None:
    tiny(tmp_path)
    assert tokenizer.read(tmp_path, 264) == tokenizer.ByteTokenizer(bos=256, eos=257)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(258))
    assert (vocabulary["A"], vocabulary["Ġ"], vocabulary["Ċ"]) == (65, 32, 10)
    with pytest.raises(BadInput, match="from 256 to 256"):
        tokenizer.read(tmp_path, 257)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Other"}')
    with pytest.raises(BadInput, match="no byte tokenizer"):
        tokenizer.read(tmp_path, 264)
