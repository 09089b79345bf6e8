"""Alerts and dashboard: Prometheus accepts them, they fire when they should, and what they ask for exists."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.chart import CHART, ROOT
from tests.support.prometheus import program
from tests.support.slot_mind import Mind

from ling_engine.launcher_metrics import LauncherMetrics
from ling_engine.lifecycle import Phase as EnginePhase
from ling_engine.metrics import ServerMetrics
from ling_nodeagent.metrics import AgentCollector, Counters, Snapshot
from ling_operator import rollout
from ling_operator.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALERTS = CHART / "files/alerts.yaml"
DASHBOARD = CHART / "files/dashboard.json"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
}

promtool = program("promtool")
needs_promtool = pytest.mark.skipif(promtool is None, reason="Prometheus is not there: run hack/bootstrap cluster")


def run(*args: object) -> str:
    """What promtool prints; an AssertionError with it when it fails."""
    done = subprocess.run([str(promtool), *map(str, args)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_accepts_the_alerts() -> None:
    assert f"{len(RULES)} rules found" in run("check", "rules", ALERTS)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series (as promtool writes them, one sample a minute) that fire the alert at `at`, and series that never do."""

    fires: dict[str, str]
    quiet: dict[str, str]
    at: str = "40m"


def condition(kind: str, status: str, reason: str, values: str = "1x60") -> dict[str, str]:
    labels = f'namespace="a",name="b",condition="{kind}",status="{status}",reason="{reason}"'
    return {f"ling_operator_deployment_condition{{{labels}}}": values}


FAILED = 'ling_requests_failed_total{namespace="a",deployment="b"}'
ANSWERED = 'ling_requests_total{namespace="a",deployment="b",status="200"}'
TOO_MANY = 'ling_requests_total{namespace="a",deployment="b",status="429"}'
COUNT, QUICK = "ling_agent_failover_seconds_count", 'ling_agent_failover_seconds_bucket{le="10.0"}'
LOOKS = "ling_operator_reconcile_seconds_bucket"
CASES: dict[str, Case] = {
    "LingNotServing": Case(
        fires=condition("Ready", "False", "NotServing"), quiet=condition("Ready", "False", "ScaledToZero")),
    "LingDegraded": Case(
        fires=condition("Degraded", "True", "SlotNotServing"), quiet=condition("Degraded", "True", "AgentLost")),
    "LingEngineCrashLoop": Case(
        fires=condition("Degraded", "True", "EngineCrashLoop"), quiet=condition("Degraded", "False", "AsExpected")),
    "LingEngineHung": Case(
        fires=condition("Degraded", "True", "EngineHung"), quiet=condition("Degraded", "True", "AgentLost")),
    "LingOutputSuspect": Case(
        fires=condition("Degraded", "True", "AcceptLengthAtCeiling"),
        quiet=condition("Degraded", "False", "AsExpected")),
    "LingSLOMissed": Case(fires=condition("SLOMet", "False", "TooSlow"), quiet=condition("SLOMet", "True", "Met")),
    "LingInvalidSpec": Case(
        fires=condition("Degraded", "True", "InvalidSpec"), quiet=condition("Degraded", "False", "AsExpected")),
    "LingRolloutGivenUp": Case(
        fires=condition("Progressing", "False", "EngineFailed"),
        quiet=condition("Progressing", "False", "Deleting")),
    "LingStandbyMissing": Case(
        fires=condition("StandbyReady", "False", "Waiting"), quiet=condition("StandbyReady", "True", "Ready")),
    "LingWeightsCondemned": Case(
        fires={'ling_agent_weight_sets{slot="a/b-0",state="condemned"}': "0x36 1x1 0x30"},
        quiet={'ling_agent_weight_sets{slot="a/b-0",state="sealed"}': "1x60"},
    ),
    "LingWeightsNotHeld": Case(
        fires=condition("WeightsCached", "False", "NotHeld"), quiet=condition("WeightsCached", "False", "NoSlots")),
    "LingAgentLost": Case(
        fires=condition("Degraded", "True", "AgentLost"), quiet=condition("Degraded", "False", "AgentLost", "1x5")),
    "LingAgentRecovering": Case(
        fires={'ling_agent_recovering{slot="a/b-0"}': "1x60"}, quiet={'ling_agent_recovering{slot="a/b-0"}': "0x60"}),
    "LingOperatorDown": Case(
        fires={"ling_operator_queue_depth": "0x10"}, quiet={"ling_operator_queue_depth": "0x60"}),
    "LingOperatorFailing": Case(
        fires={'ling_operator_reconciles_total{result="error"}': "0+60x60"},
        quiet={'ling_operator_reconciles_total{result="error"}': "0+1x60"}),
    "LingOperatorSlow": Case(
        fires={f'{LOOKS}{{le="5.0"}}': "0+1x60", f'{LOOKS}{{le="30.0"}}': "0+9x60", f'{LOOKS}{{le="+Inf"}}': "0+9x60"},
        quiet={f'{LOOKS}{{le="0.1"}}': "0+9x60", f'{LOOKS}{{le="5.0"}}': "0+9x60", f'{LOOKS}{{le="+Inf"}}': "0+9x60"}),
    "LingRequestsFail": Case(
        fires={FAILED: "0+5x60", ANSWERED: "0+95x60"}, quiet={FAILED: "0+1x60", ANSWERED: "0+999x60"}),
    "LingQueueFull": Case(fires={TOO_MANY: "0+1x60"}, quiet={TOO_MANY: "7x60", ANSWERED: "0+9x60"}),
    "LingFailoverSlow": Case(
        fires={f'{COUNT}{{instance="n1"}}': "0x35 1x25", QUICK.replace("{", '{instance="n1",'): "0x60"},
        quiet={f'{COUNT}{{instance="n1"}}': "0x35 1x25", QUICK.replace("{", '{instance="n1",'): "0x35 1x25"}),
    "LingServersDie": Case(
        fires={'ling_agent_server_deaths_total{instance="n1"}': "0x30 9x30"},
        quiet={'ling_agent_server_deaths_total{instance="n1"}': "0x30 1x30"}),
}  # fmt: skip


