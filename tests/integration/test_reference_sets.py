"""`make-model --draft`, and the runtime with a draft: weight sets of their own, what is borrowed, what is counted."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.support import speculation
from tests.support.checkpoints import save, tensors_of

from ling_api.errors import BadInput, FillFailed
from ling_api.manifest import plan_layout
from ling_api.memory.memfd import MemfdMemory
from ling_engine.decoding import Decoding
from ling_engine.metrics import ServerMetrics
from ling_engine.middleware import Middleware
from ling_engine.reference import checkpoint, dial
from ling_engine.reference.presets import PRESETS
from ling_engine.reference.runtime import RUNTIME
from ling_engine.runtime import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ling_engine.runtime import ServedModel

SMALL = {**speculation.KEYS, "vocab_size": 264}
NEXTN = Decoding(algorithm="NEXTN", num_steps=3, num_draft_tokens=4)
DSPARK = Decoding(algorithm="DSPARK", num_steps=1, num_draft_tokens=5)
PLAIN = Decoding()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with both drafts, right about 4 times in 5; nobody may write into it."""
    folder = tmp_path_factory.mktemp("predictable")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", SMALL)
        patch.setattr(dial, "_TURNS", 6)
        parser = argparse.ArgumentParser()
        checkpoint.add_arguments(parser)
        flags = [str(folder), "--draft", "nextn", "--draft", "dspark", "--accept", "0.8", "--seed", "1"]
        assert checkpoint.run(parser.parse_args(flags)) == 0
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """One that may be changed."""
    for file in made.rglob("*.*"):
        (tmp_path / file.relative_to(made)).parent.mkdir(exist_ok=True)
        (tmp_path / file.relative_to(made)).write_bytes(file.read_bytes())
    return tmp_path


def settings(folder: Path, decoding: Decoding, **others: Any) -> ModelSettings:
    fixed: dict[str, Any] = {"path": folder, "revision": "", "context_length": 128, "max_queue": 8, "served_name": "t"}
    return ModelSettings(**(fixed | others), decoding=decoding)


def opened(asked: ModelSettings) -> tuple[ServedModel, list[str]]:
    """Every set filled in shared memory that is then read-only; and the contents that the loads told."""
    served, contents, memory = RUNTIME.open(asked), [], MemfdMemory()
    for twin in served.twins:
        layout = plan_layout(twin.specs(), granularity=memory.granularity)
        regions = [memory.create(size) for size in layout.sizes]
        mapping = memory.map(regions, layout.sizes, writable=True)
        twin.bind(mapping, layout)
        contents.append(twin.load(lambda _done: None))
        mapping.make_read_only(regions)
    return served, contents


def test_the_dial_and_what_was_measured_lie_in_the_checkpoint(made: Path) -> None:
    meta = json.loads((made / "generation_meta.json").read_text())
    assert meta["accept"] == 0.8
    assert meta["tokens"] == 64
    assert 0 < meta["dial"] < 8
    for name in ("nextn", "dspark"):
        assert meta["measured"][name]["acceptance"] == pytest.approx(0.8, abs=0.15)
        assert meta["measured"][name]["accept_length"] > 2
    assert json.loads((made / "config.json").read_text())["num_nextn_predict_layers"] == 1
    assert (made / "dspark/config.json").exists()


