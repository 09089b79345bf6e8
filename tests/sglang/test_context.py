"""How much of its context a request may use, in an engine that answers one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import sglang_room, sglang_site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.sglang_room import Room

pytestmark = pytest.mark.skipif(not sglang_site.PYTHON.exists(), reason="no SGLang here: hack/bootstrap sglang")
KEPT = 2  # tokens that SGLang keeps to itself


@pytest.fixture
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """With an engine for one request, and so the smallest pool."""
    room = sglang_room.Room(tmp_path_factory.mktemp("context"))
    try:
        room.up()
        room.sglang("one", "d001", "--concurrency", "1")
        room.until_active("one")
        yield room
    finally:
        room.end()


def test_the_only_request_may_fill_the_whole_context(slot: Room) -> None:
    """SGLang admits it only where a page and a token more are free; one that is not admitted waits for ever."""
    prompt = list(range(40, 160))
    new = sglang_room.CONTEXT - len(prompt)
    assert len(slot.ids(prompt, new)) == new - KEPT
