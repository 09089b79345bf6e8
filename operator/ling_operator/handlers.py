"""kopf delivers events, and nothing else: every handler puts a key into our own queue.

Only `on.event` handlers, which are never retried, write no annotation and add no finalizer to anybody's object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kopf

from ling_api import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_operator.keyqueue import KeyQueue


def wire(
    registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, queue: KeyQueue, agents: Callable[[], None]
) -> None:
    """Let the registry's handlers feed the queue; `agents` is called when an agent's pod has changed."""

    async def deployment(**event: Any) -> None:
        queue.put((event["namespace"], event["name"]))

    async def below(**event: Any) -> None:
        owner = event["labels"].get(names.LABEL_DEPLOYMENT)
        if owner:
            queue.put((event["namespace"], owner))

    async def pod(**event: Any) -> None:
        if event["labels"].get(names.LABEL_COMPONENT) == names.COMPONENT_AGENT:
            agents()
        else:
            await below(**event)

    kopf.on.event(names.GROUP, names.VERSION, "lingdeployments", registry=registry, id="deployment")(deployment)
    kopf.on.event(names.GROUP, names.VERSION, "lingslots", registry=registry, id="slot")(below)
    kopf.on.event("v1", "pods", registry=registry, id="pod", labels={names.LABEL_COMPONENT: kopf.PRESENT})(pod)
    kopf.on.event("v1", "services", registry=registry, id="service", labels={names.LABEL_DEPLOYMENT: kopf.PRESENT})(
        below
    )
    kopf.on.login(registry=registry, id="login")(login)
    settings.watching.label_selectors["v1", "pods"] = names.LABEL_COMPONENT
    settings.watching.label_selectors["v1", "services"] = names.LABEL_DEPLOYMENT
    settings.watching.server_timeout = 600
    settings.watching.reconnect_backoff = 1.0
    settings.posting.enabled = False
    settings.posting.loggers = False


def login(**kwargs: Any) -> Any:
    """The pod's service account, else KUBECONFIG or ~/.kube/config: as our own client does."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
