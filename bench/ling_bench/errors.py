"""What ends a run early. A command's main prints the one line and exits with `exit_code`."""

from __future__ import annotations

from ling_api.errors import LingError


class EndpointFailed(LingError):
    """The endpoint did not answer, or not as one that streams completions. What was measured is kept."""

    exit_code = 4


class PlatformFailed(LingError):
    """The Kubernetes API server said no, or is not there. The catcher reports it: rights have to be given first."""

    exit_code = 5
