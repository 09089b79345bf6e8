"""A cluster to try the product on, for tests, demo and benchmarks: the one of this machine, or where KUBECONFIG points.

What is changed, and what is looked at once, goes through `kubectl`; waiting looks through `hack.cluster.objects`. What
only the local cluster can do (a node's power cut, SIGKILL of a container's first process) goes through
`hack/cluster/node` and says so when the cluster is another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.cluster import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SYSTEM = "ling-system"  # where the operator is
AGENTS = "ling-agents"  # where the agents are
PATIENCE_S = 300.0  # a command that takes longer hangs: a busy machine needs two minutes to import torch
DOWN_S = 300.0  # to end the local cluster: its own steps wait for a minute each at most
IMAGES = os.environ.get("LING_REGISTRY", "localhost") + "/ling-{}:" + os.environ.get("LING_TAG", "dev")

# the server is the zygote's child, and the zygote is the child of PID 1: found where `ps` may not exist
KILL_SERVER = """
import os, pathlib, signal, time
parent = {}
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try: fields = stat.read_text().rsplit(")", 1)[1].split()
    except OSError: continue
    if fields[0] != "Z": parent[int(stat.parent.name)] = int(fields[1])
servers = [pid for pid, above in parent.items() if parent.get(above) == 1 and pid != os.getpid()]
assert len(servers) == 1, f"not one server: {parent}"
print(time.time(), flush=True)
os.kill(servers[0], signal.SIGKILL)
"""

# the time is that of the signal itself: what looks the process up takes longer than many a request
KILL_CONTAINER = """
pid=$(ctr -n k8s.io task ls | awk -v id="$1" '$1 == id { print $2 }')
[ -n "$pid" ] || exit 0   # it has ended, and its pod's status does not say so yet
echo "$EPOCHREALTIME"; kill -KILL "$pid"
"""


class ClusterError(Exception):
    """A command of the cluster failed, or a condition did not come true in time; the text says which and why."""


def run(*command: str | Path, stdin: str | None = None, check: bool = True, timeout: float = PATIENCE_S) -> str:
    """Run a command to its end; its standard output. ClusterError with what it said on stderr if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, input=stdin or "", capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        raise ClusterError(f"{' '.join(words)}: no end after {timeout:g} s") from late
    if check and done.returncode:
        raise ClusterError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def program_path(name: str, *, local: bool) -> Path:
    """kubectl or helm: what was compiled with the local cluster, or what is on the PATH."""
    if local:
        script = f". {HERE}/settings.sh && command -v {name}"
        return Path(run("bash", "-c", script, HERE / "up").strip())
    found = shutil.which(name)
    if found is None:
        raise ClusterError(f"KUBECONFIG is set, but there is no {name} on the PATH")
    return Path(found)


