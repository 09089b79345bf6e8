"""The queue: order, its bound, cancelling, a client that goes away; and the runtime from `describe` to an answer."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import torch
from tests.support.checkpoints import TINY, greedy, loaded, save, tensors_of, tiny

from ling_api.errors import BadInput, FillFailed
from ling_api.identity import difference
from ling_api.manifest import plan_layout
from ling_api.memory.memfd import MemfdMemory
from ling_engine.reference import app
from ling_engine.reference.bounds import Bounds
from ling_engine.reference.generate import Decoder
from ling_engine.reference.generations import Generations, Overloaded
from ling_engine.reference.openai_request import Offer
from ling_engine.reference.runtime import RUNTIME
from ling_engine.reference.sequence import Step
from ling_engine.reference.tokenizer import ByteTokenizer
from ling_engine.runtime import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

WAIT = 60.0


class SlowModel:
    """Says 'x' for ever, one step for each permit."""

    def __init__(self) -> None:
        self.permits, self.steps = threading.Semaphore(0), 0

    def __call__(self, ids: Tensor, sequence: Any) -> Step:
        if not self.permits.acquire(timeout=WAIT):
            raise TimeoutError("no permit")
        self.steps += 1
        return Step(torch.zeros(len(ids), 1), {})

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([120]), 264)


class NoSequence:
    length = 0

    def restart(self) -> None: ...

    def commit(self, step: Step, rows: int) -> None: ...


@pytest.fixture
def slow() -> Iterator[SlowModel]:
    model = SlowModel()
    yield model
    model.permits.release(1000)  # whatever still computes comes to its end


def queue(model: SlowModel, most: int) -> Generations:
    return Generations(Decoder(model, NoSequence()), most)  # type: ignore[arg-type]  # all that is asked of them


async def until(condition: Any) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # the other side is a thread
            await asyncio.sleep(0.002)


async def test_requests_are_answered_in_order_and_tokens_come_as_they_are_computed(slow: SlowModel) -> None:
    generations = queue(slow, 4)
    one, two = generations.submit([1], Bounds(limit=2)), generations.submit([1], Bounds(limit=1))
    tokens = one.tokens()
    slow.permits.release()
    assert await anext(tokens) == 120
    slow.permits.release(2)
    assert [token async for token in tokens] == [120]
    assert [token async for token in two.tokens()] == [120]
    assert slow.steps == 3


async def test_the_queue_is_bounded_and_a_cancelled_request_leaves_it(slow: SlowModel) -> None:
    generations = queue(slow, 2)
    running = generations.submit([1], Bounds(limit=1))
    await until(lambda: running not in generations._waiting)
    waiting = [generations.submit([1], Bounds(limit=1)) for _ in range(2)]
    with pytest.raises(Overloaded):
        generations.submit([1], Bounds(limit=1))
    waiting[0].cancel()
    last = generations.submit([1], Bounds(limit=1))
    slow.permits.release(3)
    assert [token async for token in waiting[0].tokens()] == []
    assert [token async for token in last.tokens()] == [120]
    assert slow.steps == 3  # nothing was computed for the cancelled one


async def test_what_the_computation_raises_reaches_the_reader_and_the_queue_lives_on(slow: SlowModel) -> None:
    generations = queue(slow, 2)
    wrong = generations.submit(["no id"], Bounds(limit=1))  # type: ignore[list-item]  # it is to fail
    with pytest.raises((TypeError, ValueError)):
        await anext(wrong.tokens())
    slow.permits.release()
    assert [token async for token in generations.submit([1], Bounds(limit=1)).tokens()] == [120]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_its_generation(slow: SlowModel, stream: bool) -> None:
    offer = Offer(model="m", context=4096, vocabulary=264, tokenizer=ByteTokenizer(bos=256, eos=257))
    application = app.build(queue(slow, 2), offer)
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1000, "stream": stream}).encode()
    gone, sent = asyncio.Event(), []
    messages = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        if (message := next(messages, None)) is None:
            await gone.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    answering = asyncio.create_task(application(scope, receive, send))
    slow.permits.release(3)
    await until(lambda: slow.steps == 3)
    gone.set()
    async with asyncio.timeout(WAIT):
        await answering
    slow.permits.release(10)
    again = queue(slow, 2)
    assert slow.steps <= 4
    assert again.now([1], Bounds(limit=1)) == [120]


async def test_a_long_generation_leaves_the_event_loop_alive(slow: SlowModel) -> None:
    generation = queue(slow, 2).submit([1], Bounds(limit=5))
    await asyncio.wait_for(asyncio.sleep(0), 1)
    slow.permits.release(5)
    assert len([token async for token in generation.tokens()]) == 5


def settings(folder: Path, **others: Any) -> ModelSettings:
    fixed: dict[str, Any] = {"path": folder, "revision": "", "context_length": 128, "max_queue": 8, "served_name": "t"}
    return ModelSettings(**(fixed | others))


async def test_the_runtime_fills_shared_memory_gives_up_writing_and_answers(tmp_path: Path) -> None:
    content = tiny(tmp_path, seed=5)
    asked = settings(tmp_path, revision=f"sha256:{content}")
    described = RUNTIME.describe(asked)
    served = RUNTIME.open(asked)
    (twin,) = served.twins
    memory = MemfdMemory()
    layout = plan_layout(twin.specs(), granularity=memory.granularity)
    assert [(s.role, s.rank, s.nbytes) for s in described.sets] == [("target", 0, layout.nbytes)]
    regions = [memory.create(size) for size in layout.sizes]
    mapping = memory.map(regions, layout.sizes, writable=True)
    twin.bind(mapping, layout)
    assert twin.load(lambda _done: None) == content
    mapping.make_read_only(regions)
    served.warm_up()
    transport = httpx.ASGITransport(served.app())
    body = {"model": "t", "prompt": [1, 2, 3], "max_tokens": 6}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        first, second = [(await client.post("/v1/completions", json=body)).json() for _ in range(2)]
    model, c = loaded(tmp_path)
    from ling_engine.reference.sequence import Sequence

    wanted = list(greedy(model, Sequence.allocate(c, 128), [1, 2, 3], 6, 257, lambda: True))
    assert first["choices"][0]["text"] == bytes(token for token in wanted if token < 256).decode("utf-8", "replace")
    assert first["choices"] == second["choices"]
    assert first["usage"]["completion_tokens"] == len(wanted)


def test_content_that_is_not_the_revision_is_refused(tmp_path: Path) -> None:
    tiny(tmp_path)
    served = RUNTIME.open(settings(tmp_path, revision="sha256:" + "0" * 64))
    served.twins[0].module.to_empty(device="cpu")  # type: ignore[attr-defined]  # storage, without a mapping
    with pytest.raises(FillFailed, match=r"model\.revision says sha256:0000"):
        served.twins[0].load(lambda _done: None)


@pytest.mark.parametrize(("length", "fits"), [(0, False), (8, False), (9, True), (32768, True), (32769, False)])
def test_the_context_must_fit_the_model(tmp_path: Path, length: int, fits: bool) -> None:
    tiny(tmp_path)
    if fits:
        assert RUNTIME.describe(settings(tmp_path, context_length=length)).plan.total > 0
    else:
        with pytest.raises(BadInput, match="9 to 32768 tokens"):
            RUNTIME.describe(settings(tmp_path, context_length=length))


def test_describe_finds_a_misfit_without_reading_weights(tmp_path: Path) -> None:
    tiny(tmp_path)
    save(tmp_path, {n: t for n, t in tensors_of(tmp_path).items() if n != "lm_head.weight"})
    with pytest.raises(BadInput, match=r"no tensor for lm_head\.weight"):
        RUNTIME.describe(settings(tmp_path))


def fields(folder: Path, **others: Any) -> Any:
    return RUNTIME.describe(settings(folder, **others)).sets[0].identity


def test_identity_names_what_differs(tmp_path: Path) -> None:
    tiny(tmp_path)
    before = fields(tmp_path)
    assert fields(tmp_path, context_length=64, served_name="other", max_queue=1) == before
    names = {difference(fields(tmp_path, revision="sha256:" + "1" * 64), before)[0].field}
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "rope_theta": 10000}))
    names |= {d.field for d in difference(fields(tmp_path), before)}
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    save(tmp_path, tensors_of(tmp_path))
    names |= {d.field for d in difference(fields(tmp_path), before)}
    assert {"revision", "config.rope_theta"} < names
    assert any(name.endswith("mtime_ns") for name in names)


def test_the_plan_grows_with_the_context_and_speaks_of_its_parts(tmp_path: Path) -> None:
    tiny(tmp_path)
    short, long = (RUNTIME.describe(settings(tmp_path, context_length=n)).plan for n in (128, 1024))
    assert short.private.keys() == {"kv", "states", "activations"}
    assert long.private["kv"] == 8 * short.private["kv"] == 1024 * (72 * 4 + 8 * 4)
    assert long.private["states"] == short.private["states"]
    assert replace(settings(tmp_path), context_length=128) == settings(tmp_path)
