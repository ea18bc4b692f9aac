"""Reads PyTorch's .bin and .pth files (zip with a pickle) without PyTorch and without running anything.

The pickle may name only the few things that a state_dict is made of; any other name is refused, so
no code of the file's choosing is ever called. Values stay in the file until their pieces are asked
for.
"""

import collections
import io
import pickle
import pickletools
import struct
import zipfile

import numpy as np

from weights_tools import safetensors_io as st

STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ByteStorage": "U8",
}
# What zipfile and pickle raise for a file that is not what it seems.
_BROKEN = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    struct.error,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    TypeError,
)


class _Storage:
    """One of the zip's members: `count` values of STORAGE[dtype]."""

    def __init__(self, archive, member, dtype, path):
        self.archive, self.member, self.dtype, self.path = archive, member, dtype, path
        self.count = archive.getinfo(member).file_size // st.STORAGE[dtype].itemsize

    def pieces(self, begin, end):
        """Values [begin, end). A wrong checksum is found where the last value is read."""
        width = st.STORAGE[self.dtype].itemsize
        try:
            with self.archive.open(self.member) as file:
                file.seek(begin * width)
                yield from st.read_pieces(file, self.dtype, (end - begin) * width)
        except _BROKEN as error:
            raise ValueError(f"{self.path}: {self.member} cannot be read: {error}") from None


class _Reader(pickle.Unpickler):
    def __init__(self, data, archive, root, path):
        super().__init__(io.BytesIO(data))
        self.archive, self.root, self.path = archive, root, path

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) in (
            ("torch._utils", "_rebuild_tensor_v2"),
            ("torch._utils", "_rebuild_parameter"),
        ):
            return getattr(self, name)
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise ValueError(f"{self.path}: wanted tensors only, found {module}.{name}; not read")

    def persistent_load(self, key):
        kind, dtype, name = key[0], key[1], key[2]
        if kind != "storage" or dtype not in st.STORAGE:
            raise ValueError(f"{self.path}: wanted a storage, found {kind} of {dtype}")
        return _Storage(self.archive, f"{self.root}/data/{name}", dtype, self.path)

    def _rebuild_tensor_v2(self, storage, offset, size, stride, *_):
        size, stride = tuple(size), tuple(stride)
        end = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride))
        if 0 in size:
            end = offset
        if len(size) != len(stride) or min((offset, *size, *stride)) < 0 or end > storage.count:
            raise ValueError(f"{self.path}: a tensor {list(size)} reaches beyond its storage")

        def pieces():
            if stride == row_major(size, stride) or 0 in size:
                yield from storage.pieces(offset, end)
                return
            values = np.concatenate(list(storage.pieces(offset, end)))
            steps = tuple(s * values.itemsize for s in stride)
            yield np.lib.stride_tricks.as_strided(values, size, steps).reshape(-1)

        return st.Source(storage.dtype, size, pieces)

    @staticmethod
    def _rebuild_parameter(data, *_):
        return data


def row_major(size, stride):
    """The strides of a dense array of that size; where a size is 1, what `stride` says."""
    out, step = [], 1
    for n, s in zip(reversed(size), reversed(stride)):
        out.append(s if n == 1 else step)
        step *= n
    return tuple(reversed(out))


def sources(path):
    """-> name -> Source. Raises ValueError with one sentence."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: wanted a zip as torch.save writes since 1.6, found something else")
    try:
        values = _load(path, zipfile.ZipFile(path))
    except _BROKEN as error:
        raise ValueError(f"{path}: the pickle cannot be read: {error}") from None
    if isinstance(values, dict) and isinstance(values.get("state_dict"), dict):
        values = values["state_dict"]
    if not isinstance(values, dict):
        raise ValueError(f"{path}: wanted a mapping of names to tensors, found {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(value, st.Source):
            raise ValueError(f"{path}: {name}: wanted a tensor, found {type(value).__name__}")
    return dict(values)


def _load(path, archive):
    pickles = [n for n in archive.namelist() if n.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"{path}: wanted one data.pkl, found {len(pickles)}")
    root = pickles[0].rpartition("/")[0]
    order = f"{root}/byteorder"  # since PyTorch 2.0; before, the machine's own, which was little
    if order in archive.namelist() and archive.read(order) != b"little":
        raise ValueError(f"{path}: wanted little-endian values, found {archive.read(order)}")
    if archive.getinfo(pickles[0]).file_size > st.MAX_HEADER_BYTES:
        raise ValueError(f"{path}: data.pkl has more than {st.MAX_HEADER_BYTES} bytes")
    data = archive.read(pickles[0])
    check_memo(path, data)
    return _Reader(data, archive, root, path).load()


def check_memo(path, data):
    """The unpickler makes room for whatever memo index a file names, so it must be a possible one."""
    try:
        names = {"PUT", "LONG_BINPUT"}
        largest = max((int(a) for op, a, _ in pickletools.genops(data) if op.name in names), default=0)
    except ValueError as error:
        raise ValueError(f"{path}: the pickle cannot be read: {error}") from None
    if largest > len(data):
        raise ValueError(f"{path}: the pickle cannot be read: it has no room for {largest} objects")
