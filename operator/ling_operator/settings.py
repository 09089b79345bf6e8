"""What the operator is started with: flags and environment, read once and checked."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from ling_api import names
from ling_api.engine import SGLANG
from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAGE_PORT: Final = 9401  # of loopback
ENV_NODEAGENT_IMAGE: Final = "LING_NODEAGENT_IMAGE"
ENV_REFERENCE_IMAGE: Final = "LING_ENGINE_REFERENCE_IMAGE"
ENV_SGLANG_IMAGE: Final = "LING_ENGINE_SGLANG_IMAGE"
ENV_EXIT_AFTER_WRITES: Final = "LING_TEST_EXIT_AFTER_WRITES"  # tests only: die hard right after the k-th write

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_TAINT: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,314}[A-Za-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The images that an installation brings along."""

    nodeagent: str
    reference: str
    sglang: str

    def of(self, runtime: str) -> str:
        """The image of an engine that names none."""
        return self.sglang if runtime == SGLANG else self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it. Without `namespaces` the whole cluster is watched; times are in seconds."""

    images: Images
    namespaces: tuple[str, ...] = ()
    agent_namespace: str = "ling-agents"
    leaving_taints: tuple[str, ...] = names.LEAVING_TAINTS
    port: int = names.METRICS_PORT
    page_port: int = PAGE_PORT
    reconcilers: int = 8
    resync_seconds: float = 300
    exit_after_writes: int = 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The command line of `ling-operator`."""
    top = _Parser(prog="ling-operator", description="Turns LingDeployments into slots and engines.")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator until it is told to end")
    run.add_argument("--namespace", action="append", default=[], help="watch this namespace only (repeatable)")
    run.add_argument("--agent-namespace", default="ling-agents", help="where the node agents run (%(default)s)")
    run.add_argument(
        "--leaving-taint", action="append", default=[], help="a node with this taint is being drained (repeatable), too"
    )
    run.add_argument("--port", default=str(names.METRICS_PORT), help="/metrics, /livez, /readyz (%(default)s)")
    run.add_argument(
        "--page-port", default=str(PAGE_PORT), help="the read-only page, on loopback alone; 0: none (%(default)s)"
    )
    run.add_argument("--reconcilers", default="8", help="objects looked at at the same time (%(default)s)")
    run.add_argument("--resync-seconds", default="300", help="look at every object this often (%(default)s)")
    return top


def _whole(flag: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
        raise BadInput(f"{flag}: write a whole number from {least} to {most}, not {text!r}")
    return int(text)


def _image(environment: Mapping[str, str], name: str) -> str:
    image = environment.get(name, "")
    if not _IMAGE.fullmatch(image):
        raise BadInput(f"{name}: set it to an image such as registry.example/ling/engine:1.0, not {image!r}")
    return image


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Flags and environment as one value; BadInput with one line when something makes no sense."""
    flags = parser().parse_args(argv)
    for namespace in (*flags.namespace, flags.agent_namespace):
        if not _NAMESPACE.fullmatch(namespace):
            raise BadInput(f"--namespace: write the name of a namespace, not {namespace!r}")
    for taint in flags.leaving_taint:
        if not _TAINT.fullmatch(taint):
            raise BadInput(f"--leaving-taint: write the key of a taint such as karpenter.sh/disrupted, not {taint!r}")
    exit_after = environment.get(ENV_EXIT_AFTER_WRITES, "")
    return Settings(
        images=Images(
            nodeagent=_image(environment, ENV_NODEAGENT_IMAGE),
            reference=_image(environment, ENV_REFERENCE_IMAGE),
            sglang=_image(environment, ENV_SGLANG_IMAGE),
        ),
        namespaces=tuple(dict.fromkeys(flags.namespace)),
        agent_namespace=flags.agent_namespace,
        leaving_taints=tuple(dict.fromkeys((*names.LEAVING_TAINTS, *flags.leaving_taint))),
        port=_whole("--port", flags.port, 0, 65535),
        page_port=_whole("--page-port", flags.page_port, 0, 65535),
        reconcilers=_whole("--reconcilers", flags.reconcilers, 1, 256),
        resync_seconds=_whole("--resync-seconds", flags.resync_seconds, 1, 86400),
        exit_after_writes=_whole(ENV_EXIT_AFTER_WRITES, exit_after, 1, 10**6) if exit_after else 0,
    )
