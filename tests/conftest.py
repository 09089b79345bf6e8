"""Which folder a test lies in says what it needs: its marker, its time limit, and that cheap tests run first."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["tests.support.longlived"]
ROOT = Path(__file__).parent
STAGES = ("house", "unit", "integration", "sglang", "cluster", "gpu")
# steps have deadlines of their own; what tests share is not counted
SECONDS = {"integration": 180, "cluster": 600, "sglang": 900}


def _stage(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).parts[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, and keep the random order within each stage only."""
    for item in items:
        stage = _stage(item)
        if stage not in ("house", "unit"):
            item.add_marker(stage)
        if stage in SECONDS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS[stage]))
    items.sort(key=lambda item: (STAGES.index(_stage(item)), item.get_closest_marker("last") is not None))
