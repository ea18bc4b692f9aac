"""Writes what torch.save writes, without PyTorch: a zip of data.pkl, data/<n>, version, byteorder."""

import struct
import zipfile

STORAGES = {"F32": b"FloatStorage", "F16": b"HalfStorage", "BF16": b"BFloat16Storage"}


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value):
    """BININT, or LONG1 where that is too small."""
    if value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def row_major(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def tensor(dtype, key, count, offset, shape, strides):
    """A call of _rebuild_tensor_v2 on the storage `key` of `count` values."""
    storage = b"(" + text("storage") + b"ctorch\n" + STORAGES[dtype] + b"\n"
    storage += text(key) + text("cpu") + number(count) + b"tQ"
    sizes = b"(" + b"".join(map(number, shape)) + b"t"
    steps = b"(" + b"".join(map(number, strides)) + b"t"
    hooks = b"ccollections\nOrderedDict\n)R"
    arguments = storage + number(offset) + sizes + steps + b"\x89" + hooks
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def save(path, tensors, aliases=()):
    """tensors: name -> safetensors_io.Tensor; aliases: (new name, name of the same storage)."""
    keys = {name: str(i) for i, name in enumerate(tensors)}
    body = b"\x80\x02ccollections\nOrderedDict\n)R("
    for new, name in [*zip(tensors, tensors), *aliases]:
        value = tensors[name]
        shape = value.shape
        body += text(new)
        body += tensor(value.dtype, keys[name], value.array.size, 0, shape, row_major(shape))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", body + b"u.")
        archive.writestr("archive/byteorder", "little")
        for name, key in keys.items():
            archive.writestr(f"archive/data/{key}", tensors[name].array.tobytes())
        archive.writestr("archive/version", "3\n")
