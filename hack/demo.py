"""The whole story on a two-node Kubernetes, with a clock: `make demo`.

Apply, stream a completion, kill the server under load, restart the container, edit, scale, delete; then a table.
Without KUBECONFIG the cluster is made here and ends with the demo, on Ctrl-C and on errors too.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import continuity
from benchmarks.continuity_events import Event, Perform, Scene, kill_server
from hack.cluster.access import Cluster, ClusterError, client_pod, trial_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
NAME, NAMESPACE = "tiny", "ling-demo"
BEGAN = time.monotonic()

# runs in a pod: prints a completion as it arrives
STREAM = """
import http.client, json, sys
url, model, prompt = sys.argv[1:]
connection = http.client.HTTPConnection(url, timeout=60)
ask = {"model": model, "prompt": prompt, "max_tokens": 48, "temperature": 0, "stream": True}
connection.request("POST", "/v1/completions", json.dumps(ask), {"Content-Type": "application/json"})
answer = connection.getresponse()
assert answer.status == 200, answer.read()
for line in answer:
    if line.startswith(b"data: {"):
        print(json.loads(line[6:])["choices"][0]["text"] if b'"choices": []' not in line else "", end="", flush=True)
print()
"""


class Story:
    """Tells what happens, with the time, and keeps the figures for the closing table."""

    def __init__(self) -> None:
        self.table: list[tuple[str, str]] = []

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - BEGAN:7.1f} s  {text}", flush=True)

    def show(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            print(f"           | {line}", flush=True)

    def note(self, what: str, value: str) -> None:
        self.table.append((what, value))
        self.say(f"{what}: {value}")

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Time a step that has an entry in the table."""
        self.say(f"{what} ...")
        begin = time.monotonic()
        yield
        self.note(what, f"{time.monotonic() - begin:.1f} s")

    def end(self) -> None:
        width = max(len(what) for what, _ in self.table)
        print("\n" + "\n".join(f"  {what:<{width}}  {value}" for what, value in self.table), flush=True)


def phases(scene: Scene) -> str:
    """Milliseconds of each phase of the active engine's last start, as its slot's status tells them."""
    pod, _ = scene.active()
    engines = scene.slot().get("status", {}).get("engines", ())
    mine: dict[str, Any] = next((engine for engine in engines if engine["pod"] == pod), {})
    return ", ".join(f"{name} {ms:.0f} ms" for name, ms in mine.get("phases", {}).items()) or "not reported"


