"""Errors in OpenAI's form."""

from __future__ import annotations

from typing import Any

_TYPES = {429: "rate_limit_error", 500: "server_error"}


class ApiError(Exception):
    """A request that cannot be answered; the application sends `body()` with `status`."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        """{"error": {message, type, param, code}}."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}
