"""Bad input to `ling-engine`: one clear line on stderr, exit code 2, nothing changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import standin
from tests.support.commands import nothing_changed

from ling_engine import __main__ as command

if TYPE_CHECKING:
    from pathlib import Path

RUN = ("run", "--model", "model", "--revision", "0123abcd", "--run-dir", "run")
FILL = ("fill", *RUN[1:])
CHECK = ("check", "--model", "model")

BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no command": ((), "COMMAND"),
    "unknown command": (("serve",), "invalid choice: 'serve'"),
    "run without a model": (("run", "--revision", "0123abcd"), "required: --model"),
    "run without a revision": (("run", "--model", "model"), "required: --revision"),
    "unknown flag": ((*RUN, "--modell", "x"), "unrecognized arguments: --modell x"),
    "model is no folder": (("run", "--model", "absent", "--revision", "0123abcd"), "--model absent: no such folder"),
    "model is a file": (("fill", "--model", "file", "--revision", "0123abcd"), "--model file: no such folder"),
    "revision too short": (("run", "--model", "model", "--revision", "0123"), "--revision '0123': must be 8 hex"),
    "revision in capitals": (("fill", "--model", "model", "--revision", "0123ABCD"), "must be 8 hex digits"),
    "content hash": ((*RUN, "--model-revision", "main"), "--model-revision 'main': must be sha256:"),
    "content hash of check": ((*CHECK, "--model-revision", "sha256:12"), "and 64 hex digits"),
    "no context": ((*CHECK, "--context-length", "0"), "--context-length '0': must be a whole number from 1"),
    "context is a word": ((*RUN, "--context-length", "4k"), "--context-length '4k'"),
    "negative queue": ((*RUN, "--max-queue", "-1"), "--max-queue '-1'"),
    "no grace": ((*RUN, "--grace-seconds", "0"), "--grace-seconds '0': must be a number of seconds"),
    "grace is no number": ((*FILL, "--grace-seconds", "nan"), "--grace-seconds 'nan'"),
    "port too high": ((*RUN, "--probe-port", "65536"), "--probe-port '65536': must be a whole number from 0 to 65535"),
    "runtime is no name": (
        (*RUN, "--runtime", "torch"),
        "--runtime 'torch': must be reference, sglang or MODULE:ATTRIBUTE",
    ),
    "runtime lacks it": ((*CHECK, "--runtime", "json:RUNTIME"), "module json has no RUNTIME"),
    "model of the runtime": (("check", "--model", "bad", "--runtime", "tests.support.standin:RUNTIME"), "standin.json"),
    "check refuses flags of run": ((*CHECK, "--run-dir", "run"), "unrecognized arguments"),
    "make-model without a folder": (("make-model",), "required: DIR"),
    "unknown preset": (("make-model", "new", "--preset", "huge"), "--preset: invalid choice: 'huge'"),
    "seed is no number": (("make-model", "new", "--seed", "x"), "--seed: invalid int value: 'x'"),
    "unknown dtype": (("make-model", "new", "--dtype", "int4"), "--dtype: invalid choice: 'int4'"),
    "folder is not empty": (("make-model", "bad"), "bad: not empty; give another folder, or --force"),
    "folder is a file": (("make-model", "file"), "file: no folder that can be written"),
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
    standin.write_model(tmp_path / "model")
    standin.write_model(tmp_path / "bad", weight="heavy")
    (tmp_path / "file").write_text("")
    with nothing_changed(tmp_path):
        assert command.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ling-engine: ")
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
