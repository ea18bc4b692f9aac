import json
import shutil
import struct

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import safetensors_io as st


def test_round_trip_of_every_dtype(tmp_path):
    rng = np.random.default_rng(0)
    wanted = {
        "f32": st.tensor(rng.standard_normal((3, 5)).astype(np.float32)),
        "f64": st.tensor(rng.standard_normal(7)),
        "f16": st.tensor(rng.standard_normal((2, 2)).astype(np.float16)),
        "bf16": st.tensor(rng.standard_normal((4, 3)), "BF16"),
        "i32": st.tensor(np.arange(5, dtype=np.int32)),
        "i64": st.tensor(np.arange(5)),
        "scalar": st.tensor(np.float32(2.5)),
        "empty": st.tensor(np.zeros((0, 4), np.float32)),
    }
    st.write(tmp_path / "x.safetensors", wanted)
    found = st.read(tmp_path / "x.safetensors")
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].dtype == wanted[name].dtype
        assert np.array_equal(found[name].array, wanted[name].array)


def test_layout_is_that_of_the_format(tmp_path):
    st.write(tmp_path / "x.safetensors", {"a": st.tensor(np.array([1.0, -2.0], np.float32))})
    raw = (tmp_path / "x.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    assert header["a"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert raw[8 + length :] == struct.pack("<2f", 1.0, -2.0)


@pytest.mark.parametrize(
    "value, bits",
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.0 + 2.0**-8, 0x3F80),  # halfway: to the even neighbour below
        (1.0 + 3 * 2.0**-8, 0x3F82),  # halfway: to the even neighbour above
        (1.0 + 2.0**-8 + 2.0**-20, 0x3F81),
        (float("inf"), 0x7F80),
        (3.4e38, 0x7F80),
        (float("nan"), 0x7FC0),
    ],
)
def test_bf16_rounds_to_nearest_even(value, bits):
    assert st.bf16_bits(np.array([value], np.float32))[0] == bits


def test_bf16_widens_exactly():
    wide = st.tensor(np.array([0.15625, -3.0], np.float32), "BF16").float32()
    assert wide.tolist() == [0.15625, -3.0]


def test_shards_and_index(tmp_path):
    wanted = {f"t{i}": st.tensor(np.full(3, i, np.float32)) for i in range(5)}
    wanted["t1"] = st.tensor(np.zeros(100, np.float32))  # larger than a shard may be
    st.write_checkpoint(tmp_path, wanted, 40)
    index = json.loads((tmp_path / st.INDEX_NAME).read_text())
    assert index["metadata"] == {"total_size": 448}
    assert [int(file[6:11]) for file in index["weight_map"].values()] == [1, 2, 3, 3, 3]
    assert [p.name for p in st.checkpoint_files(tmp_path)] == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
    ]
    found = st.read_checkpoint(tmp_path)
    assert {n: t.array.tolist() for n, t in found.items()} == {
        n: t.array.tolist() for n, t in wanted.items()
    }


@pytest.mark.parametrize("shard_bytes", [1 << 20, 300])
def test_what_may_be_used_in_place_lies_at_multiples_of_64_bytes(shard_bytes, tmp_path):
    """Without gaps, which the format does not allow: what would move others comes last."""
    sizes = {"a": 3, "b": 64, "c": 128, "d": 7, "e": 192, "f": 1}
    wanted = {name: st.tensor(np.full(size, ord(name), np.uint8)) for name, size in sizes.items()}
    st.write_checkpoint(tmp_path, wanted, shard_bytes)
    for path in st.checkpoint_files(tmp_path):
        raw = path.read_bytes()
        data = 8 + struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:data])
        spans = sorted(v["data_offsets"] for name, v in header.items() if name != "__metadata__")
        assert [0, *(end for _, end in spans)] == [*(begin for begin, _ in spans), len(raw) - data]
        for name in header.keys() - {"__metadata__"}:
            begin, end = (data + offset for offset in header[name]["data_offsets"])
            assert raw[begin:end] == name.encode() * sizes[name]
            assert sizes[name] % 64 or begin % 64 == 0, name


@pytest.mark.parametrize("tool", ["inspect", "quantize", "convert"])
def test_a_single_file_beside_shards_is_refused(tool, tmp_path, capsys):
    """As by the server: either of the two may be stale."""
    src = shutil.copytree(ROOT / "tests" / "golden" / "xlstm" / "sharded", tmp_path / "src")
    arguments = {"inspect": [], "quantize": [str(tmp_path / "out"), "--weights", "int8"], "convert": [str(tmp_path / "out")]}
    assert not cli.main([tool, str(src), *arguments[tool]])
    shutil.copy(next(src.glob("model-00001*")), src / st.SINGLE_NAME)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    capsys.readouterr()
    assert cli.main([tool, str(src), *arguments[tool]]) != 0
    wanted = f"{src}: wanted model.safetensors or model.safetensors.index.json, found both; remove the one that is stale"
    assert wanted in capsys.readouterr().err
    index = json.loads((src / st.INDEX_NAME).read_text())
    index["weight_map"] = {"a": st.SINGLE_NAME}  # which says the same as the file
    (src / st.INDEX_NAME).write_text(json.dumps(index))
    assert st.checkpoint_files(src) == [src / st.SINGLE_NAME]


def write_raw(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize(
    "header, data, length, sentence",
    [
        (b"{}", b"", 1 << 60, "exceeds the file"),
        (b"{nonsense", b"", None, "not JSON"),
        (
            {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
            b"1234",
            None,
            "wants 8 bytes",
        ),
        (
            {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
            b"1234",
            None,
            "the file has",
        ),
        (
            {"a": {"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]}},
            b"12345678",
            None,
            "dtype Q4",
        ),
    ],
)
def test_bad_files_are_refused_with_a_sentence(tmp_path, header, data, length, sentence):
    path = write_raw(tmp_path / "bad.safetensors", header, data, length)
    with pytest.raises(ValueError, match=sentence):
        st.read(path)


def test_truncated_prefix(tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"123")
    with pytest.raises(ValueError, match="header length"):
        st.read(tmp_path / "bad.safetensors")
