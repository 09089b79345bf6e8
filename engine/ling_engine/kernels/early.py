"""What a kernel may do before the one in front of it has ended. Triton, for compute capability 9.0 and later."""

from __future__ import annotations

import triton
import triton.language as tl


def launched(pdl: bool) -> dict[str, bool]:
    """Arguments of a launch: with `pdl` it need not wait for the kernel in front, and the kernel waits itself."""
    return {"EARLY": True, "launch_pdl": True} if pdl else {"EARLY": False}


@triton.jit
def wait():
    """Until the kernel in front has ended; the one behind may be launched from now on."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
