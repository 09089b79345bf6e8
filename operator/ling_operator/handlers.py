"""kopf delivers events, and nothing else: every handler puts a key into our own queue.

Only `on.event` handlers, which are never retried, write no annotation and add no finalizer to anybody's object.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kopf

from ling_api import names
from ling_operator import kube

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ling_operator.keyqueue import KeyQueue


def node_essence(body: Mapping[str, Any]) -> object:
    """What of a node concerns slots: whether it is Ready, cordoned or tainted."""
    spec, conditions = body.get("spec") or {}, (body.get("status") or {}).get("conditions") or ()
    ready = [one.get("status") for one in conditions if one.get("type") == "Ready"]
    taints = sorted(str(one.get("key")) for one in spec.get("taints") or ())
    return ready, bool(spec.get("unschedulable")), taints


def wire(
    registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, queue: KeyQueue, everybody: Callable[[], None]
) -> None:
    """Let the registry's handlers feed the queue; `everybody` is called when an agent's pod or a node has changed."""
    nodes: dict[str, object] = {}  # what was last seen of each, since a node is written every few seconds

    async def deployment(**event: Any) -> None:
        queue.put((event["namespace"], event["name"]))

    async def below(**event: Any) -> None:
        owner = event["labels"].get(names.LABEL_DEPLOYMENT)
        if owner:
            queue.put((event["namespace"], owner))

    async def pod(**event: Any) -> None:
        if event["labels"].get(names.LABEL_COMPONENT) == names.COMPONENT_AGENT:
            everybody()
        else:
            await below(**event)

    async def node(**event: Any) -> None:
        name, seen = event["name"], None if event["type"] == "DELETED" else node_essence(event["body"])
        if nodes.get(name, seen) != seen or (seen is None and name in nodes):
            everybody()
        nodes[name] = seen

    kopf.on.event(names.GROUP, names.VERSION, "lingdeployments", registry=registry, id="deployment")(deployment)
    kopf.on.event(names.GROUP, names.VERSION, "lingslots", registry=registry, id="slot")(below)
    kopf.on.event("v1", "pods", registry=registry, id="pod", labels={names.LABEL_COMPONENT: kopf.PRESENT})(pod)
    kopf.on.event("v1", "services", registry=registry, id="service", labels={names.LABEL_DEPLOYMENT: kopf.PRESENT})(
        below
    )
    kopf.on.event("v1", "nodes", registry=registry, id="node")(node)
    labelled = {names.LABEL_DEPLOYMENT: kopf.PRESENT}
    kopf.on.event("resource.k8s.io", "v1", "resourceclaims", registry=registry, id="claim", labels=labelled)(below)
    kopf.on.login(registry=registry, id="login")(login)
    settings.watching.label_selectors["v1", "pods"] = names.LABEL_COMPONENT
    settings.watching.label_selectors["v1", "services"] = names.LABEL_DEPLOYMENT
    settings.watching.label_selectors["resource.k8s.io", "v1", "resourceclaims"] = names.LABEL_DEPLOYMENT
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
