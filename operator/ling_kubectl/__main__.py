"""The command `kubectl ling`: one verb, one answer; what is wrong is one line on stderr and exit code 2."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from ling_api.errors import BadInput, LingError

from . import restart, rollback, screen, sentences
from .cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

OPERATOR = ("ling-system", "deployment/ling-operator")
WHERE = "of the LingDeployment; kubectl's own default otherwise"
PAGE_PORT = 9401  # of the operator's loopback, which a port-forward reaches
CLEAR = "\x1b[H\x1b[2J"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(prog="kubectl ling", description="What Ling serves, why it does not, and how to go back.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)

    def verb(name: str, text: str, *, named: bool = True, where: str = WHERE) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.add_argument("-n", "--namespace", default="", help=where)
        made.add_argument("--context", default="", help="of the kubeconfig")
        made.add_argument("--kubeconfig", default="", help="a file")
        if named:
            made.add_argument("name", help="of the LingDeployment")
        return made

    shown = verb("status", "slots, engines, roles, weights, and what happened last, on one screen")
    shown.add_argument("-w", "--watch", action="store_true", help="again every second, until Ctrl-C")
    verb("explain", "why it is not Ready, or not as asked, in sentences")
    busy = verb("top", "how busy, how fast, how much memory", named=False)
    busy.add_argument("-A", "--all-namespaces", action="store_true", help="everywhere")
    again = verb("restart", "new engines in every slot, one slot at a time; weights and address stay")
    again.add_argument("--timeout", type=float, default=600.0, help="seconds that one slot may take (%(default)s)")
    back = verb("rollback", "the former revision again")
    back.add_argument("--to", default="", metavar="REVISION", help="this one; kubectl get controllerrevisions has all")
    whose = f"of the operator ({OPERATOR[0]})"
    page = verb("dashboard", "forward the operator's read-only page to this machine", named=False, where=whose)
    page.add_argument("--port", type=int, default=PAGE_PORT, help="here (%(default)s)")
    return top


def _status(cluster: Cluster, given: argparse.Namespace) -> str:
    while given.watch:
        sys.stdout.write(CLEAR + screen.render(cluster.look(given.name)) + "\n")
        sys.stdout.flush()
        time.sleep(1.0)
    return screen.render(cluster.look(given.name))


def _top(cluster: Cluster, given: argparse.Namespace) -> str:
    everywhere = ("-A",) if given.all_namespaces else ()
    return screen.top(
        cluster.items("lingdeployments.ling.dev", *everywhere), cluster.items("lingslots.ling.dev", *everywhere)
    )


def _rollback(cluster: Cluster, given: argparse.Namespace) -> str:
    seen = cluster.look(given.name)
    chosen = rollback.choose(seen, given.to)
    cluster.patch(given.name, rollback.patch(seen, chosen))
    name = rollback.revision_of(chosen)
    return f"{given.name} goes back to revision {name}; kubectl ling status {given.name} -w shows how"


def answer(given: argparse.Namespace) -> str:
    """What a verb has to say."""
    flags = [f"--{name}={value}" for name in ("namespace", "context", "kubeconfig") if (value := getattr(given, name))]
    cluster = Cluster(flags=tuple(flags))
    if given.verb == "explain":
        return "\n".join(sentences.explain(cluster.look(given.name)))
    if given.verb == "restart":
        restart.run(cluster, given.name, timeout=given.timeout, say=lambda line: print(line, flush=True))  # noqa: T201
        return f"{given.name} is restarted"
    if given.verb == "dashboard":
        namespace, workload = given.namespace or OPERATOR[0], OPERATOR[1]
        sys.stdout.write(f"http://127.0.0.1:{given.port}/  (Ctrl-C ends it)\n")
        sys.stdout.flush()
        others = tuple(flag for flag in flags if not flag.startswith("--namespace"))
        Cluster(flags=others).replace_process("port-forward", "-n", namespace, workload, f"{given.port}:{PAGE_PORT}")
    return {"status": _status, "top": _top, "rollback": _rollback}[given.verb](cluster, given)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on stderr."""
    try:
        sys.stdout.write(answer(parser().parse_args(argv)) + "\n")
    except LingError as error:
        sys.stderr.write(f"kubectl ling: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
