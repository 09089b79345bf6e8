"""Runs a command in PID, IPC, UTS, mount and network namespaces of its own and as another user, as a pod would be.

`python -m benchmarks.gpu.apart UID [--empty FOLDER] COMMAND ...`, as root. The new /proc shows the new PID namespace;
loopback is up; FOLDER is an empty one that everybody may write to, as a new pod's own would be.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

_MS_REC_PRIVATE = 0x4000 | 0x40000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, target, kind, flags, None):
        raise OSError(ctypes.get_errno(), f"mount {target!r}")


def main() -> None:
    uid, command, empty = int(sys.argv[1]), sys.argv[2:], b""
    if command[0] == "--empty":
        empty, command = command[1].encode(), command[2:]
    os.unshare(os.CLONE_NEWPID | os.CLONE_NEWIPC | os.CLONE_NEWNET | os.CLONE_NEWUTS | os.CLONE_NEWNS)
    pid = os.fork()
    if pid:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda which, _: os.kill(pid, which))
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    mount(None, b"/", None, _MS_REC_PRIVATE)
    mount(b"proc", b"/proc", b"proc", 0)
    if empty:
        mount(b"tmpfs", empty, b"tmpfs", 0)
    loopback_up()
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.environ["HOME"] = "/tmp"
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
