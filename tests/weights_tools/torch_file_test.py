"""PyTorch's files, good, damaged and evil, without PyTorch."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest

import torch_writer
from weights_tools import safetensors_io as st
from weights_tools import torch_file


def test_strided_tensors_without_pytorch(tmp_path):
    values = np.arange(12, dtype=np.float32)
    parts = {
        "transposed": (0, (4, 3), (1, 4), values.reshape(3, 4).T),
        "column": (6, (2,), (4,), values.reshape(3, 4)[1:, 2]),
        "rows": (4, (2, 4), (4, 1), values.reshape(3, 4)[1:]),
        "one": (5, (1, 1), (7, 9), values[5:6].reshape(1, 1)),
        "spread": (3, (2, 2), (0, 0), np.full((2, 2), 3.0)),
        "empty": (0, (0, 4), (4, 1), np.zeros((0, 4))),
        "scalar": (2, (), (), np.float32(2.0)),
    }
    body = b"\x80\x02}("
    for name, (offset, shape, strides, _) in parts.items():
        body += torch_writer.text(name)
        body += torch_writer.tensor("F32", "0", 12, offset, shape, strides)
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as archive:
        archive.writestr("x/data.pkl", body + b"u.")
        archive.writestr("x/data/0", values.tobytes())
    found = {n: s.load().array for n, s in torch_file.sources(tmp_path / "x.pth").items()}
    assert all(np.array_equal(found[n], wanted) for n, (*_, wanted) in parts.items())
    for offset, shape, strides in ((0, (4, 4), (4, 1)), (12, (1,), (1,)), (-1, (1,), (1,)), (3, (2,), (-1,))):
        bad = b"\x80\x02}(" + torch_writer.text("a")
        bad += torch_writer.tensor("F32", "0", 12, offset, shape, strides) + b"u."
        with zipfile.ZipFile(tmp_path / "y.pth", "w") as archive:
            archive.writestr("x/data.pkl", bad)
            archive.writestr("x/data/0", values.tobytes())
        with pytest.raises(ValueError, match="reaches beyond its storage"):
            torch_file.sources(tmp_path / "y.pth")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_damaged_pickles_are_refused_or_read(tmp_path):
    """Any byte of the pickle may be wrong: a sentence or tensors, no other exception, no call."""
    torch_writer.save(tmp_path / "good.bin", {"a": st.tensor(np.zeros((2, 3), np.float32))})
    with zipfile.ZipFile(tmp_path / "good.bin") as archive:
        good = archive.read("archive/data.pkl")
    rng, refused = np.random.default_rng(0), 0
    for _ in range(500):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad), rng.integers(1, 4)):
            bad[at] = rng.integers(0, 256)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("archive/data.pkl", bytes(bad))
            archive.writestr("archive/data/0", bytes(24))
        (tmp_path / "bad.bin").write_bytes(out.getvalue())
        try:
            found = torch_file.sources(tmp_path / "bad.bin")
        except ValueError as error:
            refused += 1
            assert str(tmp_path) in str(error)
        else:
            assert all(isinstance(source, st.Source) for source in found.values())
    assert refused > 250


def test_a_damaged_storage_is_noticed(tmp_path):
    torch_writer.save(tmp_path / "x.bin", {"a": st.tensor(np.arange(100, dtype=np.float32))})
    raw = bytearray((tmp_path / "x.bin").read_bytes())
    raw[raw.index(np.arange(100, dtype=np.float32).tobytes()) + 40] ^= 1
    (tmp_path / "x.bin").write_bytes(raw)
    with pytest.raises(ValueError, match="cannot be read: Bad CRC"):
        torch_file.sources(tmp_path / "x.bin")["a"].load()


def test_what_pytorch_itself_writes(tmp_path):
    torch = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(3, 4)
    tensors = {"a": x.t(), "b": x[1:, 2].bfloat16(), "c": x.half(), "d": torch.nn.Parameter(x)}
    torch.save(tensors, tmp_path / "x.pth")
    found = {n: s.load() for n, s in torch_file.sources(tmp_path / "x.pth").items()}
    assert np.array_equal(found["a"].array, x.t().numpy())
    assert found["b"].dtype == "BF16" and found["b"].float32().tolist() == [6.0, 10.0]
    assert found["c"].dtype == "F16"
    assert np.array_equal(found["d"].array, x.numpy())


class Evil:
    def __reduce__(self):
        return (os.system, ("true",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"a": Evil()}))
    with pytest.raises(ValueError, match="wanted tensors only, found posix.system"):
        torch_file.sources(path)


@pytest.mark.parametrize("data", [b"", b"not a pickle", pickle.dumps([1, 2])])
def test_bad_files_are_refused_with_a_sentence(tmp_path, data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x/data.pkl", data)
    (tmp_path / "x.bin").write_bytes(out.getvalue())
    with pytest.raises(ValueError):
        torch_file.sources(tmp_path / "x.bin")
