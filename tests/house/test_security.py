"""The attacks that docs/security.md lists are tried by tests, which want the sentences that stand there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster import test_admission
from tests.integration import test_attacks

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this row."""
    table = PAGE.split(f"{heading}\n", 1)[1].split("\n\n", 1)[0]
    return [cells.split(" | ") for cells in ROW.findall(table) if not cells.startswith("---")]


def test_attacks_on_the_api_are_tried() -> None:
    listed = rows("| attack | policy | the sentence |")
    assert listed
    for attack, _, sentence in listed:
        assert test_admission.ATTACKS[attack][3] in sentence, attack


def test_attacks_on_the_agent_are_tried() -> None:
    tried = {attack.__name__.replace("_", " "): words for attack, words in test_attacks.ATTACKS.items()}
    listed = rows("| attack | the sentence |")
    assert len(listed) + len(rows("| attack | policy | the sentence |")) >= 20
    for attack, sentence in listed:
        assert re.search(re.sub(r"^[A-Z]+_[A-Z]+ ", "", tried[attack]), sentence), attack
