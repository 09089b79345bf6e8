"""Bad input to `ling-operator`: one clear line on stderr, exit code 2."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.commands import nothing_changed

from ling_operator import __main__ as command

if TYPE_CHECKING:
    from pathlib import Path

BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no command": ((), "required: command"),
    "unknown command": (("start",), "invalid choice: 'start'"),
    "unknown flag": (("run", "--nope"), "unrecognized arguments: --nope"),
    "flag without a value": (("run", "--port"), "--port: expected one argument"),
    "port is a word": (("run", "--port", "x"), "--port: write a whole number from 0 to 65535, not 'x'"),
    "no namespace": (("run", "--namespace", "A_B"), "--namespace: write the name of a namespace, not 'A_B'"),
    "no API server": (("run",), "no API server is configured"),
}


@pytest.mark.parametrize(("argv", "sentence"), BAD.values(), ids=BAD)
def test_one_line_exit_code_2_and_nothing_changed(
    argv: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ling-operator", *argv])
    monkeypatch.setenv("LING_NODEAGENT_IMAGE", "agent:1")
    monkeypatch.setenv("LING_ENGINE_REFERENCE_IMAGE", "engine:1")
    monkeypatch.setenv("LING_ENGINE_SGLANG_IMAGE", "sglang:1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with nothing_changed(tmp_path), pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ling-operator: ")
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
