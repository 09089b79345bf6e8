"""When a rank sleeps, with SGLang's own sleeper on real sockets. `RESULT`: a file for JSON.

The scheduler is a stand-in with what SGLang's method and our hook read.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import zmq
from sglang.srt import runtime_context
from sglang.srt.managers import scheduler as module
from sglang.srt.plugins import load_plugins
from tests.support.sglang_guards import missing

from ling_engine.sglang import plugin, wakefulness

LONG_S, SHORT_S = 0.9, 0.5  # SGLang's sleep lasts a second


def sockets(name: str) -> tuple[Any, Any]:
    """What a rank reads, what its server writes."""
    context = zmq.Context.instance()
    reader, writer = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    reader.bind(f"inproc://{name}")
    writer.connect(f"inproc://{name}")
    return reader, writer


def scheduler(name: str, *, flag: bool = False, rank: int = 0) -> tuple[Any, Any]:
    """With what SGLang's own method has made of it, our hook around it; and the socket that wakes it."""
    requests, writer = sockets(f"{name}-requests")
    calls, _ = sockets(f"{name}-calls")
    one = SimpleNamespace(
        ipc_channels=SimpleNamespace(recv_from_tokenizer=requests, recv_from_rpc=calls), _engine_paused=False
    )
    where = SimpleNamespace(pp_rank=0, attn_tp_rank=rank, attn_cp_rank=0)
    with (
        mock.patch.object(runtime_context, "get_parallel", lambda: where),
        mock.patch.object(module, "get_parallel", lambda: where),
        mock.patch.object(module, "get_device", lambda: SimpleNamespace(sleep_on_idle=flag)),
    ):
        module.Scheduler.init_idle_sleeper(one)
    return one, writer


def took(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main(argv: Sequence[str]) -> int:
    load_plugins()
    plugin.insist()
    told: dict[str, Any] = {"without a server": scheduler("bare")[0].idle_sleeper is None}
    role = wakefulness.shared()
    told["another rank"] = scheduler("second", rank=1)[0].idle_sleeper is None
    told["asked for"] = type(scheduler("flag", flag=True)[0].idle_sleeper).__name__
    one, writer = scheduler("first")
    told["standing by"] = took(one.idle_sleeper.maybe_sleep) > LONG_S
    threading.Timer(0.1, writer.send, (b"a request",)).start()
    told["woken"] = took(one.idle_sleeper.maybe_sleep) < SHORT_S
    one.ipc_channels.recv_from_tokenizer.recv()
    child = os.fork()  # as the server promotes, and its rank sees it
    if not child:
        role.promote()
        os._exit(0)
    os.waitpid(child, 0)
    told["active"] = took(one.idle_sleeper.maybe_sleep) < SHORT_S
    with mock.patch.object(plugin.wakefulness, "SLEEPER", f"{wakefulness.SLEEPER}_gone"):
        told["another release"] = missing(plugin.insist)
    Path(argv[0]).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
