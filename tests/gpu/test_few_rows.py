"""Our kernels for few rows on a real GPU, at Flash's sizes with fewer experts: right, repeatable, and in a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support import experts as definition

from ling_engine.kernels import plans

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN, EXPERTS = 2560, 65
SCALE = 2.5
CHOICE = plans.Choice(chosen=8, slots=9, groups=8, of_groups=4, scale=SCALE)


@pytest.fixture(autouse=True)
def kernels(gpu: str) -> Any:
    return pytest.importorskip("ling_engine.kernels.router", reason="needs Triton")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    make = lambda *size: torch.empty(size, device="cuda").normal_(std=0.02)  # noqa: E731
    return {
        "gate": make(EXPERTS - 1, HIDDEN), "bias": make(EXPERTS - 1),
        "up": make(EXPERTS, 2 * 768, HIDDEN).bfloat16(), "down": make(EXPERTS, HIDDEN, 768).bfloat16(),
    }  # fmt: skip


@pytest.fixture(params=[False, True], ids=["one after the other", "early"])
def pdl(request: pytest.FixtureRequest) -> bool:
    if request.param and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("needs compute capability 9.0")
    return bool(request.param)


def layer(weights: dict[str, torch.Tensor], pdl: bool, limit: float | None = None) -> Callable[[Any], Any]:
    from ling_engine.kernels import router
    from ling_engine.kernels.experts import Experts

    made = Experts(weights["up"], weights["down"], limit=limit)
    plan = plans.scores(HIDDEN, EXPERTS - 1)
    assert plan is not None

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cuts = plans.experts(HIDDEN, 768, x.shape[0])
        assert cuts is not None
        scores = router.scores(x, weights["gate"], plan=plan, pdl=pdl)
        share, ids = router.choose(scores, weights["bias"], CHOICE, pdl=pdl)
        out = made(x, share, ids, torch.empty_like(x), scale=SCALE, plans=cuts, pdl=pdl)
        return scores, share, ids, out

    return run


def rows(count: int, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(count, HIDDEN, device="cuda").bfloat16()


@pytest.mark.parametrize("limit", [None, 0.01], ids=["free", "limited"])
@pytest.mark.parametrize("count", [1, 2, 6, 9, 16])
def test_a_layer_is_what_its_definition_says(
    weights: dict[str, torch.Tensor], pdl: bool, count: int, limit: float | None
) -> None:
    x = rows(count)
    scores, share, ids, out = layer(weights, pdl, limit)(x)
    exact = x.double() @ weights["gate"].double().T
    assert (scores - exact).abs().max() < 1e-5
    right, chosen = definition.chosen(scores.cpu(), weights["bias"].cpu(), CHOICE)
    assert torch.equal(ids.cpu(), chosen)
    assert torch.allclose(share.cpu(), right.float(), rtol=1e-5)
    wanted = definition.summed(x, weights["up"], weights["down"], share, ids, SCALE, limit).float()
    assert (out.float() - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize("count", [1, 6, 9])
def test_a_graph_gives_the_same_bits_every_time(weights: dict[str, torch.Tensor], pdl: bool, count: int) -> None:
    """Whoever comes last sums in one order."""
    run = layer(weights, pdl)
    x = rows(count)
    wanted = [one.clone() for one in run(x)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = run(x)
        again = run(first[-1])
    others = [rows(count, seed) for seed in range(2, 30)]
    results = []
    for other in others:  # between the replays that are compared, others
        for given in (x, other):
            kept = given.clone()
            x.copy_(kept)
            graph.replay()
            torch.cuda.synchronize()
            if given is not other:
                results.append([one.clone() for one in (*first, *again)])
        x.copy_(rows(count))
    assert len(results) == len(others)
    for found in results:
        assert all(torch.equal(a, b) for a, b in zip(found[:4], wanted, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


@pytest.mark.parametrize(("count", "ring"), [(6, 0), (9, 32)], ids=["states", "ring"])
def test_more_columns_a_program_verify_to_the_same_bits(count: int, ring: int) -> None:
    layers = pytest.importorskip("benchmarks.few_rows_layer", reason="needs SGLang")
    found = []
    for columns in (4, plans.VERIFIED_COLUMNS):
        found.append([one.clone() for one in layers.Verify(count, ring=ring).run(columns)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("have", [0, 1], ids=["no row", "one of nine"])
def test_rows_without_experts_have_no_result(weights: dict[str, torch.Tensor], pdl: bool, have: int) -> None:
    from ling_engine.kernels.experts import Experts

    made, x = Experts(weights["up"], weights["down"]), rows(9)
    _, share, ids, wanted = layer(weights, pdl)(x)
    cuts = plans.experts(HIDDEN, 768, 9)
    assert cuts is not None
    ids[have:] = -1
    out = made(x, share, ids, torch.full_like(x, 7), scale=SCALE, plans=cuts, pdl=pdl)
    assert not out[have:].any()
    assert torch.allclose(out[:have], wanted[:have], rtol=0.02, atol=0.02)  # fewer experts, in the same order


def test_a_replay_by_more_programs_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten layers of Flash's states, of which a request has five rows confirmed."""
    replays = pytest.importorskip("sglang.kernels.ops.attention.linear.kda_replayssm_spec_decode")
    from ling_engine.sglang import few_rows

    monkeypatch.setattr(replays, "kda_replayssm_exact_fold_kernel", replays.kda_replayssm_exact_fold_kernel)

    def replayed(call: Callable[..., None]) -> torch.Tensor:
        torch.manual_seed(0)
        make = lambda *size: torch.randn(10, 3, 32, *size, device="cuda")  # noqa: E731
        states = make(128, 128)
        v, k, decay, share = make(32, 128).bfloat16(), make(32, 128).bfloat16(), -make(32, 128).abs(), make(32).abs()
        slots, rows = (torch.tensor([one], dtype=torch.int32, device="cuda") for one in (2, 5))
        call(states, v, k, decay, share, slots, rows, max_cache_len=32, num_k_heads=32, null_block_id=-1)
        return states

    call = replays.commit_kda_replayssm_spec_all_layers
    wanted = replayed(call)
    found = replayed(lambda *args, **named: few_rows.replayed(call, *args, **named))
    assert torch.equal(found, wanted)
    assert not torch.equal(found, replayed(lambda *_, **__: None))


