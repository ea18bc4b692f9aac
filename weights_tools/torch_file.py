"""Reads PyTorch's .bin and .pth files (zip with a pickle) without PyTorch and without running anything.

The pickle may name only the few things that a state_dict is made of; any other name is refused, so
no code of the file's choosing is ever called.
"""

import collections
import io
import pickle
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


class _Reader(pickle.Unpickler):
    def __init__(self, data, archive, root, path):
        super().__init__(io.BytesIO(data))
        self.archive, self.root, self.path, self.storages = archive, root, path, {}

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
        if name not in self.storages:
            raw = self.archive.read(f"{self.root}/data/{name}")
            self.storages[name] = (dtype, np.frombuffer(raw, st.STORAGE[dtype]))
        return self.storages[name]

    def _rebuild_tensor_v2(self, storage, offset, size, stride, *_):
        dtype, values = storage
        last = offset + sum((n - 1) * s for n, s in zip(size, stride))
        if offset < 0 or min(stride, default=0) < 0 or (0 not in size and last >= len(values)):
            raise ValueError(f"{self.path}: a tensor {list(size)} reaches beyond its storage")
        steps = tuple(s * values.itemsize for s in stride)
        view = np.lib.stride_tricks.as_strided(values[offset:], size, steps)
        return st.Tensor(dtype, np.ascontiguousarray(view).reshape(size))

    @staticmethod
    def _rebuild_parameter(data, *_):
        return data


def read(path):
    """-> name -> Tensor. Raises ValueError with one sentence."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: wanted a zip as torch.save writes since 1.6, found something else")
    with zipfile.ZipFile(path) as archive:
        pickles = [n for n in archive.namelist() if n.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{path}: wanted one data.pkl, found {len(pickles)}")
        root = pickles[0].rpartition("/")[0]
        try:
            values = _Reader(archive.read(pickles[0]), archive, root, path).load()
        except (pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path}: the pickle cannot be read: {error}") from None
    if isinstance(values, dict) and isinstance(values.get("state_dict"), dict):
        values = values["state_dict"]
    if not isinstance(values, dict):
        raise ValueError(f"{path}: wanted a mapping of names to tensors, found {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(value, st.Tensor):
            raise ValueError(f"{path}: {name}: wanted a tensor, found {type(value).__name__}")
    return dict(values)
