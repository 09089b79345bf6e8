"""The reference engine against SGLang, layer by layer and as a whole. Loaded in SGLang's environment.

Both load the same files. SGLang's CPU path for experts applies neither the scaling factor nor the routed clamp, and its
head is bfloat16 whatever is asked for; both sides are therefore told a scaling factor of 1 and no routed clamp, and the
head is compared as SGLang rounds it. What this leaves out is compared with SGLang's reference functions instead.
"""

import json
import sys
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.support import sglang_boot as boot
from tests.support import sglang_drafts as drafts
from tests.support import sglang_functions as functions
from tests.support.sglang_interpreter import exact
from tests.support.sglang_layers import TRITON, Follower
from tests.support.sglang_table import Table
from tests.support.sglang_tape import record
from torch import Tensor
from torch.nn import functional as F

from ling_engine.reference import config, dspark_config, matching, weights
from ling_engine.reference.bounds import Bounds
from ling_engine.reference.config import Config
from ling_engine.reference.dspark_config import DsparkConfig
from ling_engine.reference.dspark_model import DsparkModel
from ling_engine.reference.generate import Decoder
from ling_engine.reference.model import Ling
from ling_engine.reference.mtp import Mtp
from ling_engine.reference.sequence import Sequence, Step

PROMPT, STEPS, CONTEXT = 70, 4, 128  # a prompt longer than one chunk of either engine
HEAD = "module, bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """The reference engine's modules, loaded by its own loader."""

    config: Config
    target: Ling
    mtp: Mtp
    dspark_config: DsparkConfig
    dspark: DsparkModel


def overrides(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of config.json that both sides are told instead of those in the file."""
    layers = keys["num_hidden_layers"]
    return {
        "routed_scaling_factor": 1.0,
        "expert_swiglu_limit_list": None,
        "share_expert_swiglu_limit_list": [
            0.125,
            *[0.25] * layers,
        ],  # tight enough to cut; the MTP layer takes the first
    }


def load(folder: Path) -> Ours:
    keys = config.load_keys(folder)
    c = config.parse({**keys, **overrides(keys)})
    d = dspark_config.read(folder / "dspark", c)
    target, mtp, dspark = Ling(c, d.target_layer_ids), Mtp(c), DsparkModel(d)
    for module, where, naming in (
        (target, folder, matching.target(c.num_hidden_layers)),
        (mtp, folder, matching.nextn(c.num_hidden_layers)),
        (dspark, folder / "dspark", matching.dspark),
    ):
        module.to_empty(device="cpu")
        weights.load(where, module, naming, lambda _done: None, whole=False)
    return Ours(config=c, target=target, mtp=mtp, dspark_config=d, dspark=dspark)


@torch.no_grad()
def compare(folder: Path, seed: int) -> dict[str, Any]:
    """The table's rows, and the ids and log-probabilities of both engines."""
    ours, table = load(folder), Table()
    prompt = torch.randint(0, 256, (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()
    told = json.dumps(overrides(config.load_keys(folder)))
    booted = boot.boot(str(folder), "--json-model-override-args", told)
    with exact():
        ids, scores, taps = _follow(booted, ours, table, prompt, str(folder))
    result = whole(ours, prompt, ids, scores, taps, table)
    functions.compare(ours, table, seed)
    return {**result, "rows": table.rows()}


def _follow(
    booted: boot.Booted, ours: Ours, table: Table, prompt: Ids[int], folder: str
) -> tuple[list[int], Tensor, Tensor]:
    """SGLang's greedy ids behind the prompt, its scores of each, its taps; module by module into the table."""
    runner, made = boot.target_runner(booted), boot.request(prompt)
    runner.model.set_dspark_layers_to_capture(list(ours.dspark_config.target_layer_ids))
    follower = Follower(model=ours.target, sequence=Sequence.allocate(ours.config, CONTEXT), table=table, pools=runner)
    with record(runner.model) as tape:
        out, batch = boot.prefill(runner, made, boot.CaptureHiddenMode.FULL)
    follower.seat(made)
    follower.step(tape, torch.tensor(prompt))
    scores, last = [out.next_token_logits], out.next_token_logits.argmax(-1)
    ids, hidden = [int(last)], tape["model"].output[0]
    nextn = drafts.Nextn(booted, runner, ours, table, folder)
    nextn.prefill(batch, [*prompt, *ids], hidden)
    drafts.compare_dspark(booted, runner, ours, table, made, [*prompt, *ids], out.hidden_states, folder)
    for number in range(STEPS):
        with record(runner.model) as tape:
            following, given = boot.decode(runner, last, batch)
        if number == 0:
            nextn.step(batch)
        follower.seat(made)
        follower.step(tape, last)
        scores, last = [*scores, given], following
        ids.append(int(last))
    return ids, torch.cat(scores), out.hidden_states


def whole(ours: Ours, prompt: Ids[int], ids: Ids[int], scores: Tensor, taps: Tensor, table: Table) -> dict[str, Any]:
    """Our engine by itself: the ids that it generates, its scores behind SGLang's own ids."""
    sequence = Sequence.allocate(ours.config, CONTEXT)
    bounds = Bounds(limit=len(ids), eos=None)
    found = [t for r in Decoder(ours.target, sequence).generate(prompt, bounds, lambda: True) for t in r.tokens]
    sequence.restart()
    steps = [_advance(ours.target, sequence, piece) for piece in (list(prompt), *([i] for i in ids[:-1]))]
    rows = torch.cat([step.hidden[-1:] for step in steps])
    table.add("whole model", "stream behind the tapped layers", TRITON, steps[0].taps, taps)
    head = ours.target.lm_head.weight
    rounded = F.linear(rows.bfloat16(), head.bfloat16()).float()
    table.add("whole model", "scores", HEAD, rounded, scores)
    chosen = torch.tensor(ids)[:, None]
    mine, theirs = (s.log_softmax(-1).gather(1, chosen).flatten().tolist() for s in (rounded, scores))
    exact = ours.target.logits(rows).log_softmax(-1).gather(1, chosen).flatten().tolist()
    return {"ids": found, "sglang_ids": list(ids), "logprobs": mine, "sglang_logprobs": theirs, "fp32_logprobs": exact}


def _advance(model: Ling, sequence: Sequence, ids: list[int]) -> Step:
    step = model(torch.tensor(ids), sequence)
    sequence.commit(step, len(ids))
    return step


def main(argv: Ids[str]) -> int:
    """FOLDER SEED RESULT: writes the comparison as JSON."""
    folder, seed, result = argv
    Path(result).write_text(json.dumps(compare(Path(folder), int(seed))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
