"""`kubectl ling status` and `top`: what stands on the screen, and that it is one."""

from __future__ import annotations

from tests.support.ling_objects import FORMER, REVISION, condition, deployment, event, pod, revision, seen, slot

from ling_kubectl import screen, timeline

SET = {"set": "c0ffee" * 10 + "dead:0", "role": "target", "rank": 0, "bytes": 60 << 30, "holders": 4}
ENGINE = {
    "pod": "tiny-0-e", "revision": REVISION, "role": "active", "phase": "accepting", "planBytes": 9 << 30,
    "inFlight": 2, "deaths": 0, "phases": {"started": 10.0, "attached": 90.0, "warm": 130.0, "accepting": 136.0},
}  # fmt: skip


def whole() -> str:
    body = deployment(
        condition("Ready", "True", "Serving", "1 of 1 slots serve"),
        condition("Degraded", "True", "EngineHung", "tiny-0-e hung"),
        performance={
            "tpotMs": 1.53,
            "ttftMs": 120.4,
            "acceptLength": 3.2,
            "requests": 120,
            "tokensPerSecond": 653.6,
            "samples": 110,
            "windowSeconds": 61.2,
        },
    )
    own = slot(
        condition("Serving", "True", "Accepting", "tiny-0-e accepts", since=20),
        engines=[ENGINE], weightSets=[{**SET, "state": "sealed"}, {**SET, "set": "f:1", "rank": 1, "state": "filling",
                                                                  "progress": 0.5}],
        capacity={"total": 80 << 30, "weights": 60 << 30, "plans": 9 << 30}, active={"pod": "tiny-0-e", "term": 4},
        gpus=["GPU-00aa", "GPU-00ab"],
    )  # fmt: skip
    pods = pod("slot", "tiny-0"), pod("engine", "tiny-0-e"), pod("engine", "tiny-0-f", phase="Pending")
    return screen.render(seen(body, own, *pods, revision(REVISION, 1, 120), events=(event("Serving", "it serves"),)))


def test_one_screen_has_it_all() -> None:
    text = whole()
    for words in (
        "team/tiny: Ready, 1 of 1 slots serve",
        "revision aaaa1111, serving 1/1, made 60 min ago",
        "model host:///tiny, runtime Reference, decoding None",
        "TPOT 1.53 ms (654 tok/s), TTFT 120.4 ms, accept length 3.20, 120 requests",
        "means of the last 110, over 61 s",
        "!  Degraded",
        "SLOT tiny-0 on n1: serves, term 4",
        "GPUs GPU-00aa, GPU-00ab",
        "60.0 GiB weights + 9.0 GiB plans of 80.0 GiB",
        "*active",
        "attached 90 warm 130 accepting 136",
        "[####################] 100%",
        "[##########..........] 50%",
        "it serves",
    ):
        assert words in text
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 130


def test_a_pod_of_which_the_agent_knows_nothing_is_shown_with_its_own_state() -> None:
    assert next(line for line in whole().splitlines() if "tiny-0-f" in line).split()[:4] == [
        "tiny-0-f", "-", "-", "Pending",
    ]  # fmt: skip


def test_a_change_on_its_way_shows_both_revisions_and_an_unmeasured_figure_a_dash() -> None:
    text = screen.render(seen(deployment(currentRevision=FORMER)))
    assert f"revision {FORMER} -> {REVISION}" in text
    assert "TPOT -, TTFT -, accept length -, 0 requests" in text
    assert "NOT READY" in text


def test_the_timeline_begins_with_the_last_change() -> None:
    looked = seen(
        deployment(condition("Ready", "True", "Serving", since=40)),
        slot(condition("Serving", "True", "Accepting", since=41)),
        pod("engine", "tiny-0-e"),
        revision(FORMER, 1, 3000),
        revision(REVISION, 2, 95),
        events=(event("Old", "long ago", ago=2000), event("RolloutCompleted", "done", ago=39, count=2)),
    )
    lines = timeline.render(looked)
    assert [line.split(maxsplit=3)[3] for line in lines] == [
        "revision tiny-aaaa1111 is made",
        "engine pod tiny-0-e is made",
        "tiny-0: Serving=True Accepting",
        "Ready=True Serving",
        "RolloutCompleted: done (x2)",
    ]
    assert lines[0].split()[1:3] == ["+0.0", "s"]
    assert lines[-1].split()[1:3] == ["+56", "s"]


def test_top_sums_the_slots_of_a_deployment() -> None:
    body = deployment(condition("Ready", "True"), performance={"tpotMs": 1.5, "ttftMs": 20, "requests": 7})
    slots = [slot(name=f"tiny-{n}", engines=[ENGINE], capacity={"total": 2 << 30, "weights": 1 << 30}) for n in (0, 1)]
    head, line = screen.top([body], slots).splitlines()
    assert head.split()[:5] == ["NAMESPACE", "NAME", "READY", "SERVING", "IN-FLIGHT"]
    assert line.split() == [
        "team",
        "tiny",
        "True",
        "1/1",
        "4",
        "1.50",
        "20.0",
        "-",
        "7",
        "2.0",
        "GiB",
        "/",
        "4.0",
        "GiB",
    ]


def test_top_of_nothing_says_where_else_to_look() -> None:
    assert screen.top([], []) == "no LingDeployment here; -A looks in every namespace"
