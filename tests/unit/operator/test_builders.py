"""Every manifest that the operator makes, compared with the file in golden/ that people can read.

To accept a change: LING_WRITE_GOLDEN=1 pytest tests/unit/operator/test_builders.py, then read the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ling_api.engine import Resources
from ling_api.gpu import Gpu
from ling_api.slotstatus import LingSlotStatus
from ling_api.v1alpha1 import EnginePart, LingSlotSpec, Wish
from ling_operator import builders, checkpods, commandline, pods
from ling_operator.settings import Images
from ling_operator.views import Observed, Previous, SlotView

GOLDEN = Path(__file__).parent / "golden"
IMAGES = Images(
    nodeagent="registry.example/ling/nodeagent:1",
    reference="registry.example/ling/engine-reference:1",
    sglang="registry.example/ling/engine:1",
)
OBSERVED = Observed(
    name="chat",
    namespace="prod",
    uid="uid-chat",
    generation=1,
    resource_version="1",
    deleting=False,
    spec=None,
    complaint="",
    previous=Previous(),
)
SPEC = LingSlotSpec(
    deployment="chat",
    revision="0badcafe",
    revisions=("0badcafe", "c3a10622"),
    capacity=8 << 30,
    grace_seconds=120,
    hold_seconds=60,
    wish=Wish(pod="chat-0-0badcafe-0", term=3),
)
SLOT = SlotView(
    name="chat-0",
    uid="uid-slot",
    number=0,
    deleting=False,
    owned=True,
    spec=SPEC,
    status=LingSlotStatus(),
    created=0.0,
)
HOST = EnginePart.from_dict({"model": {"source": "host:///ling/tiny"}, "engine": {"image": "engine:1"}})
CLAIM = EnginePart.from_dict(
    {
        "model": {"source": "pvc://models/ling", "revision": "sha256:" + "0" * 64},
        "engine": {
            "image": "engine:1",
            "contextLength": 8192,
            "maxQueue": 16,
            "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}},
        },
    }
)


def decoding(source: str, **fields: Any) -> EnginePart:
    return EnginePart.from_dict({"model": {"source": source}, "engine": {"image": "engine:1"}, "decoding": fields})


SGLANG = EnginePart.from_dict(
    {
        "model": {"source": "pvc://models/flash", "dtype": "bfloat16", "routerDtype": "bf16"},
        "decoding": {"algorithm": "NEXTN"},
        "parallelism": {"tp": 4},
        "engine": {
            "runtime": "SGLang",
            "image": "sglang:1",
            "concurrency": 8,
            "extraArgs": ["--schedule-policy=lpm", "--log-level", "info"],
            "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
            "podTemplate": {
                "metadata": {
                    "labels": {"team.example/name": "chat", "ling.dev/slot": "stolen"},
                    "annotations": {"a/b": "c"},
                },
                "spec": {
                    "nodeSelector": {"pool": "h200"},
                    "tolerations": [{"key": "pool", "operator": "Exists"}],
                    "priorityClassName": "serving",
                    "runtimeClassName": "nvidia",
                    "imagePullSecrets": [{"name": "registry"}],
                },
            },
        },
        "gpu": {"allocation": "ResourceClaim", "count": 4},
    }
)
ON_GPUS = replace(
    SLOT, spec=replace(SPEC, capacity=0, gpu=SGLANG.gpu, place=SGLANG.engine.pod_template.place, wish=None)
)
NEXTN = decoding("host:///ling/tiny", algorithm="NEXTN", numSteps=3, numDraftTokens=4)
DSPARK = decoding("pvc://models/ling", algorithm="DSPARK", draft={"source": "pvc://drafts/for/ling"})


CLAIMED = replace(
    SLOT,
    spec=replace(
        SPEC, gpu=Gpu(allocation="ResourceClaim", count=4, tolerations=((("key", "a"), ("operator", "Exists")),))
    ),
)
PLUGGED = replace(SLOT, spec=replace(SPEC, gpu=Gpu(allocation="DevicePlugin", count=2)))
BY_PLUGIN = replace(
    SGLANG,
    gpu=Gpu(allocation="DevicePlugin", count=4),
    engine=replace(
        SGLANG.engine,
        resources=Resources.from_dict(
            {
                "requests": {"cpu": "16", "memory": "96Gi"},
                "limits": {"memory": "96Gi", "hugepages-2Mi": "1Gi", "rdma/hca": "1"},
            }
        ),
    ),
)
ON_PLUGGED = replace(
    ON_GPUS, spec=replace(ON_GPUS.spec, gpu=BY_PLUGIN.gpu), status=LingSlotStatus(compute_capability="9.0")
)


def engine_pod(part: EnginePart) -> dict[str, Any]:
    return pods.build_engine_pod(OBSERVED, SLOT, "node-1", "0badcafe", part, 0)


BUILT = {
    "controllerrevision": builders.build_revision(OBSERVED, "0badcafe", 3, HOST, "engine:1"),
    "service": builders.build_service(OBSERVED, 8080),
    "lingslot": builders.build_slot(OBSERVED, "chat-0", SPEC),
    "slot-pod": pods.build_slot_pod(OBSERVED, SLOT, IMAGES),
    "slot-pod-again": pods.build_slot_pod(OBSERVED, SLOT, IMAGES, "node-1"),
    "resourceclaim": builders.build_claim(OBSERVED, CLAIMED),
    "slot-pod-claimed": pods.build_slot_pod(OBSERVED, CLAIMED, IMAGES),
    "engine-pod-claimed": pods.build_engine_pod(OBSERVED, CLAIMED, "node-1", "0badcafe", HOST, 0),
    "engine-pod-plugged": pods.build_engine_pod(OBSERVED, PLUGGED, "", "0badcafe", HOST, 0),
    "check-pod-claimed": checkpods.build_check_pod(OBSERVED, ON_GPUS, "node-1", "c3a10622", SGLANG),
    "check-pod-plugged": checkpods.build_check_pod(OBSERVED, ON_PLUGGED, "node-1", "c3a10622", BY_PLUGIN),
    "fill-pod": pods.build_fill_pod(OBSERVED, CLAIMED, "node-1", "0badcafe", HOST),
    "budget-of-slots": builders.build_budget(OBSERVED, "slot", 3),
    "engine-pod-host": engine_pod(HOST),
    "engine-pod-claim": engine_pod(CLAIM),
    "lingslot-on-gpus": builders.build_slot(OBSERVED, "chat-0", ON_GPUS.spec),
    "slot-pod-on-gpus": pods.build_slot_pod(OBSERVED, ON_GPUS, IMAGES),
    "engine-pod-sglang": pods.build_engine_pod(OBSERVED, ON_GPUS, "node-1", "0badcafe", SGLANG, 0),
    "engine-pod-nextn": engine_pod(NEXTN),
    "engine-pod-dspark-of-another-claim": engine_pod(DSPARK),
}


@pytest.mark.parametrize("name", list(BUILT))
def test_a_manifest_is_what_the_golden_file_says(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("LING_WRITE_GOLDEN"):
        path.write_text(yaml.safe_dump(BUILT[name], sort_keys=False, width=120))
    assert BUILT[name] == yaml.safe_load(path.read_text())


@pytest.mark.parametrize("name", ["slot-pod", "engine-pod-host", "engine-pod-claim"])
def test_a_pod_lives_longer_than_the_grace_of_its_engines(name: str) -> None:
    assert BUILT[name]["spec"]["terminationGracePeriodSeconds"] > SPEC.grace_seconds


@pytest.mark.parametrize("lame_duck", [0, 15, 600])
@pytest.mark.parametrize("grace", [1, 120, 3600])
def test_an_engine_leaves_as_long_as_its_slot_has_it_and_still_drains_in_its_pods_time(
    lame_duck: int, grace: int
) -> None:
    slot = replace(SLOT, spec=replace(SPEC, lame_duck_seconds=lame_duck, grace_seconds=grace))
    spec = pods.build_engine_pod(OBSERVED, slot, "node-1", "0badcafe", HOST, 0)["spec"]
    (env,) = (each for each in spec["containers"][0]["env"] if each["name"] == "LING_LEAVE_SECONDS")
    assert int(env["value"]) >= lame_duck + grace, "clients may keep a lame duck for graceSeconds"
    assert int(env["value"]) + grace + 15 <= spec["terminationGracePeriodSeconds"]


def test_what_the_user_says_of_leaving_stands() -> None:
    part = replace(HOST, engine=replace(HOST.engine, env=(("LING_LEAVE_SECONDS", "7"),)))
    spec = pods.build_engine_pod(OBSERVED, SLOT, "node-1", "0badcafe", part, 0)["spec"]
    assert spec["containers"][0]["env"] == [{"name": "LING_LEAVE_SECONDS", "value": "7"}]


def test_a_slot_pod_pays_for_all_that_its_slot_may_hold() -> None:
    resources = BUILT["slot-pod"]["spec"]["containers"][0]["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == str((8 << 30) + (64 << 20))


def test_a_check_beside_a_running_engine_takes_nothing_of_what_that_one_has() -> None:
    (container,) = BUILT["check-pod-plugged"]["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"memory": "96Gi", "ling.dev/node-agent": "1"},
        "requests": {"cpu": "10m", "memory": "64Mi"},
    }
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert container["args"][-1] == "--for-gpu=9.0"


OTHER_CLASS = replace(SGLANG, gpu=replace(SGLANG.gpu, device_class="other.example.com"))
MORE = replace(SGLANG, gpu=replace(SGLANG.gpu, count=8))


@pytest.mark.parametrize(
    ("part", "told", "checks"),
    [
        pytest.param(SGLANG, "", True, id="the slot's own claim"),
        pytest.param(MORE, "9.0", True, id="more GPUs of the class: it is told which"),
        pytest.param(MORE, "", False, id="more of the class, and nobody says which"),
        pytest.param(OTHER_CLASS, "9.0", False, id="another class: other GPUs"),
        pytest.param(BY_PLUGIN, "9.0", False, id="another way to GPUs"),
        pytest.param(HOST, "", True, id="no GPU"),
    ],
)
def test_a_check_is_made_where_it_tells_anything(part: EnginePart, told: str, checks: bool) -> None:
    slot = replace(ON_GPUS, status=LingSlotStatus(compute_capability=told))
    assert checkpods.can_check(slot, part) is checks


def test_the_slot_pod_refers_to_the_claim_and_only_the_engine_uses_it() -> None:
    slot, engine = BUILT["slot-pod-claimed"]["spec"], BUILT["engine-pod-claimed"]["spec"]
    assert slot["resourceClaims"] == engine["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "chat-0"}]
    assert "claims" not in slot["containers"][0]["resources"]
    assert engine["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_a_slot_pod_outlives_its_engines() -> None:
    ends = [BUILT[name]["spec"]["terminationGracePeriodSeconds"] for name in ("slot-pod", "engine-pod-host")]
    assert ends[0] > ends[1] > SPEC.lame_duck_seconds + SPEC.grace_seconds


def test_slot_pod_and_engine_pod_may_be_at_the_same_places() -> None:
    slot, engine = BUILT["slot-pod-on-gpus"]["spec"], BUILT["engine-pod-sglang"]["spec"]
    for key, value in SGLANG.engine.pod_template.place.to_dict().items():
        if key != "tolerations":
            assert slot[key] == engine[key] == value
    taints = {one["key"] for one in slot["tolerations"]}
    cut_off = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert taints == {"pool", "nvidia.com/gpu", *cut_off} < {one["key"] for one in engine["tolerations"]}


@pytest.mark.parametrize("name", ["slot-pod", "engine-pod-host", "slot-pod-on-gpus", "engine-pod-sglang"])
def test_a_node_that_is_cut_off_for_long_takes_nothing_with_it(name: str) -> None:
    """Without a toleration of one's own the API server adds one that ends after five minutes."""
    found = [one for one in BUILT[name]["spec"]["tolerations"] if one.get("effect") == "NoExecute"]
    assert {one["key"] for one in found} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert not any("tolerationSeconds" in one for one in found)


