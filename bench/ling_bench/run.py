"""`ling-bench run`: looks at the endpoints, warms them up, measures in turns, judges; one Result."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput

from . import endpoint, judge, kube, machine, protocol, told, workload
from .client import Client
from .errors import EndpointFailed
from .result import FAILED, OK, REFUSED, Result, Sample, Side, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .arguments import RunWishes
    from .endpoint import Endpoint
    from .protocol import Protocol
    from .workload import Workload

REQUESTS = 10


@dataclass(slots=True, kw_only=True)
class Lane:
    """An endpoint, the prompts that it gets, and what it has answered."""

    at: Endpoint
    work: Workload
    samples: list[Sample] = field(default_factory=list)

    def side(self) -> Side:
        told_of = any(one.rounds is not None for one in self.samples)
        return Side(
            url=self.at.client.url, model=self.at.model, server=self.at.server, samples=tuple(self.samples),
            rounds_from=self.at.rounds_from if told_of else None, drafts=self.at.drafts,
            drafts_from=self.at.drafts_from, connections=self.at.client.connections,
        )  # fmt: skip


def run(wishes: RunWishes, tool: str, say: Callable[[str], None]) -> Result:
    """Raises BadInput and, before anything is measured, EndpointFailed; later ones end in a result that says so."""
    asked = protocol.replay(wishes.output_tokens) if wishes.replay else _random(wishes)
    with contextlib.ExitStack() as open_until:
        clients = [Client(url, wishes.timeout) for url in (wishes.url, wishes.against) if url]
        for client in clients:
            open_until.callback(client.close)
        works = _works(wishes, asked, same=len(clients) == 2 and clients[0].url == clients[1].url)
        lanes = [Lane(at=_look(one, wishes, say), work=works[at]) for at, one in enumerate(clients)]
        if wishes.deployment:
            _stamp(lanes[0].at, kube.deployment(wishes.deployment))
        empty = Result(
            began=time.strftime("%Y-%m-%dT%H:%M:%S%z"), tool=tool, protocol=asked.stamp(), workload=works[0].stamp,
            acceptance=wishes.acceptance, sides=(),
            client=machine.stamp(wishes.hardware, {one.host for one in clients}),
        )  # fmt: skip
        _warm_up(lanes, asked, wishes, say)
        began, why = time.monotonic(), list[str]()
        try:
            _measure(lanes, asked, say)
        except EndpointFailed as error:
            why = [str(error)]
        sides = tuple(lane.side() for lane in lanes)
    refused = [] if why else [reason for side in sides for reason in judge.reasons(asked, side)]
    return replace(
        empty, sides=sides, acceptance=_acceptance(wishes.acceptance, sides), why=tuple(why or refused),
        verdict=FAILED if why else REFUSED if refused else OK,
        client=empty.client | {"took_s": round(time.monotonic() - began, 1)},
    )  # fmt: skip


def _random(wishes: RunWishes) -> Protocol:
    return protocol.random_prompts(wishes.input_tokens, wishes.output_tokens)


def _works(wishes: RunWishes, asked: Protocol, *, same: bool) -> Sequence[Workload]:
    """One for each endpoint. One held against itself gets other heads the second time: its cache knows these."""
    if asked.input_tokens is None:
        try:
            lines = Path(wishes.replay).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--replay {wishes.replay}: {error}") from None
        found = workload.replayed(
            lines, file=Path(wishes.replay).name, requests=wishes.requests, warmup=wishes.warmup,
            output_tokens=asked.output_tokens,
        )  # fmt: skip
        return [found, found]
    salt = wishes.salt or secrets.token_hex(4)
    return [
        workload.drawn(
            seed=wishes.seed, salt=each, requests=wishes.requests or REQUESTS, warmup=wishes.warmup,
            tokens=asked.input_tokens, output_tokens=asked.output_tokens, ids=wishes.ids,
        )
        for each in (salt, f"{salt}-again" if same else salt)
    ]  # fmt: skip


def _look(client: Client, wishes: RunWishes, say: Callable[[str], None]) -> Endpoint:
    found = endpoint.look(client, wishes.model, wishes.wait, say)
    if wishes.drafts is not None:
        found.drafts, found.drafts_from = wishes.drafts, "--drafts"
    if wishes.acceptance == "real" and found.server.get("settings", {}).get("load_format") == "dummy":
        raise BadInput(
            f"{client.url} serves dummy weights: no acceptance of theirs is real; say --acceptance simulated"
        )
    say(f"{client.url}: model {found.model}, rounds from {found.rounds_from or 'nowhere'}")
    return found


def _stamp(at: Endpoint, found: dict[str, Any]) -> None:
    at.server["deployment"] = found
    if at.drafts is None and (drafts := told.deployment_drafts(found["decoding"])) is not None:
        at.drafts, at.drafts_from = drafts, "spec.decoding"


def _warm_up(lanes: Sequence[Lane], asked: Protocol, wishes: RunWishes, say: Callable[[str], None]) -> None:
    for number in range(wishes.warmup):
        for lane in lanes:
            answer, counted = lane.at.ask(asked, lane.work.warmup[number])
            if counted is not None and not counted.tokens:
                lane.at.distrust()
                say(f"{lane.at.client.url}: its counters stand still and are left aside")
            rounds = answer.rounds if counted is None else counted.rounds
            if rounds and wishes.acceptance is None:
                raise BadInput(
                    f"{lane.at.client.url} drafts tokens: say --acceptance real, simulated or predictable; "
                    "see ling-bench run --help"
                )
        say(f"warm-up {number + 1} of {wishes.warmup}")


def _measure(lanes: Sequence[Lane], asked: Protocol, say: Callable[[str], None]) -> None:
    """Who is first changes from prompt to prompt."""
    prompts = lanes[0].work.prompts
    for index in range(len(prompts)):
        for lane in lanes if index % 2 == 0 else reversed(lanes):
            answer, counted = lane.at.ask(asked, lane.work.prompts[index])
            lane.samples.append(sample(index, answer, counted, lane.at.drafts))
        shown = (lane.samples[-1].tpot_ms for lane in lanes)
        speeds = " and ".join("-" if tpot is None else f"{tpot:.3f} ms" for tpot in shown)
        say(f"request {index + 1} of {len(prompts)}: {speeds} a token")


def _acceptance(said: str | None, sides: Sequence[Side]) -> str | None:
    """`none` where every endpoint counts verify rounds, and had none."""
    known = [one.rounds for side in sides for one in side.samples]
    return "none" if known and all(one == 0 for one in known) else said
