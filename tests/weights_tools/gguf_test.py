"""GGUF files, which llama.cpp's own package has written: see tests/golden/gguf."""

import json
import struct

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import gguf_file
from weights_tools import safetensors_io as st

GOLDEN = ROOT / "tests" / "golden"


def converted(name, tmp_path):
    cli.run(["convert", str(GOLDEN / "gguf" / name), str(tmp_path / "out")])
    return json.loads((tmp_path / "out" / "config.json").read_text()), st.read_checkpoint(tmp_path / "out")


def f16(values):
    return values.astype(np.float16).astype(np.float32)


def bf16(values):
    return st.widened("BF16", st.bf16_bits(values.reshape(-1))).reshape(values.shape)


def test_blocks_have_the_values_that_the_package_reads():
    values, tensors = gguf_file.read(GOLDEN / "gguf" / "blocks.gguf")
    expected = st.read(GOLDEN / "gguf" / "blocks.safetensors")
    assert tensors.keys() == expected.keys() == {"f32", "f16", "bf16", "q8_0", "q4_0"}
    for name, tensor in expected.items():
        found = tensors[name].load()
        assert np.array_equal(found.float32(), tensor.array), name
    assert values["test.texts"] == ["a", "", "漢字"]
    assert (values["test.numbers"], values["test.flag"]) == ([1, -2, 3], True)


def test_tensors_pass_in_pieces(monkeypatch):
    whole = {n: s.load().float32() for n, s in gguf_file.read(GOLDEN / "gguf" / "blocks.gguf")[1].items()}
    monkeypatch.setattr(gguf_file, "PIECE", 64)
    _, tensors = gguf_file.read(GOLDEN / "gguf" / "blocks.gguf")
    for name in ("q8_0", "q4_0"):
        assert max(len(piece) for piece in tensors[name].pieces()) == 64
        assert np.array_equal(tensors[name].load().array, whole[name])


def test_mamba_is_the_checkpoint_that_it_was_made_of(tmp_path):
    values, found = converted("mamba.gguf", tmp_path)
    source = st.read_checkpoint(GOLDEN / "mamba" / "hf")
    assert found.keys() == source.keys()
    for name, tensor in source.items():
        wanted = tensor.float32()
        assert found[name].array.shape == wanted.shape, name
        if name.endswith("A_log"):
            np.testing.assert_allclose(found[name].float32(), wanted, rtol=1e-6, atol=1e-6)
            continue
        plain = wanted.ndim < 2 or "conv1d" in name
        assert np.array_equal(found[name].float32(), wanted if plain else bf16(wanted)), name
    config = json.loads((GOLDEN / "mamba" / "hf" / "config.json").read_text())
    same = ("model_type", "hidden_size", "intermediate_size", "time_step_rank", "layer_norm_epsilon", "vocab_size")
    assert {key: values[key] for key in same} == {key: config[key] for key in same}
    assert values["eos_token_id"] == 7
    assert values["tie_word_embeddings"] is True


def test_rwkv7_is_the_checkpoint_that_it_was_made_of(tmp_path):
    values, found = converted("rwkv7.gguf", tmp_path)
    source = st.read_checkpoint(GOLDEN / "rwkv7" / "one_head")
    assert found.keys() == source.keys()
    for name, tensor in source.items():
        wanted = tensor.float32()
        assert found[name].array.shape == wanted.shape, name
        plain = wanted.ndim != 2 or "lora" in name or name.endswith("r_k")
        assert np.array_equal(found[name].float32(), wanted if plain else f16(wanted)), name
    config = json.loads((GOLDEN / "rwkv7" / "one_head" / "config.json").read_text())
    config.pop("torch_dtype")
    assert {key: values[key] for key in config} == config


def refused(tmp_path, data, capsys):
    (tmp_path / "bad.gguf").write_bytes(data)
    assert cli.main(["convert", str(tmp_path / "bad.gguf"), str(tmp_path / "out")]) != 0
    assert not (tmp_path / "out").exists()
    return capsys.readouterr().err


def test_other_architectures_and_types_are_refused_by_name(tmp_path, capsys):
    data = (GOLDEN / "gguf" / "mamba.gguf").read_bytes()
    llama = data.replace(b"\x05\0\0\0\0\0\0\0mamba", b"\x05\0\0\0\0\0\0\0llama", 1)
    assert "wanted the architecture mamba or rwkv7, found llama" in refused(tmp_path, llama, capsys)
    name = b"blk.0.ssm_in.weight"
    at = data.index(name) + len(name)
    (dimensions,) = struct.unpack_from("<I", data, at)
    at += 4 + 8 * dimensions
    q4_k = data[:at] + struct.pack("<I", 12) + data[at + 4 :]
    assert "Q8_0 or Q4_0, found Q4_K" in refused(tmp_path, q4_k, capsys)


def test_cut_and_twisted_files_are_refused(tmp_path):
    data = (GOLDEN / "gguf" / "blocks.gguf").read_bytes()
    header = data.index(b"q4_0") + 40
    path = tmp_path / "bad.gguf"
    random = np.random.default_rng(2)
    for length in range(0, header, 7):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match="GGUF|ends|wanted"):
            gguf_file.read(path)
    for _ in range(400):
        twisted = bytearray(data)
        for at in random.integers(0, header, random.integers(1, 4)):
            twisted[at] = random.integers(256)
        path.write_bytes(twisted)
        try:
            _, tensors = gguf_file.read(path)
            for source in tensors.values():
                source.load()
        except ValueError:
            pass  # which says what is wrong; any other error fails the test
