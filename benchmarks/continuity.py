"""What clients notice when something dies or changes: refused, failed and late requests through the Service's address.

    python -m benchmarks.continuity [--events handover,swap,...] [--modes both|new,keep] [--repeat N]
                                     [--runtime standin] [--rate N] [--picture FILE.svg]
    python -m benchmarks.continuity --url http://HOST:PORT --model NAME     load only, no events, no cluster

Without KUBECONFIG it makes a cluster of its own. The client runs in a pod on another node than the slot. The rate is
100 requests a second, or half of what the engine answered in a closed loop, if that is less; it is printed.
Results: a table, one `name value unit goal ok|MISS` line per figure, all of it in build/continuity.json, and a picture
(--picture FILE.svg). A gap is the longest time without a first token around an event; the steady gap, 99 of 100 of
those between first tokens while nothing happens, comes with any load and is told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks import continuity_picture
from benchmarks.continuity_events import ACTS, Act, Perform, Scene
from benchmarks.continuity_report import HEAD, Report, analyse, figures, line, together
from hack.cluster.access import IMAGES, client_pod, trial_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.cluster.access import Cluster

ROOT = Path(__file__).parents[1]
NAME = "continuity"  # of the LingDeployment that it makes
SCRIPT = (Path(__file__).parent / "continuity_client.py").read_text()
MOST = 100.0
QUIET_S = 1.5  # of load before the first event, between events and after the last


class Load:
    """The client at work in its pod (or here, without a cluster)."""

    def __init__(self, command: list[str], start: Callable[..., subprocess.Popen[str]]) -> None:
        self._process = start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = self._out.readline()
        if not first:
            self.close()
            raise SystemExit("continuity: the client did not start")
        self.start: float = json.loads(first)["start"]

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout
        return self._process.stdout

    def rows(self) -> list[dict[str, Any]]:
        """End the load; what became of every request."""
        assert self._process.stdin
        self._process.stdin.close()
        rows = [json.loads(line) for line in self._out]
        self.close()
        return rows

    def close(self) -> None:
        """End the client, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def in_pod(scene: Scene) -> Callable[..., Load]:
    def load(verb: str, *words: str) -> Load:
        command = ["exec", "-i", "-n", scene.namespace, scene.client, "--", "python3", "-c", SCRIPT, verb]
        return Load([*command, scene.url, scene.name, *words], scene.cluster.popen)

    return load


