"""What a request asks for, and the protocol's name: `published` (locked), `custom` (its sizes changed) or `replay`.

The published protocol is the one that the figures of Ling-3.0-flash were published with: 8192 random tokens in, 1024
out (range ratio 1.0: no request is shorter), greedy, one request at a time, the end-of-text token ignored, streamed.
Time per output token of a request is (last - first) / (n - 1), between the arrivals of its last and first token; the
result is the mean over requests. Whatever differs is stamped `custom` and compares with its own kind alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .workload import Prompt

INPUT_TOKENS: Final = 8192
OUTPUT_TOKENS: Final = 1024
PUBLISHED, CUSTOM, REPLAY = "published", "custom", "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Stamped into every result as it is. `input_tokens` None: as long as the file's prompts are."""

    name: str
    input_tokens: int | None
    output_tokens: int
    ignore_eos: bool
    temperature: float = 0.0
    concurrency: int = 1
    range_ratio: float | None = 1.0
    stream: bool = True
    tpot: str = "(last - first) / (n - 1), mean over requests"

    def stamp(self) -> dict[str, Any]:
        """For the result."""
        return asdict(self)


def random_prompts(input_tokens: int | None = None, output_tokens: int | None = None) -> Protocol:
    """Sizes that are not given, or given as they are, leave the protocol the published one."""
    sizes = (input_tokens or INPUT_TOKENS, output_tokens or OUTPUT_TOKENS)
    name = PUBLISHED if sizes == (INPUT_TOKENS, OUTPUT_TOKENS) else CUSTOM
    return Protocol(name=name, input_tokens=sizes[0], output_tokens=sizes[1], ignore_eos=True)


def replay(output_tokens: int | None = None) -> Protocol:
    """Prompts of a file; an answer ends where the model ends it, or at `output_tokens`."""
    most = output_tokens or OUTPUT_TOKENS
    return Protocol(name=REPLAY, input_tokens=None, output_tokens=most, ignore_eos=False, range_ratio=None)


def request(protocol: Protocol, prompt: Prompt, model: str, *, rounds: bool = False) -> tuple[str, dict[str, Any]]:
    """Path and body. `rounds`: SGLang is asked to tell this request's verify rounds with its answer."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": prompt.output_tokens or protocol.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if protocol.ignore_eos:
        body["ignore_eos"] = True
    if rounds:
        body["return_spec_tokens_details"] = True
    if prompt.messages is not None:
        return "/v1/chat/completions", body | {"messages": prompt.messages}
    return "/v1/completions", body | {"prompt": prompt.ids if prompt.text is None else prompt.text}
