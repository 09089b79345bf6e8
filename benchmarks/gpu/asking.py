"""Questions to an engine over HTTP, and what came back when."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Failed(Exception):
    """Something did not happen; the one line is for the person who reads the table."""


class OutOfTime(Exception):
    """A part's time is over: nothing in it goes on, whatever it tolerates otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`tokens` as the engine told them (ids, or pieces of text); `times` of arrivals, monotonic, s."""

    tokens: tuple[Any, ...]
    times: tuple[float, ...]
    began: float
    rounds: int  # of verification, as the engine counts them; 0 = not told

    @property
    def ttft(self) -> float:
        return self.times[0] - self.began

    @property
    def tpot(self) -> float:
        """Seconds from token to token, the first one aside."""
        return (self.times[-1] - self.times[0]) / max(len(self.tokens) - 1, 1)

    @property
    def accept(self) -> float:
        return len(self.tokens) / self.rounds if self.rounds else 1.0


def ask(
    port: int, prompt: Sequence[int], new: int, *, text: bool = False, temperature: float = 0, timeout: float = 300
) -> Answer:
    """Greedy where there is no `temperature`, streamed, whatever ends an answer ignored. Raises Failed, OSError."""
    parameters: dict[str, Any] = {"temperature": temperature, "max_new_tokens": new, "ignore_eos": True}
    path, body = "/generate", {"input_ids": list(prompt), "sampling_params": parameters, "stream": True}
    if text:
        path = "/v1/completions"
        body = {"model": "ling", "prompt": list(prompt), "max_tokens": new, "temperature": temperature, "stream": True}
    began, times, last, pieces, whole = time.monotonic(), [], {}, [], False
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Failed(f"HTTP {answer.status}: {answer.read()[:300]!r}")
        while line := answer.readline():
            whole = whole or line.startswith(b"data: [DONE]")
            if not line.startswith(b"data: {"):
                continue
            last = json.loads(line[6:])
            if "error" in last:
                raise Failed(str(last)[:300])
            times.append(time.monotonic())
            pieces.append(last["choices"][0]["text"] if text and last.get("choices") else "")
    if not times or not whole:
        raise Failed(f"an answer of port {port} broke off after {len(times)} pieces")
    meta = last.get("meta_info", {})
    tokens = tuple(pieces) if text else tuple(last["output_ids"])
    return Answer(tokens=tokens, times=tuple(times), began=began, rounds=int(meta.get("spec_verify_ct", 0)))


def post(port: int, path: str, body: Any, timeout: float = 300, *, text: bool = False) -> Any:
    """The JSON (or `text`) of an answer that is not streamed. Raises Failed, OSError."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
    if answer.status != 200:
        raise Failed(f"HTTP {answer.status}: {data[:300]!r}")
    return data.decode() if text else json.loads(data)


def get(port: int, path: str) -> Any:
    """The JSON (or text) that a path answers with 200; None for anything else."""
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            data = answer.read().decode(errors="replace")
            if answer.status != 200:
                return None
            try:
                return json.loads(data)
            except ValueError:
                return data or "ok"
    except (OSError, http.client.HTTPException):
        return None
