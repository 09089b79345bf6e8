"""What the keeper holds of weight sets: regions, manifests, and the populating of memfd regions.

The pod that first touches a page pays for it, so the slot pod populates every region before the filling engine writes
it. That takes seconds for gigabytes; `step` does one slice, so that the keeper's loop goes on between two of them.
Every method answers with the messages that the agent is to be told. Standard library and `ling_api.fdpass` only.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ling_api import fdpass

SLICE = 16 << 20  # bytes populated in one go: about 10 ms
LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

Message = dict[str, Any]


def memory_limit(files: Sequence[Path] = LIMIT_FILES) -> int | None:
    """Bytes that this container may use, None when unlimited: beyond it the kernel kills instead of saying no."""
    text = next((file.read_text().strip() for file in files if file.exists()), "max")
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


@dataclass(slots=True, kw_only=True, eq=False)
class Part:
    """The regions of one `keep` frame."""

    sizes: list[int]
    fds: list[int]
    stored: bool = False
    todo: deque[tuple[int, int, int]] = field(default_factory=deque)  # slices to populate: fd, offset, bytes

    def inodes(self) -> list[tuple[int, int]]:
        return [(stat.st_dev, stat.st_ino) for stat in map(os.fstat, self.fds)]

    def plan(self) -> None:
        for fd, size in zip(self.fds, self.sizes, strict=True):
            self.todo.extend((fd, offset, min(SLICE, size - offset)) for offset in range(0, size, SLICE))

    def close(self) -> None:
        self.todo.clear()
        fdpass.close_all(self.fds)


@dataclass(slots=True, kw_only=True, eq=False)
class WeightSet:
    kind: str
    count: int  # of parts
    parts: dict[int, Part] = field(default_factory=dict)
    manifest: list[int] = field(default_factory=list)  # no descriptor, or one: the set is then sealed

    def seal(self, manifest: int) -> None:
        fdpass.close_all(self.manifest)
        self.manifest = [manifest]

    def close(self) -> None:
        fdpass.close_all(self.manifest)
        for part in self.parts.values():
            part.close()


class Memory:
    """Every weight set that this slot pod holds, and the parts that are still being populated, oldest first."""

    def __init__(self) -> None:
        self.sets: dict[str, WeightSet] = {}
        self.populating: deque[tuple[str, int, Part]] = deque()

    def give_back(self) -> Iterator[tuple[Message, list[int]]]:
        """All of it, as `have` messages with descriptors that stay ours."""
        for name, held in self.sets.items():
            for number, part in sorted(held.parts.items()):
                sealed = held.manifest if number == 0 else []
                message = {"op": "have", "set": name, "kind": held.kind, "sizes": part.sizes, "part": number}
                yield message | {"parts": held.count, "manifest": bool(sealed)}, sealed + part.fds

    def keep(self, message: Message, fds: list[int]) -> list[Message]:
        """Take the descriptors of a `keep`; answers `stored` or `failed` now, or from a later `step`.

        The same regions (inodes) again change nothing; others take the place of the former ones. KeyError, TypeError
        or ValueError when the message is not what the protocol says: the descriptors are still the caller's.
        """
        name, number, sizes = str(message["set"]), int(message["part"]), [int(size) for size in message["sizes"]]
        sealed = 1 if message["manifest"] and number == 0 else 0
        empty = WeightSet(kind=str(message["kind"]), count=int(message["parts"]))
        if len(fds) != len(sizes) + sealed or min(sizes, default=0) <= 0:
            raise ValueError(f"{len(fds)} descriptors for regions of {sizes} bytes")
        held = self.sets.setdefault(name, empty)
        held.count = max(held.count, empty.count)  # a fill adds parts: its tail comes when the rest is kept long since
        part, old = Part(sizes=sizes, fds=fds[sealed:]), held.parts.get(number)
        if sealed:
            held.seal(fds[0])
        if old is not None and held.kind == "memfd" and old.inodes() == part.inodes():
            part.close()
        else:
            held.parts[number] = part
            if old is not None:
                old.close()
        return self._store(name, number, held)

    def keep_manifest(self, name: str, manifest: int) -> list[Message]:
        """Take the manifest of a set that is held; KeyError when it is not."""
        self.sets[name].seal(manifest)
        return [{"op": "stored-manifest", "set": name}]

    def drop(self, name: str) -> list[Message]:
        """Close every copy; a set that is not held is as good as dropped."""
        held = self.sets.pop(name, None)
        if held is not None:
            held.close()
        return [{"op": "dropped", "set": name}]

    def step(self) -> list[Message]:
        """Populate one slice of the oldest part. A dropped part has no slices left."""
        if not self.populating:
            return []
        name, number, part = self.populating[0]
        answers: list[Message] = []
        try:
            if part.todo:
                os.posix_fallocate(*part.todo[0])
                part.todo.popleft()
                part.stored = not part.todo
        except OSError as error:
            part.todo.clear()
            reason = f"cannot populate {sum(part.sizes)} bytes: {error.strerror}"
            answers.append({"op": "failed", "set": name, "reason": reason})
        if part.stored:
            answers.append({"op": "stored", "set": name, "part": number})
        if not part.todo:
            self.populating.popleft()
        return answers

    def _store(self, name: str, number: int, held: WeightSet) -> list[Message]:
        part = held.parts[number]
        part.stored = part.stored or held.kind != "memfd" or bool(held.manifest)
        if part.stored:
            return [{"op": "stored", "set": name, "part": number}]
        if part.todo:
            return []  # still at it
        total = sum(sum(each.sizes) for every in self.sets.values() for each in every.parts.values())
        limit = memory_limit()
        if limit is not None and total > limit:
            reason = f"{total} bytes of regions exceed the slot pod's memory limit of {limit} bytes"
            return [{"op": "failed", "set": name, "reason": reason}]
        part.plan()
        self.populating.append((name, number, part))
        return []