WRONG = {
    "no-draft": ({"accept": 0.5}, "--accept 0.5: must be more than 0 and at most 1, and needs --draft"),
    "never": ({"accept": 0.0, "drafts": ("nextn",)}, "--accept 0: must be more than 0"),
    "more-than-always": ({"accept": 1.5, "drafts": ("nextn",)}, "--accept 1.5: must be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wanted_acceptance_must_make_sense(tmp_path: Path, case: str) -> None:
    flags, sentence = WRONG[case]
    with pytest.raises(BadInput, match=sentence):
        checkpoint.make_model(tmp_path, **flags)


def test_force_replaces_the_draft_too(copy: Path) -> None:
    checkpoint.make_model(copy, force=True)
    assert not list((copy / "dspark").iterdir())
    assert not (copy / "generation_meta.json").exists()


def test_a_dense_checkpoint_has_no_experts(tmp_path: Path) -> None:
    checkpoint.make_model(tmp_path, dense=True)
    assert not any("experts" in name for name in tensors_of(tmp_path))


def described(asked: ModelSettings) -> dict[str, str]:
    return {one.role: one.identity.digest for one in RUNTIME.describe(asked).sets}


def test_an_edit_of_the_decoding_keeps_the_target_and_names_the_draft(made: Path) -> None:
    sets = [described(settings(made, how)) for how in (NEXTN, DSPARK, PLAIN)]
    assert [list(one) for one in sets] == [["target", "nextn"], ["target", "dspark"], ["target"]]
    assert len({one["target"] for one in sets}) == 1
    more = described(settings(made, Decoding(algorithm="NEXTN", num_steps=1, num_draft_tokens=2)))
    assert more == sets[0]  # how many drafts there are changes no byte


def test_embedding_and_head_are_stored_once(made: Path) -> None:
    for how in (NEXTN, DSPARK):
        target, draft = RUNTIME.open(settings(made, how)).twins
        assert {"model.word_embeddings.weight", "lm_head.weight"} <= {spec.name for spec in target.specs()}
        assert not any("embed" in spec.name or "lm_head" in spec.name for spec in draft.specs())


def test_the_plan_counts_the_draft(made: Path) -> None:
    plans = {how.algorithm: RUNTIME.describe(settings(made, how)).plan for how in (PLAIN, NEXTN, DSPARK)}
    room, width, heads = 128 + 4, 16, 2
    assert plans["DSPARK"].private["draft_kv"] == 5 * 2 * room * heads * width * 4 + room * width * 4
    assert plans["NEXTN"].private["draft_kv"] == (128 + 3) * ((32 + 8) * 4 + 8 * 4)
    assert plans["None"].total < min(plans["NEXTN"].total, plans["DSPARK"].total)


def zero_context(folder: Path) -> None:
    (folder / "dspark/config.json").unlink()


def no_layer(folder: Path) -> None:
    keys = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**keys, "num_nextn_predict_layers": 0}))


def lost_tensor(folder: Path) -> None:
    save(folder, {n: t for n, t in tensors_of(folder).items() if not n.endswith("eh_proj.weight")})


def strange_tensor(folder: Path) -> None:
    tensors = tensors_of(folder / "dspark")
    save(folder / "dspark", tensors | {"layers.0.what": tensors["norm.weight"]})


