"""llama.cpp's GGUF files: their metadata and tensors, read without anything of llama.cpp.

    magic "GGUF", u32 version (2 or 3), u64 tensors, u64 values
    each value: its name, u32 type, the value. A name or text is a u64 length and UTF-8; an array a u32 type of its
    elements, a u64 count and those
    each tensor: its name, u32 dimensions, u64 each (the last of ours first), u32 type, u64 place
    padding to the alignment (general.alignment, 32 by default), from where places count

All little-endian. Blocks of 32 values in a row: Q8_0 is an fp16 scale d and 32 bytes q, w = d q; Q4_0 is d and 16
bytes, whose lower four bits are the first 16 values and upper four the others, w = d (q - 8).
"""

import dataclasses
import mmap
import struct

import numpy as np

from weights_tools import safetensors_io as st

MAGIC = b"GGUF"
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
PLAIN = {0: "F32", 1: "F16", 30: "BF16"}
BLOCK = 32
BLOCK_BYTES = {8: 34, 2: 18}  # Q8_0, Q4_0
OTHERS = {3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 28: "F64"}
PIECE = 1 << 20  # values widened at once
MOST_DIMENSIONS = 4


class Malformed(ValueError):
    pass


@dataclasses.dataclass
class Reader:
    """The header of a file, from its first byte on."""

    path: object
    data: memoryview
    at: int = 0

    def bytes(self, count):
        if count > len(self.data) - self.at:
            raise Malformed(f"{self.path}: ends within its header: no whole GGUF file")
        self.at += count
        return self.data[self.at - count : self.at]

    def scalar(self, code):
        return struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]

    def text(self):
        return bytes(self.bytes(self.scalar("Q"))).decode("utf-8", "replace")

    def value(self, kind):
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise Malformed(f"{self.path}: a value of type {kind}, which no GGUF file has")
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in SCALARS:
            width = struct.calcsize("<" + SCALARS[kind])
            if count > len(self.data):  # so that the product stays a size
                raise Malformed(f"{self.path}: an array of {count} values, more than the file has room for")
            return np.frombuffer(self.bytes(count * width), np.dtype(SCALARS[kind]).newbyteorder("<")).tolist()
        if kind != TEXT:
            raise Malformed(f"{self.path}: an array of type {kind}, which is not read")
        return [self.text() for _ in range(count)]


def is_one(path):
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path):
    """-> values by name, tensors: name -> Source, of quantised ones in fp32."""
    if not is_one(path):
        raise Malformed(f"{path}: no GGUF file")
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    reader = Reader(path, data, len(MAGIC))
    version = reader.scalar("I")
    if version not in (2, 3):
        raise Malformed(f"{path}: wanted version 2 or 3 of GGUF, found {version}")
    tensors, count = reader.scalar("Q"), reader.scalar("Q")
    values = {}
    for _ in range(count):
        name = reader.text()
        values[name] = reader.value(reader.scalar("I"))
    entries = []
    for _ in range(tensors):
        name, dimensions = reader.text(), reader.scalar("I")
        if dimensions > MOST_DIMENSIONS:
            raise Malformed(f"{path}: {name}: wanted {MOST_DIMENSIONS} dimensions at most, found {dimensions}")
        shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]
        entries.append((name, shape, reader.scalar("I"), reader.scalar("Q")))
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise Malformed(f"{path}: general.alignment: wanted a positive number, found {alignment}")
    start = -(-reader.at // alignment) * alignment
    return values, {name: source(path, data, name, shape, kind, start + at) for name, shape, kind, at in entries}


def source(path, data, name, shape, kind, at):
    size = 1
    for dimension in shape:
        size *= dimension
    if kind in PLAIN:
        dtype = PLAIN[kind]
        nbytes = size * st.STORAGE[dtype].itemsize
    elif kind in BLOCK_BYTES:
        dtype = "F32"
        if not shape or shape[-1] % BLOCK:
            raise Malformed(f"{path}: {name}: wanted rows of a multiple of {BLOCK}, found {list(shape)}")
        nbytes = size // BLOCK * BLOCK_BYTES[kind]
    else:
        found = OTHERS.get(kind, f"type {kind}")
        raise ValueError(f"{path}: {name}: wanted F32, F16, BF16, Q8_0 or Q4_0, found {found}; nothing written")
    if at + nbytes > len(data):
        raise Malformed(f"{path}: {name} ends behind the file")

    def plain():
        yield np.frombuffer(data, st.STORAGE[dtype], size, at)

    def blocks():
        each = BLOCK_BYTES[kind]
        for first in range(0, size, PIECE):
            count = min(PIECE, size - first) // BLOCK
            raw = np.frombuffer(data, np.uint8, count * each, at + first // BLOCK * each)
            yield widened(kind, raw.reshape(count, each))

    return st.Source(dtype, shape, plain if kind in PLAIN else blocks)


def widened(kind, blocks):
    """blocks: uint8 [count, bytes of a block] -> fp32, one after the other."""
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    packed = blocks[:, 2:]
    if kind == 8:
        q = packed.view(np.int8).astype(np.float32)
    else:
        q = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) - np.float32(8)
    with np.errstate(invalid="ignore"):  # of a scale that is not finite
        return (scale * q).reshape(-1)
