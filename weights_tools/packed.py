"""Matrices that a checkpoint holds packed, as weights_tools.packing computes them, read back."""

import math

import numpy as np

from weights_tools import safetensors_io as st

GROUP = 64  # columns that share a scale
COLUMNS_PER_BYTE = {"int8": 1, "int4": 2}


def unpack(form, values, scales, columns):
    """The fp32 matrix [N, columns] that the server computes with. values, scales: arrays as stored."""
    wide = st.widened("BF16", np.ascontiguousarray(scales))
    if form == "int8":
        w = values.reshape(len(values), -1, GROUP).astype(np.float32) * wide[..., None]
    else:
        words = np.ascontiguousarray(values).view("<u2").reshape(len(values), -1, 1, 16)
        q = (words >> np.arange(0, 16, 4, dtype=np.uint16)[:, None]) & 15
        q = q.reshape(len(values), -1, GROUP).astype(np.float32)
        w = q * wide[..., :1] + wide[..., 1:]
    return w.reshape(len(values), -1)[:, :columns]


def parts(name):
    """-> the matrix's own name and its form, of a tensor with its values; else None."""
    base, _, form = name.rpartition(".")
    return (base, form) if form in COLUMNS_PER_BYTE else None


def is_scales(name):
    return name.endswith(tuple(f".{form}.scales" for form in COLUMNS_PER_BYTE))


def unpacked(tensors, shapes):
    """name -> Tensor, with the packed matrices in fp32. shapes: of the family's tensors."""
    out = {}
    for name, tensor in tensors.items():
        of = parts(name)
        if of is not None:
            scales = tensors[name + ".scales"].array
            out[of[0]] = st.tensor(unpack(of[1], tensor.array, scales, shapes[of[0]][-1]).reshape(shapes[of[0]]))
        elif not is_scales(name):
            out[name] = tensor
    return out


def logical(tensors):
    """name -> Source, each packed matrix under its own name: of dtype "int8" or "int4", and of as many
    columns as its rows have room for."""
    out = {}
    for name, source in tensors.items():
        of = parts(name)
        if of is not None:
            shape = (source.shape[0], source.shape[1] * COLUMNS_PER_BYTE[of[1]])
            out[of[0]] = st.Source(of[1], shape, source.pieces)
        elif not is_scales(name):
            out[name] = source
    return out


def fits(tensor, shape):
    """Whether a tensor of logical() is one of this shape."""
    if tensor.dtype not in COLUMNS_PER_BYTE:
        return tensor.shape == shape
    return tensor.shape == (math.prod(shape[:-1]), -(-shape[-1] // GROUP) * GROUP)
