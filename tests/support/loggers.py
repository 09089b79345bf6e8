"""A pytest plugin: what a test made of the root logger ends with that test.

A command that is called in this process sets up its logging as in a process of its own: a handler on standard error,
which is the test's captured one and closed when the test is over. Left on the root logger, it would be written to by
whoever logs next, in any thread, for the rest of the run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
