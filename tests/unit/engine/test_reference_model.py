"""The whole model against a second, independent derivation, and generation by steps against recomputation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.checkpoints import greedy, loaded, save, tensors_of, tiny
from tests.support.plain import Plain

from ling_engine.reference.sequence import Sequence

if TYPE_CHECKING:
    from pathlib import Path

    from ling_engine.reference.config import Config
    from ling_engine.reference.model import Ling

LIMITS: dict[str, Any] = {
    "expert_swiglu_limit_list": [None, None, 0.2, 0.3, None, 0.4],
    "share_expert_swiglu_limit_list": [None, None, None, 0.2, 0.3, 0.1],
}


@pytest.mark.parametrize("keys", [{}, LIMITS], ids=["no-clamp", "clamps"])
def test_hidden_rows_equal_an_independent_derivation(tmp_path: Path, keys: dict[str, Any]) -> None:
    tiny(tmp_path, **keys)
    model, c = loaded(tmp_path)
    ids = [72, 101, 108, 108, 111, 0, 255, 257, 32, 119, 9, 9, 9, 1, 2, 3, 4, 5, 6]
    wanted = Plain(tensors_of(tmp_path), c).hidden(ids)
    found = model(torch.tensor(ids), Sequence.allocate(c, 64)).hidden.double()
    assert float((found - wanted).abs().max() / wanted.abs().max()) <= 1e-5


def test_clamps_change_the_answer(tmp_path: Path) -> None:
    """Otherwise the case above would prove nothing about them."""
    tiny(tmp_path / "a")
    tiny(tmp_path / "b", **LIMITS)
    rows = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        model, c = loaded(folder)
        rows.append(model(torch.tensor([1, 2, 3]), Sequence.allocate(c, 8)).hidden)
    assert not torch.allclose(*rows, rtol=1e-3)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ling, Config]:
    folder = tmp_path_factory.mktemp("model")
    tiny(folder, seed=5)
    return loaded(folder)


def recomputed(model: Ling, c: Config, prompt: list[int], answer: list[int]) -> list[int]:
    """What a forward pass over prompt and answer at once says at each place of the answer."""
    step = model(torch.tensor([*prompt, *answer[:-1]]), Sequence.allocate(c, 512))
    return [int(token) for token in model.logits(step.hidden[len(prompt) - 1 :]).argmax(-1)]


@pytest.mark.parametrize("length", [1, 2, 8, 15, 17, 40])
def test_generation_by_steps_equals_recomputation(small: tuple[Ling, Config], length: int) -> None:
    model, c = small
    prompt = [(7 * i) % 250 for i in range(length)]
    found = list(greedy(model, Sequence.allocate(c, 512), prompt, 12, None, lambda: True))
    assert found == recomputed(model, c, prompt, found)


def test_a_prompt_longer_than_a_piece_equals_the_whole(small: tuple[Ling, Config]) -> None:
    model, c = small
    prompt = [(11 * i) % 256 for i in range(300)]
    sequence = Sequence.allocate(c, 512)
    found = list(greedy(model, sequence, prompt, 3, None, lambda: True))
    assert sequence.length == 302
    assert found == recomputed(model, c, prompt, found)


def test_a_sequence_starts_afresh(small: tuple[Ling, Config]) -> None:
    model, c = small
    sequence = Sequence.allocate(c, 64)
    first = list(greedy(model, sequence, [1, 2, 3], 8, None, lambda: True))
    assert list(greedy(model, sequence, [200] * 20, 8, None, lambda: True)) != first
    assert list(greedy(model, sequence, [1, 2, 3], 8, None, lambda: True)) == first


def test_a_step_that_is_not_committed_leaves_no_trace(small: tuple[Ling, Config]) -> None:
    """What a verify of refused drafts relies on."""
    model, c = small
    sequence = Sequence.allocate(c, 64)
    sequence.commit(model(torch.tensor([5, 6, 7]), sequence), 3)
    before = model(torch.tensor([8]), sequence).hidden
    model(torch.tensor([9, 10, 11, 12, 13]), sequence)
    assert torch.equal(model(torch.tensor([8]), sequence).hidden, before)


def test_generation_ends_at_eos_at_the_limit_and_when_unwanted(small: tuple[Ling, Config]) -> None:
    model, c = small
    sequence = Sequence.allocate(c, 64)
    whole = list(greedy(model, sequence, [1, 2, 3], 10, None, lambda: True))
    eos = whole[4]
    first = whole.index(eos)
    assert list(greedy(model, sequence, [1, 2, 3], 10, eos, lambda: True)) == whole[: first + 1]
    steps = iter([True, True, True, False])
    assert list(greedy(model, sequence, [1, 2, 3], 10, None, lambda: next(steps))) == whole[:3]


def test_bf16_runs_and_stays_near_fp32(tmp_path: Path) -> None:
    tiny(tmp_path / "wide")
    tiny(tmp_path / "short", torch_dtype="bfloat16")
    (wide, c), (short, d) = loaded(tmp_path / "wide"), loaded(tmp_path / "short")
    ids = torch.tensor(list(range(60, 84)))
    one, two = wide(ids, Sequence.allocate(c, 32)).hidden, short(ids, Sequence.allocate(d, 32)).hidden
    assert two.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(one, two.float(), dim=-1).median() > 0.95


def test_layers_can_be_listed_one_by_one(tmp_path: Path) -> None:
    tiny(tmp_path / "a", seed=3)
    tiny(tmp_path / "b", seed=3, layer_group_size=[1, 1, 1, 1, 1, 0])
    answers = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        model, c = loaded(folder)
        answers.append(list(greedy(model, Sequence.allocate(c, 32), [1, 2], 6, None, lambda: True)))
    assert answers[0] == answers[1]


def test_dense_and_o_proj_are_the_same_tensor(tmp_path: Path) -> None:
    tiny(tmp_path)
    one, _ = loaded(tmp_path)
    tensors = tensors_of(tmp_path)
    save(tmp_path, {n.replace(".dense.", ".o_proj."): t for n, t in tensors.items()})
    two, _ = loaded(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
