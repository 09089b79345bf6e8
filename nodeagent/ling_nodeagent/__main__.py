"""`ling-nodeagent serve | status | release`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from ling_api import names
from ling_api.errors import AgentUnreachable, BadInput, LingError

from . import table
from .settings import Release, Serve, Status, parse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMEOUT = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 not within the time, 2 bad input, 4 agent unreachable."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv, os.environ)
        if isinstance(settings, Release):
            return _release(settings)
        return _status(settings) if isinstance(settings, Status) else _serve(settings)
    except LingError as error:
        sys.stderr.write(f"ling-nodeagent: {error}\n")
        return error.exit_code


def _serve(settings: Serve) -> int:
    from . import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True)
    try:
        asyncio.run(serve.run(settings))
    except (OSError, RuntimeError) as error:
        raise BadInput(
            f"cannot serve with --run-dir {settings.run_dir}, port {settings.metrics_port}: {error}"
        ) from error
    return 0


def _status(settings: Status) -> int:
    known = ask(settings.run_dir / names.STATUS_SOCKET)
    sys.stdout.write((json.dumps(known, indent=2) if settings.as_json else table.render(known)) + "\n")
    return 0


def _release(settings: Release) -> int:
    from . import release

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    slots = release.tell(settings.run_dir, settings.slots, gpus=settings.gpus, on=not settings.undo)
    if settings.undo:
        say(f"{len(slots)} slots may take memory again")
        return 0
    status = settings.run_dir / names.STATUS_SOCKET
    if not release.wait(lambda: ask(status), slots, settings.timeout, say):
        say(f"not free after {settings.timeout:.0f} s; it goes on: ling-nodeagent status shows it")
        return 1
    say(f"{len(slots)} slots hold no memory; they take none until `ling-nodeagent release --undo`")
    return 0


def ask(path: Path) -> dict[str, Any]:
    """What the agent at that socket knows. Raises AgentUnreachable."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect(str(path))
            with sock.makefile("rb") as answer:
                known: dict[str, Any] = json.load(answer)
    except (OSError, ValueError) as error:
        raise AgentUnreachable(f"no agent answers at {path} ({error}): start one, or write its --run-dir") from error
    return known


if __name__ == "__main__":
    sys.exit(main())
