"""Reads and writes safetensors files with numpy alone, bf16 included.

A file is: u64 little-endian header length, JSON header, data. Each header entry gives dtype, shape
and [begin, end) relative to the data. numpy has no bf16, so BF16 is held as its uint16 bits.
"""

import dataclasses
import json
import pathlib
import struct

import numpy as np

STORAGE = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}
MAX_HEADER_BYTES = 100_000_000
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


@dataclasses.dataclass
class Tensor:
    """dtype is the safetensors name; array holds STORAGE[dtype] (raw bits for BF16)."""

    dtype: str
    array: np.ndarray

    @property
    def shape(self):
        return self.array.shape

    def float32(self):
        if self.dtype == "BF16":
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        return self.array.astype(np.float32)


@dataclasses.dataclass
class Entry:
    dtype: str
    shape: tuple
    begin: int
    end: int


def tensor(array, dtype=None):
    """Wraps a numpy array; dtype "BF16" rounds float values to the nearest, ties to even."""
    array = np.ascontiguousarray(array)
    if dtype == "BF16":
        return Tensor("BF16", bf16_bits(array))
    if dtype is None:
        dtype = next(
            name for name, kind in STORAGE.items() if kind == array.dtype and name != "BF16"
        )
    return Tensor(dtype, array.astype(STORAGE[dtype]))


def bf16_bits(array):
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


def write(path, tensors, metadata=None):
    """tensors: name -> Tensor. The data begins at a multiple of 8 bytes, tensors in name order."""
    header = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        size = tensors[name].array.nbytes
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for name in sorted(tensors):
            out.write(tensors[name].array.tobytes())


def read_header(path):
    """-> (name -> Entry, metadata, offset of the data). Raises ValueError with one sentence."""
    size = pathlib.Path(path).stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ValueError(f"{path}: wanted an 8-byte header length, found {len(prefix)} bytes")
        length = struct.unpack("<Q", prefix)[0]
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"{path}: header length {length} exceeds the file's {size} bytes")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"{path}: header is not JSON: {error}") from None
    metadata = header.pop("__metadata__", {})
    entries = {name: _entry(path, name, fields) for name, fields in header.items()}
    last = max((entry.end for entry in entries.values()), default=0)
    if 8 + length + last > size:
        raise ValueError(f"{path}: tensors end at byte {8 + length + last}, the file has {size}")
    return entries, metadata, 8 + length


def _entry(path, name, fields):
    dtype, shape = fields["dtype"], tuple(fields["shape"])
    begin, end = fields["data_offsets"]
    if dtype not in STORAGE:
        raise ValueError(f"{path}: tensor {name} has dtype {dtype}, wanted one of {list(STORAGE)}")
    wanted = int(np.prod(shape, dtype=np.int64)) * STORAGE[dtype].itemsize
    if end - begin != wanted:
        raise ValueError(
            f"{path}: tensor {name} {shape} {dtype} wants {wanted} bytes, has {end - begin}"
        )
    return Entry(dtype, shape, begin, end)


def read(path):
    """-> name -> Tensor."""
    entries, _, data = read_header(path)
    raw = np.fromfile(path, dtype=np.uint8, offset=data)
    return {
        name: Tensor(
            entry.dtype,
            raw[entry.begin : entry.end].view(STORAGE[entry.dtype]).reshape(entry.shape),
        )
        for name, entry in entries.items()
    }


def checkpoint_files(directory):
    """The safetensors files of a Hugging Face directory, single or sharded."""
    directory = pathlib.Path(directory)
    if (directory / INDEX_NAME).exists():
        weight_map = json.loads((directory / INDEX_NAME).read_text())["weight_map"]
        return [directory / name for name in sorted(set(weight_map.values()))]
    if (directory / SINGLE_NAME).exists():
        return [directory / SINGLE_NAME]
    raise ValueError(f"{directory}: wanted {SINGLE_NAME} or {INDEX_NAME}, found neither")


def read_checkpoint(directory):
    tensors = {}
    for path in checkpoint_files(directory):
        tensors.update(read(path))
    return tensors


def read_checkpoint_headers(directory):
    entries = {}
    for path in checkpoint_files(directory):
        entries.update(read_header(path)[0])
    return entries


def write_shards(directory, tensors, shards):
    """Writes model-0000i-of-0000n.safetensors and the index, tensors dealt out in name order."""
    names = sorted(tensors)
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    weight_map = {name: files[i * shards // len(names)] for i, name in enumerate(names)}
    for file in files:
        write(
            pathlib.Path(directory) / file, {n: tensors[n] for n in names if weight_map[n] == file}
        )
    index = {
        "metadata": {"total_size": sum(t.array.nbytes for t in tensors.values())},
        "weight_map": weight_map,
    }
    (pathlib.Path(directory) / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")
