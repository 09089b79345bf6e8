"""The switches of our own hooks, with what they gained, as a pure table."""

from __future__ import annotations

from typing import Final

from ling_engine.decoding import DSPARK, NEXTN, NONE

from . import hook_variables
from .families import Family
from .switch import H200, Switch

_DSPARK_GAIN: Final = (0.704, 0.746)  # kernels for few rows, acceptance in the graph, a draft in fp8, together
_NEXTN_GAIN: Final = (0.799, 0.868)  # kernels for few rows, drafts by a head in fp8, together
# Ours, over the recipe without them: of each algorithm together, but for DSPARK's drafts in fp8, measured alone. They
# have not run on more than one rank.
_FEW_ROWS: Final = {
    NONE: ("choice,experts,state", (0.873, 0.994)),
    NEXTN: ("scores,choice,experts,verify,products", _NEXTN_GAIN),
    DSPARK: ("scores,choice,experts,verify,products,replay,context", _DSPARK_GAIN),
}
_DRAFTS: Final = {NEXTN: _NEXTN_GAIN, DSPARK: (0.897, 0.909)}


def _ours(
    name: str, value: str, source: str, numerics: str, algorithm: str, gain: tuple[float, float], *, by_rows: bool
) -> Switch:  # fmt: skip
    return Switch(
        name=name, value=value, source=source, verified=H200, numerics=numerics, gain=gain, families=(Family.HOPPER,),
        algorithms=(algorithm,), quantizations=("",), most_tp=1, by_rows=by_rows,
    )  # fmt: skip


OURS: Final = (
    *(
        _ours(
            hook_variables.FEW_ROWS,
            parts,
            "`ling_engine/kernels`: a layer of experts in four launches, other products, KDA's states by more programs",
            "sums in another order; routing, where two experts tie",
            algorithm,
            gain,
            by_rows=True,
        )
        for algorithm, (parts, gain) in _FEW_ROWS.items()
    ),
    *(
        _ours(
            hook_variables.DRAFT_FP8,
            ",".join(hook_variables.DRAFTS[algorithm]),
            "`ling_engine/sglang/draft_fp8.py`: drafts read half of the bytes; other drafts, the same greedy tokens",
            "",
            algorithm,
            gain,
            by_rows=True,
        )
        for algorithm, gain in _DRAFTS.items()
    ),
    *(
        _ours(name, value, source, "", DSPARK, _DSPARK_GAIN, by_rows=False)
        for name, value, source in (
            (
                hook_variables.ACCEPT_IN_GRAPH,
                "1",
                "`ling_engine/sglang/accepting.py`: the verify graph says what is confirmed, and keeps it",
            ),
            *(
                (name, value, "environ.py: what that graph does besides")
                for name, value in hook_variables.ACCEPTANCE.items()
            ),
        )
    ),
)
