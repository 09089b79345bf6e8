"""Whatever happens, following the plan ends in what is wanted; what serves is given up only where it must be.

Three nodes with two devices each, in memory. A random story of edits, deaths, drains and returns is played, the
operator dying now and then; then all is well again, and the operator must get there in a bounded number of looks.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.fake_kube import Died, controller
from tests.support.operator_world import KEY, SETTINGS, World, as_wanted, spec

from ling_operator import actions
from ling_operator.observe import observe
from ling_operator.plan import plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_operator.actions import Step

NODES, DEVICES = 3, 2
HOLD = 6  # seconds; more than holdSeconds
CLAIM = {"allocation": "ResourceClaim", "deviceClass": "gpu.example.com"}
NO_HELP = ("no replacement served within", "its node is gone")
RELEASED = "is released first"  # for want of room: looked at, not believed
LATELY = 8  # rounds after which news of room has come everywhere, and a pod that waited was placed

FIELDS = st.one_of(
    st.tuples(st.just("image"), st.sampled_from(["", "good:1", "good:2", "missing:1", "dying:1", "hanging:1"])),
    st.tuples(st.just("replicas"), st.integers(0, 3)),
    st.tuples(st.just("memory"), st.sampled_from(["1Gi", "2Gi"])),
    st.tuples(st.just("strategy"), st.sampled_from(["Auto", "Recreate"])),
    st.tuples(st.just("paused"), st.booleans()),
    st.tuples(st.just("standby"), st.integers(0, 2)),
    st.tuples(st.just("spares"), st.integers(0, 2)),
)
OPERATIONS = st.one_of(
    FIELDS,
    FIELDS,
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("wait"), st.sampled_from([1, 6, 30])),
    st.tuples(st.just("die"), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.integers(0, 6)),
    st.tuples(st.just("fail"), st.integers(0, 6)),
    st.tuples(st.just("cordon"), st.integers(1, NODES)),
    st.tuples(st.just("uncordon"), st.integers(1, NODES)),
    st.tuples(st.just("power off"), st.integers(1, NODES)),
    st.tuples(st.just("power on"), st.integers(1, NODES)),
    st.tuples(st.just("crowd"), st.integers(1, NODES)),
)


class Play:
    """Interprets a random story."""

    def __init__(self, gpu: dict[str, Any], *, late: bool, tight: bool) -> None:
        self.world = World(NODES, late=late)
        self.world.kube.tight = tight
        for machine in self.world.kube.machines.values():
            machine.devices = DEVICES
        self.gpu = gpu
        self.room: deque[bool] = deque(maxlen=LATELY)  # whether a new slot had room, in the last rounds
        self.fields: dict[str, Any] = {
            "image": "", "replicas": 2, "memory": "1Gi", "strategy": "Auto", "paused": False, "standby": 0, "spares": 0
        }  # fmt: skip
        self.put()
        self.world.settle()

    def put(self) -> None:
        """Apply the LingDeployment as the fields have it."""
        f = self.fields
        body = spec(image=f["image"], replicas=f["replicas"], memory=f["memory"])
        body["gpu"] = self.gpu
        body["rollout"] |= {"strategy": f["strategy"], "paused": f["paused"]}
        body["standby"] = {"replicas": f["standby"], "mode": "Gated"}
        body["weightCache"] |= {"spareSlots": f["spares"]}
        body["drain"] = {"replacementTimeoutSeconds": 20}
        self.world.kube.put_deployment("tiny", body)

    def do(self, operation: str, argument: Any) -> None:
        kube = self.world.kube
        if operation in self.fields:
            self.fields[operation] = argument
            self.put()
            return
        match operation:
            case "work":
                self.work(argument)
            case "wait":
                kube.now += argument
            case "die":
                kube.die_after = kube.writes + argument
                try:
                    self.work(8)
                except Died:
                    self.world.restart()
                kube.die_after = 0
            case "lose" | "fail":
                self._break(operation, argument)
            case _:
                self._machine(operation, f"node-{argument}")

    def _break(self, how: str, number: int) -> None:
        names = self.world.pods()
        if not names:
            return
        name = names[number % len(names)]
        if how == "lose":
            self.world.kube.remove("Pod", name)
        else:
            self.world.kube.objects["Pod", name]["status"] = {"phase": "Failed", "reason": "Evicted"}

    def _machine(self, operation: str, node: str) -> None:
        machine = self.world.kube.machines[node]
        match operation:
            case "cordon":
                machine.cordoned = self.world.kube.now
            case "uncordon":
                machine.cordoned = 0.0
            case "power off":
                machine.ready = False
            case "power on":
                machine.ready = True
            case "crowd":
                machine.engines = 1

    def work(self, rounds: int) -> None:
        """Looks, each followed by a round of everybody else's work."""
        for _ in range(rounds):
            self.room.append(self._has_room())
            self.look()
            self.world.kube.tick()
            self._one_claim_each()

    def look(self) -> None:
        kube = self.world.kube
        before = set(kube.serving())
        observed = asyncio.run(observe(self.world.verbs, *KEY, SETTINGS, kube.now))
        assert observed is not None
        step = plan(observed, SETTINGS.images, kube.now).step
        if step is not None and before and self.fields["replicas"] and not self._must_be(step.why):
            assert before - set(self._ended_by(step)), f"nobody serves after {actions.describe(step)}: {step.why}"
        self.world.look()

    def _must_be(self, why: str) -> bool:
        """Whether a step may end what serves although nobody follows: there is no room for another slot, or no node."""
        if RELEASED in why:
            return not all(self.room)
        return any(text in why for text in NO_HELP)

    def _has_room(self) -> bool:
        """Whether a node that is well has memory, devices and room for an engine of one more slot as it is wanted."""
        kube, asked = self.world.kube, int(self.fields["memory"][0]) << 30
        claims = self.gpu["allocation"] == "ResourceClaim"
        for name, machine in kube.machines.items():
            here = [one for one in kube.of_kind("Pod") if one["spec"].get("nodeName") == name]
            slots = [one for one in here if one["metadata"]["labels"]["ling.dev/component"] == "slot"]
            memory = sum(int(one["spec"]["containers"][0]["resources"]["requests"]["memory"]) for one in slots)
            well = machine.ready and machine.exists and not machine.cordoned
            devices = len(slots) < machine.devices or not claims
            if well and devices and memory + 2 * asked <= machine.memory and len(here) - len(slots) < machine.engines:
                return True
        return False

    def _ended_by(self, step: Step) -> Iterator[str]:
        """Slots that serve and would not after this step."""
        kube = self.world.kube
        verb, kind, name = actions.describe(step).split()
        if verb == "delete" and kind == "LingSlot":
            yield name
        elif kind == "Pod" and verb in ("delete", "label") and getattr(step, "value", None) is None:
            pod = kube.objects.get(("Pod", name))
            if pod is None or pod["status"].get("phase") == "Failed":
                return
            slot = pod["metadata"]["labels"]["ling.dev/slot"]
            state = kube.agents.get(controller(pod))
            if name == slot or (state is not None and state.active == name):
                yield slot

    def _one_claim_each(self) -> None:
        claims = Counter(controller(one) for one in self.world.kube.of_kind("ResourceClaim"))
        assert all(count == 1 for count in claims.values())

    def all_well(self) -> None:
        """Nodes are back, there is room, and the spec is one that can be had."""
        for machine in self.world.kube.machines.values():
            machine.ready, machine.cordoned, machine.engines = True, 0.0, 100
        self.fields |= {"image": "good:3", "paused": False}
        self.put()


@pytest.mark.parametrize("late", [pytest.param(False, id="at once"), pytest.param(True, id="late")])
@pytest.mark.parametrize("gpu", [pytest.param({"allocation": "None"}, id="memory"), pytest.param(CLAIM, id="claims")])
@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(story=st.lists(OPERATIONS, max_size=20), replicas=st.integers(0, 3), tight=st.booleans())
def test_from_any_state_the_plan_leads_to_what_is_wanted(
    gpu: dict[str, Any], late: bool, story: list[tuple[str, Any]], replicas: int, tight: bool
) -> None:
    play = Play(gpu, late=late, tight=tight)
    for operation, argument in story:
        play.do(operation, argument)
    play.all_well()
    play.do("replicas", replicas)
    play.work(1)
    play.world.settle(800)
    play.do("wait", HOLD)  # an engine that hangs has that long
    play.world.settle(800)
    as_wanted(play.world, replicas, play.fields["spares"])
