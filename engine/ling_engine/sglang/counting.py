"""SGLang's tokenizer manager with our counts: every token of every request when it comes, streamed or not."""

from __future__ import annotations

import asyncio
from typing import Any

from sglang.srt.managers.io_struct import BatchStrOutput, BatchTokenIDOutput, unwrap_from_pickle
from sglang.srt.managers.tokenizer_manager import TokenizerManager, print_exception_wrapper

from ling_engine import requests

from .counts import Count


class CountingTokenizerManager(TokenizerManager):  # type: ignore[misc]
    """Ends with its process: signals and the drain are the server's."""

    event_loop: asyncio.AbstractEventLoop | None

    def auto_create_handle_loop(self) -> None:
        if self.event_loop is None:
            loop = self.event_loop = asyncio.get_running_loop()
            self.asyncio_tasks.add(loop.create_task(print_exception_wrapper(self.handle_loop)))

    def _init_req_state(self, obj: Any, request: Any = None) -> None:
        super()._init_req_state(obj, request)
        record = requests.current()
        for rid in [obj.rid] if getattr(obj, "is_single", True) else obj.rid:
            state = self.rid_to_state[rid]
            state.ling = Count(record, streamed=bool(getattr(state.obj, "stream", False)))

    async def _handle_batch_output(self, recv_obj: Any) -> None:
        if isinstance(recv_obj, BatchStrOutput | BatchTokenIDOutput):
            times = unwrap_from_pickle(recv_obj.time_stats)
            for at, rid in enumerate(recv_obj.rids):
                count = getattr(self.rid_to_state.get(rid), "ling", None)
                if count is not None:
                    count.output(recv_obj, at, times[at] if times else None)
        await super()._handle_batch_output(recv_obj)
