"""What an attacher refuses to map."""

import dataclasses
import os
from collections.abc import Callable

import pytest
from tests.support.descriptors import none_leaked

from ling_api.errors import AttachCheckFailed, FillFailed
from ling_api.identity import Identity
from ling_api.manifest import Manifest, RegionEntry, TensorSpec, plan_layout
from ling_api.memory import memfd
from ling_engine import sealed

IDENTITY = Identity.of("target", {"model": "m", "dtype": "float32"})
SPECS = [TensorSpec("a", "float32", (2, 3), (3, 1)), TensorSpec("b", "float32", (4,), (1,))]
SIZE = 2 << 20
OTHER = Identity.of("target", {"model": "m", "dtype": "bfloat16"})
DRAFT = Identity.of("nextn", {"model": "m", "dtype": "float32"})
LAYOUT = plan_layout(SPECS, granularity=SIZE)
MANIFEST = Manifest(
    identity=IDENTITY,
    rank=0,
    kind="memfd",
    tensors=LAYOUT.tensors,
    regions=(RegionEntry(SIZE, (0,)),),
    content="0" * 64,
)


def region(*, seal: bool = True) -> int:
    fd = memfd.MemfdMemory().create(SIZE)
    if seal:
        memfd.seal(fd)
    return fd


def handed(fd: int, **fields: object) -> sealed.Handed:
    given = sealed.Handed(kind="memfd", manifest=-1, regions=(fd,), sizes=(SIZE,))
    return dataclasses.replace(given, **fields)  # type: ignore[arg-type]


def test_the_right_set_passes() -> None:
    fd = region()
    sealed.check(handed(fd), MANIFEST, identity=IDENTITY, rank=0, kind="memfd")
    sealed.check_tensors(SPECS, MANIFEST.tensors)
    sealed.check_revision(f"sha256:{'0' * 64}", MANIFEST.content)
    sealed.check_revision("", "")
    os.close(fd)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(lambda m: dataclasses.replace(m, identity=OTHER),
                     "differs in dtype", id="identity"),
        pytest.param(lambda m: dataclasses.replace(m, identity=DRAFT),
                     "differs in role", id="role"),
        pytest.param(lambda m: dataclasses.replace(m, rank=1), "differs in rank", id="rank"),
        pytest.param(lambda m: dataclasses.replace(m, kind="cuda"), "this engine reads memfd", id="kind"),
        pytest.param(lambda m: dataclasses.replace(m, regions=(RegionEntry(2 * SIZE, (0,)),)), "other sizes",
                     id="sizes"),
    ],
)  # fmt: skip
def test_another_set_is_refused(spoil: Callable[[Manifest], Manifest], says: str) -> None:
    fd = region()
    with pytest.raises(AttachCheckFailed, match=says):
        sealed.check(handed(fd), spoil(MANIFEST), identity=IDENTITY, rank=0, kind="memfd")
    os.close(fd)


def test_an_unsealed_region_is_refused() -> None:
    fd = region(seal=False)
    with pytest.raises(AttachCheckFailed, match="not sealed"):
        sealed.check(handed(fd), MANIFEST, identity=IDENTITY, rank=0, kind="memfd")
    os.close(fd)


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        pytest.param([*SPECS, TensorSpec("c", "float32", (1,), (1,))], "no tensor c", id="missing"),
        pytest.param(SPECS[:1], "the model lacks: b", id="left-over"),
        pytest.param([TensorSpec("a", "float32", (3, 2), (2, 1)), SPECS[1]], "tensor a is float32", id="shape"),
        pytest.param([TensorSpec("a", "float32", (2, 3), (1, 2)), SPECS[1]], "strides", id="stride"),
        pytest.param([TensorSpec("a", "bfloat16", (2, 3), (3, 1)), SPECS[1]], "tensor a is float32", id="dtype"),
    ],
)
def test_tensors_of_another_form_are_refused(specs: list[TensorSpec], says: str) -> None:
    with pytest.raises(AttachCheckFailed, match=says):
        sealed.check_tensors(specs, MANIFEST.tensors)


def test_a_checkpoint_of_another_revision_is_no_fill() -> None:
    with pytest.raises(FillFailed, match="correct the revision or the files"):
        sealed.check_revision(f"sha256:{'1' * 64}", "0" * 64)


def test_a_manifest_survives_its_memfd_and_must_be_sealed() -> None:
    with none_leaked():
        fd = sealed.make_manifest(MANIFEST)
        assert sealed.read_manifest(fd) == MANIFEST
        os.close(fd)
        open_fd = memfd.MemfdMemory().create(SIZE)
        with pytest.raises(AttachCheckFailed, match="not sealed"):
            sealed.read_manifest(open_fd)
        memfd.seal(open_fd)
        with pytest.raises(AttachCheckFailed, match="cannot be read"):
            sealed.read_manifest(open_fd)
        os.close(open_fd)


def frame(part: int, parts: int, fds: list[int], *, manifest: bool) -> tuple[dict[str, object], list[int]]:
    return {"part": part, "parts": parts, "sizes": [part + 1], "kind": "memfd", "manifest": manifest}, fds


def test_parts_are_put_together_in_order() -> None:
    found = sealed.handed_over([frame(1, 2, [12], manifest=False), frame(0, 2, [10, 11], manifest=True)])
    assert found == sealed.Handed(kind="memfd", manifest=10, regions=(11, 12), sizes=(1, 2))


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([frame(0, 2, [10, 11], manifest=True)], id="part-missing"),
        pytest.param([frame(0, 1, [11], manifest=False)], id="no-manifest"),
    ],
)
def test_half_a_set_is_refused(frames: list[tuple[dict[str, object], list[int]]]) -> None:
    with pytest.raises(AttachCheckFailed):
        sealed.handed_over(frames)
