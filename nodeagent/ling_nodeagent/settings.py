"""The command line: every flag, its default, and the one line that says what is wrong with it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ling_api import names
from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENV_NODE = "NODE_NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """`ling-nodeagent serve`. `metrics_port` 0 is off."""

    run_dir: Path
    models_dir: Path
    static: Path | None
    plugin_dir: Path
    pod_resources: Path
    node: str
    metrics_port: int
    cache_dir: Path | None = None  # of compiled kernels; None: in run_dir
    leaving_taints: frozenset[str] = frozenset(names.LEAVING_TAINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`ling-nodeagent status`."""

    run_dir: Path
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """`ling-nodeagent release`. `slots` and `gpus` both None is all of the node; `timeout` in seconds."""

    run_dir: Path
    slots: tuple[str, ...] | None
    gpus: tuple[str, ...] | None
    undo: bool
    timeout: float


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (see {self.prog} --help)")


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Serve | Status | Release:
    """Raises BadInput; `--help` prints and exits as argparse does."""
    given = _parser().parse_args(argv)
    run_dir = _absolute(given.run_dir, "--run-dir")
    if given.command == "status":
        return Status(run_dir=run_dir, as_json=given.json)
    if given.command == "release":
        slots = tuple(given.slot) if given.slot else None
        gpus = tuple(given.gpu) if given.gpu else None
        return Release(run_dir=run_dir, slots=slots, gpus=gpus, undo=given.undo, timeout=given.timeout)
    static = Path(given.static) if given.static else None
    node = given.node if given.node is not None else env.get(ENV_NODE, "")
    if not node and static is None:
        raise BadInput(f"--node: write the name of this node, or set {ENV_NODE} by the downward API")
    if static is None and not (env.get("KUBECONFIG") or env.get("KUBERNETES_SERVICE_HOST")):
        raise BadInput("no API server to talk to: run in a pod, set KUBECONFIG, or write --static FILE")
    plugin_dir = _absolute(given.plugin_dir, "--plugin-dir")
    if static is None and not plugin_dir.is_dir():
        raise BadInput(f"--plugin-dir: {plugin_dir} is no folder; mount the kubelet's device-plugins folder there")
    port = given.metrics_port if given.metrics_port is not None else (0 if static else names.METRICS_PORT)
    if not 0 <= port < 65536:
        raise BadInput(f"--metrics-port: write a port number up to 65535, or 0 for none, not {port}")
    return Serve(
        run_dir=run_dir,
        models_dir=_absolute(given.models_dir, "--models-dir"),
        static=static,
        plugin_dir=plugin_dir,
        pod_resources=_absolute(given.pod_resources, "--pod-resources"),
        node=node,
        metrics_port=port,
        cache_dir=_absolute(given.cache_dir, "--cache-dir") if given.cache_dir else None,
        leaving_taints=_taints(given.leaving_taint),
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ling-nodeagent", description="Decides who attaches, fills, waits and serves on this node.")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="serve|status|release", parser_class=_Parser
    )
    shared = _Parser(add_help=False)
    shared.add_argument("--run-dir", default=names.RUN_DIR, metavar="DIR", help="of the agent's sockets (%(default)s)")
    serve = commands.add_parser("serve", help="run the agent", parents=[shared])
    serve.add_argument("--static", metavar="FILE", help="callers and slots from a YAML file instead of a cluster")
    serve.add_argument(
        "--models-dir", default="/var/lib/ling/models", metavar="DIR", help="host folder seen as /models (%(default)s)"
    )
    serve.add_argument("--cache-dir", metavar="DIR", help="of the engines' compiled kernels (jit in --run-dir)")
    serve.add_argument(
        "--plugin-dir", default="/var/lib/kubelet/device-plugins", metavar="DIR", help="the kubelet's (%(default)s)"
    )
    serve.add_argument(
        "--pod-resources",
        default="/var/lib/kubelet/pod-resources/kubelet.sock",
        metavar="SOCKET",
        help="the kubelet's (%(default)s)",
    )
    serve.add_argument("--node", metavar="NAME", help=f"this node's name (${ENV_NODE})")
    serve.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help=f"/metrics, /livez and /readyz; 0: none ({names.METRICS_PORT}; with --static 0)",
    )
    serve.add_argument(
        "--leaving-taint",
        action="append",
        default=[],
        metavar="KEY",
        help="a node with this taint is being left (repeatable), too",
    )
    status = commands.add_parser("status", help="print what the agent of this node knows", parents=[shared])
    status.add_argument("--json", action="store_true", help="as JSON")
    release = commands.add_parser("release", help="give a slot's memory back by hand", parents=[shared])
    which = release.add_mutually_exclusive_group(required=True)
    which.add_argument("--slot", action="append", metavar="NAMESPACE/NAME", help="this one (repeatable)")
    which.add_argument("--gpu", action="append", metavar="UUID", help="those that use this GPU (repeatable)")
    which.add_argument("--all", action="store_true", help="every slot of this node")
    release.add_argument("--undo", action="store_true", help="they may take memory again")
    release.add_argument("--timeout", type=float, default=180.0, metavar="SECONDS", help="to wait (%(default)s)")
    return parser


def _taints(keys: Sequence[str]) -> frozenset[str]:
    if not all(keys):
        raise BadInput("--leaving-taint: write the key of a taint such as karpenter.sh/disrupted")
    return frozenset({*names.LEAVING_TAINTS, *keys})


def _absolute(text: str, flag: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise BadInput(f"{flag}: write an absolute path, not {text!r}")
    return path
