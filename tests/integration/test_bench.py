"""`ling-bench` and the real reference engine: the command that is used for GPUs, word by word."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hack import spine
from tests.support import drafted

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
BENCH = Path(sys.executable).parent / "ling-bench"
BYTES = ("--ids", "32-127")  # of a vocabulary of 264
SMALL = (*BYTES, "--input-tokens", "48", "--output-tokens", "40")
DRAFTED = ("--acceptance", "predictable", "--drafts", "3")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine that drafts three tokens a round."""
    with drafted.slot(tmp_path_factory.mktemp("slot")) as stage:
        flags = ("--decoding", "NEXTN", "--num-steps", "3", "--context-length", "10240", "--served-model-name", "try")
        drafted.engine(stage, "one", "d001", "run", *flags)
        spine.until(lambda: stage.status().get("active", {}).get("pod") == "one", "the engine to serve")
        yield f"http://127.0.0.1:{stage.port}"


def bench(folder: Path, *argv: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, what it says, and the result."""
    out = folder / "result.json"
    done = subprocess.run(
        [BENCH, *argv, "--out", out], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else {}


def test_the_published_protocol(url: str, tmp_path: Path) -> None:
    code, said, found = bench(tmp_path, "run", url, *BYTES, *DRAFTED, "--requests", "1", "--warmup", "1")
    assert code == 0, said
    assert found["protocol"]["name"] == "published"
    assert found["acceptance"] == "predictable"
    for one in found["sides"][0]["samples"]:
        assert (one["prompt_tokens"], one["tokens"], one["counted_tokens"]) == (8192, 1024, 1024)
        assert one["given"] == 1023, "the first token is the prompt's"
        assert one["ttft_ms"] + 1023 * one["tpot_ms"] == pytest.approx(one["e2e_ms"])
    assert 1 < found["sides"][0]["summary"]["accept_length"] <= 4
    assert "published: 8192 tokens in, 1024 out" in said


def test_the_same_in_small_is_custom_and_an_impossible_accept_length_is_refused(url: str, tmp_path: Path) -> None:
    code, said, found = bench(tmp_path, "run", url, *SMALL, "--acceptance", "predictable", "--drafts", "0")
    assert (code, found["verdict"], found["protocol"]["name"]) == (1, "refused", "custom")
    assert "is above 0 draft tokens + 1, which no verify round can give" in said


def test_two_endpoints_in_turns(url: str, tmp_path: Path) -> None:
    code, said, found = bench(tmp_path, "run", url, "--against", url, *SMALL, *DRAFTED)
    assert code == 0, said
    assert [len(side["samples"]) for side in found["sides"]] == [10, 10]
    assert "paired by prompt; A / B" in said


def test_chats_and_texts_of_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "The slot stays."}, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, said, found = bench(tmp_path, "run", url, "--replay", str(file), "--output-tokens", "24", *DRAFTED)
    assert code == 0, said
    assert [one["tokens"] <= most for one, most in zip(found["sides"][0]["samples"], (24, 9), strict=True)] == [
        True
    ] * 2


def test_prompts_that_the_endpoint_cannot_take_are_its_failure_in_its_words(url: str, tmp_path: Path) -> None:
    code, said, found = bench(tmp_path, "run", url, *DRAFTED)
    assert (code, found) == (4, {})
    assert "token ids are 0 to 263" in said
