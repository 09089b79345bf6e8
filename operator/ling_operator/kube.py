"""The only client of the API server: read, list, create, server-side apply, label, delete. Plain objects in and out.

Every write carries the field manager `ling-operator`. Writes are counted, so that tests can end the process right
after any of them.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

MANAGER: Final = "ling-operator"
TIMEOUT: Final = 30.0  # seconds for one request
EXIT_AFTER_WRITE: Final = 86  # exit code of the test switch

_PATHS: Final = {
    "LingDeployment": ("/apis/ling.dev/v1alpha1", "lingdeployments"),
    "LingSlot": ("/apis/ling.dev/v1alpha1", "lingslots"),
    "ControllerRevision": ("/apis/apps/v1", "controllerrevisions"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "Event": ("/api/v1", "events"),
    "Node": ("/api/v1", "nodes"),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims"),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices"),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
}

type Object = dict[str, Any]


class ApiError(Exception):
    """The API server said no, or nobody answered (`status` 0). The catcher tries again later."""

    def __init__(self, status: int, message: str, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said or message  # by the API server, without what was asked


class Conflict(ApiError):
    """Somebody else has the name, or the object is another one by now (409). The catcher looks again."""


class Missing(ApiError):
    """There is no such object (404)."""


async def configuration() -> client.Configuration:
    """How to log in: the pod's service account, else KUBECONFIG or ~/.kube/config. Read afresh at every call.

    Python 3.13 alone refuses authorities without a key usage, which many clusters have; we accept what kubectl accepts.
    """
    found = client.Configuration()
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    else:
        named = os.environ.get("KUBECONFIG")  # stated, since the library reads the variable once, when it is imported
        await config.load_kube_config(config_file=named, client_configuration=found)  # type: ignore[no-untyped-call]
    found.retries = None
    found.disable_strict_ssl_verification = True
    return found


async def bearer(found: client.Configuration) -> str:
    """The value of the Authorization header, "" when a certificate is how we log in; expired ones are renewed."""
    return str(await found.get_api_key_with_prefix("BearerToken", alias="authorization") or "")


async def connect() -> client.ApiClient:
    """A client of the API server that `configuration` names."""
    return client.ApiClient(configuration=await configuration())


class Verbs(Protocol):
    """What a look and its step ask of the API server: `Kube` asks, `mirror.Mirror` remembers."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None: ...

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[Object]: ...

    async def create(self, body: Object) -> Object: ...

    async def apply(self, body: Object, subresource: str = "") -> Object: ...

    async def label(
        self, kind: str, namespace: str, name: str, uid: str, labels: Mapping[str, str | None]
    ) -> Object | None: ...

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, *, foreground: bool = False, grace: int | None = None
    ) -> Object | None: ...


class Kube:
    """Requests over one client. `exit_after_writes` calls `die` right after that many writes; 0 never does."""

    def __init__(
        self, api: client.ApiClient, *, exit_after_writes: int = 0, die: Callable[[int], object] = os._exit
    ) -> None:
        self._api = api
        self._exit_after = exit_after_writes
        self._die = die
        self.writes = 0

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None, content: str = "json"
    ) -> Object:
        url = f"{self._api.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": f"application/{content}"}
        token = await bearer(self._api.configuration)
        if token:
            headers["Authorization"] = token
        try:
            answer = await self._api.call_api(method, url, headers, body=body, _request_timeout=TIMEOUT)
            data: bytes = await answer.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"{method} {path}: {type(error).__name__}: {error}") from error
        if not 200 <= answer.status < 300:
            raise _error(method, path, answer.status, data)
        if method != "GET":
            self._count(method, path)
        loaded: Object = json.loads(data)
        return loaded

    def _count(self, method: str, path: str) -> None:
        self.writes += 1
        if self.writes == self._exit_after:
            log.warning("exit after write k=%d method=%s path=%s", self.writes, method, path)
            self._die(EXIT_AFTER_WRITE)

    @staticmethod
    def path(kind: str, namespace: str, name: str = "") -> str:
        """The address of an object, or of all of its kind; an empty namespace means the whole cluster."""
        base, plural = _PATHS[kind]
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{base}{inside}/{plural}" + (f"/{name}" if name else "")

    async def _listed(self, kind: str, namespace: str, query: Mapping[str, str] | None) -> list[Object]:
        answer = await self._request("GET", self.path(kind, namespace), query)
        # the items of a list do not say what they are
        return [{**item, "apiVersion": answer["apiVersion"], "kind": kind} for item in answer.get("items") or ()]

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None. Asked as a list of one: who may list and watch needs no other right."""
        found = await self._listed(kind, namespace, {"fieldSelector": f"metadata.name={name}"})
        return found[0] if found else None

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        """All objects of a kind that match the label selector."""
        return await self._listed(kind, namespace, {"labelSelector": selector} if selector else None)

    async def create(self, body: Object) -> Object:
        """Make the object; Conflict when the name is taken."""
        path = self.path(body["kind"], body["metadata"]["namespace"])
        return await self._request("POST", path, {"fieldManager": MANAGER}, body)

    async def apply(self, body: Object, subresource: str = "") -> Object:
        """Server-side apply: the object has exactly our fields of it afterwards."""
        meta = body["metadata"]
        path = self.path(body["kind"], meta["namespace"], meta["name"]) + (f"/{subresource}" if subresource else "")
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, body, "apply-patch+yaml")

    async def label(
        self, kind: str, namespace: str, name: str, uid: str, labels: Mapping[str, str | None]
    ) -> Object | None:
        """Set labels of this very object, None takes one off; the object then. Gone already is done already (None)."""
        body = {"metadata": {"uid": uid, "labels": dict(labels)}}
        path = self.path(kind, namespace, name)
        try:
            return await self._request("PATCH", path, {"fieldManager": MANAGER}, body, "merge-patch+json")
        except Missing:
            log.info("label: gone kind=%s name=%s", kind, name)
            return None

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, *, foreground: bool = False, grace: int | None = None
    ) -> Object | None:
        """Delete this very object; what is left of it, or a Status. Gone already is done already (None)."""
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            return await self._request("DELETE", self.path(kind, namespace, name), None, options)
        except Missing:
            log.info("delete: gone kind=%s name=%s", kind, name)
            return None


def _error(method: str, path: str, status: int, data: bytes) -> ApiError:
    try:
        message = json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        message = data.decode(errors="replace")[:200]
    kinds: dict[int, type[ApiError]] = {404: Missing, 409: Conflict}
    return kinds.get(status, ApiError)(status, f"{method} {path}: {status}: {message}", message)
