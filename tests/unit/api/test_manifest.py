"""Layouts that keep their promises for any set of tensors, and manifests that refuse nonsense with one sentence."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ling_api.errors import BadInput
from ling_api.identity import Identity
from ling_api.manifest import (
    ALIGNMENT,
    CHUNK,
    ITEM_BYTES,
    Layout,
    Manifest,
    RegionEntry,
    TensorEntry,
    TensorSpec,
    plan_layout,
)

if TYPE_CHECKING:
    from collections.abc import Callable

IDENTITY = Identity.of("target", {"model": "test"})


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


@st.composite
def spec_lists(draw: st.DrawFn) -> list[TensorSpec]:
    specs: list[TensorSpec] = []
    for number in range(draw(st.integers(1, 8))):
        owners = [spec for spec in specs if spec.alias_of is None]
        if owners and draw(st.integers(0, 4)) == 0:
            owner = draw(st.sampled_from(owners))
            specs.append(dataclasses.replace(owner, name=f"t{number}", alias_of=owner.name))
            continue
        shape = tuple(draw(st.lists(st.integers(0, 40), max_size=3)))
        stride = contiguous(shape)
        if draw(st.booleans()):  # a transposed one
            shape, stride = shape[::-1], stride[::-1]
        specs.append(TensorSpec(f"t{number}", draw(st.sampled_from(sorted(ITEM_BYTES))), shape, stride))
    return [*specs, TensorSpec("some", "uint8", (1,), (1,))]


def manifest_of(layout: Layout, **changes: Any) -> Manifest:
    regions = tuple(RegionEntry(size, (7,) * -(-size // CHUNK)) for size in layout.sizes)
    whole = {"identity": IDENTITY, "rank": 0, "kind": "memfd", "tensors": layout.tensors, "regions": regions}
    return Manifest(**{**whole, **changes})


@settings(max_examples=60, deadline=None)
@given(specs=spec_lists(), granularity=st.sampled_from([512, 4096]), regions=st.integers(1, 4))
def test_a_layout_keeps_its_promises(specs: list[TensorSpec], granularity: int, regions: int) -> None:
    layout = plan_layout(specs, granularity=granularity, max_region=granularity * regions)
    assert [tensor.name for tensor in layout.tensors] == [spec.name for spec in specs]
    assert all(0 < size <= granularity * regions and size % granularity == 0 for size in layout.sizes)
    assert all(size == granularity * regions for size in layout.sizes[:-1])
    places = {tensor.name: tensor for tensor in layout.tensors}
    for spec in specs:
        tensor = places[spec.name]
        assert (tensor.dtype, tensor.shape, tensor.stride) == (spec.dtype, spec.shape, spec.stride)
        assert tensor.offset % ALIGNMENT == 0
        assert tensor.offset + tensor.nbytes <= layout.nbytes
        assert tensor.offset == places[spec.alias_of or spec.name].offset
    owners = sorted((places[s.name] for s in specs if s.alias_of is None and s.nbytes), key=lambda t: t.offset)
    assert all(one.offset + one.nbytes <= two.offset for one, two in pairwise(owners))
    needed = sum(-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs if spec.alias_of is None)
    assert layout.nbytes - needed < granularity
    manifest = manifest_of(layout)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.layout == layout


def test_a_big_set_has_regions_of_the_largest_size_and_a_rest() -> None:
    layout = plan_layout([TensorSpec("w", "bfloat16", (5 << 30,), (1,))], granularity=2 << 20)
    assert layout.sizes == (4 << 30, 4 << 30, 2 << 30)


def spec(name: str, alias_of: str | None = None, size: int = 4, dtype: str = "int8") -> TensorSpec:
    return TensorSpec(name, dtype, (size,), (1,), alias_of)


@pytest.mark.parametrize(
    ("specs", "options", "sentence"),
    [
        ([], {}, "without a byte"),
        ([spec("a", size=0)], {}, "without a byte"),
        ([spec("a"), spec("a")], {}, "'a' appears twice"),
        ([spec("a"), spec("b", "c")], {}, "alias of 'c', which is no tensor"),
        ([spec("a"), spec("b", "a"), spec("c", "b")], {}, "alias of 'b', which is no tensor"),
        ([spec("a"), spec("b", "a", size=5)], {}, "larger than it"),
        ([spec("a", dtype="int4")], {}, "has the dtype 'int4'; known are bfloat16,"),
        ([TensorSpec("a", "int8", (2, 2), (1,))], {}, r"shape \[2, 2\] with the strides \[1\]"),
        ([TensorSpec("a", "int8", (2,), (-1,))], {}, "strides"),
        ([spec("a")], {"granularity": 1000}, "multiple of 512"),
        ([spec("a")], {"max_region": 2048}, "at most 2048"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_specs_without_a_layout_are_refused(specs: list[TensorSpec], options: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        plan_layout(specs, **{"granularity": 4096, **options})


def test_a_manifest_says_what_it_is() -> None:
    layout = plan_layout([spec("a")], granularity=8 << 20)
    manifest = manifest_of(layout, rank=3, content="c" * 64)
    assert (manifest.set_id, manifest.nbytes) == (f"{IDENTITY.digest}:3", 8 << 20)
    assert Manifest.from_bytes(memoryview(manifest.to_bytes())) == manifest


GOOD = manifest_of(plan_layout([spec("a"), spec("b", size=600), spec("tied", "b", size=600)], granularity=4096))


def with_tensor(value: dict[str, Any], column: int, content: Any) -> None:
    value["tensors"][1][column] = content


WRONG: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda v: v.update(schema=2), "schema 2; this release reads 1"),
    (lambda v: v.pop("schema"), "schema None"),
    (lambda v: v.update(identity="{}"), "identity must have"),
    (lambda v: v.update(identity={}), "identity must be str, not dict"),
    (lambda v: v.update(identity="\ud800"), "not JSON in UTF-8"),
    (lambda v: v.update(rank=-1), "rank -1"),
    (lambda v: v.update(rank=True), "rank must be int, not bool"),
    (lambda v: v.update(kind="disk"), "kind 'disk'; known are memfd, cuda"),
    (lambda v: v.update(content="abc"), "no sha256"),
    (lambda v: v.update(checksum="md5"), "the checksum 'md5'; this release knows crc32, sum64"),
    (lambda v: v.update(checksum=7), "checksum must be str, not int"),
    (lambda v: v.update(kind="cuda", checksum="sum64", regions=[[4096, [1 << 64]]]), "no sum64"),
    (lambda v: v.pop("tensors"), "tensors must be list"),
    (lambda v: v.update(nbytes=4097), "of 4097 bytes whose regions have 4096"),
    (lambda v: v.update(regions=[[4096]]), "region must be"),
    (lambda v: v.update(regions=[[4096, []]]), "region 0 of 4096 bytes has 0 checksums"),
    (lambda v: v.update(regions=[[4096, [1, 2]]]), "has 2 checksums"),
    (lambda v: v.update(regions=[[4096, [1 << 32]]]), "no crc32"),
    (lambda v: v.update(regions=[[0, []]]), "region 0 of 0 bytes"),
    (lambda v: v.update(regions=[[1 << 60, []]]), "region 0"),
    (lambda v: v.update(regions=[]), "behind the set's 0"),
    (lambda v: v.update(tensors=[["a"]]), "tensor must be"),
    (lambda v: with_tensor(v, 0, "a"), "'a' appears twice"),
    (lambda v: with_tensor(v, 1, "int4"), "dtype 'int4'"),
    (lambda v: with_tensor(v, 1, "int16"), "has 600 bytes; its shape and strides need 1200"),
    (lambda v: with_tensor(v, 2, [601]), "need 601"),
    (lambda v: with_tensor(v, 2, [600.0]), "tensor must be"),
    (lambda v: with_tensor(v, 2, [600, 1]), r"shape \[600, 1\] with the strides \[1\]"),
    (lambda v: with_tensor(v, 3, [2]), "need 1199"),
    (lambda v: with_tensor(v, 4, 4096), "behind the set's 4096"),
    (lambda v: with_tensor(v, 4, -512), "no multiple"),
    (lambda v: with_tensor(v, 4, 100), "no multiple of 512"),
    (lambda v: with_tensor(v, 4, 1024), "'tied' and 'b' overlap and are no aliases"),
    (lambda v: with_tensor(v, 5, True), "tensor must be"),
]


@pytest.mark.parametrize(("kind", "checksum", "largest"), [("memfd", "crc32", 32), ("cuda", "sum64", 64)])
def test_each_kind_of_memory_has_its_checksum(kind: str, checksum: str, largest: int) -> None:
    regions = (RegionEntry(4096, ((1 << largest) - 1,)),)
    manifest = dataclasses.replace(GOOD, kind=kind, checksum="", regions=regions)
    assert manifest.checksum == checksum
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@pytest.mark.parametrize("kind", ["memfd", "cuda"])
def test_a_manifest_of_an_older_release_has_crc32(kind: str) -> None:
    value = json.loads(dataclasses.replace(GOOD, kind=kind).to_bytes())
    del value["checksum"]
    assert Manifest.from_bytes(json.dumps(value).encode()).checksum == "crc32"


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_manifest_of_nonsense_is_refused(change: Callable[[dict[str, Any]], object], sentence: str) -> None:
    value = json.loads(GOOD.to_bytes())
    change(value)
    with pytest.raises(BadInput, match=sentence) as caught:
        Manifest.from_bytes(json.dumps(value).encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b"{", b"[" * 100_000], ids=range(5))
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match="a manifest"):
        Manifest.from_bytes(data)


def test_a_manifest_carries_the_runtimes_form_and_an_older_one_has_none() -> None:
    layout = plan_layout([spec("a")], granularity=ALIGNMENT)
    written = manifest_of(layout, form='{"any": "words"}')
    assert Manifest.from_bytes(written.to_bytes()) == written
    older = json.loads(manifest_of(layout).to_bytes())
    del older["form"]
    assert Manifest.from_bytes(json.dumps(older).encode()).form == ""


def test_a_manifest_that_contradicts_itself_is_never_written() -> None:
    one = TensorEntry("a", "int8", (600,), (1,), 0, 600)
    wrong = dataclasses.replace(GOOD, tensors=(one, dataclasses.replace(one, name="b", offset=512)))
    with pytest.raises(BadInput, match="overlap"):
        wrong.to_bytes()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_mutated_bytes_are_read_as_written_or_refused(data: st.DataObject) -> None:
    written = bytearray(GOOD.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(written) - 1))
        written[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"-", b"9", b"]", b","])
        )
    try:
        manifest = Manifest.from_bytes(written)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert Manifest.from_bytes(manifest.to_bytes()) == manifest
