"""A server of real SGLang on its slot's socket: what it answers, what it refuses, how it dies and ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hack import spine
from tests.support import sglang_room, sglang_site
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.sglang_room import Room

pytestmark = pytest.mark.skipif(not sglang_site.PYTHON.exists(), reason="no SGLang here: hack/bootstrap sglang")
PROMPT = (40, 41, 42, 43)
SILENT_S = 5.0  # a server that answers nothing for so long is a hung one, where a test says so
SEEN_MS = 10_000.0  # after the death of one process until the last is gone: busy cores, and each frees a gigabyte


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """[path, methods, methods that we answer] of every route of SGLang's application."""
    folder = tmp_path_factory.mktemp("routes")
    env = {"PATH": "/usr/bin:/bin", **sglang_site.environment(folder / "site")}
    told = folder / "routes.json"
    argv = [str(sglang_site.PYTHON), "-W", "ignore", "-m", "tests.sglang.routes_of_app", str(told)]
    subprocess.run(argv, env=env, cwd=ROOT, check=True, capture_output=True)
    return list(json.loads(told.read_text()))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """Agent and keeper."""
    stage = sglang_room.Room(tmp_path_factory.mktemp("slot"))
    try:
        stage.up()
        yield stage
    finally:
        stage.end()


@pytest.fixture
def slot(stage: Room) -> Room:
    """With an engine that serves: the one of the test before, if that left one."""
    if "one" not in stage.processes or stage.processes["one"].poll() is not None:
        stage.sglang("one", "d001")
    stage.until_active("one")
    return stage


def test_every_route_of_the_running_application_is_on_the_list_or_refused(slot: Room, routes: list[list[Any]]) -> None:
    assert len(routes) > 60, "the whole application was walked"
    served = {path for path, _, ours in routes if ours}
    assert {"/v1/completions", "/v1/chat/completions", "/generate", "/v1/models", "/model_info"} <= served
    for path, methods, ours in routes:
        if ours or path in ("/health", "/metrics"):
            continue
        for method in ("GET" if method == "WEBSOCKET" else method for method in methods):
            status, _ = slot.ask(method, path, {})
            assert status == 403, f"{method} {path} reached SGLang"
    for path in served:
        assert slot.ask("DELETE", path)[0] == 405, f"DELETE {path} reached SGLang"


def test_answers_are_counted_as_sglang_counts_them(slot: Room) -> None:
    tokens, times = slot.metric("ling_output_tokens_total"), slot.metric("ling_time_per_output_token_seconds_count")
    ids = slot.ids(PROMPT, 4)
    body = {"model": "try", "prompt": list(PROMPT), "max_tokens": 4, "temperature": 0, "stream": True}
    status, text = slot.ask("POST", "/v1/completions", body | {"stream_options": {"include_usage": True}})
    assert (status, len(ids)) == (200, 4)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert events[-1]["usage"]["completion_tokens"] == 4
    assert slot.metric("ling_output_tokens_total") == tokens + 8
    assert slot.metric("ling_time_per_output_token_seconds_count") == times + 2
    assert slot.metric("ling_requests_in_flight") == 0, "SGLang lingers 2 s behind a stream; nobody waits for it"


def test_information_is_sglangs_own(slot: Room) -> None:
    status, text = slot.ask("GET", "/model_info")
    assert (status, json.loads(text)["load_format"]) == (200, "private")
    status, text = slot.ask("GET", "/v1/models")
    assert [one["id"] for one in json.loads(text)["data"]] == ["try"]


def test_the_rank_of_an_active_engine_stays_awake(slot: Room) -> None:
    """It computes for 0.3 s, which one that sleeps for a second at a time would not in minutes."""
    rank = next(one for one in slot.server("one") if one.name().startswith("sglang::sched"))
    before = sum(rank.cpu_times()[:2])
    spine.until(lambda: sum(rank.cpu_times()[:2]) > before + 0.3, "the rank to look for requests", 60)


@pytest.mark.parametrize("name", ["sglang::scheduler", "sglang::detokenizer", "ling-server"])
def test_the_death_of_one_process_is_the_servers_and_the_next_attaches(slot: Room, name: str) -> None:
    before = slot.ids(PROMPT, 3)
    group = slot.server("one")
    victim = next(one for one in group if one.name().startswith(name[:15]))
    gone = sglang_room.kill(victim, group)
    late = {pid: ms - gone[victim.pid] for pid, ms in gone.items() if ms - gone[victim.pid] > SEEN_MS}
    assert not late, f"outlived {name} by so many ms: {late}"
    spine.until(lambda: slot.engine_status("one").get("role") != "active", "the death to be known")
    slot.until_active("one")
    phases = slot.engine_status("one")["phases"]
    assert "target-loaded" not in phases, "nothing is read from disk"
    assert "target-bound" in phases
    assert slot.ids(PROMPT, 3) == before
    launcher = sglang_room.psutil.Process(slot.processes["one"].pid)
    names = {one.name() for one in launcher.children()}
    assert names <= {"ling-zygote", "ling-server"}, f"orphans stay: {names}"


def test_a_rank_that_is_stopped_hangs_its_server_which_is_killed_and_the_next_attaches(slot: Room) -> None:
    before = slot.ids(PROMPT, 3)
    group = slot.server("one")
    rank = next(one for one in group if one.name().startswith("sglang::sched"))
    patience = sglang_site.patience(slot.folder / "site")
    os.kill(rank.pid, signal.SIGSTOP)
    patience.write_text(f"{SILENT_S}")
    try:
        asked = threading.Thread(target=lambda: _lost(slot))
        asked.start()
        spine.until(
            lambda: not any(alive(one) for one in group), "the hung server and its stopped rank to be killed", 180
        )
    finally:
        patience.unlink()
    asked.join()
    reasons = [one.get("reason") for one in slot.status().get("conditions", []) if one["type"] == "Degraded"]
    assert reasons == ["EngineHung"], "status says what it was"
    slot.until_active("one")
    phases = slot.engine_status("one")["phases"]
    assert "target-loaded" not in phases, "nothing is read from disk"
    assert "target-bound" in phases
    assert slot.ids(PROMPT, 3) == before


def _lost(slot: Room) -> None:
    """A request that a hung server has accepted: its connection ends."""
    with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
        slot.ids(PROMPT, 64)


def alive(process: psutil.Process) -> bool:
    """A process that has ended counts as dead before its parent has asked for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_drain_finishes_what_runs_and_leaves_no_process(slot: Room) -> None:
    found: list[list[int]] = []
    asking = threading.Thread(target=lambda: found.append(slot.ids(PROMPT, 6)))
    asking.start()
    spine.until(lambda: slot.metric("ling_requests_in_flight") == 1, "the request to run", 180)
    group = slot.server("one")
    slot.processes["one"].send_signal(signal.SIGTERM)
    assert slot.processes["one"].wait(200) == 0, slot.log("one")
    asking.join()
    assert len(found[0]) == 6, "a request that was accepted is answered"
    assert not [one for one in group if alive(one)]
