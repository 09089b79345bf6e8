"""The command line: what is left out leaves the protocol as it is; nonsense is one line."""

from __future__ import annotations

import pytest

from ling_api.errors import BadInput
from ling_bench import __main__ as command
from ling_bench import arguments
from ling_bench.arguments import CompareWishes, RunWishes


def test_an_address_is_enough() -> None:
    found = arguments.parse(["run", "http://a:1"])
    assert isinstance(found, RunWishes)
    assert (found.input_tokens, found.output_tokens, found.acceptance, found.drafts) == (None, None, None, None)
    assert (found.ids, found.warmup, found.seed, found.out) == ((1000, 100000), 2, 1, "ling-bench.json")


def test_compare_takes_one_or_two() -> None:
    assert arguments.parse(["compare", "a", "b"]) == CompareWishes(verb="compare", files=("a", "b"), out="")
    assert arguments.parse(["compare", "a", "--out", "c"]) == CompareWishes(verb="compare", files=("a",), out="c")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "url"),
        (["run", "a", "--acceptance", "guessed"], "guessed"),
        (["run", "a", "--ids", "5"], "--ids is '5'"),
        (["run", "a", "--ids", "9-5"], "--ids is '9-5'"),
        (["run", "a", "--warmup", "0"], "--warmup is 0"),
        (["run", "a", "--requests", "0"], "--requests is 0"),
        (["run", "a", "--output-tokens", "1"], "--output-tokens is 1"),
        (["run", "a", "--timeout", "0"], "--timeout"),
        (["run", "a", "--replay", "f", "--input-tokens", "5"], "--replay"),
        (["compare", "a", "b", "c"], "one or two"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nonsense_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        arguments.parse(words)


@pytest.mark.parametrize(
    "words",
    [["run", "localhost:8000"], ["run", "ftp://a"], ["show", "/nowhere/a.json"]],
    ids=["bare", "ftp", "no file"],
)
def test_a_wrong_word_is_one_line_and_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("ling-bench: ")
    assert said.count("\n") == 1


def test_help_fits_a_newcomer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    said = capsys.readouterr().out
    assert "8192 tokens in, 1024 out" in said
    assert "ling-bench run http://NEW --against http://OLD" in said
    assert "exit codes" in said
