"""What an attacher insists on before it maps anything: the set is sealed, and it is the one that was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_api.errors import AttachCheckFailed, FillFailed, LingError
from ling_api.identity import difference
from ling_api.manifest import Manifest
from ling_api.memory import memfd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_api.identity import Identity
    from ling_api.manifest import TensorEntry, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """The answer to a `fetch`, its parts put together; the descriptors stay their frames'."""

    kind: str
    manifest: int  # fd
    regions: tuple[int, ...]  # fds
    sizes: tuple[int, ...]


def handed_over(frames: Sequence[tuple[dict[str, Any], list[int]]]) -> Handed:
    """Raises AttachCheckFailed when parts or the manifest are missing."""
    ordered = sorted(frames, key=lambda frame: int(frame[0]["part"]))
    first, fds = ordered[0]
    if [message["part"] for message, _ in ordered] != list(range(first["parts"])) or not first["manifest"]:
        raise AttachCheckFailed("the agent handed over a set without its manifest or with a part missing")
    regions = [fd for position, (_, some) in enumerate(ordered) for fd in (some[1:] if position == 0 else some)]
    sizes = [size for message, _ in ordered for size in message["sizes"]]
    return Handed(kind=first["kind"], manifest=fds[0], regions=tuple(regions), sizes=tuple(sizes))


def read_manifest(fd: int) -> Manifest:
    """From its sealed memfd. Raises AttachCheckFailed."""
    try:
        if not memfd.sealed(fd):
            raise AttachCheckFailed("the manifest is not sealed")
        return Manifest.from_bytes(os.pread(fd, os.fstat(fd).st_size, 0))
    except AttachCheckFailed:
        raise
    except LingError as error:
        raise AttachCheckFailed(f"the manifest cannot be read: {error}") from error


def make_manifest(manifest: Manifest) -> int:
    """A sealed memfd with the manifest; the caller's."""
    data = manifest.to_bytes()
    fd = os.memfd_create("ling-manifest", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, data, 0)
        memfd.seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check(handed: Handed, manifest: Manifest, *, identity: Identity, rank: int, kind: str) -> None:
    """Raises AttachCheckFailed that names what differs."""
    if manifest.identity != identity or manifest.rank != rank:
        fields = ", ".join(one.field for one in difference(identity, manifest.identity)) or "rank"
        raise AttachCheckFailed(f"the set handed over is another one; it differs in {fields}")
    if (manifest.kind, handed.kind) != (kind, kind):
        raise AttachCheckFailed(f"the set is kept as {handed.kind}; this engine reads {kind}")
    if handed.sizes != tuple(region.size for region in manifest.regions):
        raise AttachCheckFailed("the regions handed over have other sizes than the manifest says")
    if kind == "memfd" and not all(memfd.sealed(fd) for fd in handed.regions):
        raise AttachCheckFailed("a region handed over is not sealed")


def check_tensors(specs: Sequence[TensorSpec], tensors: Sequence[TensorEntry]) -> None:
    """Every parameter has its tensor of the same form, and no tensor is left over. Raises AttachCheckFailed."""
    held = {tensor.name: tensor for tensor in tensors}
    for spec in specs:
        tensor = held.pop(spec.name, None)
        if tensor is None:
            raise AttachCheckFailed(f"the set holds no tensor {spec.name}")
        ours = (spec.dtype, tuple(spec.shape), tuple(spec.stride))
        if ours != (tensor.dtype, tensor.shape, tensor.stride):
            theirs = f"{tensor.dtype} {tensor.shape} strides {tensor.stride}"
            raise AttachCheckFailed(f"tensor {spec.name} is {theirs} in the set; the model wants {ours}")
    if held:
        raise AttachCheckFailed(f"the set holds tensors that the model lacks: {', '.join(sorted(held)[:5])}")


def check_revision(wanted: str, content: str) -> None:
    """`wanted` is "sha256:<hex>" or "" for anything. Raises FillFailed."""
    if wanted and wanted != f"sha256:{content}":
        raise FillFailed(
            f"the checkpoint's bytes are sha256:{content}; model.revision states {wanted}: "
            "correct the revision or the files"
        )
