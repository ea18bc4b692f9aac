"""Reads and writes safetensors files with numpy alone, bf16 included.

A file is: u64 little-endian header length, JSON header, data. Each header entry gives dtype, shape
and [begin, end) relative to the data. numpy has no bf16, so BF16 is held as its uint16 bits.

What is written may be a Tensor, in memory, or a Source, which gives its values in pieces: a whole
checkpoint passes through with one piece in memory at a time.
"""

import dataclasses
import json
import pathlib
import struct
import typing

import numpy as np

STORAGE = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
}
MAX_HEADER_BYTES = 100_000_000
PIECE_BYTES = 16 << 20
# Where the server uses tensors in place (recurve-server --map-weights): those of a multiple of so many bytes lie at one.
ALIGNMENT = 64
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

    @property
    def nbytes(self):
        return self.array.nbytes

    def pieces(self):
        yield self.array.reshape(-1)

    def float32(self):
        return widened(self.dtype, self.array)


@dataclasses.dataclass(frozen=True)
class Source:
    """A tensor outside memory. pieces() gives its values from the first: 1-D arrays of
    STORAGE[dtype] in row-major order, made anew by each call."""

    dtype: str
    shape: tuple
    pieces: typing.Callable

    @property
    def nbytes(self):
        return int(np.prod(self.shape, dtype=np.int64)) * STORAGE[self.dtype].itemsize

    def load(self):
        whole = np.concatenate([np.zeros(0, STORAGE[self.dtype]), *self.pieces()])
        return Tensor(self.dtype, whole.reshape(self.shape))


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


def widened(dtype, array):
    """The fp32 values of an array as it is stored."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def cast(source, dtype):
    """A Tensor or Source as another dtype, F32 or BF16: wider exactly, narrower to the nearest."""

    def pieces():
        for values in source.pieces():
            yield tensor(widened(source.dtype, values), dtype).array

    return Source(dtype, source.shape, pieces)


def stacked(sources, shape):
    """Tensors or Sources one after the other, as a Source of this shape."""
    dtype = sources[0].dtype
    if any(source.dtype != dtype for source in sources):
        raise ValueError(f"wanted tensors of one dtype, found {sorted({source.dtype for source in sources})}")

    def pieces():
        for source in sources:
            yield from source.pieces()

    return Source(dtype, tuple(shape), pieces)


def equal(one, other):
    """Whether two have one dtype, one shape and the same bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    pieces = zip(one.pieces(), other.pieces())
    return all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in pieces)


def bf16_bits(array):
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


def write(path, tensors, metadata=None, progress=None, alignment=8):
    """tensors: name -> Tensor or Source. The data begins at a multiple of `alignment` bytes, tensors in name order; where
    that is more than 8, those of another length than a multiple of it come last. The file has its name once it is whole.
    progress(bytes): so many more are written."""
    header = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    names = sorted(tensors, key=lambda name: (alignment > 8 and tensors[name].nbytes % alignment > 0, name))
    for name in names:
        size = tensors[name].nbytes
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % alignment)
    part = pathlib.Path(f"{path}.part")
    try:
        with open(part, "wb") as out:
            out.write(struct.pack("<Q", len(text)))
            out.write(text)
            for name in names:
                _write_pieces(out, tensors[name], progress)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def _write_pieces(out, tensor, progress):
    for values in tensor.pieces():
        out.write(values.view(np.uint8))
        if progress:
            progress(values.nbytes)


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


def sources(path):
    """-> name -> Source."""
    entries, _, data = read_header(path)

    def of(entry):
        def pieces():
            with open(path, "rb") as file:
                file.seek(data + entry.begin)
                yield from read_pieces(file, entry.dtype, entry.end - entry.begin)

        return Source(entry.dtype, entry.shape, pieces)

    return {name: of(entry) for name, entry in entries.items()}


def read_pieces(file, dtype, size):
    """The next `size` bytes of a file as arrays of STORAGE[dtype]."""
    while size > 0:
        raw = file.read(min(size, PIECE_BYTES))
        if not raw or len(raw) % STORAGE[dtype].itemsize:
            raise ValueError(f"{file.name}: ends within a tensor; {size} more bytes were wanted")
        size -= len(raw)
        yield np.frombuffer(raw, STORAGE[dtype])


def read(path):
    """-> name -> Tensor."""
    return {name: source.load() for name, source in sources(path).items()}


def checkpoint_files(directory):
    """The safetensors files of a Hugging Face directory, single or sharded; one that has both is refused, as by the
    server (Checkpoint::open)."""
    directory = pathlib.Path(directory)
    single = directory / SINGLE_NAME
    if (directory / INDEX_NAME).exists():
        files = indexed_files(directory / INDEX_NAME)
        if single.exists() and single not in files:
            raise ValueError(f"{directory}: wanted {SINGLE_NAME} or {INDEX_NAME}, found both; remove the one that is stale")
        return files
    if single.exists():
        return [single]
    raise ValueError(f"{directory}: wanted {SINGLE_NAME} or {INDEX_NAME}, found neither")


def indexed_files(index):
    """The shards that an index names; each must be there."""
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    for name in files:
        if not (index.parent / name).exists():
            raise ValueError(f"{index}: names {name}, which is not there")
    return [index.parent / name for name in files]


def read_checkpoint(directory):
    tensors = {}
    for path in checkpoint_files(directory):
        tensors.update(read(path))
    return tensors


def checkpoint_sources(directory):
    """-> name -> Source."""
    found = {}
    for path in checkpoint_files(directory):
        found.update(sources(path))
    return found


def write_checkpoint(directory, tensors, max_shard_bytes, progress=None, alignment=ALIGNMENT):
    """Writes model.safetensors, or model-0000i-of-0000n.safetensors and the index if that would be
    larger than a shard may be; a tensor larger than that has a separate shard."""
    shards, filled = [[]], 0
    for name in sorted(tensors):
        size = tensors[name].nbytes
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    directory = pathlib.Path(directory)
    if len(shards) == 1:
        write(directory / SINGLE_NAME, tensors, progress=progress, alignment=alignment)
        return
    weight_map = {}
    for i, names in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        write(directory / file, {n: tensors[n] for n in names}, progress=progress, alignment=alignment)
        weight_map.update(dict.fromkeys(names, file))
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": weight_map,
    }
    (directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")
