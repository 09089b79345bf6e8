"""Every route of SGLang's application, as JSON: `python -m tests.sglang.routes_of_app FILE`.

Runs in SGLang's environment. Routes that are mounted are walked into; a path parameter is filled in with a word.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang.srt.entrypoints.http_server import app

from ling_engine.sglang.routes import PATHS

_PARAMETER = re.compile(r"\{[^}]*\}")


def walk(routes: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    for route in routes:
        path = prefix + getattr(route, "path", "")
        if inner := getattr(route, "routes", None):
            yield from walk(inner, path)
        else:
            yield _PARAMETER.sub("word", path), sorted(getattr(route, "methods", None) or {"WEBSOCKET"})


def main() -> None:
    found = [[path, methods, sorted(PATHS.methods(path))] for path, methods in walk(app.routes)]
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
