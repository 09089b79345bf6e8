"""The two things that are asked of Kubernetes: keep a result in a ConfigMap, and tell what a LingDeployment runs.

Rights: `patch` of that one ConfigMap, which has to be there; for a LingDeployment `get` of it and `list` of LingSlots.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput

from . import told
from .errors import PlatformFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MERGE = "application/merge-patch+json"
_GROUP = ("ling.dev", "v1alpha1")


def keep(name: str, data: dict[str, str]) -> None:
    """Sets keys of the ConfigMap NAME or NAMESPACE/NAME. Raises PlatformFailed, BadInput."""
    namespace, own = _place(name)

    async def write(api: Any, client: Any) -> None:
        await client.CoreV1Api(api).patch_namespaced_config_map(own, namespace, {"data": data}, _content_type=_MERGE)

    _ask(f"patch ConfigMap {namespace}/{own}", write)


def deployment(name: str) -> dict[str, Any]:
    """`told.deployment` of NAME or NAMESPACE/NAME. Raises PlatformFailed, BadInput."""
    namespace, own = _place(name)

    async def read(api: Any, client: Any) -> dict[str, Any]:
        objects = client.CustomObjectsApi(api)
        found = await objects.get_namespaced_custom_object(*_GROUP, namespace, "lingdeployments", own)
        slots = await objects.list_namespaced_custom_object(
            *_GROUP, namespace, "lingslots", label_selector=f"ling.dev/deployment={own}"
        )
        return told.deployment(found, slots["items"])

    return _ask(f"read LingDeployment {namespace}/{own} and its LingSlots", read)


def _place(name: str) -> tuple[str, str]:
    namespace, slash, own = name.rpartition("/")
    if not own:
        raise BadInput(f"{name!r} is no name; write NAME or NAMESPACE/NAME")
    if slash:
        return namespace, own
    return (_NAMESPACE.read_text().strip() if _NAMESPACE.exists() else "default"), own


def _ask[T](what: str, act: Callable[[Any, Any], Awaitable[T]]) -> T:
    try:
        from kubernetes.aio import client, config  # only for who asks for it: the rest needs the standard library alone
        from kubernetes.aio.client.exceptions import ApiException
    except ImportError:
        raise BadInput("this needs the Python package kubernetes: install ling[bench]") from None

    async def run() -> T:
        found = client.Configuration()
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        else:
            named = os.environ.get("KUBECONFIG")  # stated: the library reads the variable when it is imported
            await config.load_kube_config(config_file=named, client_configuration=found)  # type: ignore[no-untyped-call]
        found.disable_strict_ssl_verification = True  # authorities without a key usage, which kubectl accepts
        async with client.ApiClient(configuration=found) as api:
            return await act(api, client)

    try:
        return asyncio.run(run())
    except ApiException as error:
        raise PlatformFailed(f"may not {what}: {error.status} {error.reason}") from None
    except (OSError, config.ConfigException) as error:
        raise PlatformFailed(f"cannot {what}: {error}") from None
