"""The dashboard's panels as one SVG, from Prometheus' answers to their queries; drawn by us, not by Grafana. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.sax.saxutils import escape

UNIT, HIGH, GAP, TOP = 50, 34, 8, 26  # pixels of a grid column and row, between panels, above all of them
COLOURS: Final = ("#1f5fa8", "#d9730d", "#2e8b57", "#a83279", "#6b6b6b", "#b8860b")
GOOD, BAD, PLAIN = "#2e8b57", "#c0392b", "#1f5fa8"
LETTER: Final = 6.2  # pixels of a letter of the small text

type Points = Sequence[tuple[float, float]]  # Unix time, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One answer of a query over time."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of the dashboard with what its queries had; the grid has 24 columns."""

    title: str
    kind: str  # row | stat | timeseries | state-timeline
    unit: str = ""
    x: int = 0
    y: int = 0
    w: int = 24
    h: int = 1
    series: tuple[Series, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)  # of values, instead of their numbers
    steps: tuple[tuple[float, str], ...] = ()  # thresholds: from this value on, this colour


def legend(template: str, labels: Mapping[str, str]) -> str:
    """`p50 {{deployment}}` with the series' labels."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), template or "value")


def panel(board: Mapping[str, Any], series: Sequence[Series]) -> Panel:
    """A panel as Grafana's JSON has it."""
    defaults = board.get("fieldConfig", {}).get("defaults", {})
    texts = {
        value: str(to["text"]) for one in defaults.get("mappings", ()) for value, to in one.get("options", {}).items()
    }
    steps = tuple(
        (float(one["value"] or 0) if one["value"] is not None else float("-inf"), str(one["color"]))
        for one in defaults.get("thresholds", {}).get("steps", ())
    )
    return Panel(
        title=board["title"],
        kind=board["type"],
        unit=defaults.get("unit", ""),
        **board["gridPos"],
        series=tuple(series),
        texts=texts,
        steps=steps,
    )


def amount(value: float, unit: str) -> str:
    """A value for a glance."""
    if unit == "s":
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    if unit == "bytes":
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.0f} B"
    return f"{value:.4g}"


def draw(panels: Sequence[Panel], start: float, end: float, said: str) -> str:
    """All panels on their grid; `said` stands above them. Times are Unix times."""
    height = TOP + max(one.y + one.h for one in panels) * HIGH + GAP
    body = "\n".join(line for one in panels for line in _panel(one, start, end))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{24 * UNIT + GAP}" height="{height}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="#f4f5f7"/>\n'
        f'<text x="{GAP}" y="17" fill="#444">{escape(said)}</text>\n{body}\n</svg>\n'
    )


def _panel(one: Panel, start: float, end: float) -> Iterator[str]:
    left, top = one.x * UNIT + GAP, one.y * HIGH + TOP
    width, height = one.w * UNIT - GAP, one.h * HIGH - GAP
    if one.kind == "row":
        yield f'<text x="{left}" y="{top + 20}" font-size="15" font-weight="bold">{escape(one.title)}</text>'
        return
    yield f'<g transform="translate({left} {top})">'
    yield f'<rect width="{width}" height="{height}" fill="white" stroke="#ddd" rx="3"/>'
    yield f'<text x="8" y="16" font-weight="bold">{escape(one.title)}</text>'
    if not any(each.points for each in one.series):
        yield f'<text x="8" y="36" fill="#888">{"nothing" if one.kind == "state-timeline" else "no data"}</text>'
    elif one.kind == "stat":
        yield from _stat(one, width, height)
    elif one.kind == "state-timeline":
        yield from _states(one, width, start, end)
    else:
        yield from _lines(one, width, height, start, end)
    yield "</g>"


def _stat(one: Panel, width: int, height: int) -> Iterator[str]:
    with_points = [each for each in one.series if each.points]
    for number, each in enumerate(with_points):
        value = each.points[-1][1]
        colour = next((name for least, name in reversed(one.steps) if value >= least), PLAIN)
        colour = {"green": GOOD, "red": BAD}.get(colour, colour)
        x = width * (2 * number + 1) / (2 * len(with_points))
        shown = one.texts.get(f"{value:g}") or amount(value, one.unit)
        at = f'x="{x:.0f}" text-anchor="middle"'
        yield f'<text {at} y="{height * 0.66:.0f}" font-size="30" fill="{colour}">{escape(shown)}</text>'
        yield f'<text {at} y="{height * 0.87:.0f}" fill="#666">{escape(each.name)}</text>'


def _spans(points: Points, step: float) -> Iterator[tuple[float, float]]:
    """Stretches without a hole."""
    begin = last = points[0][0]
    for at, _ in points[1:]:
        if at - last > 1.5 * step:
            yield begin, last + step
            begin = at
        last = at
    yield begin, last + step


def _states(one: Panel, width: int, start: float, end: float) -> Iterator[str]:
    step = (end - start) / 200
    for number, each in enumerate(each for each in one.series if each.points):
        y = 26 + number * 26
        yield f'<text x="8" y="{y + 9}" fill="#444">{escape(each.name)}</text>'
        for begin, until in _spans(each.points, step):
            x = 8 + (begin - start) / (end - start) * (width - 16)
            long = max(2.0, (min(until, end) - begin) / (end - start) * (width - 16))
            colour = COLOURS[number % len(COLOURS)]
            yield f'<rect x="{x:.1f}" y="{y + 12}" width="{long:.1f}" height="8" fill="{colour}"/>'


def _lines(one: Panel, width: int, height: int, start: float, end: float) -> Iterator[str]:
    most = max((value for each in one.series for _, value in each.points if value == value), default=0.0) or 1.0
    left, right, top, bottom = 56, width - 10, 28, height - 38
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - top)
        yield f'<line x1="{left}" y1="{y:.0f}" x2="{right}" y2="{y:.0f}" stroke="#e6e6e6"/>'
        tick = amount(share * most, one.unit)
        yield f'<text x="{left - 5}" y="{y + 4:.0f}" text-anchor="end" fill="#666">{tick}</text>'
    yield f'<text x="{left}" y="{height - 24}" fill="#666">0 s</text>'
    yield f'<text x="{right}" y="{height - 24}" text-anchor="end" fill="#666">{end - start:.0f} s</text>'
    x = 8.0
    for number, each in enumerate(each for each in one.series if each.points):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            f"{left + (at - start) / (end - start) * (right - left):.1f},{bottom - value / most * (bottom - top):.1f}"
            for at, value in each.points
            if value == value  # not a number: nothing happened then
        ]
        yield f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        yield f'<text x="{x:.0f}" y="{height - 8}" fill="{colour}">{escape(each.name)}</text>'
        x += LETTER * len(each.name) + 14
