"""What several files of real processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Forks of one interpreter that has imported what engines need."""
    made = Nursery()
    yield made
    made.close()