def test_every_reason_of_a_revision_given_up_is_one_of_its_alert() -> None:
    for reason in (rollout.ENGINE_FAILED, rollout.DEADLINE):
        assert reason in RULES["LingRolloutGivenUp"]["expr"]


def test_every_alert_has_a_case_and_a_page() -> None:
    assert CASES.keys() == RULES.keys()
    pages = {path.stem for path in (ROOT / "docs/runbooks").glob("Ling*.md")}
    assert pages == RULES.keys()
    for name, rule in RULES.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        assert rule["labels"]["severity"] in ("warning", "critical")


def promtool_test(name: str, case: Case) -> Iterator[dict[str, Any]]:
    """promtool's own words for: fires, with its labels and sentence; and does not."""
    for series, fires in ((case.fires, True), (case.quiet, False)):
        inputs = [{"series": one, "values": values} for one, values in series.items()]
        query = {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)', "eval_time": case.at}
        sample = {"labels": "{}", "value": 1.0 if fires else 0.0}
        yield {
            "interval": "1m",
            "input_series": inputs,
            "promql_expr_test": [{**query, "exp_samples": [sample]}],
        }


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should_and_only_then(name: str, tmp_path: Path) -> None:
    # the rule itself is evaluated by promtool; one file a rule, so that a failure names it
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [RULES[name]]}]}))
    test = tmp_path / "test.yaml"
    cases = list(promtool_test(name, CASES[name]))
    test.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": cases}))
    assert "SUCCESS" in run("test", "rules", test)


def exposed() -> dict[str, set[str]]:
    """Every sample that our processes expose, with its labels."""
    operator = Metrics(lambda: 0)
    performance = {"tpotMs": 1.0, "ttftMs": 1.0, "acceptLength": 1.0, "requests": 1}
    one = {"type": "Ready", "status": "True", "reason": "Serving"}
    operator.objects.put(("a", "b"), {"conditions": [one], "performance": performance})
    for counter, labels in ((operator.reconciles, ("ok",)), (operator.errors, ("x",)), (operator.steps, ("x", "y"))):
        counter.labels(*labels)
    mind = Mind()
    mind.keeper()
    mind.engine("one")
    mind.serve("one", "s1")
    counters = Counters()
    counters.answers["granted"] = counters.roles["active"] = 1
    agent = CollectorRegistry()
    snapshot = Snapshot(slots={"a/b-0": mind.slot}, counters=counters, open_fds=0, streams=0, connections=0)
    agent.register(AgentCollector(lambda: snapshot))
    server = ServerMetrics()
    server.answered("/v1/completions", 200)
    server.fail("x")
    server.moved("passed", 1)
    launcher = LauncherMetrics()
    launcher.ended(0)
    launcher.phase({"warm": 1.0})
    texts = (
        operator.text().decode(),
        generate_latest(agent).decode(),
        server.text(),
        launcher.text(EnginePhase.ACTIVE, connected=True, backups={}),
    )
    found: dict[str, set[str]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> Iterator[str]:
    """Every query of alerts and dashboard."""
    yield from (rule["expr"] for rule in RULES.values())
    board = json.loads(DASHBOARD.read_text())
    for panel in (*board["panels"], *board.get("annotations", {}).get("list", ())):
        for target in panel.get("targets", [panel]):
            if "expr" in target:
                yield target["expr"]


def test_what_is_asked_for_is_exposed() -> None:
    known = exposed()
    added_by_the_scrape = {"instance", "job", "node", "deployment", "slot", "revision", "pod", "namespace"}
    for expression in expressions():
        names = re.findall(r"\bling_[a-z_]+", expression)
        assert names, expression
        for name in names:
            assert name in known, f"{name} in {expression}"
        for name, matchers in re.findall(r"\b(ling_[a-z_]+)\{([^}]*)\}", expression):
            asked = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', matchers))
            assert asked <= known[name] | added_by_the_scrape, f"{asked - known[name]} of {name}"


def test_buckets_resolve_what_a_fast_decoder_does() -> None:
    limits = [
        float(sample.labels["le"])
        for family in text_string_to_metric_families(ServerMetrics().text())
        for sample in family.samples
        if sample.name == "ling_time_per_output_token_seconds_bucket"
    ]
    between = [limit for limit in limits if 0.0002 <= limit <= 0.005]
    assert (between[0], between[-1]) == (0.0002, 0.005)
    assert max(after / before for before, after in pairwise(between)) <= 2
