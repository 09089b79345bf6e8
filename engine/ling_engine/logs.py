"""How the engine pod's processes log: one line a record on stderr, key=value."""

from __future__ import annotations

import logging
import sys


def set_up(process: str, level: int = logging.INFO) -> None:
    """`process` (launcher, zygote, server) is named in every line; call again in a fork."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        force=True,
        format=f"%(asctime)s.%(msecs)03d %(levelname)s process={process} pid=%(process)d %(name)s %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))