def kubectl_path(*, local: bool) -> Path:
    """See `program_path`."""
    return program_path("kubectl", local=local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster. `local`: its nodes are on this machine and can be entered; `ours`: it ends with us."""

    kubeconfig: Path
    program: Path
    local: bool
    ours: bool

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True, timeout: float = PATIENCE_S) -> str:
        """What `kubectl ARGS` prints."""
        return run(self.program, "--kubeconfig", self.kubeconfig, *args, stdin=stdin, check=check, timeout=timeout)

    def popen(self, *args: str, **streams: Any) -> subprocess.Popen[str]:
        """`kubectl ARGS` as a running process, text streams as given."""
        command = [str(self.program), "--kubeconfig", str(self.kubeconfig), *args]
        return subprocess.Popen(command, text=True, **streams)

    def get(self, kind: str, *args: str, namespace: str | None = None) -> dict[str, Any]:
        """An object or a list of them, as `kubectl get -o json` gives it."""
        match args:
            case ():
                return self._read(lambda them: them.all(kind, namespace or "default"))
            case (name,) if not name.startswith("-"):
                return self._read(lambda them: them.one(kind, name, namespace or "default"))
        where = ("-n", namespace) if namespace else ()
        value: dict[str, Any] = json.loads(self.kubectl("get", kind, *args, *where, "-o", "json"))
        return value

    def _read[T](self, look: Callable[[objects.Reader], T]) -> T:
        try:
            return look(objects.reader(self.kubeconfig))
        except objects.ReadError as error:
            raise ClusterError(str(error)) from error

    def find(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None if there is none of that name."""
        return self._read(lambda them: them.find(kind, name, namespace or "default"))

    def items(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind in a namespace, those of `selector` (labels) only."""
        items: list[dict[str, Any]] = self._read(lambda them: them.all(kind, namespace, selector))["items"]
        return items

    def apply(self, *manifests: dict[str, Any] | str, namespace: str | None = None) -> None:
        """Apply manifests (values or YAML text) on the server's side."""
        documents = [text if isinstance(text, str) else json.dumps(text) for text in manifests]
        where = ("-n", namespace) if namespace else ()
        self.kubectl("apply", "--server-side", "--force-conflicts", *where, "-f", "-", stdin="\n---\n".join(documents))

    def patch(self, kind: str, name: str, namespace: str, change: dict[str, Any]) -> None:
        """Merge `change` into an object."""
        self.kubectl("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(change))

    def wait_for[T](self, what: str, probe: Callable[[], T | None], timeout: float = PATIENCE_S) -> T:
        """The first true value of `probe`, asked again and again; ClusterError with `what` after `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            value = probe()
            if value:
                return value
            if time.monotonic() > end:
                raise ClusterError(f"not within {timeout:g} s: {what}")
            time.sleep(0.15)

    def condition(self, kind: str, name: str, namespace: str, condition: str) -> dict[str, Any] | None:
        """A condition of an object's status, or None."""
        status = (self.find(kind, name, namespace) or {}).get("status", {})
        return next((c for c in status.get("conditions", ()) if c["type"] == condition), None)

    def wait_condition(
        self, kind: str, name: str, namespace: str, condition: str, status: str = "True", timeout: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The condition, once it has that status for the generation that the object has now."""

        def probe() -> dict[str, Any] | None:
            seen = self.find(kind, name, namespace) or {}
            found = next((c for c in seen.get("status", {}).get("conditions", ()) if c["type"] == condition), None)
            current = found and found.get("observedGeneration", 0) >= seen["metadata"]["generation"]
            return found if found and current and found["status"] == status else None

        return self.wait_for(f"{kind}/{name} {condition}={status}", probe, timeout)

    def exec(
        self, namespace: str, pod: str, *command: str, stdin: str | None = None, timeout: float = PATIENCE_S
    ) -> str:
        """What a command prints that runs in the first container of a pod."""
        return self.kubectl("exec", "-i", "-n", namespace, pod, "--", *command, stdin=stdin, timeout=timeout)

    def node(self, verb: str, number: int, *command: str, timeout: float = PATIENCE_S) -> str:
        """`hack/cluster/node VERB NUMBER`, for a node of the local cluster."""
        if not self.local:
            raise ClusterError(f"node {verb}: KUBECONFIG points to a cluster whose nodes cannot be entered from here")
        return run(HERE / "node", verb, str(number), *command, timeout=timeout)

    def kill_container(self, namespace: str, pod: str, container: str) -> float:
        """SIGKILL the first process of a container, once it runs; when that was, in s of the epoch. Local only."""

        def killed() -> str:
            seen = self.get("pod", pod, namespace=namespace)
            known = [*seen["status"].get("containerStatuses", ()), *seen["status"].get("initContainerStatuses", ())]
            running = [c["containerID"] for c in known if c["name"] == container and "running" in c["state"]]
            if not running:
                return ""
            number = int(seen["spec"]["nodeName"].removeprefix("n"))
            return self.node("exec", number, "bash", "-c", KILL_CONTAINER, "kill", running[0].split("//")[1])

        return float(self.wait_for(f"{container} of {pod} runs", killed))

    def kill_server(self, namespace: str, pod: str) -> float:
        """SIGKILL the server of an engine pod, whose launcher and zygote stay; when that was."""
        return float(self.exec(namespace, pod, "python3", "-c", KILL_SERVER))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Ling in the cluster, running; what was not there before goes at the end, namespace and CRDs included."""
        before = self.find("crd", "lingdeployments.ling.dev")
        self.install()
        try:
            yield
        finally:
            if before is None and not self.ours:
                self.uninstall()

    def helm(self, *args: str, timeout: float = 330) -> str:
        """What `helm ARGS` prints."""
        return run(program_path("helm", local=self.local), "--kubeconfig", self.kubeconfig, *args, timeout=timeout)

    def install(self, *args: str) -> None:
        """Install or upgrade the chart as it is in this checkout, `args` for helm, and wait until all of it runs."""
        programs = {"KUBECTL": str(self.program), "HELM": str(program_path("helm", local=self.local))}
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), **programs}
        command = [str(ROOT / "hack/deploy/apply"), *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=330, check=False)
        if done.returncode:
            raise ClusterError(f"hack/deploy/apply: {done.stderr.strip()}")

    def uninstall(self) -> None:
        """Take away what `install` made, the CRDs too."""
        self.helm("uninstall", "ling", "--namespace", SYSTEM, "--ignore-not-found", "--wait")
        self.kubectl("delete", "crd", "-l", "app.kubernetes.io/part-of=ling", "--ignore-not-found")
        self.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")

    def make_model(self, name: str, *flags: str, preset: str = "tiny", seed: int = 1) -> str:
        """Write a checkpoint into the model folder of every node; the `model.source` that names it.

        Random by itself; more `flags` of `ling-engine make-model`, such as --draft, make it another.
        """
        flags = ("--preset", preset, "--seed", str(seed), "--force", *flags)
        if self.local:
            engine = ROOT / ".venv/bin/ling-engine"
            folder = self.kubeconfig.parent / "models" / name
            run(engine, "make-model", folder, *flags)
        else:
            self._make_model_on_nodes(name, flags)
        return f"host:///{name}"

    def _make_model_on_nodes(self, name: str, flags: Sequence[str]) -> None:
        """A pod per node writes it: the checkpoint is a function of the flags alone."""
        pods = []
        for node in self.get("nodes")["items"]:
            where = node["metadata"]["name"]
            pods.append(f"make-{name}-{where}")
            self.apply(_model_pod(pods[-1], where, name, flags), namespace=AGENTS)
        for pod in pods:
            self.kubectl(
                "wait",
                f"pod/{pod}",
                "-n",
                AGENTS,
                "--for=jsonpath={.status.phase}=Succeeded",
                "--timeout=240s",
            )
            self.kubectl("delete", "pod", pod, "-n", AGENTS, "--wait=false")

    @contextlib.contextmanager
    def namespace(self, name: str, *, wait: bool = True) -> Iterator[str]:
        """A namespace that enforces Pod Security `restricted`, deleted at the end with all that is in it."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted", "ling.dev/trial": "true"}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        try:
            self.wait_for("a service account", lambda: self.find("serviceaccount", "default", name))
            yield name
        finally:
            gone = ("--ignore-not-found", f"--wait={str(wait).lower()}")
            self.kubectl("delete", "namespace", name, *gone, timeout=PATIENCE_S)


def _model_pod(pod: str, node: str, model: str, flags: Sequence[str]) -> dict[str, Any]:
    command = ["ling-engine", "make-model", f"/models/{model}", *flags]
    folder = {"name": "models", "hostPath": {"path": "/var/lib/ling/models", "type": "DirectoryOrCreate"}}
    container = {
        "name": "make",
        "image": IMAGES.format("engine-reference"),
        "command": command,
        "securityContext": {"runAsUser": 0, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    spec = {"nodeName": node, "restartPolicy": "Never", "containers": [container], "volumes": [folder]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec}


def client_pod(name: str, *, away_from: str = "") -> dict[str, Any]:
    """A pod that waits to be entered with `kubectl exec`, on another node than `away_from` if that is named."""
    other = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [away_from]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [other]}]}
        }
    }
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "client",
        "image": IMAGES.format("nodeagent"),
        "command": ["python3", "-c", "import signal; signal.sigwait({signal.SIGTERM})"],
        "securityContext": secure,
    }
    identity = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {**identity, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    if away_from:
        spec["affinity"] = affinity
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


@contextlib.contextmanager
def trial_cluster(nodes: int = 2, *, audit: bool = False) -> Iterator[Cluster]:
    """The cluster of KUBECONFIG as it is, or else a new one of this machine that ends with the block."""
    given = os.environ.get("KUBECONFIG")
    if given:
        local = (Path(given).parent / "up").exists()  # `make cluster-up` made it
        yield Cluster(kubeconfig=Path(given), program=kubectl_path(local=local), local=local, ours=False)
        return
    environment = {**os.environ, "LING_CLUSTER_OWNER": str(os.getpid()), **({"LING_AUDIT": "1"} if audit else {})}
    try:  # in a session of its own: Ctrl-C is ours to pass on
        up = subprocess.run(
            [HERE / "up", str(nodes)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            start_new_session=True,
        )
        if up.returncode:
            raise ClusterError("hack/cluster/up failed; it said why above")
        path = Path(up.stdout.splitlines()[-1])
        yield Cluster(kubeconfig=path, program=kubectl_path(local=True), local=True, ours=True)
    finally:
        with _undisturbed():
            down = [HERE / "down"]
            subprocess.run(
                down, env=environment, stdout=sys.stderr, check=False, start_new_session=True, timeout=DOWN_S
            )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Nobody presses Ctrl-C while we clean up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
