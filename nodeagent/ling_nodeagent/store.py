"""The agent's own descriptors: regions, manifests and listeners of every slot, each closed exactly once.

Whoever calls a method that takes descriptors gives them away: they are kept, or closed, whatever happens. Sealed sets
are kept as read-only descriptors, the ones that attachers get.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_api import canonical, fdpass, sameregion
from ling_api.errors import BadInput, LingError
from ling_api.manifest import Manifest
from ling_api.memory import memfd
from ling_api.memory.base import holder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_REGIONS = fdpass.MAX_FDS - 1  # of a part: the manifest must fit in the same frame
MAX_SLOT_REGIONS = 4096  # of one slot, or on their way back by one connection: no pod uses up the node's descriptors

Frame = tuple[dict[str, Any], list[int]]


class StoreRefused(LingError):
    """These descriptors are not what they should be; the catcher answers with the reason. They are closed."""


@dataclass(slots=True, kw_only=True)
class _Part:
    sizes: tuple[int, ...]
    fds: list[int]


@dataclass(slots=True, kw_only=True)
class _Held:
    kind: str
    parts: list[_Part] = field(default_factory=list)
    manifest: int | None = None
    identity: bytes = b""

    def number_of(self, fds: Sequence[int]) -> int | None:
        """Which part has the same regions."""
        for number, part in enumerate(self.parts):
            if sameregion.all_same(fds, part.fds):
                return number
        return None

    def close(self) -> None:
        for part in self.parts:
            fdpass.close_all(part.fds)
        if self.manifest is not None:
            fdpass.close_all([self.manifest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What the store has of a set after somebody gave it back."""

    sealed: bool
    parts: tuple[tuple[int, ...], ...]
    identity: bytes


class Store:
    def __init__(self) -> None:
        self._sets: dict[tuple[str, str], _Held] = {}
        self._staged: dict[tuple[int, str], _Held] = {}  # given back in parts, by connection and set
        self._stale: set[tuple[int, str]] = set()  # sets whose give-back by that connection was refused
        self._listeners: dict[str, int] = {}

    # regions

    def deposit(
        self, slot: str, name: str, kind: str, sizes: Sequence[int], fds: list[int], *, only: int | None = None
    ) -> int:
        """Keeps one part; returns its number. The same regions again are that part again.

        With `only`, regions that are not known become that part or none: -1 is returned.
        """
        with closing(fds):
            if len(fds) > MAX_REGIONS:
                raise StoreRefused(f"{len(fds)} regions in one part: at most {MAX_REGIONS}")
            check_regions(kind, sizes, fds)
            held = self._sets.setdefault((slot, name), _Held(kind=kind))
            if held.kind != kind:
                raise StoreRefused(f"the set's other regions are {held.kind}, these are {kind}")
            known = held.number_of(fds)
            if known is not None:
                return known
            if only is not None and only != len(held.parts):
                return -1
            check_count([its for (name_of, _), its in self._sets.items() if name_of == slot], len(fds))
            held.parts.append(_Part(sizes=tuple(sizes), fds=fds.copy()))
            fds.clear()
            return len(held.parts) - 1

    def knows(self, slot: str, name: str, fds: Sequence[int]) -> bool:
        """Whether these very regions are a part that is held."""
        held = self._sets.get((slot, name))
        return held is not None and held.number_of(fds) is not None

    def seal(self, slot: str, name: str, manifest: list[int]) -> None:
        """Makes a set final and keeps its manifest. Raises LingError (WriterLeft among them); the set is then lost."""
        with closing(manifest):
            held = self._sets[(slot, name)]
            held.identity = self._finish(name, held, manifest)

    def give_back(self, slot: str, conn: int, message: dict[str, Any], fds: list[int]) -> Taken | None:
        """One `have` frame; what the store has now, or None while frames of a sealed set are still to come.

        Raises LingError when the frames are not what they say: nothing of them is kept.
        """
        with closing(fds):
            name, kind, part = message["set"], message["kind"], message["part"]
            if part == 0 and message["manifest"]:
                self._unstage(conn, name)
                self._staged[(conn, name)] = _Held(kind=kind, manifest=fds.pop(0))
            staged = self._staged.get((conn, name))
            if staged is None:
                return self._take_unsealed(slot, conn, message, fds)
            check_count([its for (giver, _), its in self._staged.items() if giver == conn], len(fds))
            staged.parts.append(_Part(sizes=tuple(message["sizes"]), fds=fds.copy()))
            fds.clear()
            if part + 1 < message["parts"]:
                return None
            del self._staged[(conn, name)]
            self._adopt(slot, name, staged)
            return self._taken(slot, name)

    def _take_unsealed(self, slot: str, conn: int, message: dict[str, Any], fds: list[int]) -> Taken:
        """Regions of a fill that goes on, or of one that ended while their holder was away: those are refused."""
        name, number = message["set"], message["part"]
        held = self._sets.get((slot, name))
        if held is not None and held.manifest is not None:
            return self._taken(slot, name, sealed=False)  # it lacks the manifest that is here
        known = len(held.parts) if held is not None else 0
        if (
            (conn, name) in self._stale
            or number > known
            or self.deposit(slot, name, message["kind"], message["sizes"], fds, only=number) != number
        ):
            self._stale.add((conn, name))
            raise StoreRefused("these regions are of a fill that has ended")
        return self._taken(slot, name)

    def _adopt(self, slot: str, name: str, staged: _Held) -> None:
        """A sealed set that was given back becomes the agent's own, unless it is here already."""
        held = self._sets.get((slot, name))
        manifest = [staged.manifest] if staged.manifest is not None else []
        staged.manifest = None
        try:
            if held is not None and held.manifest is not None:
                return
            staged.identity = self._finish(name, staged, manifest)
            self.drop(slot, name)
            self._sets[(slot, name)] = staged
            staged = _Held(kind=staged.kind)
        finally:
            fdpass.close_all(manifest)
            staged.close()

    def _finish(self, name: str, held: _Held, manifest: list[int]) -> bytes:
        """Seals, swaps writable descriptors for read-only ones, takes the manifest; returns the identity."""
        text = read_manifest(manifest[0])
        sizes = [size for part in held.parts for size in part.sizes]
        if text.set_id != name or text.kind != held.kind:
            raise StoreRefused(f"the manifest is of {text.kind} set {text.set_id}, not of {held.kind} set {name}")
        if [region.size for region in text.regions] != sizes:
            raise StoreRefused("the manifest's regions have other sizes than those deposited")
        verbs = holder(held.kind)
        for part in held.parts:
            for fd in part.fds:
                seal(held.kind, fd)
            check_regions(held.kind, part.sizes, part.fds)  # from here on the sizes are final
        readers: list[int] = []
        try:
            for part in held.parts:
                readers.extend(verbs.reader(fd) for fd in part.fds)
            own = holder("memfd").reader(manifest[0])
        except BaseException:
            fdpass.close_all(readers)
            raise
        for part in held.parts:
            fdpass.close_all(part.fds)
            part.fds[:] = [readers.pop(0) for _ in part.sizes]
        held.manifest = own
        return text.identity.to_bytes()

    def _taken(self, slot: str, name: str, *, sealed: bool | None = None) -> Taken:
        held = self._sets[(slot, name)]
        is_sealed = held.manifest is not None if sealed is None else sealed
        return Taken(sealed=is_sealed, parts=tuple(part.sizes for part in held.parts), identity=held.identity)

    def frames(self, slot: str, name: str) -> Iterator[Frame]:
        """The set as `keep`, `have` and `set` say it, part by part; the descriptors stay the store's."""
        held = self._sets.get((slot, name))
        for number in range(len(held.parts) if held else 0):
            yield self.frame(slot, name, number)

    def frame(self, slot: str, name: str, number: int) -> Frame:
        held = self._sets[(slot, name)]
        part = held.parts[number]
        manifest = [held.manifest] if number == 0 and held.manifest is not None else []
        fields = {"set": name, "kind": held.kind, "sizes": list(part.sizes), "part": number, "parts": len(held.parts)}
        return {**fields, "manifest": bool(manifest)}, [*manifest, *part.fds]

    def manifest(self, slot: str, name: str) -> int | None:
        held = self._sets.get((slot, name))
        return held.manifest if held is not None else None

    def drop(self, slot: str, name: str) -> None:
        held = self._sets.pop((slot, name), None)
        if held is not None:
            held.close()

    def forget_connection(self, conn: int) -> None:
        """Nothing more of what it was giving back will come."""
        for key in [key for key in self._staged if key[0] == conn]:
            self._staged.pop(key).close()
        self._stale = {key for key in self._stale if key[0] != conn}

    def _unstage(self, conn: int, name: str) -> None:
        staged = self._staged.pop((conn, name), None)
        if staged is not None:
            staged.close()

    # listeners

    def keep_listener(self, slot: str, fd: int) -> None:
        self.drop_listener(slot)
        self._listeners[slot] = fd

    def listener(self, slot: str) -> int | None:
        return self._listeners.get(slot)

    def drop_listener(self, slot: str) -> None:
        if slot in self._listeners:
            fdpass.close_all([self._listeners.pop(slot)])

    # all

    @property
    def open_fds(self) -> int:
        every = [*self._sets.values(), *self._staged.values()]
        regions = sum(len(part.fds) for held in every for part in held.parts)
        return regions + sum(held.manifest is not None for held in every) + len(self._listeners)

    def close(self) -> None:
        for held in (*self._sets.values(), *self._staged.values()):
            held.close()
        fdpass.close_all(list(self._listeners.values()))
        self._sets.clear()
        self._staged.clear()
        self._listeners.clear()


