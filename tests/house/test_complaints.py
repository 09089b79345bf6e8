"""The evidence that docs/complaints.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/complaints.md").read_text()
ROWS = re.findall(r"^\| U\d.*$", PAGE, re.MULTILINE)


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`", PAGE)
    assert len(named) > 10
    assert not [one for one in named if not (TESTS / one).is_file()]


def test_every_short_name_stands_for_a_test() -> None:
    head = PAGE.split("| | complaint", 1)[0]
    short = set(re.findall(r"`([a-z]+)`", head))
    assert short
    for name in short:
        assert any(f"`{name}`" in row for row in ROWS), f"{name} is explained and used nowhere"
    used = {one for row in ROWS for one in re.findall(r"`([a-z]+)`", row)}
    assert not used - short


def test_every_number_has_a_row() -> None:
    found: set[int] = set()
    for row in ROWS:
        cell = row.split("|")[1]
        for first, last in re.findall(r"U(\d+)(?:-U(\d+))?", cell):
            found |= set(range(int(first), int(last or first) + 1))
    assert found == set(range(1, 29))
