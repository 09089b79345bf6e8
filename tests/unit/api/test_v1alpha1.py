"""The custom resources as values, and what changes a revision and what never does."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ling_api.errors import BadInput
from ling_api.slotstatus import Active, Condition, EngineStatus, LingSlotStatus
from ling_api.v1alpha1 import (
    BASELINE,
    EnginePart,
    LingDeploymentSpec,
    LingSlotSpec,
    Wish,
    revision_of,
)

LEAST: dict[str, Any] = {"model": {"source": "host:///tiny"}, "weightCache": {"memory": "1Gi"}}
DEFAULTS: dict[str, Any] = {
    "engine": {"runtime": "Reference", "contextLength": 4096, "maxQueue": 4096},
    "decoding": {"algorithm": "None"},
    "model": {"dtype": "auto"},
    "parallelism": {"tp": 1},
    "weightCache": {"policy": "Required", "spareSlots": 0},
    "replicas": 1,
    "gpu": {"allocation": "None", "deviceClass": "gpu.nvidia.com", "count": 1, "resource": "nvidia.com/gpu"},
    "standby": {"replicas": 0, "mode": "Warm"},
    "rollout": {"strategy": "Auto", "progressDeadlineSeconds": 900, "paused": False},
    "drain": {"lameDuckSeconds": 15, "graceSeconds": 120, "replacementTimeoutSeconds": 600},
    "service": {"port": 80, "holdSeconds": 60},
}


def merged() -> dict[str, Any]:
    """The least, with every default written out."""
    return LEAST | {
        section: {**LEAST.get(section, {}), **values} if isinstance(values, dict) else values
        for section, values in DEFAULTS.items()
    }


def revision(**parts: Any) -> str:
    return revision_of(LingDeploymentSpec.from_dict({**LEAST, **parts}).part)


@pytest.mark.parametrize(
    ("parts", "golden"),
    [
        pytest.param({}, "c3a10622", id="the least"),
        pytest.param({"engine": {"contextLength": 8192}}, "ea62a317", id="a longer context"),
        pytest.param(
            {"model": {"source": "pvc://models/ling", "revision": "sha256:" + "0" * 64}}, "d50010f6", id="a claim"
        ),
        pytest.param({"engine": {"image": "a/b:1", "resources": {"limits": {"cpu": "2"}}}}, "cd711dc9", id="an image"),
    ],
)
def test_revisions_that_were_shipped_stay_what_they_are(parts: dict[str, Any], golden: str) -> None:
    assert revision(**parts) == golden, "every engine in every cluster would be rolled by an upgrade"


@pytest.mark.parametrize("section", list(DEFAULTS))
def test_a_default_that_is_written_out_changes_no_revision(section: str) -> None:
    assert revision(**{section: merged()[section]}) == revision()


def test_a_field_of_a_later_release_with_its_baseline_changes_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {**BASELINE, "engine": {**BASELINE["engine"], "concurrency": 4}}
    before = revision()

    class Later(EnginePart):
        def to_dict(self) -> dict[str, Any]:
            data = super().to_dict()
            return {**data, "engine": {**data["engine"], "concurrency": 4}}

    monkeypatch.setattr("ling_api.enginepart.BASELINE", later)
    part = LingDeploymentSpec.from_dict(LEAST).part
    assert revision_of(Later(model=part.model, engine=part.engine)) == before


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"model": {"source": "host:///other"}}, id="source"),
        pytest.param({"model": {"source": "host:///tiny", "revision": "sha256:" + "1" * 64}}, id="model revision"),
        pytest.param({"engine": {"image": "a/b:1"}}, id="image"),
        pytest.param({"engine": {"contextLength": 4097}}, id="context"),
        pytest.param({"engine": {"maxQueue": 1}}, id="queue"),
        pytest.param({"engine": {"resources": {"requests": {"cpu": 1}}}}, id="resources"),
        pytest.param({"decoding": {"algorithm": "NEXTN"}}, id="decoding"),
        pytest.param({"parallelism": {"tp": 2}}, id="ranks"),
        pytest.param({"model": {"source": "host:///tiny", "routerDtype": "bf16"}}, id="router's dtype"),
        pytest.param({"engine": {"concurrency": 4}}, id="concurrency"),
        pytest.param({"engine": {"extraArgs": ["--x"]}}, id="words for SGLang"),
        pytest.param({"engine": {"env": [{"name": "A", "value": "1"}]}}, id="environment"),
        pytest.param({"engine": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}}, id="a label"),
        pytest.param({"weightCache": {"memory": "1Gi", "policy": "Off"}}, id="cache policy"),
        pytest.param({"gpu": {"allocation": "ResourceClaim"}}, id="a claim"),
        pytest.param({"gpu": {"allocation": "ResourceClaim", "count": 2}}, id="more devices"),
    ],
)
def test_what_an_engine_depends_on_changes_the_revision(parts: dict[str, Any]) -> None:
    assert revision(**parts) != revision()


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"replicas": 5}, id="replicas"),
        pytest.param({"weightCache": {"memory": "2Gi"}}, id="memory"),
        pytest.param({"drain": {"graceSeconds": 5}}, id="grace"),
        pytest.param({"service": {"port": 8080}}, id="port"),
        pytest.param({"rollout": {"progressDeadlineSeconds": 60}}, id="deadline"),
    ],
)
def test_what_no_engine_depends_on_does_not(parts: dict[str, Any]) -> None:
    assert revision(**parts) == revision()


def test_every_way_of_decoding_is_a_revision_of_its_own() -> None:
    ways: list[dict[str, Any]] = [
        {"algorithm": "None"},
        {"algorithm": "NEXTN"},
        {"algorithm": "NEXTN", "numSteps": 3},
        {"algorithm": "DSPARK"},
        {"algorithm": "DSPARK", "numDraftTokens": 5},
        {"algorithm": "DSPARK", "draft": {"source": "host:///draft"}},
    ]
    assert len({revision(decoding=way) for way in ways}) == len(ways)


def test_quantities_count_by_what_they_mean() -> None:
    def of(cpu: Any) -> str:
        return revision(engine={"resources": {"limits": {"cpu": cpu}}})

    assert of("1") == of(1) == of("1000m") != of("2")


def test_the_defaults_are_those_of_the_schema() -> None:
    crd = yaml.safe_load((Path(__file__).parents[3] / "crds/lingdeployments.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    found = {
        section: {name: one["default"] for name, one in body.get("properties", {}).items() if "default" in one}
        for section, body in schema.items()
    }
    found = {section: values for section, values in found.items() if values}
    assert found["engine"].pop("podTemplate") == {}
    assert {**found, "replicas": schema["replicas"]["default"]} == DEFAULTS
    assert LingDeploymentSpec.from_dict(merged()) == LingDeploymentSpec.from_dict(LEAST)


def test_a_deployment_is_read_and_written_without_loss() -> None:
    spec = LingDeploymentSpec.from_dict({**LEAST, "engine": {"image": "a:1", "resources": {"limits": {"cpu": "2"}}}})
    assert LingDeploymentSpec.from_dict(spec.to_dict()) == spec
    assert spec.memory == 1 << 30


EVERYTHING: dict[str, Any] = {
    "model": {"source": "pvc://models/a", "dtype": "bfloat16", "routerDtype": "bf16"},
    "parallelism": {"tp": 4},
    "engine": {
        "runtime": "SGLang",
        "contextLength": 8192,
        "maxQueue": 16,
        "concurrency": 8,
        "extraArgs": ["--schedule-policy=lpm"],
        "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "$(B)"}],
        "podTemplate": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
            "spec": {
                "nodeSelector": {"pool": "h200"},
                "tolerations": [{"key": "pool", "operator": "Equal", "value": "h200", "effect": "NoSchedule"}],
                "priorityClassName": "high",
                "runtimeClassName": "nvidia",
                "imagePullSecrets": [{"name": "registry"}],
            },
        },
    },
    "gpu": {"allocation": "ResourceClaim", "count": 4, "deviceClass": "gpu.nvidia.com", "resource": "nvidia.com/gpu"},
    "weightCache": {"policy": "Off"},
}


def test_an_engine_on_gpus_is_read_and_written_without_loss() -> None:
    spec = LingDeploymentSpec.from_dict(EVERYTHING)
    written = spec.to_dict()
    assert {part: written[part] for part in EVERYTHING if part != "weightCache"} == {
        part: said for part, said in EVERYTHING.items() if part != "weightCache"
    }
    assert written["weightCache"] == {"policy": "Off", "spareSlots": 0}
    assert LingDeploymentSpec.from_dict(written) == spec
    assert EnginePart.from_dict(spec.part.to_dict()) == spec.part
    assert spec.memory == 0


@pytest.mark.parametrize(
    "decoding",
    [
        pytest.param({"algorithm": "None"}, id="plain"),
        pytest.param({"algorithm": "NEXTN", "numSteps": 3, "numDraftTokens": 4}, id="NEXTN"),
        pytest.param({"algorithm": "DSPARK", "draft": {"source": "pvc://drafts/a"}}, id="DSPARK"),
    ],
)
def test_decoding_is_read_and_written_without_loss(decoding: dict[str, Any]) -> None:
    spec = LingDeploymentSpec.from_dict({**LEAST, "decoding": decoding})
    assert spec.to_dict()["decoding"] == decoding
    assert LingDeploymentSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        pytest.param({"model": {}}, "source: write a text", id="no source"),
        pytest.param({"model": {"source": "s3://bucket"}}, "write pvc://CLAIM/PATH or host:///PATH", id="a scheme"),
        pytest.param({"model": {"source": "host:///a/../b"}}, "write pvc://CLAIM/PATH", id="dots"),
        pytest.param({"engine": {"runtime": "vLLM"}}, "write Reference or SGLang", id="another runtime"),
        pytest.param({"engine": {"extraArgs": "--x"}}, "extraArgs: write a list of texts", id="a text for a list"),
        pytest.param({"engine": {"env": ["A=1"]}}, "env: write a list of objects", id="texts for objects"),
        pytest.param({"model": {"source": "host:///a", "dtype": "fp16"}}, "write auto or bfloat16", id="another dtype"),
        pytest.param({"engine": []}, "engine: write an object", id="a list"),
        pytest.param({"decoding": {"algorithm": "EAGLE"}}, "write None or NEXTN or DSPARK", id="another algorithm"),
        pytest.param(
            {"decoding": {"algorithm": "DSPARK", "draft": {"source": "/draft"}}},
            "decoding.draft.source: '/draft': write pvc://CLAIM/PATH",
            id="a plain path as draft",
        ),
        pytest.param({"replicas": "2"}, "whole number of at least 0", id="a text for a number"),
        pytest.param({"replicas": True}, "whole number of at least 0", id="a truth for a number"),
        pytest.param({"weightCache": {}}, "quantity such as 8Gi", id="no memory"),
        pytest.param({"weightCache": {"memory": "lots"}}, "quantity 'lots'", id="no quantity"),
        pytest.param({"rollout": {"strategy": "Never"}}, "write Auto or Recreate", id="an unknown strategy"),
        pytest.param({"rollout": {"paused": "yes"}}, "write true or false", id="a text for a truth"),
        pytest.param({"gpu": {"tolerations": ["all"]}}, "list of objects", id="a toleration that is a text"),
    ],
)
def test_nonsense_is_refused_with_the_field_and_what_to_write(parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        LingDeploymentSpec.from_dict({**LEAST, **parts})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("source", "claim", "path"),
    [
        pytest.param("host:///a/b", "", "a/b", id="host"),
        pytest.param("pvc://models/a/b/", "models", "a/b", id="claim and path"),
        pytest.param("pvc://models/", "models", "", id="root of a claim"),
    ],
)
def test_a_source_tells_claim_and_path(source: str, claim: str, path: str) -> None:
    model = LingDeploymentSpec.from_dict({**LEAST, "model": {"source": source}}).part.model
    assert (model.claim, model.path) == (claim, path)


def test_a_slot_is_read_and_written_without_loss() -> None:
    spec = LingSlotSpec(
        deployment="chat",
        revision="0badcafe",
        revisions=("0badcafe", "c3a10622"),
        capacity=1 << 30,
        grace_seconds=120,
        hold_seconds=60,
        wish=Wish(pod="chat-0-0badcafe-0", term=3),
    )
    assert LingSlotSpec.from_dict(spec.to_dict()) == spec


def test_a_slot_status_is_read_leniently_and_written_without_loss() -> None:
    status = LingSlotStatus(
        node="n1",
        active=Active(pod="p", uid="u", term=2),
        engines=(EngineStatus(pod="p", uid="u", role="active", phases={"attach": 3.0}),),
        conditions=(Condition(type="Serving", status="True", reason="Active"),),
    )
    data = status.to_dict()
    assert LingSlotStatus.from_dict({**data, "invented": 1, "message": None}) == status
    assert status.is_true("Serving")
    assert not status.is_true("Recovering")
    assert data["conditions"][0]["lastTransitionTime"] == ""
