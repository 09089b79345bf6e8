"""The one story: observe -> plan -> write what is true -> do one step. Then again, until there is nothing to do.

What is true is written first: the status remembers what no other object tells (that a revision was given up, since when
a rollout makes no progress), so a death right after the step must not lose it. A slot whose pod, claim or object the
API server refuses to make holds up nobody else: the next slot's step is done instead.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_operator import apply, status, transitions
from ling_operator.actions import describe
from ling_operator.kube import ApiError, Conflict
from ling_operator.observe import observe
from ling_operator.plan import plan
from ling_operator.refusals import refusal, refuses, together
from ling_operator.rollout import COMPLETE
from ling_operator.stage import but_fills

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_operator.actions import Step
    from ling_operator.keyqueue import Key
    from ling_operator.kube import Verbs
    from ling_operator.metrics import Metrics
    from ling_operator.plan import Plan
    from ling_operator.refusals import Refusal
    from ling_operator.settings import Settings
    from ling_operator.views import Observed

log = logging.getLogger(__name__)

FIGURES_SECONDS: Final = 15.0  # between two statuses that differ in figures alone: a busy slot has new ones all along
REPEAT_SECONDS: Final = 0.5  # until the next look after the same step was done twice in a row


def _transition(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether something changed that people or a later plan wait for, not just a figure or a sentence."""

    def essence(one: dict[str, Any]) -> object:
        conditions = [(c["type"], c["status"], c["reason"]) for c in one.get("conditions") or ()]
        keys = ("observedGeneration", "currentRevision", "updateRevision", "progress", "readyReplicas", "replicas")
        return conditions, [one.get(key) for key in keys]

    return essence(before) != essence(after)


def _but_figures(one: dict[str, Any]) -> dict[str, Any]:
    """SLOMet says its figures in its message, so of it only what it says of them counts; nor does how far a fill is."""

    def said(of: dict[str, Any]) -> dict[str, Any]:
        message = "" if of.get("type") == names.SLO_MET else but_fills(of.get("message", ""))
        return {**of, "message": message}

    rest = {key: but_fills(value) if isinstance(value, str) else value for key, value in one.items()}
    rest.pop("performance", None)
    return rest | {key: [said(each) for each in one.get(key) or ()] for key in ("conditions", "slots")}


