"""The folder of compiled kernels in an engine pod: packed for the node's agent, unpacked from it.

Compiled files are reused only at the same absolute path and with their times kept to the nanosecond: FlashInfer's ninja
compares them and builds anew otherwise (106 s instead of 35, measured). So the archive carries them as integers.
"""

from __future__ import annotations

import io
import logging
import os
import tarfile
import time
from typing import TYPE_CHECKING

from ling_api.memory import memfd

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)
MOST = 2 << 30  # bytes of an archive
_NANOSECONDS = "LING.mtime_ns"
_QUIET_S = 5.0  # what was written later than so long ago may not be whole
_LOCKS = (".lock", ".lck")  # of processes that are gone when the archive is unpacked
Snapshot = dict[str, tuple[int, int]]  # path below the folder -> bytes, mtime in ns


class JitCache:
    """Of one folder; knows what the agent has of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: Snapshot = {}

    def unpack(self, fd: int) -> int:
        """Lays an archive's files beside those that are there, which stay; returns how many came. Raises OSError,
        tarfile.TarError."""
        came = 0
        os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb", closefd=False) as source, tarfile.open(fileobj=source, mode="r:") as archive:
            for member in archive:
                safe = tarfile.data_filter(member, str(self._folder))
                target = self._folder / safe.name
                if not member.isreg() or target.exists():
                    continue
                content = archive.extractfile(member)
                if content is None:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(target, content.read(), member)
                came += 1
        self._known = self._snapshot()
        return came

    def pack(self) -> int | None:
        """A sealed memfd with everything, the caller's; None if the agent has it already, or it is too much."""
        now = self._snapshot()
        if not now or now == self._known:
            return None
        if sum(size for size, _ in now.values()) > MOST:
            _log.warning("jit=too-much files=%d folder=%s", len(now), self._folder)
            return None
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
        path = self._folder / name
        try:
            data, stat = path.read_bytes(), path.stat()
        except FileNotFoundError:
            return  # whoever compiles renames and removes
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(data), stat.st_mode & 0o777, stat.st_mtime_ns // 10**9
        info.pax_headers = {_NANOSECONDS: str(stat.st_mtime_ns)}
        archive.addfile(info, io.BytesIO(data))

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


def _write(target: Path, data: bytes, member: tarfile.TarInfo) -> None:
    """By rename, with its time: nobody meets half a file."""
    new = target.with_name(f".{target.name}.new")
    new.write_bytes(data)
    new.chmod(member.mode & 0o755)
    when = int(member.pax_headers.get(_NANOSECONDS, member.mtime * 10**9))
    os.utime(new, ns=(when, when))
    new.rename(target)
