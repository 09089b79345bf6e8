"""The folder of compiled kernels in an engine pod: packed for the node's agent, unpacked from it.

Compiled files are reused only at the same absolute path and with their times kept to the nanosecond: FlashInfer's ninja
compares them and builds anew otherwise (106 s instead of 35, measured). So the archive carries them as integers.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import IO

from ling_api.memory import memfd

_log = logging.getLogger(__name__)
MOST = 2 << 30  # bytes of an archive, and of its files
MOST_FILES = 100_000
_HEADERS = 3 << 10  # bytes of an archive beside a file's own, at most
_SPARE = 256 << 20  # bytes that an archive leaves to others
_CHUNK = 1 << 20
_MEMINFO = Path("/proc/meminfo")
_NANOSECONDS = "LING.mtime_ns"
_QUIET_S = 5.0  # what was written later than so long ago may not be whole
_LOCKS = (".lock", ".lck")  # of processes that are gone when the archive is unpacked
Snapshot = dict[str, tuple[int, int]]  # path below the folder -> bytes, mtime in ns


class JitCache:
    """Of one folder; knows what the agent has of it."""

    def __init__(self, folder: Path, group: Path = Path("/sys/fs/cgroup"), meminfo: Path = _MEMINFO) -> None:
        self._folder = folder
        self._group = group  # the pod's own, as a container sees it
        self._meminfo = meminfo
        self._known: Snapshot = {}

    def unpack(self, fd: int) -> int:
        """Lays an archive's files beside those that are there, which stay; returns how many came. Raises OSError,
        tarfile.TarError, ValueError. Of files of more than MOST bytes altogether nothing is written."""
        came = 0
        os.lseek(fd, 0, os.SEEK_SET)
        with _Source(fd, closefd=False) as source, tarfile.open(fileobj=source, mode="r:") as archive:
            for member in _members(archive):
                safe = tarfile.data_filter(member, str(self._folder))
                target = self._folder / safe.name
                if target.exists():
                    continue
                content = archive.extractfile(member)
                if content is None:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(target, content, member)
                came += 1
        self.note()
        return came

    def note(self) -> None:
        """What lies there now is nothing that the agent lacks: it came from there, or an import leaves it behind."""
        self._known = self._snapshot()

    def pack(self) -> int | None:
        """A sealed memfd with everything, the caller's; None if the agent has it already, or it is too much."""
        now = self._snapshot()
        if not now or now == self._known:
            return None
        total = sum(size for size, _ in now.values())
        if total > MOST or len(now) > MOST_FILES:
            _log.warning("jit=too-much files=%d folder=%s", len(now), self._folder)
            return None
        free = room(self._group, self._meminfo)
        if free is not None and total + len(now) * _HEADERS > free - _SPARE:
            _log.warning("jit=no-room bytes=%d free=%d folder=%s", total, free, self._folder)
            return None  # the archive is memory of this pod: engines come first
        fd = os.memfd_create("ling-jit", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            with (
                open(fd, "wb", closefd=False) as target,
                tarfile.open(fileobj=target, mode="w:", format=tarfile.PAX_FORMAT) as archive,
            ):
                for name in sorted(now):
                    self._add(archive, name)
            memfd.seal(fd)
        except BaseException:
            os.close(fd)
            raise
        self._known = now
        return fd

    def _add(self, archive: tarfile.TarFile, name: str) -> None:
        try:
            with (self._folder / name).open("rb") as content:
                stat = os.fstat(content.fileno())
                info = tarfile.TarInfo(name)
                info.size, info.mode, info.mtime = stat.st_size, stat.st_mode & 0o777, stat.st_mtime_ns // 10**9
                info.pax_headers = {_NANOSECONDS: str(stat.st_mtime_ns)}
                archive.addfile(info, content)
        except FileNotFoundError:
            return  # whoever compiles renames and removes

    def _snapshot(self) -> Snapshot:
        found: Snapshot = {}
        young = time.time_ns() - int(_QUIET_S * 1e9)
        for root, _folders, files in self._folder.walk():
            for file in files:
                path = root / file
                if file.endswith(_LOCKS) or path.is_symlink():
                    continue
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                if stat.st_mtime_ns <= young:
                    found[str(path.relative_to(self._folder))] = (stat.st_size, stat.st_mtime_ns)
        return found


def room(group: Path, meminfo: Path) -> int | None:
    """Bytes that this pod may still take: the lesser of its cgroup's rest and the host's; None: neither is told.

    As the kubelet counts: cached files that nobody used lately are given up first. What cannot be read (cgroup v1, no
    limit) sets no condition.
    """
    found = []
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(limit - used + _figure(group / "memory.stat", "inactive_file"))
    with contextlib.suppress(OSError, ValueError):
        found.append(_figure(meminfo, "MemAvailable:") * 1024)
    return min(found, default=None)


def _figure(path: Path, name: str) -> int:
    """Raises OSError, ValueError."""
    for line in path.read_text().splitlines():
        if line.split()[:1] == [name]:
            return int(line.split()[1])
    raise ValueError(f"{path} has no {name}")


class _Source(io.FileIO):
    """An archive of others: no header makes us read more than a little at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _CHUNK:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size) or b""


def _members(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The files to lay down. Raises ValueError.

    Headers come first, bytes later: an archive says how large its files are, and a sparse one says it for nothing.
    """
    out, total = [], 0
    for member in archive:
        if not member.isreg() or member.issparse():
            continue
        total += member.size
        out.append(member)
        if total > MOST or len(out) > MOST_FILES:
            raise ValueError(f"the archive's files are more than {MOST} bytes, or more than {MOST_FILES}")
    return out


def _write(target: Path, content: IO[bytes], member: tarfile.TarInfo) -> None:
    """By rename, with its time: nobody meets half a file."""
    new = target.with_name(f".{target.name}.new")
    try:
        with new.open("wb") as out:
            shutil.copyfileobj(content, out, _CHUNK)
        new.chmod(member.mode & 0o755)
        try:
            when = int(member.pax_headers.get(_NANOSECONDS, member.mtime * 10**9))
            os.utime(new, ns=(when, when))
        except OverflowError as error:
            raise ValueError(f"{member.name} has a time that is none") from error
        new.rename(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
