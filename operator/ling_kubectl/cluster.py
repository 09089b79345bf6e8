"""The cluster, asked through `kubectl`: contexts, logins and flags are the person's own; nothing else is needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_api import names
from ling_api.errors import BadInput

from .seen import Seen, gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .seen import Object

BELOW = "lingslots.ling.dev,pods,controllerrevisions.apps"
PREFIX = re.compile(r"^(error|Error from server( \(\w+\))?): ")  # of kubectl's own sentences
TIMEOUT = 60.0  # seconds for one call of kubectl


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """kubectl with the flags that the person gave (`--namespace`, `--context`, `--kubeconfig`)."""

    flags: tuple[str, ...] = ()
    program: str = "kubectl"

    def command(self, *args: str) -> list[str]:
        return [self.program, *self.flags, *args]

    def run(self, *args: str, stdin: str | None = None) -> str:
        """What kubectl prints. Raises BadInput with its own words when it fails."""
        try:
            done = subprocess.run(
                self.command(*args), input=stdin, capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except FileNotFoundError as error:
            raise BadInput("kubectl is not on the PATH") from error
        except subprocess.TimeoutExpired as error:
            raise BadInput(f"kubectl {args[0]}: no answer within {TIMEOUT:.0f} s") from error
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise BadInput(PREFIX.sub("", said[-1]) if said else f"kubectl {args[0]} failed")
        return done.stdout

    def items(self, *args: str) -> list[Object]:
        """The objects of `kubectl get ARGS`; none is no error."""
        text = self.run("get", *args, "-o", "json", "--ignore-not-found")
        if not text.strip():
            return []
        found: dict[str, Any] = json.loads(text)
        return list(found["items"]) if found["kind"] == "List" else [found]

    def look(self, name: str) -> Seen:
        """Everything about one LingDeployment. Raises BadInput when there is none of that name."""
        with ThreadPoolExecutor(3) as pool:
            body = pool.submit(self.items, "lingdeployments.ling.dev", name)
            below = pool.submit(self.items, BELOW, "-l", f"{names.LABEL_DEPLOYMENT}={name}")
            events = pool.submit(self.items, "events")
        if not body.result():
            raise BadInput(f"there is no LingDeployment {name} here; kubectl get ld -A shows all")
        return gather(body.result()[0], below.result(), events.result(), time.time())

    def patch(self, name: str, edits: Sequence[object]) -> None:
        """A JSON patch of a LingDeployment."""
        kind = "lingdeployments.ling.dev"
        self.run("patch", kind, name, "--type=json", "--field-manager=kubectl-ling", "-p", json.dumps(edits))

    def replace_process(self, *args: str) -> None:
        """Become kubectl: for what runs until Ctrl-C."""
        os.execvp(self.program, self.command(*args))  # noqa: S606 - the person's own kubectl
