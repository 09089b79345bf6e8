"""What the API server makes of our CRDs: defaults, sentences, `kubectl explain`, columns, subresources."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.support import apiserver

from ling_api.v1alpha1 import LingDeploymentSpec, revision_of
from ling_operator.status import BRIEF

pytestmark = pytest.mark.cluster

GOOD: dict[str, Any] = {"model": {"source": "host:///tiny"}, "weightCache": {"memory": "1Gi"}}


@pytest.fixture(scope="module")
def plane() -> apiserver.ControlPlane:
    if apiserver.programs() is None:
        pytest.skip("the control plane's programs are not built: hack/cluster/build")
    return apiserver.shared()


def manifest(name: str = "case", spec: dict[str, Any] | None = None) -> str:
    body = {
        "apiVersion": "ling.dev/v1alpha1",
        "kind": "LingDeployment",
        "metadata": {"name": name, "namespace": "default"},
    }
    return yaml.safe_dump({**body, "spec": GOOD if spec is None else spec})


def changed(**parts: dict[str, Any]) -> dict[str, Any]:
    return {**GOOD, **{part: {**GOOD.get(part, {}), **values} for part, values in parts.items()}}


def resources(**sides: dict[str, Any]) -> dict[str, Any]:
    return changed(engine={"resources": sides})


DRAFT = {"source": "host:///draft"}


def decoding(algorithm: str, **fields: Any) -> dict[str, Any]:
    return {**GOOD, "decoding": {"algorithm": algorithm, **fields}}


def drafted(source: str) -> dict[str, Any]:
    return decoding("DSPARK", draft={"source": source})


def sglang(**parts: dict[str, Any]) -> dict[str, Any]:
    """A good manifest for GPUs, with changes."""
    good = {
        "model": {"source": "host:///flash"},
        "engine": {"runtime": "SGLang"},
        "gpu": {"allocation": "ResourceClaim"},
    }
    return {**good, **{part: {**good.get(part, {}), **values} for part, values in parts.items()}}


def template(**spec: Any) -> dict[str, Any]:
    return changed(engine={"podTemplate": {"spec": spec}})


def labelled(where: str, key: str) -> dict[str, Any]:
    return changed(engine={"podTemplate": {"metadata": {where: {key: "x"}}}})


INVALID = [
    pytest.param(changed(gpu={"allocation": "DevicePlugin"}, standby={"replicas": 1}), "would find no GPU", id="two"),
    pytest.param(
        changed(gpu={"allocation": "DevicePlugin"}, weightCache={"spareSlots": 1}), "spareSlots: write 0", id="a spare"
    ),
    pytest.param(changed(gpu={"count": 0}), "gpu.count: write a number of GPUs", id="no GPU"),
    pytest.param(changed(gpu={"deviceClass": "A100"}), "kubectl get deviceclasses", id="no name of a class"),
    pytest.param(changed(gpu={"resource": "gpu"}), "such as nvidia.com/gpu", id="a resource without domain"),
    pytest.param(changed(gpu={"tolerations": [{"operator": "Equal"}]}), "write a key", id="a toleration of nothing"),
    pytest.param(changed(standby={"replicas": 9}), "from 0 to 8", id="too many standbys"),
    pytest.param(changed(drain={"lameDuckSeconds": 601}), "from 0 to 600", id="a very lame duck"),
    pytest.param(changed(drain={"replacementTimeoutSeconds": -1}), "from 0 to 86400", id="a deadline in the past"),
    pytest.param(changed(weightCache={"spareSlots": 101}), "from 0 to 100", id="too many spare slots"),
    pytest.param(changed(model={"source": "/models/tiny"}), "write pvc://CLAIM/PATH", id="a plain path"),
    pytest.param(changed(model={"source": "hf://inclusionAI/Ling"}), "or host:///PATH below", id="another scheme"),
    pytest.param(changed(model={"source": "host://tiny"}), "write pvc://CLAIM/PATH", id="host with two slashes"),
    pytest.param(changed(model={"source": "pvc://claim"}), "pvc://CLAIM/ is the volume's root", id="a claim, no slash"),
    pytest.param(changed(model={"source": "pvc://Claim_1/x"}), "with the claim's name", id="no name of a claim"),
    pytest.param(changed(model={"source": "host:///a/../../etc"}), "without '.' and '..' parts", id="dots that climb"),
    pytest.param(changed(model={"source": "host:///a b"}), "rename the folder", id="a blank in the path"),
    pytest.param(changed(model={"revision": "main"}), "write sha256: and 64 lower-case hex", id="a branch as revision"),
    pytest.param(changed(engine={"runtime": "vLLM"}), 'supported values: "Reference", "SGLang"', id="another runtime"),
    pytest.param(
        sglang(weightCache={"memory": "8Gi"}), "memory: leave it out with engine.runtime: SGLang", id="memory"
    ),
    pytest.param(sglang(gpu={"allocation": "None"}), "allocation: write ResourceClaim, or DevicePlugin", id="no GPUs"),
    pytest.param(sglang(parallelism={"tp": 4}), "gpu.count: write as many as parallelism.tp", id="four ranks, one GPU"),
    pytest.param(
        sglang(gpu={"count": 2}, parallelism={"tp": 4}), "gpu.count: write as many as", id="four ranks, two GPUs"
    ),
    pytest.param(sglang(gpu={"count": 3}, parallelism={"tp": 3}), "tp: write 1, 2, 4 or 8 ranks", id="three ranks"),
    pytest.param(changed(parallelism={"tp": 2}), "parallelism.tp: write 1 with engine.runtime: Reference", id="ranks"),
    pytest.param(changed(model={"dtype": "bfloat16"}), "leave them out with engine.runtime: Reference", id="a dtype"),
    pytest.param(
        changed(model={"routerDtype": "bf16"}), "leave them out with engine.runtime: Ref", id="router's dtype"
    ),
    pytest.param(sglang(model={"dtype": "fp16"}), 'supported values: "auto", "bfloat16"', id="another dtype"),
    pytest.param(changed(weightCache={"policy": "Off"}), "policy: write Required with engine.runtime", id="no cache"),
    pytest.param(sglang(weightCache={"policy": False}), "must be of type string", id="a bare Off"),
    pytest.param(
        sglang(weightCache={"policy": "Off"}, standby={"replicas": 1}), "what waits shares the", id="a standby alone"
    ),
    pytest.param(
        sglang(weightCache={"policy": "Off", "spareSlots": 1}),
        "what waits shares the cached weights",
        id="spare of none",
    ),
    pytest.param(changed(engine={"concurrency": 2}), "answers one request at a time", id="two at once"),
    pytest.param(sglang(engine={"concurrency": 65}), "requests from 1 to 64", id="a crowd"),
    pytest.param(changed(engine={"extraArgs": ["--x"]}), "they are for SGLang's command line", id="words for nobody"),
    pytest.param(sglang(engine={"extraArgs": ["lpm"]}), "begin with a flag", id="a word, no flag"),
    pytest.param(sglang(engine={"extraArgs": ["--tp=2"]}), "leave out what has a field", id="ranks by flag"),
    pytest.param(
        sglang(engine={"extraArgs": ["--schedule-policy=lpm", "--mem-fraction-static", "0.9"]}),
        "leave out what has a field",
        id="memory by flag",
    ),
    pytest.param(
        changed(engine={"env": [{"name": "LING_RUN", "value": "x"}]}),
        "leave out LING_*, all but LING_FEW_ROWS",
        id="our variable",
    ),
    pytest.param(
        sglang(engine={"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "1"}]}), "that choose GPUs", id="a GPU chosen"
    ),
    pytest.param(changed(engine={"env": [{"name": "1ST"}]}), "env: write a name of letters", id="no variable's name"),
    pytest.param(changed(engine={"env": [{"name": "A"}, {"name": "A"}]}), "Duplicate value", id="a variable twice"),
    pytest.param(
        changed(engine={"env": [{"name": "A", "valueFrom": {}}]}),
        'unknown field "spec.engine.env[0].valueFrom',
        id="ref",
    ),
    pytest.param(labelled("labels", "ling.dev/serving"), "write keys of your own", id="our label"),
    pytest.param(labelled("annotations", "app.kubernetes.io/name"), "write keys of your own", id="our annotation"),
    pytest.param(
        template(tolerations=[{"operator": "Exists", "value": "x"}]), "no value with Exists", id="a value of any"
    ),
    pytest.param(template(containers=[]), 'unknown field "spec.engine.podTemplate.spec.containers"', id="containers"),
    pytest.param(changed(engine={"image": ""}), "or leave it out for the operator's default", id="an empty image"),
    pytest.param(changed(engine={"image": "my image"}), "write an image such as", id="a blank in the image"),
    pytest.param(changed(engine={"contextLength": 0}), "tokens from 16 to 1048576", id="no context"),
    pytest.param(changed(engine={"maxQueue": 70000}), "waiting requests from 1 to 65536", id="an endless queue"),
    pytest.param(resources(limits={"nvidia.com/gpu": 1}), "devices are the operator's business", id="a GPU by limit"),
    pytest.param(resources(limits={"cpu": "-1"}), "write positive quantities", id="negative cpu"),
    pytest.param(resources(requests={"cpu": "2"}, limits={"cpu": "1"}), "not above its limit", id="request over limit"),
    pytest.param(changed(weightCache={"memory": "eight"}), "at least 1Mi, for example 8Gi", id="no quantity"),
    pytest.param(changed(weightCache={"memory": "0"}), "at least 1Mi, for example 8Gi", id="no memory"),
    pytest.param(changed(weightCache={"memory": 4096}), "at least 1Mi, for example 8Gi", id="memory too small"),
    pytest.param({"model": {"source": "host:///tiny"}}, "memory: write how much host memory", id="memory left out"),
    pytest.param({**GOOD, "replicas": -1}, "slots from 0 to 1000", id="negative replicas"),
    pytest.param(changed(gpu={"allocation": "Shared"}), 'supported values: "None"', id="an allocation of later"),
    pytest.param(changed(rollout={"strategy": "Canary"}), 'supported values: "Auto"', id="a strategy of later"),
    pytest.param(changed(rollout={"progressDeadlineSeconds": 1}), "seconds from 5 to 86400", id="no time to progress"),
    pytest.param(changed(drain={"graceSeconds": 0}), "seconds from 1 to 3600", id="no grace"),
    pytest.param(changed(service={"port": 70000}), "a port from 1 to 65535", id="a port that is none"),
    pytest.param(changed(service={"holdSeconds": 0}), "seconds from 1 to 3600", id="no hold"),
    pytest.param(changed(canary={"share": 1}), 'unknown field "spec.canary"', id="a field of later"),
    pytest.param(changed(slo={"tpotMs": 0}), "slo.tpotMs: write milliseconds above 0", id="no time for a token"),
    pytest.param(changed(slo={"ttftMs": -5}), "slo.ttftMs: write milliseconds above 0", id="a first token too early"),
    pytest.param(decoding("EAGLE"), 'supported values: "None", "NEXTN", "DSPARK"', id="an algorithm of others"),
    pytest.param(decoding("nextn"), 'supported values: "None", "NEXTN", "DSPARK"', id="an algorithm in small letters"),
    pytest.param(decoding("None", numSteps=3), "write algorithm: NEXTN or DSPARK beside", id="steps of nothing"),
    pytest.param({**GOOD, "decoding": {"numDraftTokens": 4}}, "write algorithm: NEXTN or DSPARK", id="no algorithm"),
    pytest.param(decoding("NEXTN", numSteps=0), "number of steps from 1 to 63", id="no step"),
    pytest.param(decoding("NEXTN", numSteps=64), "number of steps from 1 to 63", id="steps without end"),
    pytest.param(decoding("DSPARK", numDraftTokens=1), "number of tokens from 2 to 64", id="nothing drafted"),
    pytest.param(decoding("NEXTN", numSteps=3, numDraftTokens=6), "write numSteps + 1 for NEXTN", id="a tree"),
    pytest.param(decoding("DSPARK", numSteps=2), "write 1 for DSPARK, or leave it out", id="two steps of DSPARK"),
    pytest.param(decoding("NEXTN", draft=DRAFT), "algorithm: DSPARK only; the draft of NEXTN is a layer", id="a draft"),
    pytest.param(decoding("None", draft=DRAFT), "write it with algorithm: DSPARK only", id="a draft for nothing"),
    pytest.param(decoding("DSPARK", draft={}), "decoding.draft.source: Required value", id="a draft from nowhere"),
    pytest.param(drafted("/models/draft"), "decoding.draft.source: write pvc://CLAIM/PATH", id="a plain draft path"),
    pytest.param(drafted("hf://a/b"), "decoding.draft.source: write pvc://CLAIM/PATH", id="another draft scheme"),
    pytest.param(drafted("pvc://Claim_1/x"), "draft.source: write pvc://CLAIM/PATH with the claim's", id="draft claim"),
    pytest.param(drafted("host:///a/../b"), "draft.source: write the path without '.'", id="a draft that climbs"),
    pytest.param(drafted("host:///a b"), "decoding.draft.source: write the path with letters", id="a blank in it"),
]


@pytest.mark.parametrize(("spec", "sentence"), INVALID)
def test_an_invalid_manifest_is_refused_with_a_sentence(
    plane: apiserver.ControlPlane, spec: dict[str, Any], sentence: str
) -> None:
    refused = plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=manifest(spec=spec), check=False)
    assert refused.returncode != 0
    assert sentence in refused.stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("a" * 41, "at most 40 characters", id="41 characters"),
        pytest.param("1st", "a letter first", id="a digit first"),
        pytest.param("chat.prod", "no '.'", id="a dot"),
    ],
)
def test_a_name_that_pods_cannot_carry_is_refused(plane: apiserver.ControlPlane, name: str, sentence: str) -> None:
    refused = plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=manifest(name), check=False)
    assert refused.returncode != 0
    assert sentence in refused.stderr


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(GOOD, id="the least"),
        pytest.param(changed(model={"source": "pvc://models/"}), id="a volume's root"),
        pytest.param(changed(model={"source": "pvc://my.claim/a/b-1.0_x"}), id="a path in a claim"),
        pytest.param(changed(model={"revision": "sha256:" + "0" * 64}), id="a stated revision"),
        pytest.param(changed(weightCache={"memory": 1 << 30}), id="memory as a number"),
        pytest.param(
            resources(requests={"cpu": "500m", "memory": "1Gi"}, limits={"cpu": 1, "memory": "1Gi"}), id="resources"
        ),
        pytest.param({**GOOD, "replicas": 0}, id="no slots"),
        pytest.param(changed(engine={"image": "registry.example:5000/a/b@sha256:" + "0" * 64}), id="image by digest"),
        pytest.param(decoding("NEXTN"), id="NEXTN with its own numbers"),
        pytest.param(decoding("NEXTN", numSteps=3), id="NEXTN, steps"),
        pytest.param(decoding("NEXTN", numDraftTokens=4), id="NEXTN, tokens"),
        pytest.param(decoding("NEXTN", numSteps=63, numDraftTokens=64), id="NEXTN, both"),
        pytest.param(decoding("DSPARK"), id="DSPARK beside the model"),
        pytest.param(decoding("DSPARK", numSteps=1, numDraftTokens=9, draft=DRAFT), id="DSPARK, everything"),
        pytest.param({**drafted("pvc://drafts/"), "model": {"source": "pvc://models/a"}}, id="two claims"),
        pytest.param(sglang(), id="SGLang, the least"),
        pytest.param(sglang(gpu={"allocation": "DevicePlugin"}), id="SGLang by device plugin"),
        pytest.param(sglang(gpu={"count": 4}, parallelism={"tp": 4}, decoding={"algorithm": "NEXTN"}), id="four ranks"),
        pytest.param(sglang(weightCache={"policy": "Off"}), id="SGLang without a cache"),
        pytest.param(sglang(model={"dtype": "bfloat16", "routerDtype": "bf16"}), id="number types"),
        pytest.param(
            sglang(engine={"concurrency": 8, "extraArgs": ["--schedule-policy=lpm", "--log-level", "info"]}), id="words"
        ),
        pytest.param(changed(engine={"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]}), id="a variable"),
        pytest.param(changed(engine={"env": [{"name": "LING_FEW_ROWS", "value": ""}]}), id="kernels left out"),
        pytest.param(changed(engine={"env": [{"name": "LING_DRAFT_FP8", "value": "head"}]}), id="a draft in fp8"),
        pytest.param(
            template(
                nodeSelector={"pool": "a"},
                tolerations=[{"key": "pool", "value": "a"}, {"operator": "Exists"}],
                priorityClassName="high",
                runtimeClassName="nvidia",
                imagePullSecrets=[{"name": "registry"}],
            ),
            id="a pod template",
        ),
        pytest.param(labelled("labels", "team.example/name"), id="a label"),
    ],
)
def test_a_valid_manifest_is_taken_and_understood(plane: apiserver.ControlPlane, spec: dict[str, Any]) -> None:
    taken = plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=manifest(spec=spec))
    LingDeploymentSpec.from_dict(json.loads(taken.stdout)["spec"])


def test_the_defaults_of_schema_and_values_are_the_same(plane: apiserver.ControlPlane) -> None:
    taken = plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=manifest())
    defaulted = json.loads(taken.stdout)["spec"]
    assert LingDeploymentSpec.from_dict(defaulted) == LingDeploymentSpec.from_dict(GOOD)
    assert defaulted["engine"] == {
        "runtime": "Reference",
        "contextLength": 4096,
        "maxQueue": 4096,
        "podTemplate": {},
    }
    assert defaulted["decoding"] == {"algorithm": "None"}
    assert revision_of(LingDeploymentSpec.from_dict(defaulted).part) == revision_of(
        LingDeploymentSpec.from_dict(GOOD).part
    )


@pytest.mark.parametrize("short", ["ld", "lslot"])
def test_every_field_of_the_spec_explains_itself(plane: apiserver.ControlPlane, short: str) -> None:
    said = plane.kubectl("explain", f"{short}.spec", "--recursive").stdout
    assert "<no description>" not in said
    crd = {"ld": "lingdeployments", "lslot": "lingslots"}[short]
    body = json.loads(plane.kubectl("get", "crd", f"{crd}.ling.dev", "-o", "json").stdout)
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def undescribed(node: dict[str, Any], path: str) -> list[str]:
        found = [path] if not node.get("description") else []
        for name, child in (node.get("properties") or {}).items():
            found += undescribed(child, f"{path}.{name}")
        return found

    assert undescribed(schema["properties"]["spec"], "spec") == []


def test_people_find_both_kinds_under_all_and_by_short_name(plane: apiserver.ControlPlane) -> None:
    listed = plane.kubectl("api-resources", "--categories=all", "--api-group=ling.dev", "-o", "wide").stdout
    assert {line.split()[1] for line in listed.splitlines()[1:]} == {"ld", "lslot"}


def test_columns_and_scale_show_what_a_person_wants(plane: apiserver.ControlPlane) -> None:
    plane.kubectl("apply", "-f", "-", stdin=manifest("columns"))
    try:
        header = plane.kubectl("get", "ld", "columns").stdout.splitlines()[0].split()
        assert header == ["NAME", "READY", "SERVING", "REVISION", "MESSAGE", "AGE"]
        wide = plane.kubectl("get", "ld", "columns", "-o", "wide").stdout.splitlines()[0]
        assert all(word in wide for word in ("MODEL", "DECODING", "TPOT MS", "ACCEPT"))
        plane.kubectl("scale", "ld", "columns", "--replicas=2")
        assert plane.kubectl("get", "ld", "columns", "-o", "jsonpath={.spec.replicas}").stdout == "2"
    finally:
        plane.kubectl("delete", "ld", "columns")


def test_wide_columns_fit_160_characters(plane: apiserver.ControlPlane) -> None:
    plane.kubectl("apply", "-f", "-", stdin=manifest("a-name-of-20-letters"))
    try:
        told = {
            "conditions": [{"type": "Ready", "status": "False", "reason": "NotServing", "message": "",
                            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "serving": "10/10", "updateRevision": "0123abcd", "brief": "x" * BRIEF,
            "performance": {"tpotMs": 123.456, "ttftMs": 1234.567, "acceptLength": 5.123, "requests": 1},
        }  # fmt: skip
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": told}))
        plane.kubectl("patch", "ld", "a-name-of-20-letters", *patch)
        lines = plane.kubectl("get", "ld", "a-name-of-20-letters", "-o", "wide").stdout.splitlines()
        assert max(map(len, lines)) <= 160, lines
    finally:
        plane.kubectl("delete", "ld", "a-name-of-20-letters")


def test_examples_are_valid(plane: apiserver.ControlPlane) -> None:
    files = sorted((apiserver.ROOT / "examples").glob("*.yaml"))
    assert files
    for file in files:
        plane.kubectl("create", "--dry-run=server", "-n", "default", "-f", str(file))
