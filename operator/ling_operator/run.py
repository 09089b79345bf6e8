"""The operator's process: kopf's watches, the reconcilers, the resync and the HTTP server, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import kopf

from ling_api import names
from ling_operator import handlers, kube, server
from ling_operator.keyqueue import KeyQueue
from ling_operator.metrics import Metrics
from ling_operator.mirror import Mirror
from ling_operator.page import Page, looking_at
from ling_operator.reconcile import Reconciler

if TYPE_CHECKING:
    from ling_operator.keyqueue import Key
    from ling_operator.settings import Settings

log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 2.0  # watches that break together begin anew together
STUCK_SECONDS: Final = 120.0  # a look that takes longer, or a due key that waits longer, means that we are stuck


class Operator:
    """What the tasks of the process share."""

    def __init__(self, settings: Settings, api: kube.Kube) -> None:
        self.settings = settings
        self.kube = api
        self.queue = KeyQueue()
        self.metrics = Metrics(lambda: self.queue.depth)
        spaces = (*settings.namespaces, settings.agent_namespace) if settings.namespaces else ()
        self.spaces = tuple(dict.fromkeys(spaces))  # empty: all of them
        self.mirror = Mirror(api, self.spaces)
        self.reconciler = Reconciler(self.mirror, settings, self.metrics)
        self.listed = asyncio.Event()
        self.surroundings_changed = asyncio.Event()
        self.watch_began = asyncio.Event()

    async def _one(self, key: Key) -> None:
        """One look at one key, whatever happens: a failure comes again later."""
        try:
            with self.metrics.duration.time():
                after = await self.reconciler.reconcile(key)
        except (kube.Conflict, kube.Missing) as error:
            wait = self.queue.retry(key)
            self.metrics.reconciles.labels("conflict").inc()
            log.info("again namespace=%s name=%s in=%.2fs conflict=%s", *key, wait, error)
        except Exception as error:
            wait = self.queue.retry(key)
            self.metrics.reconciles.labels("error").inc()
            self.metrics.errors.labels(type(error).__name__).inc()
            unexpected = not isinstance(error, kube.ApiError)
            log.error("failed namespace=%s name=%s in=%.2fs error=%s", *key, wait, error, exc_info=unexpected)
        else:
            self.queue.succeeded(key)
            self.metrics.reconciles.labels("ok").inc()
            if after is not None:
                self.queue.put(key, after)

    async def reconcile_forever(self) -> None:
        await self.listed.wait()  # half of what is there looks like a slot that lost its pods
        while True:
            key = await self.queue.take()
            try:
                await self._one(key)
            finally:
                self.queue.done(key)

    async def _every_key(self) -> None:
        for body in await self.mirror.list("LingDeployment", ""):
            self.queue.put((body["metadata"]["namespace"], body["metadata"]["name"]))

    async def resync_forever(self) -> None:
        """Every object at the start, when a watch began anew, and every few minutes in case an event got lost."""
        while True:
            self.watch_began.clear()
            wait = self.settings.resync_seconds
            try:
                await self.mirror.sync()
                await self._every_key()
                self.listed.set()
            except kube.ApiError as error:
                wait = 1.0
                log.error("listing failed error=%s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.watch_began.wait()
                await asyncio.sleep(SETTLE_SECONDS)

    async def agents_forever(self) -> None:
        """A change among agents or nodes concerns everybody; changes that come together are looked at once."""
        while True:
            await self.surroundings_changed.wait()
            self.surroundings_changed.clear()
            await self._every_key()
            await asyncio.sleep(1.0)

    def livez(self) -> server.Answer:
        stuck = self.queue.stuck_seconds()
        return (503, f"stuck for {stuck:.0f} s\n".encode()) if stuck > STUCK_SECONDS else (200, b"ok\n")

    def readyz(self) -> server.Answer:
        return (200, b"ok\n") if self.listed.is_set() else (503, b"the objects are not listed yet\n")

    async def serve(self) -> asyncio.Server:
        metrics = {"/metrics": lambda: (200, self.metrics.text()), "/livez": self.livez, "/readyz": self.readyz}
        return await server.serve(self.settings.port, metrics)


async def _watch(operator: Operator) -> None:
    """kopf's part; it returns when the process is told to end."""
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    ears = handlers.Ears(operator.queue, operator.mirror, operator.surroundings_changed.set, operator.watch_began.set)
    handlers.wire(registry, settings, ears)
    await kopf.operator(
        registry=registry,
        settings=settings,
        standalone=True,
        clusterwide=not operator.spaces,
        namespaces=operator.spaces,
    )


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. A look that is going on is given up: the next start resumes from what is there."""
    api = kube.Kube(await kube.connect(), exit_after_writes=settings.exit_after_writes)
    operator = Operator(settings, api)
    page = Page(looking_at(operator.mirror))
    try:
        http = await operator.serve()
        if settings.page_port:
            await page.start(settings.page_port)
    except BaseException:
        await api.close()
        raise
    log.info("started port=%d namespaces=%s", settings.port, ",".join(settings.namespaces) or "all")
    loops = [operator.reconcile_forever() for _ in range(settings.reconcilers)]
    tasks = [asyncio.create_task(one) for one in (*loops, operator.resync_forever(), operator.agents_forever())]
    watch = asyncio.create_task(_watch(operator))
    try:
        await asyncio.wait((watch, *tasks), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        http.close()
        page.stop()
        await api.close()
    for failure in results:
        if isinstance(failure, Exception):
            watch.cancel()
            raise failure
    await watch
    log.info("ended watched=%s", names.API_VERSION)
