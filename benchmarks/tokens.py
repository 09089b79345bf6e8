"""How fast the reference engine is on this machine, through the slot's socket.

Tokens a second of one greedy stream; and how many short requests (8 bytes in, 2 tokens out, keep-alive) a second four
clients get answered.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, median
from benchmarks.rig import rig

if TYPE_CHECKING:
    from benchmarks.rig import Rig

CLIENTS = 4
SECONDS = 3.0
TOKENS = {"tiny": 256, "small": 128, "1g": 32}


def run(runs: int, preset: str, *, rate: bool) -> list[Figure]:
    """Tokens a second after the first token; with `rate` also short requests a second."""
    with rig(preset) as slot:
        slot.settled()
        speeds, firsts = [], []
        for _ in range(runs):
            sent = time.time()
            times = slot.stream(TOKENS[preset])
            speeds.append((len(times) - 1) / (times[-1] - times[0]))
            firsts.append((times[0] - sent) * 1000)
        figures = [
            median(f"greedy_{preset}_tokens_per_second", "tok/s", speeds),
            median(f"greedy_{preset}_first_token", "ms", firsts),
        ]
        if rate:
            figures.append(median(f"short_requests_{preset}", "req/s", [_rate(slot) for _ in range(runs)]))
    return figures


def _rate(slot: Rig) -> float:
    counts: list[int] = []
    ends = time.monotonic() + SECONDS

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", slot.port, timeout=60)
        body = json.dumps({"model": "try", "prompt": "12345678", "max_tokens": 2, "temperature": 0})
        count = 0
        while time.monotonic() < ends:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            count += 1
        counts.append(count)
        connection.close()

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(counts) == CLIENTS, "a client was not answered"
    return sum(counts) / SECONDS
