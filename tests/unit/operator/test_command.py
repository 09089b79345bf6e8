"""The command line: bad input is one line that says what to write, and exit code 2."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ling_api.errors import BadInput
from ling_operator import server, settings

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {
    "LING_NODEAGENT_IMAGE": "agent:1",
    "LING_ENGINE_REFERENCE_IMAGE": "engine:1",
    "LING_ENGINE_SGLANG_IMAGE": "sglang:1",
}


def test_flags_and_environment_become_one_value() -> None:
    flags = ["run", "--namespace", "a", "--namespace", "b", "--namespace", "a", "--port", "0", "--reconcilers", "2"]
    found = settings.read(flags, {**GOOD, "LING_TEST_EXIT_AFTER_WRITES": "3"})
    assert found == settings.Settings(
        images=settings.Images(nodeagent="agent:1", reference="engine:1", sglang="sglang:1"),
        namespaces=("a", "b"),
        port=0,
        reconcilers=2,
        exit_after_writes=3,
    )


@pytest.mark.parametrize(
    ("flags", "environment", "sentence"),
    [
        pytest.param([], {"LING_NODEAGENT_IMAGE": ""}, "LING_NODEAGENT_IMAGE: set it to an image", id="no image"),
        pytest.param([], {"LING_ENGINE_REFERENCE_IMAGE": "a b"}, "set it to an image such as", id="a blank"),
        pytest.param(["--port", "http"], {}, "--port: write a whole number from 0 to 65535", id="a word"),
        pytest.param(["--port", "70000"], {}, "--port: write a whole number", id="a port too high"),
        pytest.param(["--reconcilers", "0"], {}, "--reconcilers: write a whole number from 1", id="nobody works"),
        pytest.param(["--resync-seconds", "-1"], {}, "--resync-seconds: write", id="negative"),
        pytest.param(["--namespace", "No_Space"], {}, "write the name of a namespace", id="no namespace"),
        pytest.param([], {"LING_TEST_EXIT_AFTER_WRITES": "x"}, "whole number from 1", id="the test switch"),
    ],
)
def test_bad_input_is_refused_with_what_to_write(flags: list[str], environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        settings.read(["run", *flags], {**GOOD, **environment})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_process_ends_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    environment = {**GOOD, "PYTHONPATH": ":".join(sys.path), "KUBECONFIG": str(tmp_path / "none")}
    command = [sys.executable, "-m", "ling_operator", "run", "--port", "0"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 2
    assert [line for line in ended.stderr.splitlines() if line.startswith("ling-operator: ")][-1].endswith(
        "run in a pod"
    )


async def ask(port: int, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        pytest.param("GET /livez HTTP/1.1", "200 OK", "fine", id="a route"),
        pytest.param("GET /livez?verbose HTTP/1.1", "200 OK", "fine", id="a query"),
        pytest.param("HEAD /livez HTTP/1.1", "200 OK", "", id="no body for HEAD"),
        pytest.param("GET / HTTP/1.1", "404 Not Found", "try /livez", id="another path"),
        pytest.param("POST /livez HTTP/1.1", "405 Method Not Allowed", "use GET", id="another method"),
    ],
)
async def test_the_http_server_answers_and_closes(request_line: str, status: str, body: str) -> None:
    http = await server.serve(0, {"/livez": lambda: (200, b"fine\n")})
    async with http:
        port = http.sockets[0].getsockname()[1]
        answer = await ask(port, f"{request_line}\r\nHost: x\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status}\r\n")
    assert answer.partition("\r\n\r\n")[2].strip() == body


async def test_nonsense_does_not_harm_the_http_server() -> None:
    http = await server.serve(0, {"/livez": lambda: (200, b"fine\n")})
    async with http:
        port = http.sockets[0].getsockname()[1]
        assert await ask(port, b"\x00\xff\r\n\r\n") == ""
        assert "fine" in await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")


async def test_a_port_that_is_taken_is_bad_input() -> None:
    http = await server.serve(0, {})
    async with http:
        port = http.sockets[0].getsockname()[1]
        with pytest.raises(BadInput, match="choose another"):
            await server.serve(port, {})
