"""`ling-bench run` against an endpoint that behaves as told: what is measured, what is refused, what is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_endpoint import Endpoint, serving

from ling_bench import __main__ as command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = ("--input-tokens", "20", "--output-tokens", "25", "--ids", "10-99", "--requests", "5", "--warmup", "1")
SAID = ("--acceptance", "predictable")


@pytest.fixture
def at() -> Iterator[Endpoint]:
    with serving(Endpoint()) as found:
        yield found


def run(at: Endpoint, folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Exit code and result; empty if there is none."""
    out = folder / "result.json"
    code = command.main(["run", at.url, *SMALL, "--out", str(out), *flags])
    return code, json.loads(out.read_text()) if out.exists() else {}


def test_accept_length_and_lengths_are_what_the_endpoint_does(at: Endpoint, tmp_path: Path) -> None:
    code, found = run(at, tmp_path, *SAID, "--drafts", "3")
    assert (code, found["verdict"], found["acceptance"]) == (0, "ok", "predictable")
    (side,) = found["sides"]
    assert side["summary"]["accept_length"] == 4.0
    assert [one["tokens"] for one in side["samples"]] == [25] * 5
    assert [one["chunks"] for one in side["samples"]] == [7] * 5
    assert len(at.bodies) == 6, "the warm-up, and five"
    assert len({body["prompt"][0] for body in at.bodies}) == 6
    assert all(len(body["prompt"]) == 20 and body["ignore_eos"] for body in at.bodies)
    assert side["connections"] == at.connections == 1


def test_time_per_token_is_the_endpoints_own(at: Endpoint, tmp_path: Path) -> None:
    at.gap = 0.05
    code, found = run(at, tmp_path, *SAID)
    assert code == 0
    own = [(last - first) * 1000 / 24 for first, last in at.sent[1:]]
    told = [one["tpot_ms"] for one in found["sides"][0]["samples"]]
    errors = [abs(one - two) for one, two in zip(own, told, strict=True)]
    assert min(errors) < 1.5, "a busy machine may hold up one of them or the other, but not all five times"
    assert max(own) >= 50 * 6 / 24 * 0.9, "six gaps of 50 ms for 24 tokens"


@pytest.mark.parametrize(
    ("change", "flags", "said"),
    [
        ({"per_round": 8}, ("--drafts", "3"), "is above 3 draft tokens + 1"),
        ({"others": 7}, (), "others are being answered"),
        ({"usage": {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 16}}}, (), "prefix cache"),
        ({"usage": {"prompt_tokens": 21}}, (), "counted as 21 tokens"),
    ],
    ids=["accept length", "other clients", "prefix cache", "another tokenizer"],
)
def test_refused_results_are_kept_and_compare_with_nothing(
    at: Endpoint,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    flags: tuple[str],
    said: str,
) -> None:
    for name, value in change.items():
        setattr(at, name, value)
    code, found = run(at, tmp_path, *SAID, *flags)
    assert (code, found["verdict"]) == (1, "refused")
    assert said in found["why"][0]
    assert said in capsys.readouterr().out
    assert command.main(["compare", str(tmp_path / "result.json"), str(tmp_path / "result.json")]) == 2
    assert "is refused and compares with nothing" in capsys.readouterr().err


