"""Runs a command in PID, IPC, UTS, mount and network namespaces of its own and as another user, as a pod would be.

`python -m benchmarks.gpu.apart [--empty FOLDER] UID COMMAND ...`, as root. The new /proc shows the new PID namespace;
loopback is up; FOLDER is an empty one that everybody may write to, as a new pod's own would be.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import signal
import socket
import struct

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uid", type=int)
    parser.add_argument("--empty", type=os.fsencode, default=b"")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("COMMAND: write the one to run")
    os.unshare(os.CLONE_NEWPID | os.CLONE_NEWIPC | os.CLONE_NEWNET | os.CLONE_NEWUTS | os.CLONE_NEWNS)
    pid = os.fork()
    if pid:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda which, _: os.kill(pid, which))
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    mount(None, b"/", None, _MS_REC_PRIVATE)
    mount(b"proc", b"/proc", b"proc", 0)
    if args.empty:
        mount(b"tmpfs", args.empty, b"tmpfs", 0)
    loopback_up()
    os.setgroups([])
    os.setgid(args.uid)
    os.setuid(args.uid)
    os.environ["HOME"] = "/tmp"
    os.execvp(args.command[0], args.command)  # noqa: S606


if __name__ == "__main__":
    main()
