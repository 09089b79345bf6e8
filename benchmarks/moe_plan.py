"""What is timed to tune the fused MoE kernel, in which order, and what is made of the times. Pure.

A case is the experts of one rank. Each is timed at several numbers of rows; what was timed is kept as
{rows: {configuration as JSON: microseconds}}, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_engine.sglang.moe import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROWS = (1, 6, 9, 4, 2, 2048)  # of decoding, NEXTN's and DSPARK's rounds first; a piece of a prompt last
# Most worthy first: TP 2, 1, 4 in bf16, then fp8 (whole experts: 257 and 129 of them), then without the shared expert.
CASES = "513x384,513x768,513x192,513x768:fp8,257x768:fp8,129x768:fp8,512x768,512x384,512x192,512x768:fp8"
GAIN = 0.99  # of the default's time: what gains less is not worth another kernel
_SHARED_MEMORY = 200 << 10  # bytes that a block may use
_BLOCK = 128  # of fp8 weights

type Config = dict[str, int]
type Timed = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`EXPERTSxCOLUMNS`, or `EXPERTSxCOLUMNS:fp8`."""

    layer: Layer

    @property
    def name(self) -> str:
        return f"{self.layer.experts}x{self.layer.columns}" + (":fp8" if self.layer.quantization else "")

    @property
    def element(self) -> int:
        """Bytes of a weight."""
        return 1 if self.layer.quantization else 2


def cases(text: str) -> list[Case]:
    """Raises ValueError that says which one is wrong."""
    return [_case(one) for one in text.split(",") if one]


def _case(text: str) -> Case:
    size, _, quantization = text.partition(":")
    experts, _, columns = size.partition("x")
    if not (experts.isdigit() and columns.isdigit()) or quantization not in ("", "fp8"):
        raise ValueError(f"{text}: write a case as 513x768 or 513x768:fp8")
    if quantization and int(columns) % _BLOCK:
        raise ValueError(f"{text}: {columns} fp8 columns are no whole number of blocks of {_BLOCK}; fp8 is not cut")
    return Case(layer=Layer(experts=int(experts), columns=int(columns), quantization=quantization))


def configurations(case: Case, rows: int) -> list[Config]:
    """The likely ones first. Few rows meet an expert, so the smallest tile of rows is enough; a prompt wants more."""
    tiles = (16,) if rows <= 64 else (32, 16, 64)
    depths = (_BLOCK,) if case.layer.quantization else (128, 64, 256)
    found = []
    for stages, warps, m, k, n in itertools.product((4, 3, 2, 5), (4, 8), tiles, depths, (64, 32, 128)):
        if (n + m) * k * case.element * stages <= _SHARED_MEMORY:
            found.append(
                {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 1, "num_warps": warps,
                 "num_stages": stages}
            )  # fmt: skip
    return found


def key(config: Config) -> str:
    return json.dumps(config, sort_keys=True)


def shares(jobs: Sequence[object], now: float, ends: float) -> float:
    """When the first of the jobs that are left has to be done, so that all get as much time."""
    return now + max(ends - now, 0.0) / max(len(jobs), 1)


def table(timed: Mapping[str, Mapping[str, float]], defaults: Mapping[str, Config]) -> dict[str, Config]:
    """By rows, the fastest, or SGLang's default where none is faster: the nearest entry is taken, so each has one."""
    chosen = {}
    for rows, found in timed.items():
        usual = key(defaults[rows])
        if usual in found and len(found) > 1:
            best = min(found, key=lambda one: found[one])
            chosen[rows] = json.loads(best if found[best] <= GAIN * found[usual] else usual)
    return dict(sorted(chosen.items(), key=lambda one: int(one[0])))


def bounds(case: Case) -> list[int]:
    """Numbers of rows that keep SGLang's default in a table of decoding's: the nearest entry is taken, and a prompt of
    a few hundred tokens is nearer to 9 rows than to 2,048. The default changes where rows outnumber experts."""
    experts = case.layer.experts
    return sorted({16, 64, experts, experts + 1, 1024, 4096})


def said(found: Mapping[str, float], usual: Config) -> str:
    """One line of a report."""
    default = found.get(key(usual))
    if default is None:
        return "not timed"
    best = min(found, key=lambda one: found[one])
    return f"default {default:.1f} us, best {found[best]:.1f} us ({found[best] / default:.3f}) of {len(found)}: {best}"


def weight_bytes(case: Case, rows: int, *, chosen: int, hidden: int) -> int:
    """Bytes of weights that one call must read, at most: each row's experts another's, and the shared one once."""
    experts = min(rows * (chosen - 1) + 1, case.layer.experts)
    return experts * 3 * case.layer.columns * hidden * case.element


def left(timed: Mapping[str, Mapping[str, float]], case: Case, rows: int, usual: Config) -> Iterable[Config]:
    """What is still to be timed, the default first."""
    known = timed.get(str(rows), {})
    for config in [usual, *(one for one in configurations(case, rows) if one != usual)]:
        if key(config) not in known:
            yield config
