"""The descriptor store: each descriptor is kept or closed, once; sealed sets are read-only."""

from __future__ import annotations

import mmap
import os
from typing import Any

import pytest
from tests.support.descriptors import none_leaked
from tests.support.rank_client import TestSet, memfd_of

from ling_api.errors import BadInput, LingError, WriterLeft
from ling_api.memory.memfd import MemfdMemory, sealed
from ling_nodeagent import store as store_module
from ling_nodeagent.store import MAX_REGIONS, Store, StoreRefused

SLOT, SET = "ns/demo-0", TestSet(name="weights")
SIZES = [SET.nbytes // 2] * 2


def regions() -> list[int]:
    return [MemfdMemory().create(size) for size in SIZES]


def manifest(what: TestSet = SET, sizes: list[int] = SIZES) -> list[int]:
    return [memfd_of(what.manifest(sizes))]


def filled(store: Store) -> None:
    store.deposit(SLOT, SET.id, "memfd", SIZES, regions())
    store.seal(SLOT, SET.id, manifest())


def message(*, sealed_: bool = True, part: int = 0, parts: int = 1) -> dict[str, Any]:
    return {"set": SET.id, "kind": "memfd", "sizes": SIZES, "part": part, "parts": parts, "manifest": sealed_}


def test_a_sealed_set_is_read_only_and_whole() -> None:
    with none_leaked():
        store = Store()
        filled(store)
        ((fields, fds),) = store.frames(SLOT, SET.id)
        assert fields == message()
        assert all(sealed(fd) for fd in fds)
        with pytest.raises(PermissionError):
            mmap.mmap(fds[1], SIZES[0], prot=mmap.PROT_WRITE)
        assert store.open_fds == 3
        store.close()
        assert store.open_fds == 0


def test_one_slot_has_so_many_regions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_SLOT_REGIONS", 3)
    with none_leaked():
        store = Store()
        store.deposit(SLOT, SET.id, "memfd", SIZES, regions())
        with pytest.raises(StoreRefused, match="at most 3"):
            store.deposit(SLOT, SET.id, "memfd", SIZES, regions())
        store.deposit("ns/other-0", SET.id, "memfd", SIZES, regions())
        store.give_back(SLOT, 7, message(parts=2), [*manifest(), *regions()])
        with pytest.raises(StoreRefused, match="at most 3"):
            store.give_back(SLOT, 7, message(sealed_=False, part=1, parts=2), regions())
        store.forget_connection(7)
        assert store.open_fds == 4
        store.close()


def test_the_same_regions_again_are_the_same_part() -> None:
    with none_leaked():
        store, own = Store(), regions()
        assert store.deposit(SLOT, SET.id, "memfd", SIZES, [os.dup(fd) for fd in own]) == 0
        assert store.deposit(SLOT, SET.id, "memfd", SIZES, own) == 0
        assert store.deposit(SLOT, SET.id, "memfd", SIZES, regions()) == 1
        assert store.open_fds == 4
        store.close()


def test_a_writer_that_is_left_refuses_the_seal() -> None:
    with none_leaked():
        store, own = Store(), regions()
        writer = mmap.mmap(own[1], SIZES[1])
        store.deposit(SLOT, SET.id, "memfd", SIZES, own)
        with pytest.raises(WriterLeft):
            store.seal(SLOT, SET.id, manifest())
        writer.close()
        store.close()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (TestSet(name="other").manifest(SIZES), "not of memfd set"),
        (SET.manifest(SIZES[:1]), "other sizes"),
        (b"{}", "manifest"),
        (b"\x00" * 100, "manifest"),
    ],
    ids=["another set", "other regions", "empty", "nonsense"],
)
def test_a_manifest_that_does_not_fit_is_refused(text: bytes, error: str) -> None:
    with none_leaked():
        store = Store()
        store.deposit(SLOT, SET.id, "memfd", SIZES, regions())
        with pytest.raises(LingError, match=error):
            store.seal(SLOT, SET.id, [memfd_of(text)])
        assert store.manifest(SLOT, SET.id) is None
        store.close()


def pipes() -> list[int]:
    return list(os.pipe())


def short() -> list[int]:
    return [MemfdMemory().create(SIZES[0]), memfd_of(b"x")]


@pytest.mark.parametrize(
    ("kind", "make"), [("memfd", pipes), ("memfd", short), ("floppy", regions)], ids=["pipes", "too short", "kind"]
)
def test_what_is_no_region_is_refused_and_closed(kind: str, make: Any) -> None:
    with none_leaked():
        store = Store()
        with pytest.raises(LingError):
            store.deposit(SLOT, SET.id, kind, SIZES, make())
        assert store.open_fds == 0


def test_a_part_leaves_room_for_the_manifest() -> None:
    with none_leaked():
        store = Store()
        many = [MemfdMemory().create(SIZES[0]) for _ in range(MAX_REGIONS + 1)]
        with pytest.raises(StoreRefused, match="at most 127"):
            store.deposit(SLOT, SET.id, "memfd", SIZES[:1] * len(many), many)


def test_what_is_given_back_is_checked_and_adopted() -> None:
    with none_leaked():
        old, new = Store(), Store()
        filled(old)
        ((fields, fds),) = old.frames(SLOT, SET.id)
        taken = new.give_back(SLOT, 1, fields, [os.dup(fd) for fd in fds])
        assert taken is not None
        assert taken.sealed
        assert taken.identity == SET.identity.to_bytes()
        again = new.give_back(SLOT, 2, fields, [os.dup(fd) for fd in fds])
        assert again == taken
        assert new.open_fds == 3
        old.close()
        new.close()


def test_a_forged_give_back_is_refused_and_closed() -> None:
    with none_leaked():
        store = Store()
        with pytest.raises(BadInput):
            store.give_back(SLOT, 1, message(), [memfd_of(b"{}"), *regions()])
        assert store.open_fds == 0


def test_a_set_given_back_in_parts_is_adopted_with_its_last_part() -> None:
    with none_leaked():
        store, own = Store(), regions()
        text = manifest()
        first = {**message(parts=2), "sizes": SIZES[:1]}
        assert store.give_back(SLOT, 1, first, [*text, own[0]]) is None
        last = {**message(parts=2, part=1, sealed_=False), "sizes": SIZES[1:]}
        taken = store.give_back(SLOT, 1, last, [own[1]])
        assert taken is not None
        assert taken.parts == ((SIZES[0],), (SIZES[1],))
        store.close()


def test_a_give_back_that_ends_half_way_leaves_nothing() -> None:
    with none_leaked():
        store, own = Store(), regions()
        store.give_back(SLOT, 1, {**message(parts=2), "sizes": SIZES[:1]}, [*manifest(), own.pop()])
        store.forget_connection(1)
        assert store.open_fds == 0
        os.close(own.pop())


def test_regions_of_a_fill_that_has_ended_are_refused() -> None:
    with none_leaked():
        store = Store()
        store.deposit(SLOT, SET.id, "memfd", SIZES, regions())
        with pytest.raises(StoreRefused, match="has ended"):
            store.give_back(SLOT, 1, message(sealed_=False), regions())
        with pytest.raises(StoreRefused, match="has ended"):
            store.give_back(SLOT, 1, message(sealed_=False, part=1, parts=2), regions())
        assert store.open_fds == 2
        store.close()
