"""How a server's process comes to its end once its work is over, or has failed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from ling_engine import child


def test_a_failure_waits_for_no_thread_that_still_computes() -> None:
    async def fails() -> int:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        raise ValueError("the server's own end")

    pid = os.fork()
    if not pid:
        signal.alarm(30)
        try:
            child._until_over(fails())
        except ValueError:
            os._exit(7)
        finally:
            os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
