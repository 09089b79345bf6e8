"""The gaps of every event as an SVG: one row per event and mode, one dot per time that it happened. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDTH, LEFT, RIGHT, ROW, TOP = 820, 190, 30, 30, 46
LEAST, MOST = 5.0, 20_000.0  # ms
TICKS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def draw(reports: Sequence[dict[str, Any]]) -> str:
    """`reports` as in the JSON: event, mode, gaps, steady_gap (ms), sent, failures."""
    height = TOP + ROW * len(reports) + 34
    body = "\n".join([*_axis(height), *(line for at, one in enumerate(reports) for line in _row(at, one))])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def place(milliseconds: float) -> float:
    """The x of a time, on a scale of powers of ten."""
    share = math.log(min(max(milliseconds, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _axis(height: int) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="16">longest time without a first token around each event (ms); bar: steady load</text>'
    for tick in TICKS:
        x = place(tick)
        yield f'<line x1="{x:.1f}" y1="{TOP - 14}" x2="{x:.1f}" y2="{height - 24}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{tick}</text>'


def _row(at: int, one: dict[str, Any]) -> Iterator[str]:
    y = TOP + ROW * at
    failed = sum(one["failures"].values())
    yield f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{one["event"]}, {one["mode"]}</text>'
    small = f'x="{LEFT - 10}" y="{y + 16}" text-anchor="end" fill="#777" font-size="9"'
    yield f"<text {small}>{one['sent']} requests, {failed} failed</text>"
    yield f'<rect x="{LEFT}" y="{y - 3}" width="{place(one["steady_gap"]) - LEFT:.1f}" height="6" fill="#cde"/>'
    for gap in one["gaps"]:
        yield f'<circle cx="{place(gap):.1f}" cy="{y}" r="4" fill="#1f5fa8" fill-opacity="0.5"/>'
