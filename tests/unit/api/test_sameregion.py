"""Descriptors of one region are known as such after a trip through a socket; those of two never are."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from ling_api import fdpass, sameregion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def memfd() -> int:
    return os.memfd_create("region")


def device_file() -> int:
    return os.open("/dev/null", os.O_RDWR)  # as with a GPU's: one inode for all


@pytest.fixture(params=[memfd, device_file])
def regions(request: pytest.FixtureRequest) -> Iterator[tuple[list[int], list[int]]]:
    """Two regions, and the same two as another process would get them."""
    own = [request.param(), request.param()]
    one, two = socket.socketpair()
    with one, two:
        fdpass.send(one, {"op": "deposit"}, own)
        came = fdpass.receive(two)[1]
    yield own, came
    fdpass.close_all([*own, *came])


@pytest.fixture(params=["F_DUPFD_QUERY", "kcmp"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kcmp":
        monkeypatch.setattr(sameregion, "_F_DUPFD_QUERY", 9999)


@pytest.mark.usefixtures("kernel")
def test_the_same_regions_in_their_order(regions: tuple[list[int], list[int]]) -> None:
    own, came = regions
    assert sameregion.all_same(own, came)
    assert not sameregion.all_same(own, came[::-1])
    assert not sameregion.all_same(own, came[:1])
    assert not sameregion.same(own[0], own[1])


def test_a_reopened_memfd_is_the_same_region() -> None:
    fd = memfd()
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    assert sameregion.same(fd, again)
    fdpass.close_all([fd, again])


@pytest.mark.parametrize("make", [memfd, device_file])
def test_a_kernel_that_tells_nothing_is_never_believed(
    make: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sameregion, "_F_DUPFD_QUERY", 9999)
    monkeypatch.setattr(sameregion, "_KCMP", {})
    one, two = make(), make()
    assert not sameregion.same(one, two)
    fdpass.close_all([one, two])


def test_a_closed_descriptor_is_an_error() -> None:
    fd = memfd()
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sameregion.same(fd, fd)
