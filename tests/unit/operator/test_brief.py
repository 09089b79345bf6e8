"""The message as a column of `kubectl get`."""

from __future__ import annotations

import pytest

from ling_operator.status import BRIEF, brief


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("", ""),
        ("1 of 1 slots serve", "1 of 1 slots serve"),
        ("x" * BRIEF, "x" * BRIEF),
        ("tiny-0: no node takes it: 0/2 nodes are available: 2 more", "tiny-0: no node takes it: 0/2 nodes are ..."),
        ("one, two; three: four, five, six, seven, eight, nine", "one, two; three: four, five, six, seven, eight ..."),
        ("y" * 99, "y" * (BRIEF - 2) + " ..."),
    ],
    ids=["nothing", "short", "just fits", "cut between words", "no comma at the end", "one word"],
)  # fmt: skip
def test_a_message_is_cut_to_fit(message: str, shown: str) -> None:
    assert brief(message) == shown
    assert len(brief(message)) <= BRIEF + 3