MISFITS: dict[str, tuple[Decoding, Callable[[Path], None], str]] = {
    "no-dspark": (DSPARK, zero_context, r"dspark/config\.json: no readable"),
    "no-layer": (NEXTN, no_layer, "num_nextn_predict_layers is 0; NEXTN needs a checkpoint with one such layer"),
    "lost-tensor": (NEXTN, lost_tensor, r"no tensor for eh_proj\.weight"),
    "strange-tensor": (DSPARK, strange_tensor, r"no parameter for layers\.0\.what"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_draft_that_does_not_fit_is_found_before_a_weight_is_read(copy: Path, case: str) -> None:
    how, damage, sentence = MISFITS[case]
    damage(copy)
    with pytest.raises(BadInput, match=sentence):
        RUNTIME.describe(settings(copy, how))


def test_a_dspark_checkpoint_may_hold_what_is_borrowed_and_a_prefix(copy: Path) -> None:
    tensors = tensors_of(copy / "dspark")
    extra = {"lm_head.weight": tensors["norm.weight"], "confidence_head.proj.weight": tensors["norm.weight"]}
    save(copy / "dspark", {f"model.{name}": tensor for name, tensor in tensors.items()} | extra)
    assert list(described(settings(copy, DSPARK))) == ["target", "dspark"]
    opened(settings(copy, DSPARK))


def test_the_nextn_layer_knows_the_content_only_where_a_revision_asks(made: Path) -> None:
    _, contents = opened(settings(made, NEXTN))
    assert contents[1] == ""
    revision = f"sha256:{contents[0]}"
    _, stated = opened(settings(made, NEXTN, revision=revision))
    assert stated == [contents[0], contents[0]]
    with pytest.raises(FillFailed, match=r"model\.revision says sha256:0000"):
        opened(settings(made, NEXTN, revision="sha256:" + "0" * 64))


BODY = {"model": "t", "prompt": "Hello", "max_tokens": 30, "ignore_eos": True}


async def asked(served: ServedModel, *bodies: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Answers, and the metrics behind them."""
    metrics = ServerMetrics()
    transport = httpx.ASGITransport(Middleware(served.app(), metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = [(await client.post("/v1/completions", json=body)).json() for body in bodies]
        lines = (await client.get("/metrics")).text.splitlines()
    return answers, {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@pytest.mark.parametrize("how", [NEXTN, DSPARK], ids=["nextn", "dspark"])
async def test_answers_and_metrics_count_as_sglang_does(made: Path, how: Decoding) -> None:
    served, _ = opened(settings(made, how))
    served.warm_up()
    drawn = {**BODY, "temperature": 0.7, "seed": 5}
    bodies = [BODY, {**BODY, "max_tokens": 1}, {**BODY, "max_tokens": 3}, drawn, drawn]
    answers, metrics = await asked(served, *bodies)
    plain, without = await asked(opened(settings(made, PLAIN))[0], *bodies)
    assert [one["choices"] for one in answers] == [one["choices"] for one in plain]
    assert all("completion_tokens_details" not in one["usage"] for one in plain)
    assert without["ling_verify_rounds_total"] == 0
    assert "completion_tokens_details" not in answers[1]["usage"]  # its one token came with the prompt
    details = [one["usage"]["completion_tokens_details"] for one in answers if one is not answers[1]]
    for one, usage in zip(details, (a["usage"] for a in answers if a is not answers[1]), strict=True):
        assert one["spec_accept_length"] == usage["completion_tokens"] / one["spec_verify_ct"]
    assert metrics["ling_verify_rounds_total"] == sum(one["spec_verify_ct"] for one in details)
    assert metrics["ling_correct_drafts_total"] == sum(one["spec_num_correct_drafts"] for one in details)
    assert metrics["ling_accepted_tokens_total"] == 29 + 0 + 2 + 29 + 29  # first tokens come with the prompt
    length = metrics["ling_accepted_tokens_total"] / metrics["ling_verify_rounds_total"]
    assert 1.2 < length <= how.num_draft_tokens


async def test_a_seed_repeats_a_draw_and_another_does_not(made: Path) -> None:
    served, _ = opened(settings(made, NEXTN))
    hot = {**BODY, "temperature": 1.5}
    answers, _ = await asked(served, {**hot, "seed": 1}, {**hot, "seed": 1}, {**hot, "seed": 2}, hot, hot)
    texts = [one["choices"][0]["text"] for one in answers]
    assert texts[0] == texts[1]
    assert len(set(texts[1:])) == 4


async def test_a_stop_text_ends_the_counts_where_it_ends_the_answer(made: Path) -> None:
    served, _ = opened(settings(made, NEXTN))
    (whole,), _ = await asked(served, BODY)
    stop = whole["choices"][0]["text"][20]
    (cut,), metrics = await asked(served, {**BODY, "stop": stop})
    tokens = whole["choices"][0]["text"].index(stop) + 1
    assert cut["usage"]["completion_tokens"] == tokens
    assert metrics["ling_accepted_tokens_total"] == tokens - 1
    assert metrics["ling_accepted_tokens_total"] <= 4 * metrics["ling_verify_rounds_total"]
