"""The client of the API server: what it makes of answers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from ling_operator.kube import Kube


class Client:
    """Answers every request with one body."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.configuration = SimpleNamespace(host="https://api", get_api_key_with_prefix=self._no_token)
        self.body = body

    async def _no_token(self, *_: Any, **__: Any) -> str:
        return ""

    async def call_api(self, *_: Any, **__: Any) -> Any:
        async def read() -> bytes:
            return json.dumps(self.body).encode()

        return SimpleNamespace(status=200, read=read)


def test_what_was_listed_says_what_it_is() -> None:
    """A look compares a whole object with what it should be: without its kind it would be applied again and again."""
    body = {"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "chat"}}]}
    (found,) = asyncio.run(Kube(Client(body)).list("Service", "prod"))  # type: ignore[arg-type]
    assert found == {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "chat"}}
