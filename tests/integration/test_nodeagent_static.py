"""Agent and keeper as processes, by a static file: the real programs, no cluster."""

import http.client
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.ports import free_port
from tests.support.processes import python, wait_for

from ling_api.errors import AgentUnreachable
from ling_nodeagent.__main__ import ask, main

pytestmark = pytest.mark.integration
SLOT = {"deployment": "chat", "revision": "1a2b3c4d", "capacity": "64Mi", "graceSeconds": 5, "holdSeconds": 5}
KEEPER = {"pod": "chat-0", "uid": "u0", "slot": "prod/chat-0", "component": "slot"}


def write(file: Path, **slot: Any) -> None:
    new = file.with_suffix(".new")
    new.write_text(yaml.safe_dump({"slots": {"prod/chat-0": {**SLOT, **slot}}, "callers": {"d000": KEEPER}}))
    new.replace(file)


def get(port: int, path: str) -> tuple[int, str]:
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        asking.request("GET", path)
        answer = asking.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionRefusedError:
        return 0, ""
    finally:
        asking.close()


def test_agent_and_keeper_find_each_other_and_outlive_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file, log = tmp_path / "run", tmp_path / "directory.yaml", tmp_path / "log"
    port, probe, metrics = free_port(), free_port(), free_port()
    write(file)
    serve = ("-m", "ling_nodeagent", "serve", "--static", str(file), "--run-dir", str(run))
    keep = {
        "LING_RUN": str(run / "d" / "d000"), "LING_PORT": str(port), "LING_PROBE_PORT": str(probe),
        "LING_ADDRESS": "127.0.0.1",
    }  # fmt: skip

    def known() -> dict[str, Any]:
        try:
            found: dict[str, Any] = ask(run / "status.sock")["slots"].get("prod/chat-0", {})
        except AgentUnreachable:
            return {}
        return found

    with python("-m", "ling_nodeagent.keeper", env=keep, log=log) as keeper:
        with python(*serve, "--metrics-port", str(metrics), env={}, log=log) as agent:
            wait_for(lambda: known().get("listener"), "the listener is held")
            assert main(["status", "--run-dir", str(run)]) == 0
            assert main(["release", "--all", "--run-dir", str(run)]) == 0
            assert known()["message"].startswith("released by hand")
            assert main(["release", "--slot", "prod/other", "--run-dir", str(run)]) == 2
            assert main(["release", "--gpu", "GPU-1", "--run-dir", str(run)]) == 2
            assert main(["release", "--all", "--undo", "--run-dir", str(run)]) == 0
            assert "slot prod/chat-0" in capsys.readouterr().out
            wait_for(lambda: get(metrics, "/readyz") == (200, "ready\n"), "the agent is ready")
            assert get(metrics, "/livez")[0] == 200
            assert "ling_agent_slots 1.0" in get(metrics, "/metrics")[1]
            assert get(metrics, "/else")[0] == 404
            write(file, capacity="128Mi")
            wait_for(lambda: known().get("capacity", {}).get("total") == 128 << 20, "the changed file is read")
            assert main(["release", "--all", "--run-dir", str(run)]) == 0
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        with python(*serve, env={}, log=log):
            wait_for(lambda: known().get("listener"), "the next agent is given the listener back")
            assert known()["message"].startswith("released by hand")
            assert main(["release", "--all", "--undo", "--run-dir", str(run)]) == 0
            write(file, leaving=True)
            keeper.send_signal(signal.SIGTERM)
            assert keeper.wait(60) == 0
