"""What clients notice when something dies or changes: refused, failed and late requests through the Service's address.

    python -m benchmarks.continuity [--events handover,swap,...] [--modes new,keep] [--repeat N] [--runtime standin]
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
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks import continuity_picture
from benchmarks.continuity_events import ACTS, Act, Perform, Scene
from hack.cluster.access import IMAGES, client_pod, trial_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.cluster.access import Cluster

ROOT = Path(__file__).parents[1]
NAME = "continuity"  # of the LingDeployment that it makes
SCRIPT = (Path(__file__).parent / "continuity_client.py").read_text()
MOST = 100.0
DEATHS = {"server", *(name for name, act in ACTS.items() if act.death)}
QUIET_S = 1.5  # of load before the first event, between events and after the last


@dataclass(slots=True)
class Report:
    """What one run of load saw. Times in ms; `gaps`: longest time without a response around each event."""

    event: str
    mode: str
    rate: float
    sent: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    in_flight: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    slowest: list[float] = field(default_factory=list)
    steady_gap: float = 0.0  # 99 of 100 times between first tokens while nothing happens are shorter
    late_ms: float = 0.0  # failed requests were sent this long after the event at most
    steady_p50: float = 0.0
    steady_p99: float = 0.0
    examples: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def ok(self) -> bool:
        """A killed server may take along what was in flight; nothing else may fail at all."""
        return self.failed == self.allowed

    @property
    def allowed(self) -> int:
        """Requests that a death took along."""
        return self.failures.get("broken", 0) if self.event in DEATHS else 0

    @property
    def gap(self) -> float:
        """The median of the events' gaps beyond the steady one, in ms."""
        return max(0.0, statistics.median(self.gaps) - self.steady_gap) if self.gaps else 0.0


