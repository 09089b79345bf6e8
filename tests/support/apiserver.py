"""A real control plane on loopback for tests: etcd, kube-apiserver and kube-controller-manager, no node.

The programs are those that `hack/cluster/build` compiles from pinned modules into the cache (`LING_CACHE`, else
`~/.cache/ling`). Everything else is thrown away with the folder it is given.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hack.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "test-admin-token"  # noqa: S105 - of a server that lives as long as a test
ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "etcd": "etcd",
    "kube-apiserver": "kubernetes",
    "kube-controller-manager": "kubernetes",
    "kubectl": "kubernetes",
}


def tool(name: str) -> Path:
    """Where `hack/cluster/build` puts a tool: the folder is named after what it is built from."""
    cache = Path(os.environ.get("LING_CACHE") or Path.home() / ".cache/ling")
    source = ROOT / "hack/cluster/tools" / name
    digest = hashlib.sha256((source / "go.mod").read_bytes() + (source / "go.sum").read_bytes()).hexdigest()
    return cache / "tools" / f"{name}-{digest[:16]}"


def programs() -> dict[str, Path] | None:
    """The control plane's programs by name, or None when they were not built."""
    found = {program: tool(folder) / program for program, folder in PROGRAMS.items()}
    return found if all(path.exists() for path in found.values()) else None


@dataclass
class ControlPlane:
    """A running control plane; `kubeconfig` is an administrator's."""

    folder: Path
    programs: dict[str, Path]
    url: str
    kubeconfig: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; the result has stdout and stderr as text."""
        # what it remembers of the API goes with the folder: another control plane may have had this port before
        environment = {**os.environ, "KUBECACHEDIR": str(self.folder / "kubectl")}
        command = [str(self.programs["kubectl"]), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(
            command, input=stdin, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done

    def wait_allowed(self, user: str, *words: str, seconds: float = 120) -> None:
        """Until `kubectl auth can-i WORDS` is yes for the user: the API server learns of new roles by a watch."""
        deadline = time.monotonic() + seconds
        while self.kubectl("auth", "can-i", *words, f"--as={user}", check=False).returncode:
            assert time.monotonic() < deadline, f"{user} may not {' '.join(words)}"
            time.sleep(0.1)

    def stop(self) -> None:
        """End the processes, the last started first, and wait for them."""
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def _keys(folder: Path) -> None:
    """A self-signed certificate of the API server, which is its own authority, and the key of service accounts."""
    names = "subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1"
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kube-apiserver"),
        *("-addext", names, "-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt")),
    )
    _openssl("genrsa", "-out", str(folder / "sa.key"), "2048")
    _openssl("rsa", "-in", str(folder / "sa.key"), "-pubout", "-out", str(folder / "sa.pub"))


def _kubeconfig(folder: Path, url: str, token: str) -> Path:
    path = folder / "admin.kubeconfig"
    path.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: test\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}', certificate-authority: '{folder}/server.crt'}}}}]\n"
        f"users: [{{name: u, user: {{token: '{token}'}}}}]\n"
        f"contexts: [{{name: test, context: {{cluster: c, user: u}}}}]\n"
    )
    return path


def _start(plane: ControlPlane, name: str, *flags: str) -> None:
    with (plane.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(plane.programs[name]), *flags], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    plane.processes.append(process)


def _wait_ready(plane: ControlPlane, seconds: float = 180) -> None:
    context = ssl.create_default_context(cafile=str(plane.folder / "server.crt"))
    request = urllib.request.Request(f"{plane.url}/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if plane.processes[-1].poll() is not None:
            break
        try:
            with urllib.request.urlopen(request, timeout=2, context=context):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the API server is not ready:\n{(plane.folder / 'kube-apiserver.log').read_text()[-2000:]}")


def _audit(folder: Path) -> tuple[str, str]:
    policy = ROOT / "hack/cluster/config/audit.yaml"
    return f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}"


def start(
    folder: Path, *, admission: str = "OwnerReferencesPermissionEnforcement", audit: bool = False
) -> ControlPlane:
    """Start the three processes; ready when it returns (about 5 s). `audit`: every request is told in audit.log."""
    built = programs()
    assert built is not None, "the control plane's programs are missing: run hack/cluster/build"
    folder.mkdir(parents=True, exist_ok=True)
    _keys(folder)
    client, peer, api, manager = free_ports(4)
    url = f"https://127.0.0.1:{api}"
    plane = ControlPlane(folder, built, url, _kubeconfig(folder, url, TOKEN))
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    try:
        _start(
            *(plane, "etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", f"http://127.0.0.1:{client}"),
            *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
        )
        _start(
            *(plane, "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{client}"),
            *("--bind-address=127.0.0.1", f"--secure-port={api}", "--endpoint-reconciler-type=none"),
            *(f"--tls-cert-file={folder}/server.crt", f"--tls-private-key-file={folder}/server.key"),
            *(f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC"),
            *(f"--cert-dir={folder}/certs", f"--enable-admission-plugins={admission}"),
            *("--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16"),
            *(f"--service-account-key-file={folder}/sa.pub", f"--service-account-signing-key-file={folder}/sa.key"),
            *("--service-account-issuer=https://kubernetes.default.svc", *(_audit(folder) if audit else ())),
        )
        _wait_ready(plane)
        _start(
            *(plane, "kube-controller-manager", f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false"),
            *(f"--secure-port={manager}", "--bind-address=127.0.0.1", f"--cert-dir={folder}/certs-manager"),
            *("--controllers=garbage-collector-controller,namespace-controller", "--concurrent-gc-syncs=4"),
        )
    except BaseException:
        plane.stop()
        raise
    return plane


@functools.cache
def shared() -> ControlPlane:
    """One control plane for all tests of a run, with our CRDs; it ends with the process."""
    plane = start(Path(tempfile.mkdtemp(prefix="ling-plane-")))
    atexit.register(plane.stop)
    _install(plane)
    return plane


def _install(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(ROOT / "crds"))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
    # 429: their storage is being made; and their schemas are published after that, each by itself
    for ready in (("get", "ld,lslot", "-A"), ("explain", "ld.spec"), ("explain", "lslot.spec")):
        deadline = time.monotonic() + 120
        while (said := plane.kubectl(*ready, check=False)).returncode:
            assert time.monotonic() < deadline, f"the CRDs are not ready: {said.stderr}"
            time.sleep(0.1)


@contextlib.contextmanager
def control_plane(folder: Path, *, audit: bool = False) -> Iterator[ControlPlane]:
    """A control plane with our CRDs established; ends with the block."""
    plane = start(folder, audit=audit)
    try:
        _install(plane)
        yield plane
    finally:
        plane.stop()
