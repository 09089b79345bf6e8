"""What the watches have told of every object that a plan looks at, so that a look costs the API server no request.

It has the verbs of `Kube`: reads come from memory, writes go through and their answers are remembered at once, so that
a look after a step sees it. An event that is older than what is known is dropped. A full listing now and then puts
right what a lost event left wrong; a write that meets the truth (409, 404) puts it right at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_operator.kube import Conflict, Missing
from ling_operator.surroundings import owner_uid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ling_operator.kube import Kube, Object

KINDS: Final[Mapping[str, str]] = {  # kind -> label selector of the objects that concern us
    "LingDeployment": "",
    "LingSlot": "",
    "Pod": names.LABEL_COMPONENT,
    "Service": names.LABEL_DEPLOYMENT,
    "ControllerRevision": names.LABEL_DEPLOYMENT,
    "ResourceClaim": names.LABEL_DEPLOYMENT,
    "PodDisruptionBudget": names.LABEL_DEPLOYMENT,
    "Node": "",
    "ResourceSlice": "",
    "DeviceClass": "",
}
OF_NO_NAMESPACE: Final = ("Node", "ResourceSlice", "DeviceClass")
BURIED: Final = 10_000  # uids of objects that are gone, the newest
_INDEXED: Final = (names.LABEL_DEPLOYMENT, names.LABEL_COMPONENT)

type Name = tuple[str, str]  # namespace ("" for nodes), name


def _name_of(body: Mapping[str, Any]) -> Name:
    meta = body["metadata"]
    return meta.get("namespace") or "", meta["name"]


def _version(body: Mapping[str, Any]) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)


class Mirror:
    """Objects by kind and name, and by the two labels that anybody asks for."""

    def __init__(self, kube: Kube, namespaces: Sequence[str] = ()) -> None:
        self._kube = kube
        self._namespaces = tuple(namespaces)
        self._objects: dict[str, dict[Name, Object]] = {kind: {} for kind in KINDS}
        self._gone: dict[str, int] = {}  # uid -> the version in which it went, oldest first
        self._labelled: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)

    # -- what is told
    def saw(self, kind: str, body: Object) -> None:
        """An object as somebody has just seen it."""
        name = _name_of(body)
        known = self._objects[kind].get(name)
        buried = self._gone.get(body["metadata"].get("uid") or "", -1)
        if _version(body) <= buried or (known is not None and _version(known) > _version(body)):
            return
        if known is not None:
            self._forget(kind, known)
        # who wrote which field is most of an object, and nothing that a plan looks at
        meta = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
        self._objects[kind][name] = {**body, "metadata": meta}
        for key in self._keys(kind, body):
            self._labelled[key].add(name[1])

    def saw_gone(self, kind: str, body: Mapping[str, Any]) -> None:
        """This very object is gone; one of the same name that came after it stays."""
        self._bury(body)
        known = self._objects[kind].get(_name_of(body))
        if known is not None and known["metadata"].get("uid") == body["metadata"].get("uid"):
            self._forget(kind, known)

    def _bury(self, body: Mapping[str, Any]) -> None:
        """A list that was asked for before it went must not bring it back; one that lost its label may get it again."""
        self._gone[body["metadata"].get("uid") or ""] = _version(body)
        while len(self._gone) > BURIED:
            del self._gone[next(iter(self._gone))]

    def _forget(self, kind: str, body: Object) -> None:
        namespace, name = _name_of(body)
        del self._objects[kind][namespace, name]
        for key in self._keys(kind, body):
            self._labelled[key].discard(name)
            if not self._labelled[key]:
                del self._labelled[key]

    @staticmethod
    def _keys(kind: str, body: Mapping[str, Any]) -> Iterable[tuple[str, str, str, str]]:
        labels = body["metadata"].get("labels") or {}
        return [(kind, _name_of(body)[0], label, labels[label]) for label in _INDEXED if label in labels]

    async def sync(self) -> None:
        """List everything anew. Raises ApiError when a list cannot be had; what is known stays as it is then."""
        await asyncio.gather(*(self._sync(kind) for kind in KINDS))

    async def _sync(self, kind: str) -> None:
        spaces = ("",) if kind in OF_NO_NAMESPACE else self._namespaces or ("",)
        before = dict(self._objects[kind])
        found = [one for space in spaces for one in await self._kube.list(kind, space, KINDS[kind])]
        for body in found:
            self.saw(kind, body)
        listed = {(_name_of(one), one["metadata"]["uid"]) for one in found}
        for name, body in before.items():  # known before the list was made, and not in it
            if (name, body["metadata"]["uid"]) in listed:
                continue
            if self._watched(kind, body):
                self.saw_gone(kind, body)
            else:  # no list names it
                await self._look_again(kind, *name)

    @staticmethod
    def _watched(kind: str, body: Mapping[str, Any]) -> bool:
        return not KINDS[kind] or KINDS[kind] in (body["metadata"].get("labels") or {})

    # -- the verbs of Kube
    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._objects[kind].get((namespace, name))

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        objects = self._objects[kind]
        if not selector:
            return [one for (where, _), one in objects.items() if namespace in ("", where)]
        label, _, value = selector.partition("=")
        return [objects[namespace, name] for name in sorted(self._labelled.get((kind, namespace, label, value), ()))]

    async def create(self, body: Object) -> Object:
        try:
            made = await self._kube.create(body)
        except Conflict:
            await self._look_again(body["kind"], *_name_of(body))
            raise
        self._remember(body["kind"], made)
        return made

    async def apply(self, body: Object, subresource: str = "") -> Object:
        """As `Kube.apply`, but Conflict when the name is somebody else's: apply alone would take that object over."""
        if not subresource and "uid" not in body["metadata"]:
            await self._must_not_be_foreign(body)
        try:
            made = await self._kube.apply(body, subresource)
        except (Conflict, Missing):
            await self._look_again(body["kind"], *_name_of(body))
            raise
        self._remember(body["kind"], made)
        return made

    async def label(
        self, kind: str, namespace: str, name: str, uid: str, labels: Mapping[str, str | None]
    ) -> Object | None:
        try:
            made = await self._kube.label(kind, namespace, name, uid, labels)
        except Conflict:
            await self._look_again(kind, namespace, name)
            raise
        await self._now(kind, namespace, name, made)
        return made

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, *, foreground: bool = False, grace: int | None = None
    ) -> Object | None:
        try:
            left = await self._kube.delete(kind, namespace, name, uid, foreground=foreground, grace=grace)
        except Conflict:
            await self._look_again(kind, namespace, name)
            raise
        await self._now(kind, namespace, name, left)
        return left

    async def _must_not_be_foreign(self, body: Object) -> None:
        """An object without our label is seen by no watch, so the API server is asked. Raises Conflict."""
        kind, name = body["kind"], _name_of(body)
        if name in self._objects.get(kind, {}):
            return
        live = await self._kube.get(kind, *name)
        if live is not None and owner_uid(live["metadata"]) != owner_uid(body["metadata"]):
            self._remember(kind, live)
            raise Conflict(409, f"{kind} {name[1]} belongs to somebody else")

    async def _now(self, kind: str, namespace: str, name: str, left: Object | None) -> None:
        """The object after a write; None, or a Status, when it is gone."""
        if left is not None and left.get("kind") == kind:
            self._remember(kind, left)
        else:
            known = self._objects.get(kind, {}).get((namespace, name))
            if known is not None:
                self._bury(known)
                self._forget(kind, known)

    def _remember(self, kind: str, body: Object) -> None:
        if kind in self._objects:
            self.saw(kind, body)

    async def _look_again(self, kind: str, namespace: str, name: str) -> None:
        """What we knew was wrong: ask."""
        if kind not in self._objects:
            return
        with contextlib.suppress(Missing):
            body = await self._kube.get(kind, namespace, name)
            await self._now(kind, namespace, name, body)
