"""kopf delivers events, and nothing else: every handler tells the mirror and puts a key into our own queue.

Only `on.event` handlers, which are never retried, write no annotation and add no finalizer to anybody's object.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import kopf

from ling_api import names
from ling_operator import kube
from ling_operator.mirror import KINDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ling_operator.keyqueue import KeyQueue
    from ling_operator.mirror import Mirror

WATCHED: Final = {  # what belongs to a LingDeployment, and the agents' pods
    "LingSlot": (names.GROUP, names.VERSION, "lingslots"),
    "Pod": ("", "v1", "pods"),
    "Service": ("", "v1", "services"),
    "ControllerRevision": ("apps", "v1", "controllerrevisions"),
    "ResourceClaim": ("resource.k8s.io", "v1", "resourceclaims"),
    "PodDisruptionBudget": ("policy", "v1", "poddisruptionbudgets"),
}


ABOUT_DEVICES: Final = {  # looked up when a pod finds no place; a change of them is nobody's turn
    "ResourceSlice": ("resource.k8s.io", "v1", "resourceslices"),
    "DeviceClass": ("resource.k8s.io", "v1", "deviceclasses"),
}


def node_essence(body: Mapping[str, Any]) -> object:
    """What of a node concerns slots: whether it is Ready, cordoned or tainted."""
    spec, conditions = body.get("spec") or {}, (body.get("status") or {}).get("conditions") or ()
    ready = [one.get("status") for one in conditions if one.get("type") == "Ready"]
    taints = sorted(str(one.get("key")) for one in spec.get("taints") or ())
    return ready, bool(spec.get("unschedulable")), taints


class Ears:
    """What the watches tell: everything to the mirror, keys to the queue.

    `everybody` is called when an agent's pod or a node has changed: that concerns all of them. `listed` is called when
    a watch began, or began anew.
    """

    def __init__(
        self, queue: KeyQueue, mirror: Mirror, everybody: Callable[[], None], listed: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._mirror = mirror
        self._everybody = everybody
        self._listed = listed
        self._nodes: dict[str, object] = {}  # what was last seen of each, since a node is written every few seconds

    def _tell(self, kind: str, event: dict[str, Any]) -> None:
        if event["type"] is None:  # listed: what went while the watch was broken is told by nobody
            self._listed()
        if event["type"] == "DELETED":
            self._mirror.saw_gone(kind, event["event"]["object"])
        else:
            self._mirror.saw(kind, event["event"]["object"])

    async def deployment(self, **event: Any) -> None:
        self._tell("LingDeployment", event)
        self._queue.put((event["namespace"], event["name"]))

    def below(self, kind: str) -> Callable[..., Awaitable[None]]:
        """The handler of a kind that belongs to a LingDeployment or to an agent."""

        async def handler(**event: Any) -> None:
            self._tell(kind, event)
            owner = event["labels"].get(names.LABEL_DEPLOYMENT)
            if owner:
                self._queue.put((event["namespace"], owner))
            elif event["labels"].get(names.LABEL_COMPONENT) == names.COMPONENT_AGENT:
                self._everybody()

        return handler

    def aside(self, kind: str) -> Callable[..., Awaitable[None]]:
        """The handler of a kind of which only the mirror is told."""

        async def handler(**event: Any) -> None:
            self._tell(kind, event)

        return handler

    async def node(self, **event: Any) -> None:
        self._tell("Node", event)
        seen = None if event["type"] == "DELETED" else node_essence(event["body"])
        if self._nodes.get(event["name"], seen) != seen:
            self._everybody()
        self._nodes[event["name"]] = seen


def wire(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, ears: Ears) -> None:
    """Let the registry's handlers be those ears."""
    kopf.on.event(names.GROUP, names.VERSION, "lingdeployments", registry=registry, id="deployment")(ears.deployment)
    kopf.on.event("v1", "nodes", registry=registry, id="node")(ears.node)
    for kind, (group, version, plural) in ABOUT_DEVICES.items():
        kopf.on.event(group, version, plural, registry=registry, id=kind)(ears.aside(kind))
    selectors = settings.watching.label_selectors
    for kind, (group, version, plural) in WATCHED.items():
        kopf.on.event(group, version, plural, registry=registry, id=kind)(ears.below(kind))
        if KINDS[kind]:
            selectors[group, version, plural] = KINDS[kind]
    kopf.on.login(registry=registry, id="login")(login)
    settings.watching.server_timeout = 600
    settings.watching.reconnect_backoff = 1.0
    settings.scanning.disabled = True  # what we watch is known; so no right to list CRDs and namespaces is needed
    settings.posting.enabled = False
    settings.posting.loggers = False


@dataclass(frozen=True, kw_only=True)
class Login(kopf.ConnectionInfo):
    """kopf's login, which accepts the authorities that our own client accepts."""

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


async def login(**_kwargs: Any) -> kopf.ConnectionInfo:
    """The login of our own client. kopf asks again when the API server does not take it any more."""
    found = await kube.configuration()
    scheme, _, token = (await kube.bearer(found)).partition(" ")
    return Login(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        scheme=scheme or None,
        token=token or None,
    )
