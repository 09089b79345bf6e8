"""How tokens are decoded: plainly, with the checkpoint's own NEXTN layer, or with an external DSPARK draft.

The numbers mean what SGLang's arguments of the same names mean: with a chain (top-k 1) a round of NEXTN verifies
`num_steps` drafts and the token before them, `num_steps + 1` draft tokens in all; DSPARK proposes its block in one
step, so its draft tokens are the block's size + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api.errors import BadInput

if TYPE_CHECKING:
    import argparse

NONE, NEXTN, DSPARK = "None", "NEXTN", "DSPARK"
_STEPS = 5  # of NEXTN, unless asked otherwise
_MOST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Checked by `read`. 0 and "" stand for what the algorithm has by itself."""

    algorithm: str = NONE
    num_steps: int = 0
    num_draft_tokens: int = 0
    draft: str = ""  # folder of the DSPARK draft; "" = `dspark` in the target's folder

    @property
    def proposed(self) -> int:
        """Tokens that the draft proposes a round; 0 = as many as the DSPARK draft was made for."""
        return max(self.num_draft_tokens - 1, 0)


PLAIN = Decoding()


def add_flags(command: argparse.ArgumentParser) -> None:
    """The flags of `read`."""
    add = command.add_argument
    add("--decoding", default=NONE, metavar=f"{NONE}|{NEXTN}|{DSPARK}", help=f"speculative decoding (default: {NONE})")
    add("--num-steps", default="", metavar="N", help=f"{NEXTN}: drafts a round (default: {_STEPS})")
    add("--num-draft-tokens", default="", metavar="N", help="rows that the target verifies a round: drafts + 1")
    add("--draft", default="", metavar="DIR", help=f"{DSPARK}: the draft's folder (default: dspark in --model)")


def read(args: argparse.Namespace) -> Decoding:
    """From the parsed flags. Raises BadInput with one sentence."""
    algorithm = args.decoding
    steps = _whole("--num-steps", args.num_steps, 1)
    tokens = _whole("--num-draft-tokens", args.num_draft_tokens, 2)
    if algorithm not in (NONE, NEXTN, DSPARK):
        raise BadInput(f"--decoding {algorithm!r}: must be {NONE}, {NEXTN} or {DSPARK}")
    if args.draft and algorithm != DSPARK:
        raise BadInput(f"--draft {args.draft}: only for --decoding {DSPARK}; {NEXTN}'s draft lies in the checkpoint")
    if algorithm == NONE:
        if steps or tokens:
            raise BadInput(f"--num-steps, --num-draft-tokens: only with --decoding {NEXTN} or {DSPARK}")
        return PLAIN
    if algorithm == DSPARK:
        if steps > 1:
            raise BadInput(f"--num-steps {steps}: {DSPARK} drafts in one step; write 1 or leave it out")
        draft = str(Path(args.draft).absolute()) if args.draft else ""
        return Decoding(algorithm=DSPARK, num_steps=1, num_draft_tokens=tokens, draft=draft)
    steps = steps or (tokens - 1 if tokens else _STEPS)
    if tokens not in (0, steps + 1):
        raise BadInput(f"--num-draft-tokens {tokens}: a chain of {steps} steps has {steps + 1}; leave it out")
    return Decoding(algorithm=NEXTN, num_steps=steps, num_draft_tokens=steps + 1)


def _whole(flag: str, text: str, low: int) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= _MOST:
        raise BadInput(f"{flag} {text!r}: must be a whole number from {low} to {_MOST}")
    return int(text)