def test_a_label_of_the_user_never_takes_the_place_of_the_operators() -> None:
    labels = BUILT["engine-pod-sglang"]["metadata"]["labels"]
    assert labels["ling.dev/slot"] == "chat-0"
    assert labels["team.example/name"] == "chat"


def test_the_command_line_of_sglang_says_what_differs_from_its_own_and_no_more() -> None:
    least = EnginePart.from_dict({"model": {"source": "host:///flash"}, "engine": {"runtime": "SGLang"}})
    said = [arg for arg in commandline.engine_args("chat", "0badcafe", least, 120) if "=" not in arg or "sglang" in arg]
    assert said == ["run", "--runtime=sglang"]
    args = BUILT["engine-pod-sglang"]["spec"]["containers"][0]["args"]
    assert {"--tp=4", "--concurrency=8", "--dtype=bfloat16", "--router-dtype=bf16", "--decoding=NEXTN"} < set(args)
    assert args[-3:] == ["--extra-arg=--schedule-policy=lpm", "--extra-arg=--log-level", "--extra-arg=info"]
    assert not [arg for arg in engine_pod(HOST)["spec"]["containers"][0]["args"] if "--tp" in arg or "runtime" in arg]


def test_a_revision_takes_the_image_of_its_runtime() -> None:
    assert IMAGES.of("SGLang") == IMAGES.sglang != IMAGES.of("Reference") == IMAGES.reference


