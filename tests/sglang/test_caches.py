"""All compiled kernels lie in the one folder that a node's pods share: what lies elsewhere, every pod compiles anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ling_engine.sglang import caches

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.sglang_lane import Lane


def test_no_cache_of_sglang_or_its_libraries_stays_below_home(lane: Lane, tmp_path: Path) -> None:
    result, folder = tmp_path / "told.json", tmp_path / "kernels"
    lane.run("tests.support.sglang_caches", str(result), env={"HOME": "/home/of", **caches.variables(folder)})
    told = json.loads(result.read_text())
    assert len(told) >= 10
    outside = {name: place for name, place in told.items() if not str(place).startswith(str(folder))}
    assert outside == {}
