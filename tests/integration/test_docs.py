"""Every command that a page shows is understood by the program it names; tests/cluster runs those of `sh` blocks."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hack.cluster.access import ClusterError, program_path
from tests.support import pages

from ling_api.errors import BadInput
from ling_kubectl.__main__ import parser

IDS = [str(page.relative_to(pages.ROOT)) for page in pages.PAGES]


@functools.cache
def said(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@functools.cache
def tool(name: str) -> str:
    try:
        return str(program_path(name, local=True))
    except ClusterError:
        pytest.skip(f"{name} is not built: hack/cluster/build")


def complaint(words: list[str]) -> str:
    """What its own parser has against a command, "" when it takes it."""
    program, *rest = words
    if program.startswith("hack/"):
        return "" if (pages.ROOT / program).is_file() else "there is no such file"
    if program == "kubectl" and rest[0] == "ling":
        return of_kubectl_ling([word.strip("[]") for word in rest[1:]])
    if program in ("kubectl", "helm"):
        outer, _, inner = " ".join(rest).partition(" -- ")
        outer = re.sub(r"=N\b", "=1", outer)
        code, text = said(tool(program), *outer.split(), "--help")  # the flags are parsed before help is shown
        return text if code else complaint(inner.split()) if inner else ""
    if program == "make":
        code, text = said("make", "-n", *rest)
        return text if code else ""
    if program == "python":
        return of_module(rest[1], rest[2:]) if rest[0] == "-m" else "write python -m MODULE"
    return of_ours(program, rest) if program in pages.OURS else ""


def of_kubectl_ling(words: list[str]) -> str:
    try:
        if words:
            parser().parse_args(words)
    except BadInput as error:
        return str(error)
    return ""


def of_module(name: str, words: list[str]) -> str:
    """A benchmark has every flag; of other modules only whether they exist."""
    if importlib.util.find_spec(name) is None:
        return "there is no such module"
    return lacks(words, sys.executable, "-m", name) if name.startswith("benchmarks.") else ""


def lacks(words: list[str], *command: str) -> str:
    """The flags among `words` that a command's help does not name, or why it has no help; "" when all is well."""
    code, text = said(*command, "--help")
    flags = [found[1] for word in words if (found := re.fullmatch(r"\[?(--[a-z][a-z-]*)(=\S*)?\]?", word))]
    lacking = [flag for flag in flags if flag not in text]
    return str(lacking or text) if code or lacking else ""


def of_ours(program: str, words: list[str]) -> str:
    """Each of its verbs has every flag."""
    for verb in words[0].split("|"):
        if why := lacks(words, str(Path(sys.executable).parent / program), verb):
            return f"{verb}: {why}"
    return ""


@pytest.mark.parametrize("page", pages.PAGES, ids=IDS)
def test_every_command_of_a_page_is_understood_by_its_program(page: Path) -> None:
    unrun = [words for block in pages.blocks(page) if block.reason for words in pages.commands(block.text)]
    wrong = {" ".join(words): why for words in (*unrun, *pages.prose(page)) if (why := complaint(words))}
    assert not wrong


@pytest.mark.parametrize("page", pages.PAGES, ids=IDS)
def test_every_block_with_commands_is_run_or_says_why_not(page: Path) -> None:
    for block in pages.blocks(page):
        if block.reason:
            unknown = {words[0] for words in pages.commands(block.text)} - pages.SHELL
            assert all(map(pages.known, unknown)), f"{unknown}: tests.support.pages must know a parser or a reason"
        elif not block.run:
            assert block.info in ("", "yaml"), f"{block.info}: write sh, or sh {pages.MARK} REASON"
            assert not shown(block.text), f"a block with commands is marked sh: {shown(block.text)}"
    for text in pages.indented(page):
        assert not shown(text), f"commands stand between fences, not behind four spaces: {shown(text)}"


def shown(text: str) -> list[list[str]]:
    return [words for words in pages.commands(text) if pages.known(words[0])]


def test_commands_behind_four_spaces_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# So\n    make cluster-up\n\n- a point\n    make of it what you will\n\n    A=1\n    kubectl drain n\n"
    )
    assert [shown(text) for text in pages.indented(page)] == [[["make", "cluster-up"]], [["kubectl", "drain", "n"]]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kubectl ling restart", "the following arguments are required: name"),
        ("kubectl get pods --colour=red", "unknown flag: --colour"),
        ("kubectl exec x -- ling-nodeagent release --nope", "--nope"),
        ("helm upgrade ling --reset-all", "unknown flag: --reset-all"),
        ("make coffee", "coffee"),
        ("python -m benchmarks.none", "no such module"),
        ("python -m benchmarks.failover [--fast]", "--fast"),
        ("ling-engine run|drink --decoding None", "drink"),
        ("hack/none", "no such file"),
    ],
    ids=["missing", "kubectl", "inside a pod", "helm", "make", "module", "flag", "ours", "file"],
)
def test_a_wrong_command_is_noticed(text: str, says: str) -> None:
    (words,) = pages.commands(text)
    assert says in complaint(words)