def test_an_endpoint_that_drafts_wants_its_acceptance_named_before_it_is_measured(
    at: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(at, tmp_path) == (2, {})
    assert "say --acceptance real, simulated or predictable" in capsys.readouterr().err
    assert len(at.bodies) == 1, "after the first answer of the warm-up"


@pytest.mark.parametrize(
    ("change", "said"),
    [({"restarts_at": 4}, "counters went back"), ({"fails_at": 4}, "out of memory")],
    ids=["restarted", "an error in the stream"],
)
def test_what_was_measured_before_an_endpoint_failed_is_kept(
    at: Endpoint, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    for name, value in change.items():
        setattr(at, name, value)
    code, found = run(at, tmp_path, *SAID)
    assert (code, found["verdict"]) == (4, "failed")
    assert said in found["why"][0]
    assert len(found["sides"][0]["samples"]) == 2


def test_an_endpoint_without_counters_is_measured_and_it_says_so(
    at: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at.metrics = False
    code, found = run(at, tmp_path)
    assert (code, found["acceptance"]) == (0, None)
    assert found["sides"][0]["server"]["metrics"] == "none (404 from /metrics)"
    assert "accept length not known" in capsys.readouterr().out


def test_counters_that_stand_still_are_left_aside_and_it_says_so(at: Endpoint, tmp_path: Path) -> None:
    at.stands_still = True
    code, found = run(at, tmp_path)
    assert (code, found["verdict"]) == (0, "ok")
    assert found["sides"][0]["server"]["metrics"] == "Ling, but its counters stand still"
    assert found["sides"][0]["rounds_from"] is None


def test_sglang_without_metrics_is_asked_for_rounds_with_each_answer(at: Endpoint, tmp_path: Path) -> None:
    at.metrics = False
    at.server_info = {"launch_command": "sglang", "version": "0.5.23", "speculative_algorithm": "EAGLE",
                      "speculative_num_draft_tokens": 4}  # fmt: skip
    at.usage = {"completion_tokens_details": {"spec_verify_ct": 6}}
    code, found = run(at, tmp_path, *SAID)
    side = found["sides"][0]
    assert (code, side["drafts"], side["drafts_from"]) == (0, 3, "/server_info")
    assert side["summary"]["accept_length"] == 4.0
    assert all(body["return_spec_tokens_details"] for body in at.bodies)


def test_dummy_weights_have_no_real_acceptance(at: Endpoint, tmp_path: Path) -> None:
    at.server_info = {"launch_command": "sglang", "version": "0.5.23", "load_format": "dummy"}
    assert run(at, tmp_path, "--acceptance", "real") == (2, {})


def test_a_field_that_the_endpoint_refuses_is_named(
    at: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at.refuses = "ignore_eos"
    assert run(at, tmp_path, *SAID)[0] == 4
    assert "ignore_eos is not known" in capsys.readouterr().err


def test_an_endpoint_that_closes_its_connections_is_measured_on_new_ones(at: Endpoint, tmp_path: Path) -> None:
    at.keep_alive = False
    code, found = run(at, tmp_path, *SAID)
    assert code == 0
    assert found["sides"][0]["connections"] == at.connections > 5


def test_two_endpoints_take_turns_and_who_is_first_changes(
    at: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Endpoint(gap=0.05)) as slow:
        code, found = run(at, tmp_path, *SAID, "--against", slow.url)
        assert code == 0
        assert [side["url"] for side in found["sides"]] == [at.url, slow.url]
        assert [body["prompt"] for body in at.bodies] == [body["prompt"] for body in slow.bodies]
    assert "paired by prompt; A / B" in capsys.readouterr().out
    out = tmp_path / "ratio.json"
    assert command.main(["compare", str(tmp_path / "result.json"), "--out", str(out)]) == 0
    (tpot,) = [row for row in json.loads(out.read_text())["rows"] if row["metric"] == "tpot_ms"]
    assert tpot["high"] < 1, "the second sleeps between its chunks"


def test_an_endpoint_held_against_itself_is_asked_other_prompts(at: Endpoint, tmp_path: Path) -> None:
    code, _ = run(at, tmp_path, *SAID, "--against", at.url)
    assert code == 0
    heads = [tuple(body["prompt"][:16]) for body in at.bodies]
    assert len(set(heads)) == len(heads) == 12


def test_runs_of_one_seed_compare(at: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name in ("one", "two"):
        assert run(at, tmp_path, *SAID)[0] == 0
        files.append(str((tmp_path / "result.json").rename(tmp_path / f"{name}.json")))
    assert command.main(["compare", *files]) == 0
    assert "unpaired; A / B" in capsys.readouterr().out
    assert command.main(["show", files[0]]) == 0
    assert "CUSTOM: 20 tokens in, 25 out" in capsys.readouterr().out


def test_a_file_is_replayed(at: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Once"}\n{"prompt": [1, 2, 3], "max_tokens": 9}\n')
    out = tmp_path / "result.json"
    code = command.main(["run", at.url, "--replay", str(file), "--output-tokens", "17", "--out", str(out), *SAID])
    assert code == 0
    found = json.loads(out.read_text())
    assert found["protocol"]["name"] == "replay"
    assert [one["tokens"] for one in found["sides"][0]["samples"]] == [17, 9]
    assert all("ignore_eos" not in body for body in at.bodies)


def test_a_key_is_sent_and_told_to_nobody(at: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LING_BENCH_API_KEY", "s3cret")
    code, found = run(at, tmp_path, *SAID)
    assert (code, at.keys) == (0, {"Bearer s3cret"})
    assert "s3cret" not in json.dumps(found)


def test_nobody_there_is_one_line_and_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Endpoint()) as at:
        pass
    assert run(at, tmp_path) == (4, {})
    assert capsys.readouterr().err.count("\n") == 1
