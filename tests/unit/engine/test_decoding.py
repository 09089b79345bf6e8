"""The decoding's flags: their defaults are those of SGLang's arguments, and nonsense is one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ling_api.errors import BadInput
from ling_engine.decoding import Decoding
from ling_engine.settings import EngineSettings, parse

if TYPE_CHECKING:
    from pathlib import Path


def parsed(folder: Path, *flags: str) -> EngineSettings:
    return parse(["run", "--model", str(folder), "--revision", "0123abcd", *flags], {})


RIGHT: dict[str, tuple[str, Decoding]] = {
    "": ("", Decoding()),
    "none": ("--decoding None", Decoding()),
    "nextn": ("--decoding NEXTN", Decoding(algorithm="NEXTN", num_steps=5, num_draft_tokens=6)),
    "nextn-steps": ("--decoding NEXTN --num-steps 3", Decoding(algorithm="NEXTN", num_steps=3, num_draft_tokens=4)),
    "nextn-tokens": (
        "--decoding NEXTN --num-draft-tokens 3",
        Decoding(algorithm="NEXTN", num_steps=2, num_draft_tokens=3),
    ),
    "nextn-both": (
        "--decoding NEXTN --num-steps 3 --num-draft-tokens 4",
        Decoding(algorithm="NEXTN", num_steps=3, num_draft_tokens=4),
    ),
    "dspark": ("--decoding DSPARK", Decoding(algorithm="DSPARK", num_steps=1)),
    "dspark-block": (
        "--decoding DSPARK --num-steps 1 --num-draft-tokens 9 --draft /models/d",
        Decoding(algorithm="DSPARK", num_steps=1, num_draft_tokens=9, draft="/models/d"),
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_the_flags_mean(tmp_path: Path, case: str) -> None:
    flags, wanted = RIGHT[case]
    found = parsed(tmp_path, *flags.split())
    assert found.decoding == wanted == found.model_settings().decoding
    assert EngineSettings.from_json(found.to_json()) == found


def test_drafts_are_one_less_than_the_rows_verified() -> None:
    assert Decoding(algorithm="DSPARK", num_draft_tokens=9).proposed == 8
    assert Decoding(algorithm="DSPARK").proposed == 0  # as many as the draft was made for


WRONG = {
    "algorithm": ("--decoding EAGLE", "--decoding 'EAGLE': must be None, NEXTN or DSPARK"),
    "steps-alone": ("--num-steps 3", "only with --decoding NEXTN or DSPARK"),
    "tokens-alone": ("--num-draft-tokens 3", "only with --decoding NEXTN or DSPARK"),
    "draft-alone": ("--draft /d", "--draft /d: only for --decoding DSPARK"),
    "draft-nextn": ("--decoding NEXTN --draft /d", "only for --decoding DSPARK"),
    "a-tree": ("--decoding NEXTN --num-steps 3 --num-draft-tokens 8", "a chain of 3 steps has 4; leave it out"),
    "dspark-steps": ("--decoding DSPARK --num-steps 2", "DSPARK drafts in one step; write 1"),
    "zero": ("--decoding NEXTN --num-steps 0", "whole number from 1 to 64"),
    "one-row": ("--decoding DSPARK --num-draft-tokens 1", "whole number from 2 to 64"),
    "many": ("--decoding NEXTN --num-steps 65", "whole number from 1 to 64"),
    "text": ("--decoding NEXTN --num-steps few", "--num-steps 'few'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_sense_is_refused(tmp_path: Path, case: str) -> None:
    flags, sentence = WRONG[case]
    with pytest.raises(BadInput, match=sentence):
        parsed(tmp_path, *flags.split())
