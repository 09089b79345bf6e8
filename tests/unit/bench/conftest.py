"""Results as a run leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ling_bench import protocol
from ling_bench.result import Result, Sample, Side

if TYPE_CHECKING:
    from collections.abc import Callable

    type Make[T] = Callable[..., T]


def _sample(index: int = 0, **changed: Any) -> Sample:
    given: dict[str, Any] = {
        "index": index, "ttft_ms": 50.0, "tpot_ms": 2.0 + index % 3 / 10, "e2e_ms": 2100.0, "prompt_tokens": 8192,
        "tokens": 1024, "chunks": 300, "gap_p50_ms": 6.5, "gap_p99_ms": 8.0, "gap_max_ms": 9.0, "cached_tokens": None,
        "finish": "length", "rounds": 320.0, "given": 1023.0, "counted_tokens": 1024.0,
    }  # fmt: skip
    return Sample(**given | changed)


def _side(**changed: Any) -> Side:
    given: dict[str, Any] = {
        "url": "http://a", "model": "ling", "server": {"engine": "SGLang", "version": "0.5.23"},
        "samples": tuple(_sample(index) for index in range(10)), "rounds_from": "SGLang's counters in /metrics",
        "drafts": 5, "drafts_from": "/server_info",
    }  # fmt: skip
    return Side(**given | changed)


def _result(*sides: Side, **changed: Any) -> Result:
    given: dict[str, Any] = {
        "began": "2026-11-30T00:00:00+0000", "tool": "0.1.0", "protocol": protocol.random_prompts().stamp(),
        "workload": {"kind": "random ids", "requests": 10, "warmup": 2, "hash": "sha256:00", "salt": "a"},
        "acceptance": "real", "client": {"cores": 2, "load": 0.5, "python": "3.13.5", "hardware": "1x H200"},
        "sides": sides or (_side(),),
    }  # fmt: skip
    return Result(**given | changed)


@pytest.fixture
def make_sample() -> Make[Sample]:
    return _sample


@pytest.fixture
def make_side() -> Make[Side]:
    return _side


@pytest.fixture
def make_result() -> Make[Result]:
    return _result
