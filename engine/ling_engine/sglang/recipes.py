"""How SGLang is called for lowest latency at small batches: the switches that apply to a kind of engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .switch import Switch
from .switches import SWITCHES

if TYPE_CHECKING:
    from .families import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Every switch of one kind of engine."""

    switches: tuple[Switch, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        flags = [switch for switch in self.switches if switch.is_flag]
        return tuple(part for flag in flags for part in (flag.name, flag.value) if part)

    @property
    def env(self) -> dict[str, str]:
        return {switch.name: switch.value for switch in self.switches if not switch.is_flag}


def recipe(family: Family, algorithm: str, quantization: str = "", tp: int = 1, *, alike: bool = False) -> Recipe:
    """Every switch that applies, `{tp}` filled in; with `alike` none by which few rows have other results than many."""
    chosen = (
        switch
        for switch in SWITCHES
        if family in switch.families
        and algorithm in switch.algorithms
        and quantization in switch.quantizations
        and tp >= switch.least_tp
        and (not switch.most_tp or tp <= switch.most_tp)
        and not (alike and switch.by_rows)
    )
    return Recipe(switches=tuple(_filled(switch, tp) for switch in chosen))


def replay_ring(draft_tokens: int) -> int:
    """Entries of the replay ring: a power of two, twice the rows of a round at least.

    SGLang checks it only while it makes its pools (`mem_cache/memory_pool.py`), on the GPU.
    """
    ring = 1
    while ring < 2 * draft_tokens:
        ring *= 2
    return ring


def _filled(switch: Switch, tp: int) -> Switch:
    if "{tp}" not in switch.value:
        return switch
    return Switch(name=switch.name, value=switch.value.format(tp=tp), source=switch.source, verified=switch.verified)
