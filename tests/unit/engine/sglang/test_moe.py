"""Which tuned tables an engine is given: those of its checkpoint, cut as its ranks cut it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support import flash

from ling_engine.sglang import arguments, moe, shipped, wishes
from ling_engine.sglang.families import Family
from ling_engine.sglang.shape import shape_of

if TYPE_CHECKING:
    from pathlib import Path

BF16 = "E=513,N=768,device_name=NVIDIA_H200.json"
FP8 = "E=513,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"


def shape(quantization: str = "") -> Any:
    return shape_of(flash.target(**({"quantization_config": flash.FP8} if quantization else {})))


@pytest.mark.parametrize(
    ("quantization", "tp", "wanted"),
    [
        ("", 1, [(513, 768), (512, 768)]),
        ("", 2, [(513, 384), (512, 384)]),
        ("", 4, [(513, 192), (512, 192)]),
        ("fp8", 1, [(513, 768), (512, 768)]),
        ("fp8", 4, [(129, 768), (128, 768)]),
    ],
)
def test_a_rank_has_its_columns_of_all_experts_or_all_of_its_own(
    quantization: str, tp: int, wanted: list[tuple[int, int]]
) -> None:
    assert [(one.experts, one.columns) for one in moe.layers(shape(quantization), tp)] == wanted


@pytest.mark.parametrize(
    ("names", "quantization", "tp", "used"),
    [
        ({BF16}, "", 1, True),
        ({FP8}, "fp8", 1, True),
        ({BF16}, "fp8", 1, False),
        ({FP8}, "", 1, False),
        ({BF16}, "", 2, False),
        ({BF16.replace("513", "512")}, "", 1, True),
        ({BF16.replace("513", "51")}, "", 1, False),
        ({BF16.replace("_H200", "_B200")}, "", 1, True),
        (set(), "", 1, False),
    ],
    ids=[
        "fits", "fits fp8", "of bf16", "of fp8", "of another cut", "without the shared expert", "of fewer experts",
        "of another GPU: SGLang looks itself", "none shipped",
    ],
)  # fmt: skip
def test_tables_are_named_only_where_one_fits(names: set[str], quantization: str, tp: int, used: bool) -> None:
    tables = moe.Tables(folder="/tables", names=frozenset(names))
    found = moe.variables(tables, moe.layers(shape(quantization), tp))
    assert found == ({moe.VARIABLE: "/tables"} if used else {})


@pytest.mark.parametrize(("family", "used"), [(Family.HOPPER, True), (Family.CPU, False)])
def test_they_come_with_the_command_line_on_gpus(family: Family, used: bool) -> None:
    tables = moe.Tables(folder="/tables", names=frozenset({BF16}))
    one = wishes.Wishes(path="/models/ling", served_name="ling", context_length=4096)
    env = arguments.command_line(one, shape(), family, tables).env
    assert (moe.VARIABLE in env) is used


def test_what_is_shipped_is_what_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "configs" / "triton_3_8_0").mkdir(parents=True)
    (tmp_path / "configs" / "triton_3_8_0" / BF16).write_text("{}")
    assert shipped.tables(tmp_path) == moe.Tables(folder=str(tmp_path), names=frozenset({BF16}))
    assert shipped.tables().folder == str(shipped.FOLDER)
