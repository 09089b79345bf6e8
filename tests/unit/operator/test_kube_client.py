"""The client of the API server: what it makes of answers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from ling_operator.kube import Kube


class Client:
    """Answers every request with one body."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.configuration = SimpleNamespace(host="https://api", get_api_key_with_prefix=self._no_token)
        self.body = body
        self.asked: list[tuple[str, str]] = []

    async def _no_token(self, *_: Any, **__: Any) -> str:
        return ""

    async def call_api(self, method: str, url: str, *_: Any, **__: Any) -> Any:
        self.asked.append((method, url))

        async def read() -> bytes:
            return json.dumps(self.body).encode()

        return SimpleNamespace(status=200, read=read)


def test_what_was_listed_says_what_it_is() -> None:
    """A look compares a whole object with what it should be: without its kind it would be applied again and again."""
    body = {"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "chat"}}]}
    (found,) = asyncio.run(Kube(Client(body)).list("Service", "prod"))  # type: ignore[arg-type]
    assert found == {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "chat"}}


@pytest.mark.parametrize("found", [True, False], ids=["there", "not there"])
def test_one_object_is_asked_for_by_the_right_to_list(found: bool) -> None:
    items = [{"metadata": {"name": "chat"}}] if found else []
    client = Client({"kind": "ServiceList", "apiVersion": "v1", "items": items})
    one = asyncio.run(Kube(client).get("Service", "prod", "chat"))  # type: ignore[arg-type]
    assert one == ({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "chat"}} if found else None)
    assert client.asked == [("GET", "https://api/api/v1/namespaces/prod/services?fieldSelector=metadata.name%3Dchat")]
