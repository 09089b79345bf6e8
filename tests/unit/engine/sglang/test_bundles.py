"""Answers that are not streamed show that they go on, however many tokens a round gives."""

import pytest

from ling_engine.sglang import runtime


@pytest.mark.parametrize("round_", range(1, 65))
def test_every_size_of_a_round_meets_a_multiple(round_: int) -> None:
    bundle = int(runtime._BUNDLE)
    tokens = [1 + round_ * step for step in range(bundle)]
    assert any(count % bundle == 0 for count in tokens)
