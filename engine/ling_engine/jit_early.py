"""Asks an agent for compiled kernels before there is a line to it: a connection of its own, for one answer.

The line is made when the zygote has imported everything and the model is described; kernels are known long before, and
their archive takes seconds to unpack.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ling_api import fdpass, names

from .channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PATIENCE_S = 5.0


async def ask(run_dir: Path, key: str, came: Callable[[dict[str, Any], list[int]], None]) -> None:
    """`came(message, fds)` with the answer; the descriptors become its own. Raises OSError where there is none: no
    agent, one that does not know this pod yet, or one of an earlier release."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def frame(message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == "jit" and not over.done():
            over.set_result(None)
            came(message, fds)
            return
        fdpass.close_all(fds)
        ended(str(message.get("reason", message["op"])))

    def ended(reason: str) -> None:
        if not over.done():
            over.set_exception(ConnectionError(reason))

    sock = fdpass.connect(run_dir / names.FD_SOCKET, 1.0)
    channel = Channel(sock, frame, lambda: ended("the connection ended"))
    try:
        channel.put({"op": "hello", "version": fdpass.VERSION, "kind": "kernels"})
        channel.put({"op": "jit", "key": key})
        async with asyncio.timeout(_PATIENCE_S):
            await over
    finally:
        channel.close()
