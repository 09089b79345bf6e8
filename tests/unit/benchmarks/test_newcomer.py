"""What a new user types: the page's commands, in its order, until the first completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks import newcomer

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """# A page
```sh parsed-only: a cluster
make cluster-up
```
```sh parsed-only: a registry
docker push x
```
```sh
one --flag \\
  --more

two
```
```sh
curl v1/completions
kill it
```
```sh
three
```
"""


def test_commands_end_with_the_first_completion_and_a_long_one_is_one() -> None:
    typed = newcomer.commands(PAGE)
    assert typed == ["make cluster-up", "one --flag \\\n  --more", "two", "curl v1/completions", "kill it"]


def test_a_page_without_a_completion_is_named() -> None:
    with pytest.raises(SystemExit, match="v1/completions"):
        newcomer.commands("```sh\none\n```\n")


def test_each_command_has_its_time_and_the_first_failure_ends_it(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    took = newcomer.timed(["sleep 0.2", "said='\"choices\"'", 'echo "$said"'], folder, {"PATH": "/usr/bin:/bin"})
    assert len(took) == 3
    assert took[0] >= 0.2
    with pytest.raises(SystemExit, match="command 2 failed: no"):
        newcomer.timed(["true", "echo no; false", "echo never"], folder, {"PATH": "/usr/bin:/bin"})


def test_a_folder_of_caches_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(SystemExit, match="not empty"):
        newcomer.environment(tmp_path)
    env = newcomer.environment(tmp_path / "new")
    assert env["LING_CACHE"] == str(tmp_path / "new/ling")
