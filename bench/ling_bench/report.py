"""Results and comparisons as text for people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .protocol import PUBLISHED
from .result import METRICS, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .compare import Comparison
    from .result import Result, Side


def result(found: Result) -> str:
    """A header, a table for each side, and what speaks against them."""
    lines = [*_header(found)]
    for side in found.sides:
        lines += ["", *_side(side)]
    if found.why:
        lines += ["", f"{found.verdict.upper()}: this result stands for nothing."]
        lines += [f"  - {why}" for why in found.why]
    return "\n".join(lines)


def comparison(found: Comparison) -> str:
    """Ratios first; then what else is not the same."""
    lines = [f"A  {found.first}", f"B  {found.second}", f"{'paired by prompt' if found.paired else 'unpaired'}; A / B:"]
    rows = [("", "A", "B", "A / B", "95 %")]
    for row in found.rows:
        span = "-" if row.low is None or row.high is None else f"{row.low:.4f} to {row.high:.4f}"
        rows.append((METRICS[row.metric], _number(row.first), _number(row.second), f"{row.ratio:.4f}", span))
    lines += _table(rows)
    lines += [f"note: {caution}" for caution in found.cautions]
    if found.differs:
        lines += ["", "not the same:", *_table([("", "A", "B"), *found.differs])]
    return "\n".join(lines)


def _header(found: Result) -> Iterator[str]:
    sizes, work = found.protocol, found.workload
    if sizes["input_tokens"] is None:
        asked = f"prompts of {work['file']}, at most {sizes['output_tokens']} tokens out"
    else:
        asked = f"{sizes['input_tokens']} tokens in, {sizes['output_tokens']} out"
    name = sizes["name"].upper() if sizes["name"] != PUBLISHED else PUBLISHED
    yield f"protocol    {name}: {asked}, greedy, one request at a time, streamed"
    count = f"{work['requests']} requests after {work['warmup']} to warm up"
    yield f"workload    {work['kind']}, {count}, {work['hash'][:19]}"
    yield f"acceptance  {found.acceptance or 'not said, and the endpoint tells nothing of drafts'}"
    client = found.client
    hardware = client["hardware"] or ", ".join(client.get("gpus", ())) or client.get("cpu") or "not told (--hardware)"
    yield f"hardware    {hardware}"
    yield f"client      {client['cores']} cores, load {client['load']:.1f}, Python {client['python']}, {found.began}"


def _side(side: Side) -> Iterator[str]:
    sums = summary(side)
    server = side.server
    engine = f"{server.get('engine', 'engine not told')} {server.get('version') or ''}".rstrip()
    yield f"{side.url}  model {side.model}  {engine}"
    rows: list[tuple[str, ...]] = [("", "mean", "95 %", "median", "least", "most")]
    for name, title in METRICS.items():
        spread = sums[name]
        if spread is not None:
            rows.append((title, _number(spread["mean"]), _span(spread), *map(_number, _rest(spread))))
    yield from _table(rows)
    p50, p99, most = (_number(sums[f"gap_{name}_ms"]) for name in ("p50", "p99", "max"))
    yield f"  {_number(sums['tokens_per_second'])} tokens/s; chunk to chunk p50 {p50}, p99 {p99}, most {most} ms"
    yield f"  later half / earlier half {_number(sums['drift'])}"
    yield f"  accept length {_accepted(side)}"


def _accepted(side: Side) -> str:
    if side.rounds_from is None:
        return "not known: the endpoint tells no verify rounds (SGLang: start it with --enable-metrics)"
    if side.accept_length is None:
        return f"1: no verify rounds ({side.rounds_from})"
    bound = "bound not checked: say --drafts" if side.drafts is None else f"{side.drafts} drafts a round"
    return f"{side.accept_length:.3f} ({side.rounds_from}; {bound})"


def _span(spread: dict[str, Any]) -> str:
    return "-" if spread["low"] is None else f"{_number(spread['low'])} to {_number(spread['high'])}"


def _rest(spread: dict[str, Any]) -> tuple[float, float, float]:
    return spread["p50"], spread["min"], spread["max"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield f"  {'  '.join(cells)}".rstrip()