def first_start(story: Story, cluster: Cluster) -> Scene:
    """`kubectl apply`, until a completion has come back through the Service from another node."""
    with story.timed("first start: kubectl apply to Ready"):
        cluster.apply((ROOT / "examples/tiny.yaml").read_text(), namespace=NAMESPACE)
        cluster.wait_condition("ld", NAME, NAMESPACE, "Ready", timeout=180)
    scene = Scene(cluster, NAMESPACE, NAME)
    story.note("  its phases", phases(scene))
    cluster.apply(client_pod("client", away_from=scene.slot()["status"]["node"]), namespace=NAMESPACE)
    cluster.kubectl("wait", "pod/client", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=60s")
    address = cluster.get("service", NAME, namespace=NAMESPACE)["spec"]["clusterIP"]
    scene.url = f"http://{address}:80"
    story.show(cluster.kubectl("get", "ld,lslot,pods", "-n", NAMESPACE, "-o", "wide"))
    complete(story, scene, "what the first checkpoint says")
    return scene


def complete(story: Story, scene: Scene, what: str) -> None:
    story.say(f"a streamed completion through {scene.url}, from another node ({what}):")
    address = scene.url.removeprefix("http://")
    text = scene.cluster.exec(NAMESPACE, "client", "python3", "-c", STREAM, address, NAME, "Once upon a time")
    story.show(repr(text.strip()))


def under_load(story: Story, scene: Scene, rate: float, what: str, perform: Perform) -> None:
    """Do something while a client sends requests at a fixed rate, and say what the client noticed."""
    story.say(f"{what}, while a client sends {rate:g} requests a second ...")
    event = "server" if perform is kill_server else what
    seen = continuity.observe(scene, event, perform, "new", rate)
    failures = ", ".join(f"{count} {kind}" for kind, count in seen.failures.items() if kind != "refused")
    story.note(
        what,
        f"{seen.sent} sent, {seen.failures.get('refused', 0)} refused, {failures or '0 failed'} "
        f"({seen.in_flight[0]} were in flight), longest gap {seen.gaps[0]:.0f} ms",
    )


def restart_container(scene: Scene) -> Event:
    """SIGKILL the engine pod's PID 1: the kubelet makes the container again, the slot still has the weights."""
    pod, term = scene.active()
    at = scene.cluster.kill_container(scene.namespace, pod, "engine")
    return at, lambda: scene.active()[0] and scene.active()[1] > term and scene.recovered()


def change_model(scene: Scene) -> Event:
    at = time.time()
    scene.cluster.patch("ld", NAME, NAMESPACE, {"spec": {"model": {"source": "host:///tiny-b"}}})
    return at, scene.updated


def lives(story: Story, scene: Scene) -> None:
    """What a slot is for: engines die and change, nobody is refused."""
    rate = continuity.measure_rate(continuity.in_pod(scene), seconds=3)
    under_load(story, scene, rate, "SIGKILL of the server (respawn)", kill_server)
    story.note("  its phases", phases(scene))
    if scene.cluster.local:
        under_load(story, scene, rate, "SIGKILL of the container's PID 1", restart_container)
        story.note("  its phases", phases(scene))
    under_load(story, scene, rate, "edit: another checkpoint", change_model)
    complete(story, scene, "what the second checkpoint says")
    story.show(scene.cluster.kubectl("get", "ld,lslot", "-n", NAMESPACE))


def ends(story: Story, scene: Scene) -> None:
    cluster = scene.cluster

    def left() -> list[str]:
        selector = f"ling.dev/deployment={NAME}"
        kinds = ("lslot", "pod", "service", "pdb", "controllerrevision")
        return [item["metadata"]["name"] for kind in kinds for item in cluster.items(kind, NAMESPACE, selector)]

    with story.timed("scale to 0: slot, weights and memory are released"):
        cluster.kubectl("scale", f"ld/{NAME}", "-n", NAMESPACE, "--replicas=0")
        cluster.wait_for("no slot", lambda: not cluster.items("lslot", NAMESPACE), 180)
        cluster.wait_for("no pod", lambda: not cluster.items("pod", NAMESPACE, f"ling.dev/deployment={NAME}"), 180)
    with story.timed("scale to 1: Ready again"):
        cluster.kubectl("scale", f"ld/{NAME}", "-n", NAMESPACE, "--replicas=1")
        cluster.wait_condition("ld", NAME, NAMESPACE, "Ready", timeout=180)
    with story.timed("delete: nothing is left"):
        cluster.kubectl("delete", f"ld/{NAME}", "-n", NAMESPACE, "--wait=true", timeout=180)
        cluster.wait_for("nothing left", lambda: not left(), 180)


def play(story: Story) -> None:
    story.say("a two-node Kubernetes on this machine ...")
    with trial_cluster() as cluster, contextlib.ExitStack() as stack:
        story.show(cluster.kubectl("get", "nodes"))
        with story.timed("install CRDs, operator and agents"):
            stack.enter_context(cluster.installed())
        with story.timed("write two random checkpoints"):
            cluster.make_model("tiny", seed=1)
            cluster.make_model("tiny-b", seed=2)
        stack.enter_context(cluster.namespace(NAMESPACE))
        scene = first_start(story, cluster)
        lives(story, scene)
        ends(story, scene)
        story.say("taking everything down ...")
    story.note("the whole demo", f"{time.monotonic() - BEGAN:.0f} s")
    story.end()


def main() -> int:
    """Exit code 1 if a step did not come true; what was made is gone in any case."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        play(Story())
    except ClusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
