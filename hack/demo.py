"""The whole story on a two-node Kubernetes, with a clock: `make demo`.

Apply, stream a completion, kill the server under load, restart the container, edit, scale, decode with a draft, delete;
then a table.
Without KUBECONFIG the cluster is made here and ends with the demo, on Ctrl-C and on errors too.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import continuity
from benchmarks.continuity_events import Event, Perform, Scene, kill_server
from hack.cluster.access import Cluster, ClusterError, client_pod, trial_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
NAME, NAMESPACE = "tiny", "ling-demo"
DRAFTED = ("--draft", "dspark", "--accept", "0.9", "--dense")
ANSWERS, LONG = 4, 192  # how many answers of how many tokens are behind the figures of decoding
BEGAN = time.monotonic()

# runs in a pod: prints a completion as it arrives
STREAM = """
import http.client, json, sys
url, model, prompt, tokens = sys.argv[1:]
connection = http.client.HTTPConnection(url, timeout=60)
ask = {"model": model, "prompt": prompt, "max_tokens": int(tokens), "temperature": 0, "stream": True}
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
    cluster.kubectl("wait", "pod/client", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=180s")
    address = cluster.get("service", NAME, namespace=NAMESPACE)["spec"]["clusterIP"]
    scene.url = f"http://{address}:80"
    story.show(cluster.kubectl("get", "ld,lslot,pods", "-n", NAMESPACE, "-o", "wide"))
    complete(story, scene, "what the first checkpoint says")
    return scene


def stream(scene: Scene, tokens: int) -> str:
    """A greedy completion through the Service, from the client's pod."""
    address = scene.url.removeprefix("http://")
    asked = ("python3", "-c", STREAM, address, NAME, "Once upon a time", str(tokens))
    return scene.cluster.exec(NAMESPACE, "client", *asked).strip()


def complete(story: Story, scene: Scene, what: str) -> None:
    story.say(f"a streamed completion through {scene.url}, from another node ({what}):")
    story.show(repr(stream(scene, 48)))


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


def scales(story: Story, scene: Scene) -> None:
    cluster = scene.cluster
    with story.timed("scale to 0: slot, weights and memory are released"):
        cluster.kubectl("scale", f"ld/{NAME}", "-n", NAMESPACE, "--replicas=0")
        cluster.wait_for("no slot", lambda: not cluster.items("lslot", NAMESPACE), 180)
        cluster.wait_for("no pod", lambda: not cluster.items("pod", NAMESPACE, f"ling.dev/deployment={NAME}"), 180)
    with story.timed("scale to 1: Ready again"):
        cluster.kubectl("scale", f"ld/{NAME}", "-n", NAMESPACE, "--replicas=1")
        cluster.wait_condition("ld", NAME, NAMESPACE, "Ready", timeout=180)


def performance(scene: Scene) -> dict[str, Any]:
    """`status.performance`, once it speaks of the engine that serves now and of all that it was asked."""

    def told() -> dict[str, Any] | None:
        pod, _ = scene.active()
        engine = next((one for one in scene.slot()["status"]["engines"] if one["pod"] == pod), {})
        status = scene.cluster.get("ld", NAME, namespace=NAMESPACE)["status"]
        seen: dict[str, Any] = status.get("performance", {})
        same = all(seen.get(key) == engine.get(key) for key in ("requests", "tpotMs", "acceptLength"))
        return seen if same and engine.get("requests") == ANSWERS and not engine["inFlight"] else None

    return scene.cluster.wait_for(f"status.performance of {ANSWERS} answers", told, 180)


def weights(scene: Scene) -> dict[str, str]:
    """role -> set, of what the slot holds."""
    return {one["role"]: one["set"] for one in scene.slot()["status"]["weightSets"]}


def measured(scene: Scene) -> tuple[set[str], dict[str, Any]]:
    """Some long answers, and what status then says of them."""
    return {stream(scene, LONG) for _ in range(ANSWERS)}, performance(scene)


def speculates(story: Story, scene: Scene) -> None:
    """The same weights, decoded with a draft: the same answer, sooner."""
    story.say(f"{ANSWERS} answers of {LONG} tokens, one token after the other ...")
    said, before = measured(scene)
    held = weights(scene)
    with story.timed("edit: decoding.algorithm DSPARK"):
        scene.cluster.patch("ld", NAME, NAMESPACE, {"spec": {"decoding": {"algorithm": "DSPARK"}}})
        scene.cluster.wait_for("the new engine serves alone", scene.updated, 180)
    story.note("  its phases", phases(scene))
    story.say(f"{ANSWERS} answers of {LONG} tokens, a draft proposes and the model verifies ...")
    drafted, after = measured(scene)
    story.show(scene.cluster.kubectl("get", "ld", "-n", NAMESPACE, "-o", "wide"))
    if weights(scene).get("target") != held["target"] or len(said | drafted) != 1:
        raise ClusterError(f"decoding changed the weights or the answer: {held}, {weights(scene)}, {said | drafted}")
    story.note("  the model's weights, the answers", "kept, the same")
    story.note("  time per output token", f"{before['tpotMs']:.1f} ms before, {after['tpotMs']:.1f} ms after")
    story.note("  accept length", f"{after['acceptLength']:.2f} tokens a round")


def ends(story: Story, scene: Scene) -> None:
    cluster = scene.cluster

    def left() -> list[str]:
        selector = f"ling.dev/deployment={NAME}"
        kinds = ("lslot", "pod", "service", "pdb", "controllerrevision")
        return [item["metadata"]["name"] for kind in kinds for item in cluster.items(kind, NAMESPACE, selector)]

    with story.timed("delete: nothing is left"):
        cluster.kubectl("delete", f"ld/{NAME}", "-n", NAMESPACE, "--wait=true", timeout=180)
        cluster.wait_for("nothing left", lambda: not left(), 180)


def install(stack: contextlib.ExitStack, cluster: Cluster) -> None:
    """CRDs, operator and agents, and both checkpoints, all at once."""
    with ThreadPoolExecutor() as pool:
        written = [
            pool.submit(cluster.make_model, "tiny", seed=1),
            pool.submit(cluster.make_model, "tiny-b", *DRAFTED, seed=2),
        ]
        stack.enter_context(cluster.installed())
        for one in written:
            one.result()


def play(story: Story) -> None:
    story.say("a two-node Kubernetes on this machine ...")
    with trial_cluster() as cluster, contextlib.ExitStack() as stack:
        story.show(cluster.kubectl("get", "nodes"))
        with story.timed("install Ling; write two checkpoints, the second with a draft that is right 9 times of 10"):
            install(stack, cluster)
        stack.enter_context(cluster.namespace(NAMESPACE))
        scene = first_start(story, cluster)
        lives(story, scene)
        scales(story, scene)
        speculates(story, scene)
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
