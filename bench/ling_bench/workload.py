"""Which prompts are sent: seeded random token ids, or the lines of a file; and the hash that tells which. Pure.

Random prompts are token ids, not text, so that their length is exact whatever the tokenizer. All but the head of a
prompt is a function of the seed. The head (SALTED ids) is drawn from the run's salt, its first id different in every
prompt of the run: no prompt begins as another one of this run or of an earlier one does, and a prefix cache has nothing
to give. The hash leaves the salt out: two runs of one seed are the same workload.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SALTED: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Exactly one of `ids`, `text` and `messages` (of a chat). `output_tokens` None: as many as the protocol says."""

    ids: list[int] | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`stamp` goes into the result; prompts for the warm-up are not among the measured ones."""

    warmup: tuple[Prompt, ...]
    prompts: tuple[Prompt, ...]
    stamp: dict[str, Any]


def drawn(
    *, seed: int, salt: str, requests: int, warmup: int, tokens: int, output_tokens: int, ids: tuple[int, int]
) -> Workload:
    """Random prompts of `tokens` ids each, from `ids[0]` to `ids[1]`."""
    bodies = [_ids(f"{seed}:{number}", tokens, ids) for number in range(requests + warmup)]
    firsts = _distinct(f"{salt}:first", len(bodies), ids)
    salted = [
        Prompt(ids=[firsts[number], *_ids(f"{salt}:{number}", SALTED - 1, ids), *body[SALTED:]][:tokens])
        for number, body in enumerate(bodies)
    ]
    measured = [{"ids": body[SALTED:], "tokens": tokens, "output_tokens": output_tokens} for body in bodies[:requests]]
    stamp = {
        "kind": "random ids", "seed": seed, "ids": f"{ids[0]}-{ids[1]}", "requests": requests, "warmup": warmup,
        "salt": salt, "salted_ids": min(SALTED, tokens), "hash": _hash(measured),
    }  # fmt: skip
    return Workload(warmup=tuple(salted[requests:]), prompts=tuple(salted[:requests]), stamp=stamp)


def replayed(lines: Iterable[str], *, file: str, requests: int | None, warmup: int, output_tokens: int) -> Workload:
    """Prompts as they stand in a JSONL file; the warm-up repeats the last ones. Raises BadInput with file and line."""
    found = [_line(text, f"{file}:{number}") for number, text in enumerate(lines, 1) if text.strip()]
    if not found:
        raise BadInput(f'{file}: no prompts; write one JSON object a line, as {{"prompt": "Once upon a time"}}')
    kept = found[:requests]
    measured = [
        {"prompt": one.ids or one.text or one.messages, "output_tokens": one.output_tokens or output_tokens}
        for one in kept
    ]
    beginnings = {json.dumps(one.ids or one.text or one.messages)[:64] for one in kept}
    warming = tuple(found[-1 - number % len(found)] for number in range(warmup))
    stamp = {
        "kind": "replay", "file": file, "requests": len(kept), "warmup": warmup, "hash": _hash(measured),
        "begin_alike": len(kept) - len(beginnings),
    }  # fmt: skip
    return Workload(warmup=warming, prompts=tuple(kept), stamp=stamp)


def _ids(key: str, count: int, ids: tuple[int, int]) -> list[int]:
    return random.Random(key).choices(range(ids[0], ids[1] + 1), k=max(count, 0))


def _distinct(key: str, count: int, ids: tuple[int, int]) -> list[int]:
    """As different as the range allows."""
    pool = list(range(ids[0], ids[1] + 1))
    drawing, found = random.Random(key), list[int]()
    while len(found) < count:
        found += drawing.sample(pool, min(len(pool), count - len(found)))
    return found


def _hash(measured: Sequence[dict[str, Any]]) -> str:
    text = json.dumps(measured, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _line(text: str, where: str) -> Prompt:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{where}: no JSON ({error}); write one object a line") from None
    if not isinstance(line, dict) or ("prompt" in line) == ("messages" in line):
        raise BadInput(f'{where}: write an object with "prompt" (text or token ids) or "messages" (of a chat)')
    most = line.get("max_tokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise BadInput(f"{where}: max_tokens is {most!r}; write a whole number from 1 or leave it out")
    if "messages" in line:
        if not isinstance(line["messages"], list) or not line["messages"]:
            raise BadInput(f"{where}: messages is no list; write the messages of a chat")
        return Prompt(messages=line["messages"], output_tokens=most)
    prompt = line["prompt"]
    if isinstance(prompt, str) and prompt:
        return Prompt(text=prompt, output_tokens=most)
    if isinstance(prompt, list) and prompt and all(isinstance(one, int) for one in prompt):
        return Prompt(ids=prompt, output_tokens=most)
    raise BadInput(f"{where}: prompt is empty or neither text nor token ids")
