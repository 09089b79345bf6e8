"""Bad input to `ling-nodeagent` and the keeper: one clear line on stderr, exit code 2, nothing changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.commands import nothing_changed

from ling_nodeagent import __main__ as command
from ling_nodeagent import keeper

if TYPE_CHECKING:
    from pathlib import Path

SLOT = "  a-0: {deployment: a, revision: 0123abcd, capacity: 1Gi}\n"
STATIC = {
    "list.yaml": "- 1\n",
    "broken.yaml": "slots: {\n",
    "binary.yaml": "\x00",
    "unknown.yaml": "slot: {}\n",
    "slot.yaml": "slots:\n  a-0: {deployment: a, revision: 0123abcd}\n",
    "revision.yaml": "slots:\n  a-0: {deployment: a, revision: main, capacity: 1Gi}\n",
    "capacity.yaml": "slots:\n  a-0: {deployment: a, revision: 0123abcd, capacity: much}\n",
    "device.yaml": f"slots:\n{SLOT}callers:\n  d999: {{pod: p, uid: u, slot: a-0, component: slot}}\n",
    "caller.yaml": f"slots:\n{SLOT}callers:\n  d000: {{pod: p, uid: u, slot: b-0, component: slot}}\n",
    "component.yaml": f"slots:\n{SLOT}callers:\n  d000: {{pod: p, uid: u, slot: a-0, component: pod}}\n",
    "good.yaml": f"slots:\n{SLOT}",
}


def serve(file: str, *flags: str) -> tuple[str, ...]:
    return ("serve", "--static", file, "--run-dir", "RUN", *flags)


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no command": ((), "required: serve|status"),
    "unknown command": (("run",), "invalid choice: 'run'"),
    "unknown flag": (("status", "--yaml"), "unrecognized arguments: --yaml"),
    "run folder is relative": (
        ("serve", "--static", "good.yaml", "--run-dir", "run"),
        "--run-dir: write an absolute path",
    ),
    "status of a relative folder": (("status", "--run-dir", "run"), "--run-dir: write an absolute path, not 'run'"),
    "models folder is relative": (serve("good.yaml", "--models-dir", "m"), "--models-dir: write an absolute path"),
    "port is a word": (serve("good.yaml", "--metrics-port", "http"), "--metrics-port: invalid int value: 'http'"),
    "port too high": (serve("good.yaml", "--metrics-port", "65536"), "--metrics-port: write a port number up to 65535"),
    "no node": (("serve",), "--node: write the name of this node"),
    "no API server": (("serve", "--node", "n"), "no API server to talk to"),
    "no such file": (serve("absent.yaml"), "absent.yaml: cannot read it: No such file"),
    "a folder": (serve("."), "cannot read it: Is a directory"),
    "a list": (serve("list.yaml"), "write a mapping with callers, slots"),
    "no YAML": (serve("broken.yaml"), "broken.yaml: it is not YAML"),
    "not text": (serve("binary.yaml"), "binary.yaml: it is not YAML"),
    "unknown key": (serve("unknown.yaml"), "unknown key 'slot'; known are callers, slots"),
    "no capacity": (serve("slot.yaml"), "slots.a-0.capacity: write the memory that the slot may fill"),
    "no revision": (serve("revision.yaml"), "slots.a-0.revision: write a revision of 8 hex digits"),
    "no quantity": (serve("capacity.yaml"), "slots.a-0.capacity: "),
    "no device": (serve("device.yaml"), "callers.d999: write a device from d000 to d255"),
    "no such slot": (serve("caller.yaml"), "callers.d000.slot: there is no slot default/b-0"),
    "no component": (serve("component.yaml"), "callers.d000.component: write slot or engine, not 'pod'"),
    "run folder cannot be made": (
        ("serve", "--static", "good.yaml", "--run-dir", "/proc/ling"),
        "--run-dir /proc/ling",
    ),
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
    for name in ("NODE_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for file, text in STATIC.items():
        (tmp_path / file).write_text(text)
    with nothing_changed(tmp_path):
        assert command.main([str(tmp_path / "run") if word == "RUN" else word for word in argv]) == 2
    one_line("ling-nodeagent: ", sentence, capsys)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("LING_RUN", "run", "write the absolute path of the agent's folder"),
        ("LING_ADDRESS", "localhost", "write an IPv4 address such as 0.0.0.0"),
        ("LING_PORT", "http", "LING_PORT is 'http': write a port number"),
        ("LING_PORT", "0", "write a port number from 1 to 65535"),
        ("LING_PROBE_PORT", "65536", "write a port number from 1 to 65535"),
    ],
    ids=["folder", "address", "port", "port 0", "probe port"],
)
def test_a_keeper_with_a_wrong_environment(
    name: str,
    value: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    with nothing_changed(tmp_path):
        assert keeper.main(()) == 2
    one_line("keeper: ", sentence, capsys)


def test_a_keeper_knows_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with nothing_changed(tmp_path):
        assert keeper.main(("leave", "now")) == 2
    one_line("keeper: ", "'leave now' is no command: write nothing, or leave", capsys)


def one_line(begin: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(begin)
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
