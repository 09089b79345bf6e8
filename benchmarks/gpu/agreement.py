"""Top-1 agreement of an engine with the reference engine in fp32, position by position of a given text.

`python -m benchmarks.gpu.agreement MODEL TOLD` on the GPU: TOLD is JSON with `ids` and `top` (the engine's best token
before each id, null for the first). Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "")]

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECE = 256  # rows at once
_BEST = 8  # tokens that are told of each position
WIDE = 1.0  # of scores: bf16 moves those of a made checkpoint of twelve layers by several tenths


def told(port: int, ids: Sequence[int]) -> list[int | None]:
    """SGLang's best token for each position of the prompt."""
    body = {
        "input_ids": list(ids), "sampling_params": {"temperature": 0, "max_new_tokens": 1}, "return_logprob": True,
        "logprob_start_len": 0, "top_logprobs_num": 1,
    }  # fmt: skip
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found: Any = json.loads(answer.read())
    if answer.status != 200:
        raise RuntimeError(f"HTTP {answer.status}: {str(found)[:300]}")
    tops = found["meta_info"]["input_top_logprobs"]
    return [None if not top else int(top[0][1]) for top in tops]


def compare(folder: Path, ids: list[int], top: Sequence[int | None]) -> dict[str, Any]:
    """With the reference engine in fp32; beside it the same of the reference engine in bf16, as a control: what it
    misses is lost to the number type, not to a fault."""
    began = time.monotonic()
    values, tokens = best(folder, ids, "float32")
    control = best(folder, ids, "bfloat16")[1]
    lower = [None, *(row[0] for row in control)]
    return {**told_apart(values, tokens, top), "control": told_apart(values, tokens, lower),
            "took_s": time.monotonic() - began}  # fmt: skip


def told_apart(
    values: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], top: Sequence[int | None]
) -> dict[str, Any]:
    """`values`, `tokens`: the reference's best scores and tokens behind each id, best first; `top`: another's best
    token before each id.

    `wide`: of the positions whose two best scores are at least WIDE apart; a nearer call is anybody's in bf16.
    `differ`: the 20 widest calls that went otherwise; `gap`: by how much the other's choice scores less, or None.
    """
    pairs = [(row, top[row + 1]) for row in range(len(tokens) - 1) if top[row + 1] is not None]
    margin = {row: values[row][0] - values[row][1] for row, _ in pairs}
    equal = {row for row, one in pairs if tokens[row][0] == one}
    wide = {row for row, _ in pairs if margin[row] >= WIDE}
    differ = [
        {"position": row + 1, "margin": round(margin[row], 4), "gap": gap(values[row], tokens[row], one)}
        for row, one in pairs
        if row not in equal
    ]
    return {
        "positions": len(pairs), "equal": len(equal), "share": len(equal) / max(len(pairs), 1),
        "wide": len(wide), "wide_equal": len(wide & equal), "wide_share": len(wide & equal) / max(len(wide), 1),
        "differ": sorted(differ, key=lambda one: -one["margin"])[:20],
    }  # fmt: skip


def gap(values: Sequence[float], tokens: Sequence[int], other: int | None) -> float | None:
    """The best score less that of another token; None if it is not among those."""
    return round(values[0] - values[tokens.index(other)], 4) if other in tokens else None


def best(folder: Path, ids: Sequence[int], dtype: str) -> tuple[list[list[float]], list[list[int]]]:
    """Scores and tokens, [ids][_BEST] and best first, of the reference engine that computes in `dtype`."""
    import torch

    from ling_engine.reference import config
    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Sequence
    from ling_engine.reference.tensorfile import shards

    device = "cuda" if torch.cuda.is_available() else "cpu"
    c = config.parse({**config.load_keys(folder), "torch_dtype": dtype})
    values: list[list[float]] = []
    tokens: list[list[int]] = []
    with torch.device(device), torch.inference_mode():
        model = Ling(c)
        model.to_empty(device=device)
        parameters = dict(model.named_parameters())
        for shard in shards(folder):
            with shard.path.open("rb") as file:
                for stored in shard.tensors:
                    if stored.name in parameters:
                        file.seek(stored.begin)
                        raw = bytearray(file.read(stored.end - stored.begin))
                        kept = torch.frombuffer(raw, dtype=getattr(torch, stored.dtype)).view(stored.shape)
                        parameters[stored.name].copy_(kept)
        sequence = Sequence.allocate(c, len(ids))
        head = model.lm_head.weight.bfloat16()
        for at in range(0, len(ids), _PIECE):
            piece = ids[at : at + _PIECE]
            step = model(torch.tensor(piece), sequence)
            sequence.commit(step, len(piece))
            scores = (step.hidden.bfloat16() @ head.T).float()  # as SGLang: the head is bf16 whatever the rest is
            found = scores.topk(_BEST, -1)
            values += found.values.tolist()
            tokens += found.indices.tolist()
    return values, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("told", type=Path)
    args = parser.parse_args()
    given = json.loads(args.told.read_text())
    print(json.dumps(compare(args.model, given["ids"], given["top"])))


if __name__ == "__main__":
    main()
