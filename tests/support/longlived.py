"""A pytest plugin: what lives longer than one test has time of its own to be made and to end in.

pytest-timeout counts everything that happens between a test's set-up and its tear-down. So the test that happens to be
the first of a module or of the run would pay for making a cluster, and the last one for taking it down. Here a wider
fixture's making stops that clock and starts it anew afterwards; the end of a module has a clock of its own. So has a
test that is run once more: pytest-timeout stops the clock at a failure, for debuggers, and no other would be started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from pytest_timeout import Settings  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Generator

SECONDS: Final = 600.0  # nothing that tests share takes longer, on a slow machine either


def _clock(item: pytest.Item, seconds: float) -> None:
    """Start the test's clock anew; where it has none, as with --timeout=0, it gets none."""
    if hasattr(item, "cancel_timeout"):
        item.ihook.pytest_timeout_cancel_timer(item=item)
        settings = Settings(seconds, "signal", func_only=False, disable_debugger_detection=False)
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)


def _own(item: pytest.Item) -> float:
    """The test's own limit in seconds."""
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker is not None else item.config.getoption("timeout") or item.config.getini("timeout")
    return float(limit)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Of a wider scope: beside the test's time."""
    item = getattr(request, "_pyfuncitem", None)  # the test that is the first to ask; request.node is the scope's
    if fixturedef.scope == "function" or item is None:
        return (yield)
    _clock(item, SECONDS)
    try:
        return (yield)
    finally:
        _clock(item, _own(item))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Of a run that is not the test's first."""
    if getattr(item, "execution_count", 1) > 1:
        _clock(item, _own(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """The last test of a file, or of the run: wider fixtures may end with it."""
    if nextitem is None or nextitem.path != item.path:
        _clock(item, SECONDS)
    yield
