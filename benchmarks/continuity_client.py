"""An open-loop client for completions that tells exactly how each request ended. Standard library only: one file.

    continuity_client.py open URL MODEL RATE MODE     sends RATE requests a second until standard input ends
    continuity_client.py closed URL MODEL SECONDS     keeps 8 requests in the air for that long: what the engine can do

MODE: `new` (a connection per request), `keep` (keep-alive; idle at most 5 s) or `both` (two by two).
Of twenty requests one is a stream of 32 tokens, the others ask for 2 tokens, every other one of them as a stream;
prompts are 8 bytes; each may take 60 s.
The first line printed is {"start": seconds of the epoch}; then, at the end, one line per request:

    first             when its first token was there (of an answer that is no stream: all of it)
    due, sent, ended  when it was to be sent, was on its way (connected and written), had ended or failed
    failed            "" | refused | broken (the connection ended under it: it was in flight) | status | wrong | timeout
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
IDLE_S = 5.0
STREAM_EVERY = 20
CLOSED_LOOP = 8
BROKEN = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, asyncio.IncompleteReadError)


class WrongAnswer(Exception):
    """The answer is complete, but not the one that was asked for; ends the request as `wrong` or `status`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class Row:
    """One request, times in seconds of the epoch."""

    number: int
    kind: str
    due: float
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    reused: bool = False
    failed: str = ""
    why: str = ""


@dataclass(slots=True)
class Client:
    """Where to ask, and the idle connections (newest last)."""

    host: str
    port: int
    model: str
    mode: str
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = field(default_factory=list)

    def keeps(self, row: Row) -> bool:
        """Whether this request is one for a kept connection; of `both` two of four, one of them a stream."""
        return self.mode == "keep" or (self.mode == "both" and row.number % 4 > 1)

    def request(self, row: Row) -> bytes:
        stream = row.kind != "work"
        ask = {"model": self.model, "prompt": f"{row.number % 10**8:08d}", "temperature": 0}
        ask |= {"max_tokens": 32 if row.kind == "stream" else 2, "stream": stream}
        body = json.dumps(ask).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n" + ("" if self.keeps(row) else "Connection: close\r\n")
        return head.encode() + b"\r\n" + body

    async def connection(self, row: Row) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An idle connection that is alive as far as we can know, or a new one."""
        while self.idle and self.keeps(row):
            reader, writer, since = self.idle.pop()
            if not reader.at_eof() and not writer.is_closing() and time.monotonic() - since < IDLE_S:
                row.reused = True
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self.host, self.port)

    async def ask(self, row: Row) -> None:
        """Send one request and fill in how it ended."""
        writer = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await self.connection(row)
                row.sent = time.time()
                writer.write(self.request(row))
                again = await _answer(reader, row)
            if self.keeps(row) and again:
                self.idle.append((reader, writer, time.monotonic()))
                writer = None
        except TimeoutError:
            row.failed, row.why = "timeout", f"no end within {TIMEOUT_S:g} s"
        except WrongAnswer as wrong:
            row.failed, row.why = wrong.kind, str(wrong)
        except BROKEN as error:
            row.failed, row.why = "broken" if row.sent else "refused", repr(error)
        except OSError as error:
            row.failed, row.why = "broken" if row.sent else "refused", repr(error)
        finally:
            row.ended = time.time()
            if writer is not None:
                writer.close()


async def _answer(reader: asyncio.StreamReader, row: Row) -> bool:
    """Read a response to its end and check it; whether the connection may be used again."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = lines[0].split(" ", 2)[1]
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    if fields.get("transfer-encoding", "") == "chunked":
        body = await _chunks(reader, row)
    else:
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        row.first = time.time()
    if status != "200":
        raise WrongAnswer("status", f"{status}: {body[:200].decode(errors='replace')}")
    stream = row.kind != "work"
    if stream and not (body.rstrip().endswith(b"data: [DONE]") and b'"error"' not in body):
        raise WrongAnswer("wrong", f"the stream ends with {body[-200:].decode(errors='replace')}")
    if not stream and not json.loads(body)["choices"][0]["finish_reason"]:
        raise WrongAnswer("wrong", body[:200].decode(errors="replace"))
    return fields.get("connection", "").lower() != "close"


async def _chunks(reader: asyncio.StreamReader, row: Row) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        row.first = row.first or time.time()
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


def row(number: int, due: float) -> Row:
    kind = "stream" if number % STREAM_EVERY == 7 else ("short stream" if number % 2 else "work")
    return Row(number, kind, due)


async def open_loop(client: Client, rate: float) -> list[Row]:
    """Requests at fixed times, however the earlier ones fare, until standard input ends."""
    loop = asyncio.get_running_loop()
    stop = loop.create_task(asyncio.to_thread(sys.stdin.read))
    start = time.time() + 0.2
    print(json.dumps({"start": start}), flush=True)
    rows: list[Row] = []
    tasks: list[asyncio.Task[None]] = []
    while not stop.done():
        rows.append(row(len(rows), start + len(rows) / rate))
        delay = rows[-1].due - time.time()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(loop.create_task(client.ask(rows[-1])))
    await asyncio.gather(*tasks)
    return rows


async def closed_loop(client: Client, seconds: float) -> list[Row]:
    """As many requests as the other side can answer when a few are always in the air."""
    rows: list[Row] = []
    start = time.time()
    print(json.dumps({"start": start}), flush=True)

    async def one() -> None:
        while time.time() < start + seconds:
            rows.append(row(len(rows), time.time()))
            await client.ask(rows[-1])

    await asyncio.gather(*(one() for _ in range(CLOSED_LOOP)))
    return rows


def main(argv: list[str]) -> int:
    """Run as the command line says; rows go to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, amount in (("open", "rate"), ("closed", "seconds")):
        one = verbs.add_parser(verb)
        one.add_argument("url", type=urlsplit)
        one.add_argument("model")
        one.add_argument("amount", type=float, metavar=amount.upper())
        if verb == "open":
            one.add_argument("mode", choices=("new", "keep", "both"))
    args = parser.parse_args(argv)
    mode = "keep" if args.verb == "closed" else args.mode
    client = Client(args.url.hostname or "", args.url.port or 80, args.model, mode)
    run = closed_loop if args.verb == "closed" else open_loop
    rows = asyncio.run(run(client, args.amount))
    with contextlib.suppress(BrokenPipeError):
        for one in rows:
            print(json.dumps(asdict(one)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