def analyse(event: str, mode: str, rate: float, rows: list[dict[str, Any]], spans: list[tuple[float, float]]) -> Report:
    """Rows of the client and the events' begin and end to what is reported."""
    report = Report(event, mode, rate, sent=len(rows))
    failed = [row for row in rows if row["failed"]]
    report.failures = dict(Counter(row["failed"] for row in failed))
    report.examples = sorted({row["why"] for row in failed})[:5]
    ends = sorted(row.get("first") or row["ended"] for row in rows if not row["failed"])
    report.steady_gap = _steady_gap(ends, spans)
    steady = sorted((row["ended"] - row["due"]) * 1000 for row in rows if row["kind"] == "work" and not row["failed"])
    for begin, end in spans:
        near = [t for t in ends if begin - 0.5 <= t <= end + 1]
        report.gaps.append(max((b - a for a, b in itertools.pairwise(near)), default=0.0) * 1000)
        during = [row for row in rows if row["due"] <= end and row["ended"] >= begin]
        report.in_flight.append(sum(row["sent"] <= begin <= row["ended"] for row in rows))
        report.slowest.append(max(((row["ended"] - row["due"]) * 1000 for row in during), default=0.0))
        late = [row["sent"] - begin for row in failed if begin <= row["sent"] <= end + 1]
        report.late_ms = max(report.late_ms, *(x * 1000 for x in late), 0.0)
    if steady:
        report.steady_p50 = steady[len(steady) // 2]
        report.steady_p99 = steady[min(len(steady) - 1, len(steady) * 99 // 100)]
    return report


def _steady_gap(ends: list[float], spans: list[tuple[float, float]]) -> float:
    """Of the times when nothing happened nor had happened in the last second, in ms."""
    quiet = [
        b - a for a, b in itertools.pairwise(ends) if not any(begin - 0.1 <= b and a <= end + 1 for begin, end in spans)
    ]
    return sorted(quiet)[len(quiet) * 99 // 100] * 1000 if quiet else 0.0


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
    with contextlib.closing(in_pod(scene)("open", str(rate), mode)) as load:
        time.sleep(max(0.0, load.start + QUIET_S - time.time()))
        for _ in range(repeat):
            begin, done = perform(scene)
            scene.cluster.wait_for(f"all well after {event}", done, 180)
            spans.append((begin, time.time()))
            time.sleep(QUIET_S)
        return analyse(event, mode, rate, load.rows(), spans)


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


def together(runs: list[Report]) -> Report:
    """Several runs of one event as one report."""
    whole = Report(runs[0].event, runs[0].mode, runs[0].rate)
    for run in runs:
        whole.sent += run.sent
        whole.failures = dict(Counter(whole.failures) + Counter(run.failures))
        whole.in_flight, whole.gaps = whole.in_flight + run.in_flight, whole.gaps + run.gaps
        whole.slowest += run.slowest
        whole.late_ms = max(whole.late_ms, run.late_ms)
        whole.examples = sorted({*whole.examples, *run.examples})[:5]
    for name in ("steady_gap", "steady_p50", "steady_p99"):
        setattr(whole, name, statistics.median(getattr(run, name) for run in runs))
    return whole


def line(report: Report) -> str:
    failures = ", ".join(f"{count} {kind}" for kind, count in report.failures.items()) or "-"
    middle = statistics.median(report.gaps) if report.gaps else 0.0
    most = max(report.gaps, default=0.0)
    return (
        f"{report.event:<17}{report.mode:<6}{len(report.gaps):>3}{report.sent:>7}  {failures:<24}"
        f"{sum(report.in_flight):>5}{middle:>8.0f} ({most:.0f}){report.steady_gap:>8.0f}"
        f"{max(report.slowest, default=0):>9.0f}{report.steady_p50:>8.0f} / {report.steady_p99:.0f}"
    )


HEAD = "event            mode   n   sent  failed                  in fl.  gap ms (max)  steady  slowest  p50 / p99 ms"


def figures(report: Report) -> list[dict[str, Any]]:
    """The report's goals as `make bench` has them."""
    name = f"continuity.{report.event}.{report.mode}"
    goal = ACTS[report.event].goal if report.event in ACTS else None
    rows: list[tuple[str, float, str, float | None]] = [
        (f"{name}.refused", report.failures.get("refused", 0), "requests", 0),
        (f"{name}.failed", report.failed - report.allowed, "requests", 0),
        (f"{name}.gap-beyond-steady", round(report.gap, 1), "ms", goal),
    ]
    found = [
        {"name": n, "value": value, "unit": unit, "goal": most, "ok": most is None or value <= most}
        for n, value, unit, most in rows
    ]
    gap = round(max(report.gaps, default=0.0), 1)
    return [*found, {"name": f"{name}.longest-gap", "value": gap, "unit": "ms", "goal": None, "ok": True}]


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="continuity", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--events", default=",".join(ACTS), help="comma-separated (%(default)s)")
    parser.add_argument("--modes", default="new,keep", help="connections: new, keep or both (%(default)s)")
    parser.add_argument("--repeat", type=int, default=20, help="times that each event happens (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second (measured if left out)")
    parser.add_argument("--runtime", choices=["reference", "standin"], default="reference")
    parser.add_argument("--url", help="put load on this address for 10 s; no cluster, no events")
    parser.add_argument("--model", default=NAME, help="model name for --url (%(default)s)")
    parser.add_argument("--picture", type=Path, help="draw the gaps into this SVG file")
    parser.add_argument("--json", type=Path, default=ROOT / "build/continuity.json")
    flags = parser.parse_args(argv)
    flags.events, flags.modes = flags.events.split(","), flags.modes.split(",")
    for given, known, flag in ((flags.events, list(ACTS), "--events"), (flags.modes, ["new", "keep"], "--modes")):
        wrong = [one for one in given if one not in known]
        if wrong:
            parser.error(f"{flag}: no {wrong[0]!r}; write {', '.join(known)}")
    return flags


def main(argv: list[str]) -> int:
    """Exit code 1 if a figure misses its goal."""
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
    write(flags.json, reports)
    return 0 if all(report.ok for report in reports) else 1


def write(path: Path, reports: list[Report]) -> None:
    """Print every figure and why requests failed; keep all of it as JSON."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