def test_the_result_may_be_where_the_rows_were(weights: dict[str, torch.Tensor], pdl: bool) -> None:
    from ling_engine.kernels.experts import Experts

    made, x = Experts(weights["up"], weights["down"]), rows(6)
    _, share, ids, wanted = layer(weights, pdl)(x)
    cuts = plans.experts(HIDDEN, 768, 6)
    assert cuts is not None
    given = x.clone()
    made(given, share, ids, given, scale=SCALE, plans=cuts, pdl=pdl)
    assert torch.equal(given, wanted)


SIZES = pytest.mark.parametrize(
    ("columns", "summands"),
    [(157184, HIDDEN), (20512, HIDDEN), (12288, HIDDEN), (HIDDEN, 6144), (HIDDEN, 4096), (40960, HIDDEN)],
    ids=["head", "KDA", "qkv", "down", "attention's output", "context"],
)


@SIZES
@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("rounded", [False, True], ids=["bf16", "fp8"])
def test_a_product_is_that_of_its_numbers(pdl: bool, rounded: bool, columns: int, summands: int, count: int) -> None:
    from ling_engine.kernels import fp8, products

    torch.manual_seed(0)
    weight = torch.randn(columns, summands, device="cuda").bfloat16()
    small, scales = fp8.rounded(weight)
    plan = plans.rounded(summands, columns) if rounded else plans.product(summands, columns)
    assert plan is not None
    matrix = products.Matrix(small, scales) if rounded else products.Matrix(weight)
    picked = torch.randint(columns, (2000,), device="cuda")
    exact = small[picked].double() * scales[picked, None].double() if rounded else weight[picked].double()
    for _ in range(2):  # counters are as they were
        x = torch.randn(count, summands, device="cuda").bfloat16()
        found = matrix.product(x, plan=plan, pdl=pdl)
        wanted = x.double() @ exact.T
        assert (found[:, picked] - wanted).abs().max() < 5e-3 * wanted.abs().max()  # bf16
    assert torch.equal(matrix.product(x, plan=plan, pdl=pdl), found), "whoever came last"


def drafted(weights: Any, pdl: bool, temperature: float, round_: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the scores that they were taken by, of a Markov head in a graph, which is replayed once."""
    from ling_engine.kernels import markov

    rows, small, scales, base = weights
    plan = plans.markov(*small.shape)
    assert plan is not None
    head, kept = markov.Head(rows, small, scales, plan), torch.zeros_like(base)
    given = (
        base, torch.tensor([3], device="cuda"), kept, torch.full((1,), temperature, device="cuda"),
        torch.tensor([round_], device="cuda"),
    )  # fmt: skip
    head.drafted(*given, seed=1 << 61, pdl=pdl)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = head.drafted(*given, seed=1 << 61, pdl=pdl)
    kept.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return found, kept


@pytest.fixture(scope="module", params=[157184, 1000], ids=["Flash's words", "a ragged last program"])
def markov_weights(request: pytest.FixtureRequest) -> tuple[torch.Tensor, ...]:
    from ling_engine.kernels import fp8

    torch.manual_seed(0)
    make = lambda *size: torch.randn(*size, device="cuda").bfloat16()  # noqa: E731
    small, scales = fp8.rounded(0.2 * make(request.param, 256))
    return make(request.param, 256), small, scales, make(8, request.param)


def test_a_block_is_drafted_by_the_scores_that_are_kept(markov_weights: Any, pdl: bool) -> None:
    rows, small, scales, base = markov_weights
    found, kept = drafted(markov_weights, pdl, 0.0, 0)
    assert torch.equal(found, kept.float().argmax(1))  # the first of the highest
    before = torch.cat([torch.tensor([3], device="cuda"), found[:-1]])
    bias = rows[before].double() @ (small.double() * scales[:, None].double()).T
    exact = base.double() + bias
    assert (kept - exact).abs().max() < 5e-3 * exact.abs().max()  # bf16
    again, same = drafted(markov_weights, pdl, 0.0, 1)
    assert torch.equal(again, found)
    assert torch.equal(same, kept)


def test_a_block_is_drawn_from_the_scores_that_are_kept(pdl: bool) -> None:
    """Of 16 words whose chances differ by up to 50 times, 2,000 draws each of another round."""
    from ling_engine.kernels import fp8

    torch.manual_seed(0)
    base = (2 * torch.randn(16, device="cuda")).bfloat16()
    small, scales = fp8.rounded(torch.zeros(16, 16, device="cuda").bfloat16())
    weights = torch.zeros(16, 16, device="cuda").bfloat16(), small, scales, base.repeat(8, 1)
    drawn = torch.cat([drafted(weights, pdl, 1.5, one)[0] for one in range(250)])
    rounds = drawn.view(250, 8)
    assert len(rounds.unique(dim=0)) > 200, "each round draws anew"
    assert (rounds != rounds[:, :1]).any(1).sum() > 200, "and each step"
    share = torch.bincount(drawn, minlength=16) / len(drawn)
    assert (share - (base.float() / 1.5).softmax(0)).abs().max() < 0.04  # 3.6 deviations of the likeliest
