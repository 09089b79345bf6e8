"""Compiled kernels between the launcher and its agent: asked for once before the first server, offered when it serves.

They are asked for as soon as the zygote knows which (`ahead`), and unpacked while it imports. Nothing reads them before
`settled`: zygote and describing child compile nothing. An agent that does not answer then is asked again by the line.
An engine never depends on it: without an agent that has them, kernels are compiled anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tarfile
import time
from typing import TYPE_CHECKING, Any

from ling_api import fdpass

from . import jit_early
from .jitcache import JitCache

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

type Put = Callable[[dict[str, Any], Sequence[int]], bool]
_log = logging.getLogger(__name__)
_PATIENCE_S = 10.0  # of a server's start, from the word to go
_AGAIN_S = 0.25  # an agent may learn of a pod a moment after its first process runs
OFFER_AFTER_S = 30.0  # from the first request accepted: by then a few were answered, and what they needed is compiled


class JitExchange:
    """All methods on the event loop."""

    def __init__(self, folder: Path) -> None:
        usable = folder.is_dir() and os.access(folder, os.W_OK)
        self._cache = JitCache(folder) if usable else None
        self._put: Put = lambda _message, _fds: False  # on the folder connection to the agent of the moment
        self._key = ""
        self._settled = asyncio.Event()
        self._early: asyncio.Task[None] | None = None
        self._answered = False
        self._unpacked = False
        self._tasks: set[asyncio.Task[None]] = set()

    def ahead(self, key: str, run_dir: Path) -> None:
        """What `named` will say; asks by itself, until there is an answer or a line to the agent."""
        if self._cache is not None and key and self._early is None and not self._settled.is_set():
            self._early = self._run(self._ask_early(key, run_dir))

    def named(self, key: str) -> None:
        """What compiled kernels depend on, 64 hex digits; "" = this runtime compiles none. All is imported."""
        self._key = key
        if self._cache is None or not key:
            self._settled.set()
        elif self._unpacked:
            self._run(asyncio.to_thread(self._cache.note))

    def met(self, agent_has_it: bool, put: Put) -> None:
        """An agent is there, spoken to by `put`; `agent_has_it` = it keeps caches."""
        self._put = put if agent_has_it else self._put
        if self._early is not None:
            self._early.cancel()
        if self._settled.is_set() or self._answered:
            return
        if not agent_has_it:
            self._settled.set()
            return
        self._put({"op": "jit", "key": self._key}, ())

    def came(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        """The agent's answer; the descriptors become ours."""
        again, self._answered = self._answered, True
        if self._cache is not None and fds and not again and not self._settled.is_set():
            self._run(self._unpack(self._cache, fds[0]))
            return
        fdpass.close_all(fds)
        if not again:
            self._settled.set()

    async def settled(self) -> None:
        """Until the folder is as full as it will be, or a server can wait no longer."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._settled.wait()
        except TimeoutError:
            _log.warning("jit=late patience_s=%g", _PATIENCE_S)
            self._settled.set()

    def offer_later(self) -> None:
        """A server accepts: what it had to compile is packed and sent once it has answered a little."""
        if self._cache is not None and self._key:
            asyncio.get_running_loop().call_later(OFFER_AFTER_S, self.offer)

    def offer(self) -> None:
        """Packs what is new and sends it."""
        if self._cache is not None and self._key:
            self._run(self._offer(self._cache))

    async def _ask_early(self, key: str, run_dir: Path) -> None:
        while not self._answered:
            try:
                await jit_early.ask(run_dir, key, self.came)
            except OSError as error:
                _log.debug("jit=not-yet reason=%r", str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _unpack(self, cache: JitCache, fd: int) -> None:
        began = time.monotonic()
        try:
            came = await asyncio.to_thread(cache.unpack, fd)
        except (OSError, tarfile.TarError, ValueError) as error:
            _log.warning("jit=broken reason=%r", str(error))
        else:
            self._unpacked = True
            _log.info("jit=unpacked files=%d ms=%.0f", came, (time.monotonic() - began) * 1000)
        finally:
            os.close(fd)
            self._settled.set()

    async def _offer(self, cache: JitCache) -> None:
        try:
            fd = await asyncio.to_thread(cache.pack)
        except OSError as error:
            _log.warning("jit=not-packed reason=%r", str(error))
            return
        if fd is None:
            return
        try:
            size = os.fstat(fd).st_size
            sent = self._put({"op": "jit-offer", "key": self._key, "bytes": size}, [fd])
            _log.info("jit=offered bytes=%d sent=%s", size, sent)
        finally:
            os.close(fd)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
