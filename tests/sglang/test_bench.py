"""`ling-bench` against SGLang as it comes, started by its own command: no plug-in of ours, its own counters."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hack.ports import free_port
from tests.support import sglang_site
from tests.support.processes import ROOT, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAGS = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "triton", "--disable-radix-cache"),
    *("--skip-server-warmup", "--max-running-requests", "1", "--max-total-tokens", "256", "--context-length", "128"),
    *("--served-model-name", "stock", "--enable-metrics", "--api-key", "s3cret"),
)
KEY = {"LING_BENCH_API_KEY": "s3cret"}


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("stock")
    port, log = free_port(), folder / "log"
    env = {**os.environ, **sglang_site.environment(folder / "site"), "SGLANG_PLUGINS": "ling_cpu"}
    # the HTTP process has imported the metrics' library before SGLang sets this, and would count for itself alone
    env["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    argv = [str(sglang_site.PYTHON), "-W", "ignore", "-m", "sglang.launch_server", "--model-path", str(model)]
    argv += ["--host", "127.0.0.1", "--port", str(port), *FLAGS]
    with log.open("wb") as output:
        server = subprocess.Popen(
            argv, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:

        def ready() -> bool:
            assert server.poll() is None, log.read_text(errors="replace")[-4000:]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/health", headers={"Authorization": "Bearer s3cret"})
                return connection.getresponse().status == 200
            except OSError:
                return False
            finally:
                connection.close()

        wait_for(ready, "SGLang to serve", 900)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def bench(folder: Path, *argv: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, what it says, and the result."""
    out = folder / "result.json"
    command = [Path(sys.executable).parent / "ling-bench", *argv, "--out", out]
    done = subprocess.run(command, env={**os.environ, **KEY}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else {}


def test_stock_sglang_is_measured_with_its_own_counters_and_settings(url: str, tmp_path: Path) -> None:
    sizes = ("--ids", "32-127", "--input-tokens", "20", "--output-tokens", "3", "--requests", "2", "--warmup", "1")
    code, said, found = bench(tmp_path, "run", url, *sizes)
    assert code == 0, said
    assert (found["verdict"], found["acceptance"]) == ("ok", "none")
    (side,) = found["sides"]
    assert (side["server"]["engine"], side["server"]["version"]) == ("SGLang", "0.5.23")
    assert side["server"]["settings"]["attention_backend"] == "triton"
    assert side["server"]["settings"]["disable_radix_cache"] is True
    assert (side["rounds_from"], side["drafts"]) == ("SGLang's counters in /metrics", 0)
    assert [(one["prompt_tokens"], one["tokens"], one["counted_tokens"]) for one in side["samples"]] == [(20, 3, 3)] * 2
    assert "s3cret" not in json.dumps(found)
