"""Where `ling-engine` begins: it can be ended from its first moment, and only then loads what it is."""

from __future__ import annotations

import signal
import sys

TERMINATED = 128 + signal.SIGTERM  # as a shell tells a process that a signal ended


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    _end_when_told()
    from . import commands

    return commands.run(argv)


def _end_when_told() -> None:
    """Let SIGTERM end the process from now on; the launcher's loop takes it over.

    The kernel drops it for the first process of a container that has no handler yet: whoever is deleted while it loads
    asyncio and gRPC would live for all of its grace period.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


if __name__ == "__main__":
    sys.exit(main())
