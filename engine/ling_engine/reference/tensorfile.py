"""Files in safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes without gaps."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
DTYPES |= {"I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn"}
SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
_LONGEST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor in a file; `begin` and `end` are offsets in the file, bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A file's header: its tensors in the order of their bytes, and the sha256 of the header itself."""

    path: Path
    size: int
    mtime_ns: int
    header: str
    tensors: tuple[Stored, ...]


def shards(folder: Path) -> tuple[Shard, ...]:
    """Every shard of the checkpoint, by name. Raises BadInput with one sentence."""
    index = folder / INDEX
    if not index.exists():
        _check_alone(folder)
        return (read_header(folder / SINGLE),)
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{index}: no readable index of shards ({error!r})") from None
    if any(not isinstance(name, str) or "/" in name for name in names):
        raise BadInput(f"{index}: a shard must be a plain file name")
    return tuple(read_header(folder / name) for name in names)


def _check_alone(folder: Path) -> None:
    """Loaders differ in what they take where there is no index: the one file, or all that look like it."""
    others = sorted(file.name for file in folder.glob("*.safetensors") if file.name != SINGLE)
    if others:
        raise BadInput(f"{folder} has {', '.join(others)} and no {INDEX}; add the index, or move them away")


def read_header(path: Path) -> Shard:
    """Raises BadInput when the file is absent, no safetensors file, or shorter or longer than its header says."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            raw = file.read(length) if 2 <= length <= _LONGEST_HEADER else b""
        header = json.loads(raw)
        start = 8 + length
        tensors = sorted(
            (_stored(name, e, start) for name, e in header.items() if name != "__metadata__"), key=lambda t: t.begin
        )
        status = path.stat()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: no safetensors file ({error!r})") from None
    _check(path, tensors, start, status.st_size)
    digest = hashlib.sha256(raw).hexdigest()
    return Shard(path=path, size=status.st_size, mtime_ns=status.st_mtime_ns, header=digest, tensors=tuple(tensors))


def header_of(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The first bytes of a file that holds these tensors (name -> torch's dtype name, shape) in this order."""
    short = {long: short for short, long in DTYPES.items()}
    entries, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * SIZES[dtype]
        entries[name] = {"dtype": short[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _stored(name: str, entry: Mapping[str, object], start: int) -> Stored:
    begin, end = (int(x) for x in entry["data_offsets"])  # type: ignore[attr-defined]  # a TypeError is caught above
    shape = tuple(int(n) for n in entry["shape"])  # type: ignore[attr-defined]
    dtype = DTYPES.get(str(entry["dtype"]), str(entry["dtype"]))
    if min((begin, end - begin, *shape)) < 0 or end - begin != math.prod(shape) * SIZES.get(dtype, end - begin):
        raise ValueError(f"{name} has offsets that do not fit its shape")
    return Stored(name=name, dtype=dtype, shape=shape, begin=start + begin, end=start + end)


def _check(path: Path, tensors: list[Stored], start: int, size: int) -> None:
    at = start
    for tensor in tensors:
        if tensor.begin != at:
            raise BadInput(f"{path}: {tensor.name} overlaps its neighbour or leaves a gap")
        at = tensor.end
    if at != size:
        raise BadInput(f"{path}: {size} bytes long, but its header speaks of {at}; copy the file again")
