"""Objects of a cluster, read over one kept connection.

A look by kubectl costs a tenth of a second of a core. Whoever waits for something looks several times a second, and
would then measure, or disturb, what the looking does to a small machine.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60.0  # seconds for one answer
# one document for all groups, the preferred version first: https://kubernetes.io/docs/concepts/overview/kubernetes-api/
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ReadError(Exception):
    """The API server did not give what was asked for. `reason` is its own word, such as NotFound; "": no answer."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where objects of a kind are: `/apis/GROUP/VERSION`, the plural, and whether they live in namespaces."""

    base: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """The path of one object, or of all of them."""
        within = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{self.base}{within}/{self.plural}" + (f"/{name}" if name else "")


@dataclass(slots=True)
class Reader:
    """One API server, as the user of a kubeconfig sees it; for several threads. What it cannot give is a ReadError."""

    api: client.ApiClient
    places: dict[str, Place] = field(default_factory=dict)

    def one(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """An object; `kind` in any form that kubectl takes, such as `ld` or `lingdeployments`."""
        return self._get(self.place(kind).path(namespace, name))

    def find(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any] | None:
        """An object, or None if there is none of that name, or nothing of the kind at all."""
        try:
            return self.one(kind, name, namespace)
        except ReadError as missing:
            if missing.reason != "NotFound":
                raise
            return None

    def all(self, kind: str, namespace: str = "default", selector: str = "") -> dict[str, Any]:
        """All objects of a kind (and of labels) in a namespace, as `kubectl get -o json` gives them: a List."""
        found = self._get(self.place(kind).path(namespace), labelSelector=selector)
        head = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return {"apiVersion": "v1", "kind": "List", "items": [{**head, **item} for item in found["items"]]}

    def place(self, kind: str) -> Place:
        """Where a kind is; asked of the API server again when it is not known yet (a new CRD)."""
        if kind not in self.places:
            self.places = self._discover()
        if kind not in self.places:
            raise ReadError(f"the API server has no kind {kind!r}", "NotFound")
        return self.places[kind]

    def _discover(self) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for root in ("/api", "/apis"):
            for group in self._get(root, accept=DISCOVERY)["items"]:
                name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    base = f"{root}/{name}/{version['version']}" if name else f"{root}/{version['version']}"
                    for resource in version["resources"]:
                        for word in _words(resource):
                            place = Place(
                                base=base, plural=resource["resource"], namespaced=resource["scope"] == "Namespaced"
                            )
                            found.setdefault(word, place)
        return found

    def _get(self, path: str, accept: str = "application/json", **query: str) -> dict[str, Any]:
        query_params = [(name, value) for name, value in query.items() if value]
        asked = self.api.param_serialize(
            "GET", path, query_params=query_params, header_params={"Accept": accept}, auth_settings=["BearerToken"]
        )
        try:
            answer = self.api.call_api(*asked, _request_timeout=PATIENCE_S)
            data: bytes = answer.read()  # type: ignore[no-untyped-call]
        except HTTPError as lost:
            raise ReadError(f"GET {path}: {lost}") from lost
        if answer.status != HTTPStatus.OK:
            raise _said(path, answer.status, data)
        value: dict[str, Any] = json.loads(data)
        return value


def _words(resource: dict[str, Any]) -> tuple[str, ...]:
    return (resource["resource"], resource.get("singularResource", ""), *resource.get("shortNames", ()))


def _said(path: str, status: int, data: bytes) -> ReadError:
    try:
        said = json.loads(data)
    except ValueError:
        return ReadError(f"GET {path}: {status} {data[:200].decode(errors='replace')}")
    return ReadError(f"Error from server ({said.get('reason')}): {said.get('message')}", said.get("reason") or "")


def reader(kubeconfig: Path) -> Reader:
    """The reader of a kubeconfig; a new one when the file is another (the cluster was made anew)."""
    try:
        written = kubeconfig.stat().st_mtime_ns
    except OSError as missing:
        raise ReadError(f"{kubeconfig}: {missing.strerror}") from missing
    return _reader(kubeconfig, written)


@functools.cache
def _reader(kubeconfig: Path, _written: int) -> Reader:
    return Reader(config.new_client_from_config(str(kubeconfig)))  # type: ignore[no-untyped-call]
