"""`ling-engine run|check|fill|make-model`: errors become one line on stderr and the exit codes of ling_api.errors."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from ling_api.errors import LingError

from . import logs, settings

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(argv: Sequence[str] | None = None) -> int:
    """The exit code. `argv`: what stands behind `ling-engine`; the process's own if it is None."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["make-model"]:
            return _make_model(arguments[1:])
        found = settings.parse(arguments)
        if found.command == "check":
            return _check(found)
        from . import launcher  # gRPC: not for `check`

        logs.set_up("launcher")
        return asyncio.run(launcher.launch(found))
    except LingError as error:
        print(f"ling-engine: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


def _make_model(arguments: Sequence[str]) -> int:
    from .reference import checkpoint  # torch and numpy: only for this command

    parser = settings.make_model_parser()
    checkpoint.add_arguments(parser)
    return checkpoint.run(parser.parse_args(list(arguments)))


def _check(found: settings.EngineSettings) -> int:
    from . import runtimes

    description = runtimes.find(found.runtime).describe(found.model_settings())
    for one in description.sets:
        print(f"set role={one.role} rank={one.rank} bytes={one.nbytes} digest={one.identity.digest}")  # noqa: T201
    for purpose, nbytes in sorted(description.plan.private.items()):
        print(f"plan purpose={purpose} bytes={nbytes}")  # noqa: T201
    return 0
