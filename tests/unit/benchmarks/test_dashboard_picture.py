"""The picture of the dashboard: every panel is on it with what its queries had."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from benchmarks.dashboard_picture import Panel, Series, amount, draw, legend, panel

BOARD = json.loads((Path(__file__).parents[3] / "charts/ling/files/dashboard.json").read_text())


def words(svg: str) -> str:
    return " ".join(one.text or "" for one in ElementTree.fromstring(svg).iter())  # noqa: S314 - our own text


def test_every_panel_of_the_dashboard_is_drawn_and_empty_ones_say_so() -> None:
    panels = [panel(one, [Series(name="a<b", points=((0.0, 1.0), (5.0, float("nan"))))]) for one in BOARD["panels"]]
    text = words(draw(panels, 0, 10, "ten seconds"))
    assert all(one["title"] in text for one in BOARD["panels"])
    assert "ten seconds" in text
    assert "a<b" in text
    empty = words(draw([panel(one, []) for one in BOARD["panels"]], 0, 10, ""))
    assert "no data" in empty
    assert "nothing" in empty


def test_a_state_is_drawn_for_as_long_as_it_was_true() -> None:
    points = tuple((float(at), 1.0) for at in (*range(10), *range(50, 60)))
    shown = Panel(title="t", kind="state-timeline", h=4, series=(Series(name="on", points=points),))
    bars = [one for one in draw([shown], 0, 200, "").splitlines() if 'height="8"' in one]
    assert len(bars) == 2


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0021, "s", "2.1 ms"),
        (2.5, "s", "2.5 s"),
        (3 << 20, "bytes", "3 MiB"),
        (12, "bytes", "12 B"),
        (4, "short", "4"),
    ],
)
def test_amounts_for_a_glance(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_a_legend_names_its_labels() -> None:
    assert legend("p50 {{deployment}} {{none}}", {"deployment": "chat"}) == "p50 chat "
    assert legend("", {}) == "value"
