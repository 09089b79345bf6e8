"""Flags and environment: what is accepted, and the one line for what is not."""

from pathlib import Path

import pytest

from ling_api.errors import BadInput
from ling_engine import __main__
from ling_engine.settings import EngineSettings, parse

REV = "0123abcd"


def test_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    found = parse(["run", "--model", str(tmp_path), "--revision", REV], {})
    assert (found.context_length, found.max_queue, found.grace_seconds) == (4096, 4096, 120)
    assert (str(found.run_dir), found.probe_port, found.runtime) == ("/run/ling", 8002, "reference")
    assert found.served_name == tmp_path.name
    assert found.model_revision == ""


def test_environment_sets_defaults_and_flags_win(tmp_path: Path) -> None:
    env = {"LING_RUN": "/r", "LING_PROBE_PORT": "9", "LING_RUNTIME": "a.b:C", "LING_LEAVE_SECONDS": "720"}
    found = parse(["run", "--model", str(tmp_path), "--revision", REV], env)
    assert (found.run_dir, found.leave_seconds) == (Path("/r"), 720)
    found = parse(
        ["run", "--model", str(tmp_path), "--revision", REV, "--run-dir", "/q", "--runtime", "reference"], env
    )
    assert (found.run_dir, found.probe_port, found.runtime) == (Path("/q"), 9, "reference")


def test_json_brings_back_equal_settings(tmp_path: Path) -> None:
    flags = ["--grace-seconds", "1.5", "--tp", "4", "--weight-cache", "Off", "--extra-arg=--a", "--extra-arg=b c"]
    found = parse(["fill", "--model", str(tmp_path), "--revision", REV, *flags], {})
    assert found.extra_args == ("--a", "b c")
    assert EngineSettings.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(["--revision", "xyz"], "--revision 'xyz': must be 8 hex digits", id="revision"),
        pytest.param(["--model-revision", "abc"], "must be sha256: and 64 hex digits", id="model-revision"),
        pytest.param(["--context-length", "0"], "whole number from 1 to", id="context-zero"),
        pytest.param(["--context-length", "1e3"], "whole number from 1 to", id="context-float"),
        pytest.param(["--max-queue", "-1"], "whole number from 1 to", id="queue"),
        pytest.param(["--max-queue", "\u0663"], "whole number from 1 to", id="queue-other-digits"),
        pytest.param(["--grace-seconds", "nan"], "number of seconds", id="grace-nan"),
        pytest.param(["--grace-seconds", "0"], "number of seconds", id="grace-zero"),
        pytest.param(["--probe-port", "65536"], "from 0 to 65535", id="port"),
        pytest.param(["--runtime", "nonsense"], "must be reference, sglang or MODULE:ATTRIBUTE", id="runtime"),
        pytest.param(["--tp", "0"], "whole number from 1 to", id="tp"),
        pytest.param(["--concurrency", "many"], "whole number from 1 to", id="concurrency"),
        pytest.param(["--dtype", "fp8"], "--dtype 'fp8': must be auto, bfloat16 or float32", id="dtype"),
        pytest.param(["--router-dtype", "bfloat16"], "must be fp32 or bf16", id="router-dtype"),
        pytest.param(["--weight-cache", "required"], "must be Required, Preferred or Off", id="weight-cache"),
        pytest.param(["--model", "/nowhere/at/all"], "no such folder", id="model"),
        pytest.param(["--what"], "unrecognized arguments: --what", id="unknown"),
    ],
)
def test_nonsense_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    argv = ["run", "--model", str(tmp_path), "--revision", REV, *flags]
    with pytest.raises(BadInput):
        parse(argv, {})
    assert __main__.main(argv) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["serve"], ["run"], ["check"]], ids=["none", "unknown", "run", "check"])
def test_a_command_line_without_sense_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(argv) == 2
    assert capsys.readouterr().err.startswith("ling-engine: ")


def test_a_runtime_that_is_not_installed_is_exit_code_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["check", "--model", str(tmp_path), "--runtime", "not_there:RUNTIME"]) == 8
    assert "cannot import not_there" in capsys.readouterr().err
    assert __main__.main(["check", "--model", str(tmp_path), "--runtime", "tests.support.standin:NOT"]) == 2


def test_check_says_what_the_model_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["check", "--model", str(tmp_path), "--runtime", "tests.support.standin:RUNTIME"]) == 0
    out = capsys.readouterr().out
    assert "set role=target rank=0 bytes=4194304 digest=" in out
    assert "plan purpose=buffers bytes=16777216" in out


def test_run_without_the_agents_folder_is_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "--model", str(tmp_path), "--revision", REV, "--run-dir", str(tmp_path / "no")]
    assert __main__.main(argv) == 4
    assert "no such folder" in capsys.readouterr().err
