"""Manifest: which tensor of a weight set lies where, and the checksums of its regions.

A set is one contiguous address range, its regions mapped back to back. Every tensor starts at a multiple of 512 bytes
of that range and may span regions; tensors at the same offset are aliases of one storage, all others never overlap.
The manifest names its checksum, because each kind of memory has the one that its own processor makes fast; a manifest
that names none is of a release that knew crc32 only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ling_api import canonical
from ling_api.errors import BadInput
from ling_api.identity import Identity, set_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA: Final = 1
ALIGNMENT: Final = 512  # bytes; what the CUDA allocator gives, and kernels rely on
CHUNK: Final = 4 << 20  # bytes of a region under one checksum
MAX_REGION: Final = 4 << 30
CRC32: Final = "crc32"
SUM64: Final = "sum64"  # of a chunk's 64-bit words w[i]: the sum of w[i] * (2 i + 1), modulo 2^64
CHECKSUM_BITS: Final = {CRC32: 32, SUM64: 64}
CHECKSUMS: Final = {"memfd": CRC32, "cuda": SUM64}  # by kind of memory
ITEM_BYTES: Final = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}
_LARGEST: Final = 1 << 50  # bytes; beyond any machine, and far from overflow


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A parameter before it has a place. Strides in elements; `alias_of` names the spec whose storage it shares."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    alias_of: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to behind the last. Raises BadInput for an unknown dtype or odd strides."""
        return extent(self.name, self.dtype, self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor and its place: `offset` in bytes from the start of the set's address range."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """A region: its bytes, and the checksum of each chunk of 4 MiB (the last one may be shorter)."""

    size: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every tensor goes, and the regions' sizes in bytes."""

    tensors: tuple[TensorEntry, ...]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a sealed weight set is and holds.

    `content`: sha256 of the checkpoint's bytes, "" = unknown. `checksum`: that of the kind of memory unless given.
    `form`: the runtime's own words about what hangs where in its model; nobody else reads them.
    """

    identity: Identity
    rank: int
    kind: str
    tensors: tuple[TensorEntry, ...]
    regions: tuple[RegionEntry, ...]
    content: str = ""
    schema: int = SCHEMA
    checksum: str = ""
    form: str = ""

    def __post_init__(self) -> None:
        if not self.checksum:
            object.__setattr__(self, "checksum", CHECKSUMS.get(self.kind, CRC32))

    @property
    def nbytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.size for region in self.regions)

    @property
    def set_id(self) -> str:
        """`<digest>:<rank>`."""
        return set_id(self.identity.digest, self.rank)

    @property
    def layout(self) -> Layout:
        """The places without the checksums."""
        return Layout(self.tensors, tuple(region.size for region in self.regions))

    def to_bytes(self) -> bytes:
        """Canonical JSON. Raises BadInput when the manifest contradicts itself."""
        _check(self)
        return canonical.encode(
            {
                "schema": self.schema,
                "identity": self.identity.to_bytes().decode(),
                "rank": self.rank,
                "kind": self.kind,
                "content": self.content,
                "checksum": self.checksum,
                "form": self.form,
                "nbytes": self.nbytes,
                "tensors": [[t.name, t.dtype, t.shape, t.stride, t.offset, t.nbytes] for t in self.tensors],
                "regions": [[region.size, region.checksums] for region in self.regions],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Manifest:
        """The inverse of `to_bytes`. Raises BadInput with one sentence for anything that makes no sense."""
        value = canonical.decode(data, "a manifest")
        if value.get("schema") != SCHEMA:
            raise BadInput(f"a manifest of schema {value.get('schema')!r}; this release reads {SCHEMA}")
        manifest = cls(
            identity=Identity.from_bytes(_field(value, "identity", str).encode()),
            rank=_field(value, "rank", int),
            kind=_field(value, "kind", str),
            tensors=tuple(_tensor(row) for row in _field(value, "tensors", list)),
            regions=tuple(_region(row) for row in _field(value, "regions", list)),
            content=_field(value, "content", str),
            checksum=_field({"checksum": CRC32} | value, "checksum", str),
            form=_field({"form": ""} | value, "form", str),
        )
        _check(manifest)
        if _field(value, "nbytes", int) != manifest.nbytes:
            raise BadInput(f"a manifest of {value['nbytes']} bytes whose regions have {manifest.nbytes}")
        return manifest


def plan_layout(specs: Iterable[TensorSpec], *, granularity: int, max_region: int = MAX_REGION) -> Layout:
    """Gives every spec its place, in order; aliases share one. All regions but the last have `max_region` bytes.

    Sizes are multiples of `granularity` (bytes). Raises BadInput for no bytes at all, a name that appears twice, an
    alias of nothing or larger than its storage, an unknown dtype.
    """
    if granularity < ALIGNMENT or granularity % ALIGNMENT or max_region < granularity:
        raise BadInput(f"granularity {granularity} must be a multiple of {ALIGNMENT} and at most {max_region}")
    specs = tuple(specs)
    owners = {spec.name: spec for spec in specs if spec.alias_of is None}
    offsets: dict[str, int] = {}
    end = 0
    for name, spec in owners.items():
        offsets[name] = end
        end += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    tensors = tuple(_placed(spec, owners, offsets) for spec in specs)
    _check_names(tensors)
    if end == 0:
        raise BadInput("a weight set without a byte cannot be kept; the model has no parameters")
    total = -(-end // granularity) * granularity
    largest = max_region // granularity * granularity
    full, rest = divmod(total, largest)
    return Layout(tensors, (largest,) * full + ((rest,) if rest else ()))


def extent(name: str, dtype: str, shape: Sequence[int], stride: Sequence[int]) -> int:
    """Bytes from a tensor's first element to behind its last. Raises BadInput."""
    if dtype not in ITEM_BYTES:
        raise BadInput(f"tensor {name!r} has the dtype {dtype!r}; known are {', '.join(sorted(ITEM_BYTES))}")
    if len(shape) != len(stride) or min((*shape, *stride), default=0) < 0:
        raise BadInput(f"tensor {name!r} has the shape {list(shape)} with the strides {list(stride)}")
    if 0 in shape:
        return 0
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (last + 1) * ITEM_BYTES[dtype]


def _placed(spec: TensorSpec, owners: dict[str, TensorSpec], offsets: dict[str, int]) -> TensorEntry:
    owner = owners.get(spec.alias_of or spec.name)
    if owner is None:
        raise BadInput(f"tensor {spec.name!r} is an alias of {spec.alias_of!r}, which is no tensor with a storage")
    if spec.nbytes > owner.nbytes:
        raise BadInput(f"tensor {spec.name!r} is an alias of {owner.name!r} and larger than it")
    return TensorEntry(spec.name, spec.dtype, tuple(spec.shape), tuple(spec.stride), offsets[owner.name], spec.nbytes)


def _check(manifest: Manifest) -> None:
    if manifest.kind not in CHECKSUMS:
        raise BadInput(f"a manifest of kind {manifest.kind!r}; known are {', '.join(CHECKSUMS)}")
    if manifest.checksum not in CHECKSUM_BITS:
        known = ", ".join(CHECKSUM_BITS)
        raise BadInput(f"a manifest with the checksum {manifest.checksum!r}; this release knows {known}")
    if not 0 <= manifest.rank < 1 << 16:
        raise BadInput(f"a manifest of rank {manifest.rank}")
    _check_content(manifest.content)
    for number, region in enumerate(manifest.regions):
        if not 0 < region.size < _LARGEST or len(region.checksums) != -(-region.size // CHUNK):
            raise BadInput(f"region {number} of {region.size} bytes has {len(region.checksums)} checksums")
        if not all(0 <= checksum < 1 << CHECKSUM_BITS[manifest.checksum] for checksum in region.checksums):
            raise BadInput(f"region {number} has a checksum that is no {manifest.checksum}")
    _check_names(manifest.tensors)
    _check_places(manifest.tensors, manifest.nbytes)


def _check_content(content: str) -> None:
    if content and (len(content) != 64 or content.strip("0123456789abcdef")):
        raise BadInput(f"a manifest's content {content[:80]!r} is no sha256; write 64 hex digits or nothing")


def _check_names(tensors: Sequence[TensorEntry]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise BadInput(f"tensor {tensor.name!r} appears twice")
        seen.add(tensor.name)


def _check_places(tensors: Sequence[TensorEntry], total: int) -> None:
    for tensor in tensors:
        need = extent(tensor.name, tensor.dtype, tensor.shape, tensor.stride)
        if tensor.nbytes != need:
            raise BadInput(f"tensor {tensor.name!r} has {tensor.nbytes} bytes; its shape and strides need {need}")
        if tensor.offset < 0 or tensor.offset % ALIGNMENT:
            raise BadInput(f"tensor {tensor.name!r} starts at {tensor.offset}, no multiple of {ALIGNMENT}")
        if tensor.offset + tensor.nbytes > total:
            raise BadInput(f"tensor {tensor.name!r} ends at {tensor.offset + tensor.nbytes}, behind the set's {total}")
    # Of the tensors at one offset (aliases) the longest comes last, so neighbours suffice to find an overlap.
    placed = sorted((t for t in tensors if t.nbytes), key=lambda t: (t.offset, t.nbytes))
    for one, two in pairwise(placed):
        if one.offset < two.offset < one.offset + one.nbytes:
            raise BadInput(f"tensors {one.name!r} and {two.name!r} overlap and are no aliases")


def _field[T](value: dict[str, Any], name: str, kind: type[T]) -> T:
    found = value.get(name)
    if type(found) is not kind:
        raise BadInput(f"a manifest's {name} must be {kind.__name__}, not {type(found).__name__}")
    return found


def _tensor(row: object) -> TensorEntry:
    match row:
        case [str(name), str(dtype), list(shape), list(stride), int(offset), int(nbytes)]:
            if _ints([*shape, *stride, offset, nbytes]):
                return TensorEntry(name, dtype, tuple(shape), tuple(stride), offset, nbytes)
    raise BadInput("a manifest's tensor must be [name, dtype, shape, strides, offset, bytes]")


def _region(row: object) -> RegionEntry:
    match row:
        case [int(size), list(checksums)] if _ints([size, *checksums]):
            return RegionEntry(size, tuple(checksums))
    raise BadInput("a manifest's region must be [bytes, checksums]")


def _ints(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)
