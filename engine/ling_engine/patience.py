"""How long a server may be silent before it counts as hung. Pure.

With a request in flight a token must come within 5 s, or within 50 steps if that is more. Before its first token a
prompt is read, which takes its time: so much for each of its bytes as the recent ones took, ten times over.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

LEAST: Final = 5.0  # seconds
STEPS: Final = 50
READING: Final = 10  # times what recent prompts took
UNKNOWN: Final = 0.001  # seconds a byte, before any prompt was read


def patience(*, steps: Collection[float], reading: Collection[float], unread: int) -> float:
    """Seconds. `steps`: recent ones in s; `reading`: s per prompt byte; `unread`: prompt bytes without a token yet."""
    step = median(steps) if steps else 0.0
    rate = max(READING * median(reading), UNKNOWN) if reading else UNKNOWN
    return max(LEAST, STEPS * step) + rate * unread