def here(url: str, model: str) -> Callable[..., Load]:
    def start(*command: str, **streams: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(command, text=True, **streams)

    def load(verb: str, *words: str) -> Load:
        return Load([sys.executable, "-c", SCRIPT, verb, url, model, *words], start)

    return load


def measure_rate(load: Callable[..., Load], seconds: float = 4) -> float:
    """Requests a second to send: half of what the engine can, 100 at most."""
    rows = load("closed", str(seconds)).rows()
    wrong = [row["why"] for row in rows if row["failed"]]
    if wrong:
        raise SystemExit(f"continuity: {len(wrong)} requests failed before anything happened: {wrong[0]}")
    span = max(row["ended"] for row in rows) - min(row["sent"] for row in rows)
    rate: float = round(min(MOST, len(rows) / span / 2), 1)
    print(f"engine: {len(rows) / span:.0f} requests/s in a closed loop; load: {rate:g} requests/s", flush=True)
    return rate


def observe(scene: Scene, event: str, perform: Perform, mode: str, rate: float, repeat: int = 1) -> Report:
    """Run load, let the event happen `repeat` times, each time until all is well again."""
    spans: list[tuple[float, float]] = []
    engine: list[float] = []
    with contextlib.closing(in_pod(scene)("open", str(rate), mode)) as load:
        time.sleep(max(0.0, load.start + QUIET_S - time.time()))
        for _ in range(repeat):
            begin, done = perform(scene)
            scene.cluster.wait_for(f"all well after {event}", done)
            spans.append((begin, time.time()))
            engine.append(scene.start_ms())
            time.sleep(QUIET_S)
        report = analyse(event, mode, rate, load.rows(), spans)
        report.engine = engine
        return report


@contextlib.contextmanager
def stage(cluster: Cluster, namespace: str, source: str, act: Act, runtime: str) -> Iterator[Scene]:
    """A served LingDeployment with its standby, and a client pod on each node; the LingDeployment goes at the end."""
    scene = Scene(cluster, namespace, NAME)
    engine = {"image": IMAGES.format("engine-standin")} if runtime == "standin" else {}
    spec: dict[str, Any] = {"model": {"source": source}, "weightCache": {"memory": "1Gi"}, "engine": engine}
    spec["drain"] = {"lameDuckSeconds": 5, "graceSeconds": 30}
    try:
        _serve(scene, spec)
        if act.tight:  # room for the weights and one engine and a half
            held = scene.slot()["status"]
            memory = held["capacity"]["weights"] + held["engines"][0]["planBytes"] * 3 // 2
            cluster.kubectl("delete", "ld", NAME, "-n", namespace, "--wait=true", timeout=180)
            cluster.wait_for("no slot", lambda: not cluster.items("lslot", namespace), 180)
            spec["weightCache"] = {"memory": str(memory)}
        _serve(scene, {**spec, "standby": {"replicas": 1, "mode": act.standby}})
        cluster.wait_for(f"a {act.standby} standby", lambda: scene.standby_ready(act.standby), 180)
        address = cluster.get("service", NAME, namespace=namespace)["spec"]["clusterIP"]
        scene.url = f"http://{address}:80"
        yield scene
    finally:
        cluster.kubectl("delete", "ld", NAME, "-n", namespace, "--wait=true", "--ignore-not-found", timeout=180)
        cluster.wait_for("no slot", lambda: not cluster.items("lslot", namespace), 180)


def _serve(scene: Scene, spec: dict[str, Any]) -> None:
    head = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingDeployment", "metadata": {"name": NAME}}
    scene.cluster.apply({**head, "spec": spec}, namespace=scene.namespace)
    scene.cluster.wait_condition("ld", NAME, scene.namespace, "Ready", timeout=180)


def clients(cluster: Cluster, namespace: str) -> None:
    """A client pod on each node: load always comes from another node than the slot's."""
    nodes = [each["metadata"]["name"] for each in cluster.get("nodes")["items"]]
    for node in nodes:
        others = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        pod = client_pod(f"client-{node}", away_from="nowhere")
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        terms["nodeSelectorTerms"] = [{"matchExpressions": [others]}]
        cluster.apply(pod, namespace=namespace)
    for node in nodes:
        cluster.kubectl("wait", f"pod/client-{node}", "-n", namespace, "--for=condition=Ready", "--timeout=60s")


def from_elsewhere(scene: Scene) -> None:
    """The client is the one on another node than the slot."""
    nodes = [each["metadata"]["name"] for each in scene.cluster.get("nodes")["items"]]
    scene.client = f"client-{next(node for node in nodes if node != scene.node())}"


def play(flags: argparse.Namespace) -> list[Report]:
    """Every act that is asked for, on a stage of its own kind, in both modes."""
    reports: list[Report] = []
    rate = flags.rate
    with trial_cluster() as cluster, contextlib.ExitStack() as stack:
        stack.enter_context(cluster.installed())
        source = cluster.make_model(NAME)
        namespace = stack.enter_context(cluster.namespace(f"ling-{NAME}"))
        clients(cluster, namespace)
        for tight in (False, True):
            names = [name for name in flags.events if ACTS[name].tight is tight]
            if not names:
                continue
            with stage(cluster, namespace, source, ACTS[names[0]], flags.runtime) as scene:
                from_elsewhere(scene)
                rate = rate or measure_rate(in_pod(scene))
                print(HEAD, flush=True)
                for name, mode in itertools.product(names, flags.modes):
                    reports.append(_act(scene, name, mode, rate, flags.repeat))
                    print(line(reports[-1]), flush=True)
    return reports


def _act(scene: Scene, name: str, mode: str, rate: float, repeat: int) -> Report:
    act = ACTS[name]

    def perform(scene: Scene) -> tuple[float, Callable[[], object]]:
        at, done = act.perform(scene)
        return at, lambda: done() and scene.standby_ready(act.standby)

    if name != "drain":
        from_elsewhere(scene)
        return observe(scene, name, perform, mode, rate, repeat)
    runs = []  # the slot moves: each time the client is another
    for _ in range(repeat):
        from_elsewhere(scene)
        runs.append(observe(scene, name, perform, mode, rate))
    return together(runs)


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="continuity", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--events", default=",".join(ACTS), help="comma-separated (%(default)s)")
    parser.add_argument("--modes", default="both", help="connections: both (half and half), new, keep (%(default)s)")
    parser.add_argument("--repeat", type=int, default=20, help="times that each event happens (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second (measured if left out)")
    parser.add_argument("--runtime", choices=["reference", "standin"], default="reference")
    parser.add_argument("--url", help="put load on this address for 10 s; no cluster, no events")
    parser.add_argument("--model", default=NAME, help="model name for --url (%(default)s)")
    parser.add_argument("--picture", type=Path, help="draw the gaps into this SVG file")
    parser.add_argument("--json", type=Path, default=ROOT / "build/continuity.json")
    flags = parser.parse_args(argv)
    flags.events, flags.modes = flags.events.split(","), flags.modes.split(",")
    for given, known, flag in (
        (flags.events, list(ACTS), "--events"),
        (flags.modes, ["both", "new", "keep"], "--modes"),
    ):
        wrong = [one for one in given if one not in known]
        if wrong:
            parser.error(f"{flag}: no {wrong[0]!r}; write {', '.join(known)}")
    return flags


def main(argv: list[str]) -> int:
    """Exit code 1 if a figure misses its goal, or a request failed that should not."""
    flags = arguments(argv)
    reports: list[Report] = []
    if flags.url:
        load = here(flags.url, flags.model)
        rate = flags.rate or measure_rate(load)
        print(HEAD)
        for mode in flags.modes:
            running = load("open", str(rate), mode)
            time.sleep(10)
            reports.append(analyse("none", mode, rate, running.rows(), []))
            print(line(reports[-1]), flush=True)
    else:
        reports = play(flags)
        if flags.picture:
            flags.picture.write_text(continuity_picture.draw([asdict(report) for report in reports]))
    return 0 if write(flags.json, reports) and all(report.ok for report in reports) else 1


def write(path: Path, reports: list[Report]) -> bool:
    """Print every figure and why requests failed; keep all of it as JSON. Whether every figure met its goal."""
    found = [figure for report in reports for figure in figures(report)]
    for one in found:
        print(one["name"], one["value"], one["unit"], one["goal"] if one["goal"] is not None else "-", end=" ")
        print("ok" if one["ok"] else "MISS")
    for report in reports:
        for example in report.examples:
            print(f"  {report.event}/{report.mode}: {example}")
    values = [asdict(report) for report in reports]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"figures": found, "reports": values}, indent=1))
    return all(one["ok"] for one in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
