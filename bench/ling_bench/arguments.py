"""The command line of `ling-bench`, as frozen wishes. Pure; nonsense is refused with what to write instead."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ling_api.errors import BadInput

from . import protocol
from .judge import ACCEPTANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ABOUT: Final = f"""\
How fast an OpenAI-compatible endpoint answers one request at a time: TTFT, time per output token, accept length.

  ling-bench run http://HOST:PORT                       the published protocol, {protocol.INPUT_TOKENS} tokens in, \
{protocol.OUTPUT_TOKENS} out
  ling-bench run http://NEW --against http://OLD        two endpoints in turns, and the ratio with its 95 % interval
  ling-bench run http://HOST:PORT --replay chats.jsonl  prompts of a file instead of random ones
  ling-bench compare new.json old.json                  two results of different times
"""
_CODES: Final = """\
exit codes: 0 measured; 1 measured and refused (the result says why); 2 a flag or file makes no sense; 4 the endpoint
failed; 5 Kubernetes refused. A result is written with 0, 1 and 4.
"""
_ACCEPTANCE: Final = """\
what decides whether drafts are right: a trained draft on real weights (real), a switch such as SGLANG_SIMULATE_ACC_LEN
(simulated), a checkpoint made so that drafts are right a given share of the time (predictable). Asked for when the
endpoint drafts: no figure of speculation means anything without it"""

_DRAFTS: Final = """\
tokens drafted a verify round, where the endpoint does not say it: NEXTN 5/1/6 drafts 5, DSPARK with a block of 8
drafts 8"""
_REPLAY: Final = """\
JSONL: {"prompt": text or token ids} or {"messages": [...]} a line, with "max_tokens" if it likes; answers end where
the model ends them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWishes:
    """Of `run`. `ids`: least and most token id of random prompts."""

    url: str
    against: str
    model: str
    acceptance: str | None
    requests: int | None
    warmup: int
    seed: int
    salt: str
    ids: tuple[int, int]
    replay: str
    input_tokens: int | None
    output_tokens: int | None
    drafts: int | None
    hardware: str
    deployment: str
    out: str
    configmap: str
    wait: float
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareWishes:
    """Of `compare` (one or two files) and of `show` (one)."""

    verb: str
    files: tuple[str, ...]
    out: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    shape = argparse.RawDescriptionHelpFormatter
    top = _Parser(prog="ling-bench", description=_ABOUT, epilog=_CODES, formatter_class=shape)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    run = verbs.add_parser("run", help="measure", description="Measure an endpoint, or two in turns.", epilog=_CODES)
    _add_run(run)
    compare = verbs.add_parser("compare", help="the ratio of two results, with 95 %% intervals (bootstrap)")
    compare.add_argument("files", nargs="+", metavar="RESULT.json", help="two results; or one of run --against")
    compare.add_argument("--out", default="", metavar="FILE", help="the comparison as JSON too")
    show = verbs.add_parser("show", help="the table of a result")
    show.add_argument("files", nargs=1, metavar="RESULT.json")
    return top


def _add_run(run: argparse.ArgumentParser) -> None:
    flags = _adder(run)
    run.add_argument("url", help="of the endpoint, as http://127.0.0.1:8000; a key is read from LING_BENCH_API_KEY")
    flags("--against", "URL", "a second endpoint: requests alternate between both")
    run.add_argument("--acceptance", choices=ACCEPTANCES, help=_ACCEPTANCE)
    flags("--drafts", "N", _DRAFTS, kind=int)
    flags("--requests", "N", "that are measured (10; with --replay all lines)", kind=int)
    flags("--warmup", "N", "requests before them, which are not (%(default)s)", kind=int, default=2)
    flags("--model", "NAME", "(the first that /v1/models names)")
    flags("--hardware", "TEXT", "what the endpoint runs on, for the result: it cannot be asked over HTTP")
    flags("--out", "FILE", "the result as JSON (%(default)s)", default="ling-bench.json")
    flags("--wait", "S", "seconds for the endpoint to answer (%(default)s)", kind=float, default=0.0)
    flags("--timeout", "S", "seconds without a byte of an answer (%(default)s)", kind=float, default=600.0)
    prompts = _adder(run.add_argument_group("prompts"))
    prompts("--replay", "FILE", _REPLAY)
    prompts("--seed", "N", "of random prompts (%(default)s)", kind=int, default=1)
    prompts("--ids", "LOW-HIGH", "their token ids (%(default)s)", default="1000-100000")
    prompts("--salt", "TEXT", "of their first 16 ids: no prefix cache knows them (another one each run)")
    custom = _adder(run.add_argument_group("sizes", "Given otherwise, the result is stamped `protocol: custom`."))
    custom("--input-tokens", "N", f"({protocol.INPUT_TOKENS})", kind=int)
    custom("--output-tokens", "N", f"({protocol.OUTPUT_TOKENS}; of a replay: at most)", kind=int)
    cluster = _adder(run.add_argument_group("in a cluster"))
    cluster("--deployment", "[NAMESPACE/]NAME", "LingDeployment to stamp: revision, GPUs, identity of the weights")
    cluster("--configmap", "[NAMESPACE/]NAME", "that is there and gets the result (result.json, table.txt, verdict)")


def _adder(group: argparse._ActionsContainer) -> Callable[..., None]:
    """Adds a flag with a value; a text is empty and a number None where nothing is given."""

    def add(flag: str, value: str, text: str, *, kind: Callable[[str], Any] = str, default: Any = None) -> None:
        group.add_argument(flag, type=kind, default="" if kind is str and default is None else default, metavar=value,
                           help=text)  # fmt: skip

    return add


def parse(argv: Sequence[str] | None = None) -> RunWishes | CompareWishes:
    """Raises BadInput."""
    given = parser().parse_args(argv)
    if given.verb != "run":
        if len(given.files) > 2:
            raise BadInput("compare takes one or two results")
        return CompareWishes(verb=given.verb, files=tuple(given.files), out=getattr(given, "out", ""))
    fields = {name: value for name, value in vars(given).items() if name != "verb"}
    wishes = RunWishes(**fields | {"ids": _ids(given.ids)})
    _check(wishes)
    return wishes


def _ids(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not low.isdigit() or not high.isdigit() or int(low) >= int(high):
        raise BadInput(f"--ids is {text!r}; write the least and the most token id, as 1000-100000")
    return int(low), int(high)


def _check(wishes: RunWishes) -> None:
    least = {"--requests": (wishes.requests, 1), "--warmup": (wishes.warmup, 1), "--drafts": (wishes.drafts, 0),
             "--input-tokens": (wishes.input_tokens, 1), "--output-tokens": (wishes.output_tokens, 2)}  # fmt: skip
    for flag, (value, low) in least.items():
        if value is not None and value < low:
            raise BadInput(f"{flag} is {value}; write a number from {low}")
    if wishes.timeout <= 0 or wishes.wait < 0:
        raise BadInput("--timeout and --wait are seconds; write positive numbers")
    if wishes.replay and (wishes.input_tokens or wishes.salt):
        raise BadInput("--replay sends prompts as they are in the file; leave out --input-tokens and --salt")
