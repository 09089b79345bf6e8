"""Top-1 agreement of an engine with the reference engine in fp32, position by position of a given text.

`python -m benchmarks.gpu.agreement MODEL TOLD` on the GPU: TOLD is JSON with `ids` and `top` (the engine's best token
before each id, null for the first). Prints JSON.
"""

from __future__ import annotations

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


def compare(folder: Path, ids: list[int], top: list[int | None]) -> dict[str, Any]:
    """With the reference engine's own argmax, and how close the calls were where they differ."""
    import torch

    from ling_engine.reference import config
    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Sequence
    from ling_engine.reference.tensorfile import shards

    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.monotonic()
    keys = {**config.load_keys(folder), "torch_dtype": "float32"}
    c = config.parse(keys)
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
                        values = torch.frombuffer(raw, dtype=getattr(torch, stored.dtype)).view(stored.shape)
                        parameters[stored.name].copy_(values)
        loaded = time.monotonic() - began
        sequence = Sequence.allocate(c, len(ids))
        head = model.lm_head.weight.bfloat16()
        equal = margins = 0
        differ: list[dict[str, Any]] = []
        for at in range(0, len(ids), _PIECE):
            piece = ids[at : at + _PIECE]
            step = model(torch.tensor(piece), sequence)
            sequence.commit(step, len(piece))
            scores = (step.hidden.bfloat16() @ head.T).float()  # as SGLang: the head is bf16 whatever the rest is
            best = scores.topk(2, -1)
            for row in range(len(piece)):
                position = at + row + 1
                if position >= len(ids) or top[position] is None:
                    continue
                margins += 1
                if int(best.indices[row, 0]) == top[position]:
                    equal += 1
                elif len(differ) < 20:
                    gap = float(best.values[row, 0] - scores[row, int(top[position] or 0)])
                    differ.append(
                        {"position": position, "gap": round(gap, 4), "best": round(float(best.values[row, 0]), 3)}
                    )
    share = equal / max(margins, 1)
    return {"positions": margins, "equal": equal, "share": share, "differ": differ, "loaded_s": loaded,
            "took_s": time.monotonic() - began}  # fmt: skip


def main() -> None:
    given = json.loads(Path(sys.argv[2]).read_text())
    print(json.dumps(compare(Path(sys.argv[1]), given["ids"], given["top"])))


if __name__ == "__main__":
    main()
