"""The API server, as far as the agent needs it: mirrors of pods and slots, and the status of slots.

Only this module talks to it. Nothing here is waited for by the rest of the agent: while the API server is away the
mirrors keep what they had, and writes are tried again by their caller.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from typing import TYPE_CHECKING, Any

import aiohttp
from kubernetes.aio import client, config

from ling_api import names
from ling_api.errors import BadInput

from .away import ApiAway, ApiRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from .cluster import Seen

LOG = logging.getLogger("ling.kube")
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
SLOTS = f"/apis/{names.API_VERSION}/lingslots"
FIELD_MANAGER = "ling-nodeagent"
TIMEOUT = aiohttp.ClientTimeout(total=15, sock_connect=5)
WATCH_SECONDS = 120
FIRST_RETRY, LAST_RETRY = 0.1, 5.0  # seconds


class Api:
    """Requests with this pod's service account, or as KUBECONFIG says."""

    def __init__(self, api_client: client.ApiClient) -> None:
        self._client = api_client

    @classmethod
    async def open(cls) -> Api:
        """Raises BadInput when there is neither a service account nor a usable KUBECONFIG."""
        settings = client.Configuration()
        try:
            if os.environ.get("KUBECONFIG"):
                await config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=settings)  # type: ignore[no-untyped-call]
            else:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            hint = "run in a pod with a service account, set KUBECONFIG, or use --static FILE"
            raise BadInput(f"no API server to talk to ({error}): {hint}") from error
        # Python 3.13 refuses authorities without a key usage; clusters have them, and every client in Go accepts them
        settings.disable_strict_ssl_verification = True
        return cls(client.ApiClient(settings))

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Raises ApiAway, ApiRefused."""
        answer = await self._request("GET", path, query, limits=TIMEOUT)
        return await _body(answer)

    async def apply_status(self, slot: str, status: Mapping[str, Any], uid: str) -> None:
        """Write the agent's part of a LingSlot's status; `uid` guards the next slot of that name. Raises as `get`."""
        namespace, name = slot.split("/")
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "LingSlot",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": without_empty(status),
        }
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/lingslots/{name}/status"
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        await _body(await self._request("PATCH", path, query, limits=TIMEOUT, body=body))

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Events until the server ends the watch. Raises as `get`."""
        seconds = WATCH_SECONDS + random.randrange(30)  # noqa: S311 - so that not all agents come back at once
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=seconds + 10)
        query = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        answer = await self._request("GET", path, query, limits=limits)
        if answer.status != 200:
            await _body(answer)
        try:
            while line := await answer.content.readline():
                yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiAway(f"the watch broke: {error or type(error).__name__}") from error
        finally:
            answer.close()

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], *, limits: aiohttp.ClientTimeout, body: Any = None
    ) -> aiohttp.ClientResponse:
        kind = "application/json" if body is None else "application/apply-patch+yaml"
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._client.call_api(*request, _request_timeout=limits)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiAway(f"no answer: {error or type(error).__name__}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


def without_empty(value: Any) -> Any:
    """The value without its empty maps and lists, at any depth.

    Server-side apply makes null, which the schema refuses, of a map that its applier had filled and now applies empty.
    """
    if isinstance(value, dict):
        return {key: without_empty(each) for key, each in value.items() if each not in ({}, [], ())}
    if isinstance(value, (list, tuple)):
        return [without_empty(each) for each in value]
    return value


async def _body(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    try:
        text = await answer.text()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ApiAway(f"the answer broke off: {error or type(error).__name__}") from error
    if answer.status in (408, 409, 429) or answer.status >= 500:
        raise ApiAway(f"{answer.status} {answer.reason}: {text[:300]}")
    if answer.status >= 300:
        raise ApiRefused(answer.status, f"{answer.status} {answer.reason}: {text[:300]}")
    body: dict[str, Any] = json.loads(text)
    return body


def of_node(node: str) -> dict[str, str]:
    """The query for a node's pods of slots."""
    components = f"{names.COMPONENT_SLOT},{names.COMPONENT_ENGINE}"
    return {"fieldSelector": f"spec.nodeName={node}", "labelSelector": f"{names.LABEL_COMPONENT} in ({components})"}


def only_node(node: str) -> dict[str, str]:
    """The query for the node itself."""
    return {"fieldSelector": f"metadata.name={node}"}


class Mirror[T]:
    """Keeps `seen` like what the API server has: listed once, then watched; `changed()` after every change.

    `parse` makes a value of an object, None when it is none of ours; an object that it refuses (BadInput) keeps the
    value that it had: a spec from a newer release never takes a running slot away.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        parse: Callable[[Mapping[str, Any]], T | None],
        seen: Seen[T],
        changed: Callable[[], None],
    ) -> None:
        self.listed = asyncio.Event()
        self._seen = seen
        self._api, self._path, self._query, self._parse, self._changed = api, path, query, parse, changed

    async def run(self) -> None:
        """Until cancelled."""
        wait, version = FIRST_RETRY, ""
        while True:
            try:
                if not version:
                    version = await self._list()
                wait = FIRST_RETRY
                version = await self._watch(version)
                continue
            except ApiAway as error:
                LOG.warning("event=api-away path=%s reason=%r retry_s=%.1f", self._path, str(error), wait)
            except ApiRefused as error:
                LOG.error("event=api-refused path=%s reason=%r retry_s=%.1f", self._path, str(error), wait)
            version = ""  # list again: what happened meanwhile may be forgotten
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
            wait = min(wait * 2, LAST_RETRY)

    async def _list(self) -> str:
        body = await self._api.get(self._path, self._query)
        former, self._seen.objects = self._seen.objects, {}
        for item in body.get("items") or ():
            self._put(item, former)
        self._seen.synced = True
        self.listed.set()
        self._changed()
        version: str = body["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        """The version to go on from; empty when it is too old."""
        async for event in self._api.watch(self._path, {**self._query, "resourceVersion": version}):
            body = event["object"]
            if event["type"] == "ERROR":
                if body.get("code") == 410:
                    return ""
                raise ApiAway(f"the watch says: {body.get('message')}")
            version = body["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            if event["type"] == "DELETED":
                self._seen.objects.pop(_key(body), None)
            else:
                self._put(body, self._seen.objects)
            self._changed()
        return version

    def _put(self, body: Mapping[str, Any], former: Mapping[str, T]) -> None:
        key = _key(body)
        try:
            value = self._parse(body)
        except BadInput as error:
            LOG.error("event=object-refused object=%s reason=%r kept=%s", key, str(error), key in former)
            value = former.get(key)
        if value is not None:
            self._seen.objects[key] = value
        else:
            self._seen.objects.pop(key, None)


def _key(body: Mapping[str, Any]) -> str:
    return f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"