def test_the_root_of_a_claim_is_the_mount_itself() -> None:
    part = EnginePart.from_dict({"model": {"source": "pvc://models/"}})
    assert commandline.model_path(part) == "/checkpoint"


@pytest.mark.parametrize(
    ("model", "draft", "path", "volumes"),
    [
        pytest.param("host:///a", "host:///drafts/b", "/models/drafts/b", {}, id="both in the model folder"),
        pytest.param("pvc://one/a", "host:///b", "/models/b", {"/checkpoint": "one"}, id="the model in a claim"),
        pytest.param("host:///a", "pvc://two/b", "/draft/b", {"/draft": "two"}, id="the draft in a claim"),
        pytest.param("pvc://one/a", "pvc://one/b", "/checkpoint/b", {"/checkpoint": "one"}, id="both in one claim"),
        pytest.param(
            "pvc://one/a", "pvc://two/", "/draft", {"/checkpoint": "one", "/draft": "two"}, id="each in its own claim"
        ),
    ],
)
def test_a_draft_is_found_wherever_it_lies(model: str, draft: str, path: str, volumes: dict[str, str]) -> None:
    pod = engine_pod(decoding(model, algorithm="DSPARK", draft={"source": draft}))["spec"]
    container = pod["containers"][0]
    assert f"--draft={path}" in container["args"]
    claims = {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if one["name"] != "tmp"}
    mounted = {one["mountPath"]: claims[one["name"]] for one in container["volumeMounts"] if one["name"] in claims}
    assert mounted == volumes


def test_what_an_engine_may_write_to_is_a_volume() -> None:
    pod = engine_pod(HOST)["spec"]
    container = pod["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert [one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")] == ["/tmp"]
    assert [one["name"] for one in pod["volumes"] if "emptyDir" in one] == ["tmp"]


def test_an_engine_that_decodes_plainly_is_told_nothing_that_an_older_image_would_not_know() -> None:
    assert not [arg for arg in engine_pod(HOST)["spec"]["containers"][0]["args"] if "decoding" in arg or "draft" in arg]


def test_the_names_of_pods_fit_into_63_characters() -> None:
    long = replace(SLOT, name="a" * 40 + "-999")
    pod = pods.build_engine_pod(OBSERVED, long, "node-1", "0badcafe", HOST, 99)
    assert len(pod["metadata"]["name"]) <= 63
