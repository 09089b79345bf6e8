"""The command `ling-bench`: run, compare, show. What is wrong is one line on stderr."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api.errors import BadInput, LingError

from . import arguments, compare, kube, report, result
from . import run as running
from .errors import EndpointFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .arguments import CompareWishes, RunWishes
    from .result import Result

_CODES = {result.OK: 0, result.REFUSED: 1, result.FAILED: EndpointFailed.exit_code}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _measure(wishes: RunWishes) -> int:
    if wishes.configmap:  # before anything is measured: rights that are missing show now
        kube.keep(wishes.configmap, {"verdict": "running"})
    try:
        found = running.run(wishes, importlib.metadata.version("ling"), _say)
    except LingError as error:
        if wishes.configmap:
            kube.keep(wishes.configmap, {"verdict": result.FAILED, "table.txt": f"{error}\n"})
        raise
    table = report.result(found)
    if len(found.sides) == 2 and found.verdict == result.OK:
        table = f"{table}\n\n{report.comparison(compare.sides(found))}"
    text = result.to_json(found)
    _tell(table)
    if wishes.configmap:
        kube.keep(wishes.configmap, {"verdict": found.verdict, "result.json": text, "table.txt": f"{table}\n"})
    _write(wishes.out, text)
    return _CODES[found.verdict]


def _look(wishes: CompareWishes) -> int:
    found = [_read(file) for file in wishes.files]
    if wishes.verb == "show":
        _tell(report.result(found[0]))
        return 0
    ratios = compare.sides(found[0]) if len(found) == 1 else compare.runs(found[0], found[1])
    _tell(report.comparison(ratios))
    if wishes.out:
        _write(wishes.out, json.dumps(asdict(ratios), indent=1))
    return 0


def _read(file: str) -> Result:
    try:
        return result.from_json(Path(file).read_text(), file)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: {error}") from None


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(f"{text}\n")
    except OSError as error:
        raise BadInput(f"--out {file}: {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    try:
        wishes = arguments.parse(argv)
        return _measure(wishes) if isinstance(wishes, arguments.RunWishes) else _look(wishes)
    except LingError as error:
        _say(f"ling-bench: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
