"""The background check: every chunk that was not sampled, at a pace, and no longer than the server lives."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ling_api.checks import checksum_regions
from ling_api.errors import AttachCheckFailed
from ling_api.identity import Identity
from ling_api.manifest import CHUNK, Manifest, RegionEntry
from ling_api.memory.memfd import MemfdMemory
from ling_engine import attach
from ling_engine.cohort import Attached

CHUNKS = attach.SAMPLE + 3


@pytest.fixture
def attached() -> Iterator[Attached]:
    memory = MemfdMemory()
    fd = memory.create(CHUNKS * CHUNK)
    mapping = memory.map([fd], [CHUNKS * CHUNK], writable=True)
    regions = checksum_regions(mapping, [CHUNKS * CHUNK])
    manifest = Manifest(identity=Identity.of("target", {}), rank=0, kind="memfd", tensors=(), regions=regions)
    yield Attached(manifest=manifest, mapping=mapping, filled=False)
    mapping.close()


def spoiled(one: Attached, chunk: int) -> Attached:
    (region,) = one.manifest.regions
    wrong = tuple(crc ^ (number == chunk) for number, crc in enumerate(region.checksums))
    return replace(one, manifest=replace(one.manifest, regions=(RegionEntry(region.size, wrong),)))


def test_every_chunk_is_looked_at_before_serving_or_after(attached: Attached) -> None:
    attach.check_rest(attached, threading.Event())
    found = 0
    for chunk in range(CHUNKS):
        try:
            attach.check_rest(spoiled(attached, chunk), threading.Event())
        except AttachCheckFailed as error:
            assert f"chunk {chunk} " in str(error)
            found += 1
    assert found == CHUNKS - attach.SAMPLE


def test_who_filled_the_set_has_read_it_all(attached: Attached) -> None:
    for chunk in range(CHUNKS):
        attach.check_rest(replace(spoiled(attached, chunk), filled=True), threading.Event())


def test_a_set_on_a_device_was_read_whole_before_serving(attached: Attached) -> None:
    """So nothing of it is read beside an engine that serves: SGLang's ranks need no turns for it."""
    for chunk in range(CHUNKS):
        one = spoiled(attached, chunk)
        attach.check_rest(replace(one, manifest=replace(one.manifest, kind="cuda")), threading.Event())


def test_it_ends_with_the_server(attached: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "_PAUSE_S", 600.0)
    monkeypatch.setattr(attach, "_PAUSES_S", 600.0 * CHUNKS)
    ending = threading.Event()
    check = threading.Thread(target=attach.check_rest, args=(attached, ending), daemon=True)
    check.start()
    ending.set()
    check.join(60)
    assert not check.is_alive()


@pytest.mark.parametrize("chunks", [0, 1, 100, 6000, 100_000])
def test_pauses_leave_half_of_two_minutes_for_reading(chunks: int) -> None:
    assert attach.pause(chunks) * chunks <= 60.0
    assert attach.pause(chunks) <= 0.01
