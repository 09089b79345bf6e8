"""Starts SGLang in this process: its own launcher, with children that are forks, and its application without a port.

Imports SGLang when it is called. Everything of SGLang's that is replaced is an argument or a method that it offers for
that purpose (0.5.23): the entries of its processes, the class of its tokenizer manager, the warm-up's function.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import children

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp

    from ling_engine.pulse import Pulses


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """SGLang, ready; `info` is what its first rank says of itself. `server_args` are as resolved."""

    server_args: Any
    manager: Any
    templates: Any
    info: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forks:
    """`ranks(pids)` is called when all ranks are forked, `all(children)` when the others are too.

    `keep`: descriptors that a rank keeps. `pulses`: one for each rank.
    """

    keep: frozenset[int]
    pulses: Pulses
    ranks: Callable[[], None]
    everyone: Callable[[dict[str, int]], None]


def launch(argv: Sequence[str], forks: Forks) -> Launched:
    """Blocks until all ranks are ready to compute. The calling thread must live as long as they: they die with it."""
    from sglang.srt.entrypoints.engine import Engine, init_tokenizer_manager, run_scheduler_process
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
    from sglang.srt.server_args import prepare_server_args

    from .counting import CountingTokenizerManager

    pids: dict[str, int] = {}

    class Forking(Engine):  # type: ignore[misc]
        """Forks where SGLang would start anew."""

        @classmethod
        def _launch_scheduler_processes(cls, *args: Any, **kwargs: Any) -> Any:
            multiprocessing.set_start_method("fork", force=True)
            result, processes = super()._launch_scheduler_processes(*args, **kwargs)
            pids.update({f"rank {number}": process.pid for number, process in enumerate(processes)})
            forks.ranks()
            return result, processes

        @classmethod
        def _launch_detokenizer_subprocesses(cls, *args: Any, **kwargs: Any) -> Any:
            processes, names = super()._launch_detokenizer_subprocesses(*args, **kwargs)
            pids.update({name: process.pid for name, process in zip(names, processes, strict=True)})
            forks.everyone(pids)
            return processes, names

    server_args = prepare_server_args(list(argv))
    manager, templates, _ports, result, watchdog, _daemons = Forking._launch_subprocesses(
        server_args=server_args,
        init_tokenizer_manager_func=functools.partial(
            init_tokenizer_manager, TokenizerManagerClass=CountingTokenizerManager
        ),
        run_scheduler_process_func=children.rank(run_scheduler_process, os.getpid(), forks.keep, forks.pulses),
        run_detokenizer_process_func=children.other(run_detokenizer_process, os.getpid()),
    )
    watchdog.stop()  # it looks once a second, and answers with SIGQUIT
    return Launched(server_args=server_args, manager=manager, templates=templates, info=result.scheduler_infos[0])


def application(launched: Launched) -> ASGIApp:
    """SGLang's FastAPI application, ready for its life span to begin. Its own warm-up is ours already."""
    from sglang.srt.entrypoints import http_server

    http_server.set_global_state(
        http_server._GlobalState(
            tokenizer_manager=launched.manager, template_manager=launched.templates, scheduler_info=launched.info
        )
    )
    app = http_server.app
    app.is_single_tokenizer_mode = True
    app.server_args = launched.server_args
    # False = the warm-up ends there: no request to a port on which nobody listens.
    app.warmup_thread_kwargs = {"server_args": launched.server_args, "execute_warmup_func": lambda _args: False}
    return app  # type: ignore[no-any-return]


async def generate(launched: Launched, prompt: Sequence[int], new: int) -> list[int]:
    """Ids that SGLang answers greedily to a prompt of ids; `new` of them, whatever they are."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    parameters = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    asked = GenerateReqInput(input_ids=list(prompt), sampling_params=parameters, log_metrics=False)
    async for found in launched.manager.generate_request(asked, None):
        answer = found
    return list(answer["output_ids"])


async def up(launched: Launched) -> None:
    """SGLang calls itself ready, and takes what it has made so far out of Python's collections."""
    from sglang.srt.managers.tokenizer_manager import ServerStatus

    await launched.manager.freeze_gc()
    launched.manager.server_status = ServerStatus.Up
