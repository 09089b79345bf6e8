"""What memory must offer to hold a weight set: two sides, few verbs.

Ranks create regions and map them: a `RankMemory`. Holders (agent, keeper, launcher) never map; they keep descriptors,
seal them and make the ones that attachers get: a `Holder`. Who fills maps its own regions writable, deposits their
descriptors, writes, gives up write access at the same addresses; who attaches maps the reader's descriptors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ling_api.errors import BadInput
from ling_api.memory import memfd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Mapping(Protocol):
    """Regions mapped back to back into one contiguous address range. Addresses never change until `close`."""

    @property
    def device(self) -> str:
        """Where the addresses mean something: `cpu`, or `cuda:N`."""

    @property
    def address(self) -> int:
        """Of the first byte."""

    @property
    def size(self) -> int:
        """Bytes of all regions, tails included."""

    def extend(self, fd: int, size: int) -> None:
        """Maps one more region of the filler, writable, directly behind the last. Raises DeviceError (no room left)."""

    def make_read_only(self, fds: Sequence[int]) -> None:
        """Gives up write access at the same addresses; `fds` are all regions in order, tails included.

        The descriptors stay the caller's. Afterwards a write fails in this process. Raises DeviceError.
        """

    def buffer(self, offset: int, nbytes: int) -> memoryview:
        """The bytes: a view (not writable once read-only) of host memory, a copy of device memory."""

    def close(self) -> None:
        """Unmaps, once; every tensor and buffer over the range must be gone. Raises DeviceError the second time."""


class RankMemory(Protocol):
    """Memory as a rank uses it. Only a filling rank may call `create`, and only its own regions are mapped writable."""

    @property
    def kind(self) -> str:
        """`memfd` or `cuda`, as in the protocol."""

    @property
    def granularity(self) -> int:
        """Bytes; region sizes are multiples of it."""

    @property
    def max_region(self) -> int:
        """Bytes of the largest region to make."""

    def create(self, size: int) -> int:
        """The descriptor (close-on-exec, the caller's) of a new region that others can map. Raises DeviceError."""

    def map(self, fds: Sequence[int], sizes: Sequence[int], *, writable: bool) -> Mapping:
        """Maps the regions in order; the descriptors stay the caller's and may be closed at once.

        `writable`: by the filler, with address room for tail regions. Raises DeviceError.
        """


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory as its holders see it: descriptors only.

    `seal(fd)`: contents are final; raises WriterLeft when somebody can still write. `reader(fd)`: a new descriptor
    (the caller's) to hand to an attacher, which cannot write through it.
    """

    seal: Callable[[int], None]
    reader: Callable[[int], int]


def holder(kind: str) -> Holder:
    """The holder's verbs for a kind of memory. Raises BadInput."""
    match kind:
        case "memfd":
            return Holder(seal=memfd.seal, reader=memfd.reader)
        case "cuda":
            # The driver keeps access per mapping, not per descriptor: nothing to seal, nothing to reopen.
            return Holder(seal=_already_sealed, reader=os.dup)
    raise BadInput(f"{kind!r} is no kind of memory; known are memfd, cuda")


def _already_sealed(fd: int) -> None:
    os.fstat(fd)  # a closed descriptor is an error here too