class Reconciler:
    """Looks at one LingDeployment at a time; the same value serves all of them."""

    def __init__(
        self, kube: Verbs, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.time
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._watched: dict[Key, float] = {}  # since when each has been looked at without a break
        self._figures: dict[Key, float] = {}  # when the last status was written, whatever it told
        self._last: dict[Key, Step] = {}  # a guard only: a step that changes nothing must not be done in a tight loop

    async def reconcile(self, key: Key) -> float | None:
        """One look and at most one step. The seconds until the next look, None when only an event needs one.

        While the API server is away nobody sees what engines and agents do, so no deadline runs.
        """
        try:
            return await self._look(key)
        except ApiError as error:
            if error.status == 0:
                self._watched.pop(key, None)
            raise

    async def _look(self, key: Key) -> float | None:
        namespace, name = key
        now = self._clock()
        observed = await observe(self._kube, namespace, name, self._settings, now)
        if observed is None:
            self._metrics.objects.forget(key)
            self._watched.pop(key, None)
            self._figures.pop(key, None)
            self._last.pop(key, None)
            return None
        observed = replace(observed, watched_since=self._watched.setdefault(key, now))
        planned = plan(observed, self._settings.images, now)
        built = status.build_status(observed, planned, now)
        self._metrics.objects.put(key, built)
        later = None if observed.deleting else await self._report(observed, planned, built, now)
        step = planned.step
        if step is None:
            self._last.pop(key, None)
            return min((one for one in (planned.requeue_after, later) if one is not None), default=None)
        step = await self._do_first(observed, planned, step, now)
        repeated = self._last.get(key) == step
        self._last[key] = step
        return REPEAT_SECONDS if repeated else 0.0

    async def _do_first(self, observed: Observed, planned: Plan, first: Step, now: float) -> Step:
        """The step that was done: the first that was not refused. ApiError when all were, or nobody answers."""
        found: list[Refusal] = []
        skipped: set[str] = set()
        step, slot = first, planned.slot
        while (error := await self._try(observed, step)) is not None:
            one = refusal(step, slot, error.status, error.said)
            found += [one] if one is not None else []
            skipped.add(slot or describe(step))
            other = plan(observed, self._settings.images, now, skipped)
            if other.step is None:
                await self._tell_refused(observed, together(planned.refused, found, ""), planned.refused, now)
                raise error
            step, slot = other.step, other.slot
        if found:
            stands = together(planned.refused, found, describe(step))
            await self._tell_refused(observed, stands, planned.refused, now)
        return step

    async def _try(self, observed: Observed, step: Step) -> ApiError | None:
        """None when it is done, the API server's no when it refuses. Raises ApiError when asking on is of no use."""
        log.info("step namespace=%s name=%s do=%r why=%r", observed.namespace, observed.name, describe(step), step.why)
        try:
            await apply.execute(self._kube, observed.namespace, step)
        except ApiError as error:
            if not refuses(step, error.status, error.said):
                raise
            self._metrics.errors.labels("refused").inc()
            log.error("refused namespace=%s name=%s error=%s", observed.namespace, observed.name, error)
            return error
        self._metrics.steps.labels(type(step).__name__.lower(), step.kind).inc()
        return None

    async def _tell_refused(
        self, observed: Observed, stands: tuple[Refusal, ...], known: tuple[Refusal, ...], now: float
    ) -> None:
        """What was refused stands in the status from now on, and is an event when it is new."""
        seen = replace(observed, previous=replace(observed.previous, refused=stands))
        built = status.build_status(seen, plan(seen, self._settings.images, now), now)
        for one in stands:
            if one not in known:
                event = transitions.Event(reason=one.reason, message=one.message, warning=True)
                await self._post(transitions.build_event(observed, event, now))
        if built != dict(observed.previous.raw or {}):
            self._metrics.objects.put((observed.namespace, observed.name), built)
            await self._tell(observed, built, now)

    async def _report(self, observed: Observed, planned: Plan, built: dict[str, Any], now: float) -> float | None:
        """Events, then the status, then the slots' AgentLost; the seconds after which the rest may be told, if any.

        A figure alone is written only when nothing is to do, and now and then.
        """
        before, key = dict(observed.previous.raw or {}), (observed.namespace, observed.name)
        due = self._figures.get(key, 0.0) + FIGURES_SECONDS
        later = due - now if due > now and before != built and _but_figures(before) == _but_figures(built) else None
        if later is None and before != built and (planned.step is None or _transition(before, built)):
            self._figures[key] = now
            await self._tell(observed, built, now)
            self._observe_rollout(observed, built, now)
        for facts in planned.facts:
            condition = status.agent_condition(facts, now)
            if condition is not None:
                meta = {"name": facts.name, "namespace": observed.namespace, "uid": facts.slot.uid}
                await self._write_status("LingSlot", meta, {"conditions": [condition.to_dict()]})
        return later

    async def _tell(self, observed: Observed, built: dict[str, Any], now: float) -> None:
        for event in transitions.events_of(observed.previous.conditions, built):
            await self._post(transitions.build_event(observed, event, now))
        meta = {"name": observed.name, "namespace": observed.namespace, "uid": observed.uid}
        await self._write_status("LingDeployment", meta, built)

    async def _write_status(self, kind: str, meta: dict[str, Any], told: dict[str, Any]) -> None:
        """A status that is refused is reported and does not hold up the work."""
        body = {"apiVersion": names.API_VERSION, "kind": kind, "metadata": meta}
        try:
            await self._kube.apply({**body, "status": told}, "status")
        except ApiError as error:
            if error.status in (0, 404, 409) or error.status >= 500:
                raise
            self._metrics.errors.labels("status").inc()
            log.error("status refused kind=%s name=%s error=%s", kind, meta["name"], error)

    async def _post(self, event: dict[str, Any]) -> None:
        try:
            await self._kube.create(event)
        except Conflict:
            log.debug("event: told before name=%s", event["metadata"]["name"])
        except ApiError as error:
            if error.status == 0 or error.status >= 500:
                raise
            log.warning("event refused reason=%s error=%s", event["reason"], error)

    def _observe_rollout(self, observed: Observed, built: dict[str, Any], now: float) -> None:
        """A rollout that has just ended is measured."""
        progress = observed.previous.progress
        done = any(c["type"] == names.PROGRESSING and c["reason"] == COMPLETE for c in built["conditions"])
        if progress is not None and done:
            self._metrics.rollouts.observe(max(0.0, now - progress.started))
