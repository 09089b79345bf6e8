"""What a switch of SGLang is, and where it applies. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ling_engine.decoding import DSPARK, NEXTN, NONE

from .families import Family

H200, SOURCE_ONLY = "H200", "source-only"
ALL: Final = (NONE, NEXTN, DSPARK)
GPUS: Final = (Family.HOPPER, Family.BLACKWELL)
EVERYWHERE: Final = (*GPUS, Family.CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A flag (`--name`, value "" = a flag without one) or a variable, and where it applies.

    `numerics`: what it does to the results; "" = the same arithmetic. `by_rows`: it does so for few rows alone.
    """

    name: str
    value: str = ""
    source: str
    verified: str = SOURCE_ONLY
    numerics: str = ""
    by_rows: bool = False
    gain: tuple[float, float] | None = None
    families: tuple[Family, ...] = EVERYWHERE
    algorithms: tuple[str, ...] = ALL
    quantizations: tuple[str, ...] = ("", "fp8")
    least_tp: int = 1
    most_tp: int = 0  # 0 = any

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("--")
