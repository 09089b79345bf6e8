"""Tickets: once, in time, by the right pod, for the right thing, while the stream lives."""

from __future__ import annotations

from typing import Any

import pytest

from ling_nodeagent.tickets import LIFE, SIZE, TicketRefused, Tickets

GOOD: dict[str, Any] = {"purpose": "fetch", "uid": "u", "now": 10.0, "server": "s"}


def minted() -> tuple[Tickets, bytes]:
    tickets = Tickets()
    return tickets, tickets.mint("fetch", "u", 10.0, server="s", set_="x:0", stream=7)


def test_a_ticket_is_32_bytes_that_nobody_guesses() -> None:
    tickets = Tickets()
    made = {tickets.mint("fetch", "u", 0.0) for _ in range(100)}
    assert len(made) == 100
    assert {len(each) for each in made} == {SIZE}


def test_a_ticket_gives_its_right_once() -> None:
    tickets, ticket = minted()
    assert tickets.redeem(ticket, **GOOD).set == "x:0"
    with pytest.raises(TicketRefused, match="used already"):
        tickets.redeem(ticket, **GOOD)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"now": 10.0 + LIFE}, "older than 5 s"),
        ({"uid": "other"}, "another pod's"),
        ({"purpose": "deposit"}, "not to deposit"),
        ({"server": "other"}, "for server 's'"),
    ],
    ids=["late", "pod", "purpose", "server"],
)
def test_a_ticket_is_refused(change: dict[str, Any], words: str) -> None:
    tickets, ticket = minted()
    with pytest.raises(TicketRefused, match=words):
        tickets.redeem(ticket, **{**GOOD, **change})


def test_a_strangers_try_leaves_the_ticket_to_its_owner() -> None:
    tickets, ticket = minted()
    with pytest.raises(TicketRefused):
        tickets.redeem(ticket, **{**GOOD, "uid": "other"})
    assert tickets.redeem(ticket, **GOOD).set == "x:0"


def test_tickets_die_with_their_stream() -> None:
    tickets, ticket = minted()
    tickets.end_stream(7)
    with pytest.raises(TicketRefused, match="its stream ended"):
        tickets.redeem(ticket, **GOOD)


def test_old_tickets_are_swept_when_new_ones_are_made() -> None:
    tickets, _ = minted()
    tickets.mint("fetch", "u", 10.0 + LIFE)
    assert len(tickets) == 1
