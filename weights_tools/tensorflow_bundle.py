"""Reads TensorFlow's V2 checkpoints ("bundles") with numpy alone: PREFIX.index and
PREFIX.data-00000-of-0000N.

The index is a LevelDB table (tensorflow/core/lib/io/table): blocks of entries sorted by key, which
share prefixes; a block that points to these; a footer that points to that. Its values are messages of
tensor_bundle.proto: a BundleHeaderProto under the empty key, a BundleEntryProto (dtype, shape, file,
offset, size) under each tensor's name. Values stay in the data files until their pieces are asked for.
"""

import math
import pathlib
import re
import struct

from weights_tools import safetensors_io as st
from weights_tools.protobuf import fields, varint, whole

MAGIC, FOOTER = 0xDB4775248B80FB57, 48
TRAILER = 5  # behind each block: how it is compressed, and a checksum
# types.proto; what is of another type is no weight.
DTYPES = {1: "F32", 2: "F64", 3: "I32", 4: "U8", 9: "I64", 14: "BF16", 19: "F16"}


def index_of(src):
    """The index file of a directory or of a file of a checkpoint; None where there is none."""
    if src.is_file():
        return src if src.suffix == ".index" else None
    found = sorted(src.glob("*.index"))
    if len(found) > 1:
        return latest(src, found)
    return found[0] if found else None


def latest(directory, found):
    """The one that the file `checkpoint` names, as tf.train.latest_checkpoint does."""
    path = directory / "checkpoint"
    text = path.read_text() if path.exists() else ""
    named = re.search(r'^model_checkpoint_path: "(.*)"', text, re.MULTILINE)
    index = directory / (pathlib.PurePath(named[1]).name + ".index") if named else None
    if index not in found:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"{directory}: wanted one *.index, found {names}: name one, for example {found[-1]}")
    return index


def sources(index):
    """-> name -> Source, or None where a tensor is of a type that no weight has. Raises ValueError with
    one sentence."""
    try:
        table = dict(read_table(index.read_bytes()))
        header = dict(fields(table.pop(b"", b"")))
        shards = whole(header.get(1, 0), "num_shards")
        if shards < 1 or header.get(2, 0) != 0:
            raise ValueError("wanted a header with the number of files, little-endian")
        return {name.decode(): named(index, name, entry, shards) for name, entry in table.items()}
    except (ValueError, IndexError, struct.error) as error:
        raise ValueError(f"{index}: no index of a TensorFlow checkpoint can be read: {error}") from None


def read_table(data):
    """-> key, value of each entry, in order."""
    if len(data) < FOOTER or struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise ValueError("the last eight bytes are not a table's")
    _, at = handle(data[-FOOTER:], 0)  # of a block about the others
    place, _ = handle(data[-FOOTER:], at)
    for _, value in read_block(data, place):
        yield from read_block(data, handle(value, 0)[0])


def handle(data, at):
    """-> (offset, size) of a block, and where the next byte is."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def read_block(data, place):
    offset, size = place
    if offset + size + TRAILER > len(data) or size < 4:
        raise ValueError(f"a block of {size} bytes at {offset} reaches beyond the file")
    if data[offset + size] != 0:
        raise ValueError("its blocks are compressed, which TensorFlow does not do")
    block = data[offset : offset + size]
    restarts = struct.unpack("<I", block[-4:])[0]
    end, at, key = size - 4 - 4 * restarts, 0, b""
    while at < end:
        shared, at = varint(block, at)
        added, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + added + length > end:
            raise ValueError(f"an entry of the block at {offset} reaches beyond it")
        key = key[:shared] + block[at : at + added]
        yield key, block[at + added : at + added + length]
        at += added + length


def named(index, name, entry, shards):
    try:
        return source(index, entry, shards)
    except ValueError as error:
        raise ValueError(f"{name.decode()}: {error}") from None


def source(index, entry, shards):
    """The tensor of a BundleEntryProto."""
    values = dict(fields(entry))
    dtype = DTYPES.get(values.get(1, 0))
    if dtype is None:
        return None
    if 7 in values:
        raise ValueError("it is in slices (a partitioned variable), which are not put together")
    shape = tuple(dimension(value) for field, value in fields(values.get(2, b"")) if field == 2)
    shard, offset, size = (whole(values.get(f, 0), f) for f in (3, 4, 5))
    wanted = math.prod(shape) * st.STORAGE[dtype].itemsize
    path = index.with_name(f"{index.name.removesuffix('.index')}.data-{shard:05}-of-{shards:05}")
    if not path.exists():
        raise ValueError(f"it is in {path.name}, which is not there")
    if size != wanted or offset + size > path.stat().st_size:
        raise ValueError(f"{dtype} {list(shape)} has {size} bytes at {offset} of {path.name}")

    def pieces():
        with open(path, "rb") as file:
            file.seek(offset)
            yield from st.read_pieces(file, dtype, size)

    return st.Source(dtype, shape, pieces)


def dimension(data):
    """The size in a TensorShapeProto.Dim; 0 is left out of the message."""
    return whole(dict(fields(data)).get(1, 0), "size")
