"""SGLang's own variables, parsed once. `RESULT`: a file for JSON."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sglang.srt import environ
from sglang.srt.environ import envs
from tests.support.sglang_guards import missing

from ling_engine.sglang import environment, hook_variables

WANTED = {hook_variables.ENVIRONMENT_ONCE: "1"}


def answers() -> dict[str, Any]:
    """What a variable says when its text is changed in each of the ways that there are, and how often it was parsed."""
    field = vars(environ.Envs)["SGLANG_DSPARK_FOLDED_PROPOSAL"]
    parsed: list[str] = []
    parse = type(field).parse

    def noted(one: Any, text: str) -> Any:
        parsed.append(text)
        return parse(one, text)

    with mock.patch.object(type(field), "parse", noted):
        found = [envs.SGLANG_DSPARK_FOLDED_PROPOSAL.get()]  # its default
        with envs.SGLANG_DSPARK_FOLDED_PROPOSAL.override(False):
            found += [envs.SGLANG_DSPARK_FOLDED_PROPOSAL.get() for _ in range(3)]
        found.append(envs.SGLANG_DSPARK_FOLDED_PROPOSAL.get())
        os.environ[field.name] = "0"
        found += [envs.SGLANG_DSPARK_FOLDED_PROPOSAL.get() for _ in range(3)]
        del os.environ[field.name]
        found.append(envs.SGLANG_DSPARK_FOLDED_PROPOSAL.get())
        envs.SGLANG_DSPARK_FOLDED_PROPOSAL.set(None)
        found.append(envs.SGLANG_DSPARK_FOLDED_PROPOSAL.get())
        envs.SGLANG_DSPARK_FOLDED_PROPOSAL.clear()
        found.append(envs.SGLANG_DSPARK_FOLDED_PROPOSAL.get())
    return {"answers": found, "parsed": parsed}


def alike() -> list[str]:
    """Variables that answer something else than SGLang's own method."""
    fields = [one for one in vars(environ.Envs).values() if isinstance(one, environ.EnvField)]
    return [one.name for one in fields if one.get() != type(one).get(one)]


def main(argv: Sequence[str]) -> int:
    environment.ensure()
    unasked = "get" in vars(vars(environ.Envs)["SGLANG_DSPARK_FOLDED_PROPOSAL"])
    with mock.patch.dict(os.environ, WANTED):
        with mock.patch.object(environ, "Envs", SimpleNamespace()):
            another = missing(environment.ensure)
        environment.ensure()
        environment.ensure()
    fields = [one for one in vars(environ.Envs).values() if isinstance(one, environ.EnvField)]
    quick = sum("get" in vars(one) for one in fields)
    told = {"unasked": unasked, "another release": another, "quick": quick / len(fields), **answers(), "others": alike()}
    Path(argv[0]).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
