"""One endpoint under measurement: what it tells of itself, its counters, and a request with what they say of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import counters, protocol, stream, told
from .errors import EndpointFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .client import Client
    from .counters import Counts, Family, Rounds
    from .protocol import Protocol
    from .stream import Answer
    from .workload import Prompt

_SETTLE_S = 2.0  # until the counters have the last answer: some engines bring them up to date a moment later


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """`family` None: no counters are to be had; `asks_rounds`: SGLang then tells rounds with each answer."""

    client: Client
    model: str
    server: dict[str, Any]
    family: Family | None
    asks_rounds: bool
    drafts: int | None
    drafts_from: str | None

    @property
    def rounds_from(self) -> str | None:
        if self.family is not None:
            return f"{self.family.engine}'s counters in /metrics"
        if self.drafts == 0:
            return f"{self.drafts_from}: nothing is drafted"
        return "each answer's own count" if self.asks_rounds else None

    def distrust(self) -> None:
        """Its counters did not move with the warm-up: they are of no use, and it is measured without them."""
        if self.family is not None:
            self.server["metrics"] = f"{self.family.engine}, but its counters stand still"
            self.family, self.asks_rounds = None, self.server.get("engine") == "SGLang"

    def ask(self, asked: Protocol, prompt: Prompt) -> tuple[Answer, Rounds | None]:
        """One answer, and what the counters say of it. Raises EndpointFailed."""
        before = self._counts()
        path, body = protocol.request(asked, prompt, self.model, rounds=self.asks_rounds)
        answer = stream.read(self.client.stream(path, body))
        if before is None or self.family is None:
            return answer, None
        deadline = time.monotonic() + _SETTLE_S
        while True:
            after = self._counts()
            found = None if after is None else counters.between(before, after, self.family)
            if found is None:
                raise EndpointFailed(
                    f"{self.client.url}: its counters went back: the server was restarted, or /metrics is another one's"
                )
            if found.tokens >= answer.tokens or time.monotonic() > deadline:
                return answer, found
            time.sleep(0.02)

    def _counts(self) -> Counts | None:
        if self.family is None:
            return None
        status, text = self.client.get("/metrics")
        if status != 200:
            raise EndpointFailed(f"{self.client.url}/metrics answered before and now {status or text}")
        return counters.read(text, self.family)


def look(client: Client, model: str, wait: float, say: Callable[[str], None]) -> Endpoint:
    """Asks an endpoint who it is, at most `wait` seconds long until it answers. Raises EndpointFailed."""
    model = model or _served(client, wait, say)
    info = _json(client, "/server_info")
    server: dict[str, Any] = {}
    drafts: int | None = None
    if info and "launch_command" in info:
        server, drafts = told.sglang(info), told.sglang_drafts(info)
    elif (version := _json(client, "/version").get("version")) is not None:
        server = {"version": version}
    status, text = client.get("/metrics")
    family = counters.family_of(text) if status == 200 else None
    if family is not None:
        server.setdefault("engine", family.engine)
    server["metrics"] = family.engine if family else f"none ({status or 'no answer'} from /metrics)"
    server["server_info"] = bool(info)
    return Endpoint(
        client=client, model=model, server=server, family=family,
        asks_rounds=family is None and server.get("engine") == "SGLang", drafts=drafts,
        drafts_from=None if drafts is None else "/server_info",
    )  # fmt: skip


def _served(client: Client, wait: float, say: Callable[[str], None]) -> str:
    deadline, told_so = time.monotonic() + wait, False
    while True:
        status, text = client.get("/v1/models")
        if status == 200:
            break
        if time.monotonic() >= deadline:
            raise EndpointFailed(f"{client.url}/v1/models: {status or ''} {' '.join(text.split())[:200]}")
        if not told_so:
            say(f"waiting for {client.url}, {wait:.0f} s at most: {status or ''} {' '.join(text.split())[:200]}")
            told_so = True
        time.sleep(0.5)
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise EndpointFailed(f"{client.url}/v1/models names no model: say --model") from None


def _json(client: Client, path: str) -> dict[str, Any]:
    """Of an endpoint that offers it; empty otherwise."""
    status, text = client.get(path)
    if status != 200:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
