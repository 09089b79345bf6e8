"""The commands that pages in Markdown show: in fenced blocks and in prose.

A block marked `sh` is run by the tests. `sh parsed-only: REASON` is one that cannot be run there, and says why; its
commands are shown to the parsers of their programs. Any other block holds no command, indented ones neither.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES: Final = sorted((ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")))
MARK: Final = "parsed-only:"
OURS: Final = frozenset({"ling-engine", "ling-nodeagent", "ling-operator", "ling-bench"})
PARSED: Final = frozenset({"kubectl", "helm", "make", "python", *OURS})  # and hack/...
# what the tests' machine does not have, or must not do to it
ELSEWHERE: Final = frozenset({"git", "docker", "pip", "crictl", "nvidia-smi", "fuser", "dcgmi"})
SHELL: Final = frozenset({"for", "done", "cd", "."})
_FENCE: Final = re.compile(r"^```(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
_INDENTED: Final = re.compile(r"(?:^#.*\n|^\n)((?: {4}.*\n)+)", re.MULTILINE)  # in a paragraph it is no block
_ENDS: Final = re.compile(r"\s(?:\||&&)\s|;\s|\n")
_COMMENT: Final = re.compile(r"(?:^|\s)# .*$", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"[A-Za-z_]+=\S*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; `info` is what stands behind the fence."""

    info: str
    text: str

    @property
    def run(self) -> bool:
        return self.info == "sh"

    @property
    def reason(self) -> str:
        """Why it is not run, "" when there is no such mark."""
        mark, _, reason = self.info.removeprefix("sh ").partition(MARK)
        return reason.strip() if not mark and self.info.startswith("sh ") else ""


def blocks(page: Path) -> list[Block]:
    return [Block(info=info.strip(), text=text) for info, text in _FENCE.findall(page.read_text())]


def indented(page: Path) -> list[str]:
    """Blocks that are set off by four spaces instead of a fence."""
    return [str(text) for text in _INDENTED.findall(_FENCE.sub("", page.read_text()))]


def prose(page: Path) -> Iterator[list[str]]:
    """The words of every command of two words or more that stands in prose between backticks."""
    for code in re.findall(r"`([^`]+)`", _FENCE.sub("", page.read_text())):
        for words in commands(code.replace("\n", " ")):
            if len(words) > 1 and known(words[0]):
                yield words


def known(program: str) -> bool:
    return program in PARSED | ELSEWHERE or re.match("hack/[a-z]", program) is not None


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell text, without what is assigned before them."""
    for part in _ENDS.split(_COMMENT.sub("", text.replace("\\\n", " "))):
        try:
            words = shlex.split(part)
        except ValueError:  # prose with an apostrophe
            continue
        while words and (_ASSIGNED.match(words[0]) or words[0] == "do"):
            words = words[1:]
        if words:
            yield words
