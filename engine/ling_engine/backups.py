"""The launcher's back-ups: duplicates of weight regions, manifests and the listener, to give back to a new agent.

A back-up keeps memory alive, so it is closed exactly when the agent says `drop`, not earlier and not later.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_api import fdpass

if TYPE_CHECKING:
    from collections.abc import Iterator

Frame = tuple[dict[str, Any], list[int]]


@dataclass(slots=True)
class _Set:
    kind: str
    parts: int
    sizes: dict[int, list[int]] = field(default_factory=dict)
    regions: dict[int, list[int]] = field(default_factory=dict)  # part -> fds
    manifest: int | None = None

    def close(self) -> None:
        for fds in self.regions.values():
            fdpass.close_all(fds)
        if self.manifest is not None:
            fdpass.close_all([self.manifest])


class Backups:
    """Owns every descriptor that it was given."""

    def __init__(self) -> None:
        self._sets: dict[str, _Set] = {}
        self._listener: int | None = None

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of regions held, by set id."""
        return {name: sum(sum(part) for part in held.sizes.values()) for name, held in self._sets.items()}

    def keep(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Takes one part of a set (again: replaced); returns the answer."""
        held = self._sets.setdefault(message["set"], _Set(kind=message["kind"], parts=message["parts"]))
        if message["manifest"]:
            self._replace_manifest(held, fds.pop(0))
        fdpass.close_all(held.regions.pop(message["part"], []))
        held.parts = message["parts"]
        held.sizes[message["part"]] = list(message["sizes"])
        held.regions[message["part"]] = fds
        return {"op": "stored", "set": message["set"], "part": message["part"]}

    def keep_manifest(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        """Takes a set's manifest; None for a set that was dropped meanwhile."""
        held = self._sets.get(message["set"])
        if held is None:
            fdpass.close_all(fds)
            return None
        self._replace_manifest(held, fds[0])
        return {"op": "stored-manifest", "set": message["set"]}

    def drop(self, name: str) -> dict[str, Any]:
        """Closes all copies of a set; returns the answer."""
        held = self._sets.pop(name, None)
        if held is not None:
            held.close()
        return {"op": "dropped", "set": name}

    def keep_listener(self, fd: int) -> None:
        if self._listener is not None:
            fdpass.close_all([self._listener])
        self._listener = fd

    def give_back(self) -> Iterator[Frame]:
        """The frames that tell a new agent what is held; the descriptors stay ours."""
        for name, held in self._sets.items():
            for part, fds in sorted(held.regions.items()):
                manifest = part == 0 and held.manifest is not None
                message: dict[str, Any] = {"op": "have", "set": name, "kind": held.kind, "sizes": held.sizes[part]}
                message |= {"part": part, "parts": held.parts, "manifest": manifest}
                yield message, [held.manifest, *fds] if manifest and held.manifest is not None else fds
        if self._listener is not None:
            yield {"op": "have-listener", "netns": self._netns(self._listener)}, [self._listener]

    def close(self) -> None:
        for name in list(self._sets):
            self.drop(name)
        if self._listener is not None:
            fdpass.close_all([self._listener])
            self._listener = None

    @staticmethod
    def _netns(fd: int) -> int:
        with socket.socket(fileno=fd) as sock:
            try:
                return fdpass.netns_cookie(sock)
            finally:
                sock.detach()

    @staticmethod
    def _replace_manifest(held: _Set, fd: int) -> None:
        if held.manifest is not None:
            fdpass.close_all([held.manifest])
        held.manifest = fd