class closing:
    """Closes what is left in the list, error or not: who keeps a descriptor takes it out."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        fdpass.close_all(self._fds)
        self._fds.clear()


def check_regions(kind: str, sizes: Sequence[int], fds: Sequence[int]) -> None:
    """Whether the descriptors are regions of that kind and those sizes. Raises StoreRefused, BadInput."""
    if len(sizes) != len(fds):
        raise StoreRefused(f"{len(fds)} descriptors for {len(sizes)} regions")
    fdpass.close_all([holder(kind).reader(fd) for fd in fds])  # refuses what is no memory of that kind
    if kind == "memfd":
        for fd, size in zip(fds, sizes, strict=True):
            if os.fstat(fd).st_size != size:
                raise StoreRefused(f"a region has {os.fstat(fd).st_size} bytes, not {size}")


def check_count(held: Iterable[_Held], more: int) -> None:
    """Whether so many regions more may be kept beside those. Raises StoreRefused."""
    count = sum(len(part.fds) for each in held for part in each.parts)
    if count + more > MAX_SLOT_REGIONS:
        raise StoreRefused(f"{more} regions beside {count}: at most {MAX_SLOT_REGIONS}; make them larger")


def seal(kind: str, fd: int) -> None:
    """Makes a region final. What is given back is a read-only descriptor of what is final already."""
    if kind != "memfd" or not memfd.sealed(fd):
        holder(kind).seal(fd)


def read_manifest(fd: int) -> Manifest:
    """Seals the manifest's memfd and reads it. Raises LingError."""
    seal("memfd", fd)
    size = os.fstat(fd).st_size
    if not 0 < size <= canonical.LONGEST:
        raise BadInput(f"a manifest of {size} bytes")
    return Manifest.from_bytes(os.pread(fd, size, 0))
