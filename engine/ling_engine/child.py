"""What a fork of the zygote does: describe the model, or serve it. Everything it imports is imported by the zygote.

A child tells its launcher over its control socket; when that ends, the launcher is gone and the child goes too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from ling_api import fdpass
from ling_api.errors import LingError

from . import logs, server

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

    from .runtime import Description, Runtime
    from .settings import EngineSettings

_log = logging.getLogger(__name__)
FAILED = 1  # a fault that is not one of ling_api.errors


def run(entry: str, control: socket.socket, settings: EngineSettings, runtime: Runtime, server_id: str) -> int:
    """The child's exit code; every error is told to the launcher first."""
    logs.set_up("server" if entry == "serve" else "check")
    try:
        fdpass.send(control, {"op": "started", "pid": os.getpid()})
        if entry == "describe":
            fdpass.send(control, described(runtime.describe(settings.model_settings())))
            return 0
        return _until_over(server.serve(control, settings, runtime, server_id))
    except LingError as error:
        return _tell(control, error.exit_code, str(error))
    except Exception as error:
        _log.exception("child=failed entry=%s", entry)
        return _tell(control, FAILED, f"{type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        logging.shutdown()


def _until_over(serving: Coroutine[Any, Any, int]) -> int:
    """The plain loop, whatever policy a runtime's import has set: connections are handed on by their descriptors.

    Nothing of asyncio.run's end: the process leaves by os._exit, and who waits for its memory waits neither for
    threads that still compute nor for tasks that log how they were cancelled.
    """
    loop = asyncio.SelectorEventLoop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(serving)


def described(description: Description) -> dict[str, Any]:
    """The frame that says what `describe` found."""
    sets = [
        {"role": one.role, "rank": one.rank, "nbytes": one.nbytes, "identity": one.identity.to_bytes().decode()}
        for one in description.sets
    ]
    return {
        "op": "described",
        "sets": sets,
        "plan": dict(description.plan.private),
        "device_bytes": description.device_bytes,
        "gpus": list(description.gpus),
        "jit": description.jit,
    }


def _tell(control: socket.socket, code: int, reason: str) -> int:
    try:
        fdpass.send(control, {"op": "failed", "code": code, "reason": reason[:4000]})
    except OSError:
        _log.warning("child=failed code=%d reason=%s", code, reason)  # nobody is left to be told
    return code
