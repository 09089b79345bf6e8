"""What a kernel may do before the one in front of it has ended. Triton, for compute capability 9.0 and later."""

from __future__ import annotations

import triton
import triton.language as tl


def launched(pdl: bool) -> dict[str, bool]:
    """Arguments of a launch: with `pdl` it need not wait for the kernel in front, and the kernel waits itself."""
    return {"EARLY": True, "launch_pdl": True} if pdl else {"EARLY": False}


@triton.jit
def fetch(ptr, nbytes):
    """Asks for `nbytes` from `ptr` on, both multiples of 16, to be in the L2 cache soon. One thread asks."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred first;
        .reg .u32 thread;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        @first cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [ptr.to(tl.int64), nbytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait():
    """Until the kernel in front has ended; the one behind may be launched from now on."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
