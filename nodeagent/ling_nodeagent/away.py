"""Errors of the two neighbours that may be away at any time: the kubelet and the API server."""


class KubeletAway(Exception):
    """The kubelet did not answer; the catcher keeps what it knew and asks again."""


class ApiAway(Exception):
    """The API server did not answer, or said "later"; the catcher tries again."""


class ApiRefused(Exception):
    """The API server's answer is one that trying again does not change; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
