"""Which tuned tables of the fused MoE kernel belong to a checkpoint, by the names under which SGLang looks for them.

SGLang reads `<folder>/configs/triton_<version>/<name>` and takes the entry of the nearest number of rows. The folder is
named by a variable, and hides SGLang's own tables: so it is named only where one of ours fits. A table decides in which
order the columns of a product are summed (rounding), never which experts are taken. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .shape import Shape

VARIABLE: Final = "SGLANG_MOE_CONFIG_DIR"
_BLOCK: Final = 128  # of a block-wise quantized weight, both ways


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The experts of one rank as the kernel sees them: `columns` of an expert's inner width."""

    experts: int
    columns: int
    quantization: str = ""  # or fp8

    @property
    def suffix(self) -> str:
        """What a table's name says behind the GPU's name."""
        return f",dtype=fp8_w8a8,block_shape=[{_BLOCK}, {_BLOCK}]" if self.quantization == "fp8" else ""

    def table(self, gpu: str) -> str:
        """The name of its table; `gpu` as the driver calls it."""
        return f"E={self.experts},N={self.columns},device_name={gpu.replace(' ', '_')}{self.suffix}.json"

    def fits(self, name: str) -> bool:
        """Whether a table of that name is for it, on whatever GPU."""
        head, _, rest = name.partition(",device_name=")
        gpu = rest.removesuffix(".json").removesuffix(self.suffix)
        return head == f"E={self.experts},N={self.columns}" and rest == f"{gpu}{self.suffix}.json" and "," not in gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """A folder of them, and the names of those that lie in it."""

    folder: str = ""
    names: frozenset[str] = frozenset()


def layers(shape: Shape, tp: int) -> tuple[Layer, ...]:
    """Of one rank: with the shared expert as one more of the routed ones, as SGLang does where it can, and without.

    bf16 experts are cut; fp8 experts are shared out whole (`--ep-size`), because blocks cannot be cut.
    """
    whole = shape.quantization == "fp8"
    experts = shape.experts // tp if whole else shape.experts
    columns = shape.moe_intermediate if whole else shape.moe_intermediate // tp
    return tuple(Layer(experts=experts + shared, columns=columns, quantization=shape.quantization) for shared in (1, 0))


def variables(tables: Tables, found: Iterable[Layer]) -> dict[str, str]:
    """What makes SGLang read the tables; nothing where none fits."""
    fits = any(layer.fits(name) for layer in found for name in tables.names)
    return {VARIABLE: tables.folder} if fits else {}
