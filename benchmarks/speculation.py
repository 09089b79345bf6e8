"""Tokens per second of the reference engine with and without a draft, on this machine's CPU.

The target is predictable and dense, and larger than any cache: a step takes as long as reading its weights does,
however few rows it has, which is what speculation lives from. With experts (`--experts`) each further row reads experts
of its own, so there is less to win: reported, without a goal. Runs alternate between the ways; medians count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ling_engine.reference.bounds import Bounds
from ling_engine.reference.dial import Bench
from ling_engine.reference.presets import PRESETS, dspark_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHAPE: dict[str, Any] = {
    **PRESETS["1g"],
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "moe_shared_expert_intermediate_size": 256,
}
WAYS = {"None": ("", 0), "NEXTN": ("nextn", 3), "DSPARK": ("dspark", 8)}
PROMPT = list(b"The quick brown fox jumps over the lazy dog")
GOAL = 1.3


class Run(NamedTuple):
    """One answer."""

    tokens: list[int]
    rate: float  # tokens a second, the first one and its prompt left out
    accept_length: float  # tokens a round


def answer(bench: Bench, way: str, limit: int) -> Run:
    """Decodes one answer."""
    name, window = WAYS[way]
    decoder, tokens, rounds, began = bench.decoder(name, len(PROMPT) + limit, window), list[int](), 0, 0.0
    with torch.inference_mode():
        for found in decoder.generate(PROMPT, Bounds(limit=limit), lambda: True):
            began = began or time.perf_counter()
            rounds += bool(tokens)
            tokens += found.tokens
    return Run(tokens, (limit - 1) / (time.perf_counter() - began), (limit - 1) / rounds)


def measure(keys: dict[str, Any], accept: float, dial: float | None, limit: int, repeats: int) -> Iterator[str]:
    """A line for each figure: name, value, unit, goal, whether it is met. Without a dial it is searched."""
    kind = "dense" if keys["first_k_dense_replace"] == keys["num_hidden_layers"] else "experts"
    bench = Bench(keys, dspark_keys(keys), 0)
    if dial is None:
        dial = bench.search("nextn", accept)
    bench.fill(dial)
    yield f"{kind}_dial {dial:g} - - ok"
    yield f"{kind}_weights {sum(p.nbytes for p in bench.target.parameters()) / 2**20:.0f} MiB - ok"
    yield f"{kind}_acceptance {bench.measure('nextn').acceptance:.3f} - - ok"
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            runs[way].append(answer(bench, way, limit))
    same = all(run.tokens == runs["None"][0].tokens for found in runs.values() for run in found)
    exact = keys["torch_dtype"] == "float32"  # in bfloat16 equal scores are common, and rows round otherwise
    yield f"{kind}_same_tokens {same:d} - {'=1' if exact else '-'} {'ok' if same or not exact else 'MISS'}"
    rates = {way: statistics.median(run.rate for run in found) for way, found in runs.items()}
    for way, rate in rates.items():
        yield f"{kind}_{way.lower()}_rate {rate:.2f} tokens/s - ok"
        if way != "None":
            ratio = rate / rates["None"]
            goal = f">={GOAL} {'ok' if ratio >= GOAL else 'MISS'}" if kind == "dense" else "- ok"
            yield f"{kind}_{way.lower()}_accept_length {runs[way][0].accept_length:.2f} tokens - ok"
            yield f"{kind}_{way.lower()}_ratio {ratio:.2f} x {goal}"


def main(argv: Sequence[str]) -> int:
    """0 when every goal is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__)
    parser.add_argument("--accept", type=float, default=0.8, help="how often a draft is right (default: 0.8)")
    parser.add_argument("--dial", type=float, help="as an earlier run printed it: not searched again")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: 64)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--experts", action="store_true", help="the same with experts, without a goal")
    args = parser.parse_args(list(argv))
    torch.set_num_threads(args.threads)
    dense = {} if args.experts else {"first_k_dense_replace": SHAPE["num_hidden_layers"]}
    keys = {**SHAPE, **dense, "torch_dtype": args.dtype}
    lines = []
    for line in measure(keys, args.accept, args.dial, args.tokens, args.repeats):
        print(line, flush=True)
        lines.append(line)
    return int(any(line.endswith("MISS") for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
