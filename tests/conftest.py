"""Which folder a test lies in says what it needs: its marker, its time limit, and that cheap tests run first."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["tests.support.longlived", "tests.support.loggers"]
ROOT = Path(__file__).parent
STAGES = ("house", "unit", "integration", "sglang", "cluster", "gpu")
# Real processes and containers share a machine with whatever else runs there. What fails gets one more try, which the
# summary tells with the failure; --max-suite-reruns in pyproject.toml says how often that may happen in a run.
ONCE_MORE = ("integration", "cluster")
# steps have deadlines of their own, which say what was waited for: this ends what hangs; what tests share is extra
SECONDS = {"integration": 600, "cluster": 1200, "sglang": 1200}


def _stage(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).parts[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, and keep the random order within each stage only."""
    for item in items:
        stage = _stage(item)
        if stage not in ("house", "unit"):
            item.add_marker(stage)
        if stage in ONCE_MORE:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if stage in SECONDS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS[stage]))
    items.sort(key=lambda item: (STAGES.index(_stage(item)), item.get_closest_marker("last") is not None))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test had to be run once more: a fault to be looked into, though the run may pass."""
    once = terminalreporter.getreports("rerun")
    if once:
        terminalreporter.section("FAILED ONCE, AND WERE RUN AGAIN")
    for report in once:
        terminalreporter.write_line(f"{report.nodeid} ({report.when})", red=True)
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.write_line(f"--- {name}\n{text[-4000:]}")
