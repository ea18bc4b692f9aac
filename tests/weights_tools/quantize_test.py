"""Packing of weights: what is written is what is read back, and close to what it was; the bits are the server's
(tests/model/weight_formats_test.cc loads tests/golden/weight_formats; its SHA-256 are in tests/golden/weights.sha256)."""

import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import families, golden_packed, inspect_checkpoint, packed, packing
from weights_tools import safetensors_io as st
from weights_tools.families import mamba2

GOLDEN = ROOT / "tests" / "golden"
DIRECTORIES = sorted((GOLDEN / "weight_formats").glob("int*/*"))


def source_of(directory):
    return GOLDEN / directory.name / golden_packed.SOURCES[directory.name]


def read_back(directory):
    stored = st.read_checkpoint(directory)
    values = json.loads((directory / "config.json").read_text())
    family, config = families.config_of(values, packed.logical(stored))
    return packed.unpacked(stored, family.tensor_shapes(config))


def of_all_experts(directory):
    """The tensors, with those of each expert as one of all."""
    tensors = st.read_checkpoint(directory)
    family, config = families.config_of(json.loads((directory / "config.json").read_text()), tensors)
    if not hasattr(family, "of_all_experts"):
        return tensors
    return {name: t.load() if isinstance(t, st.Source) else t for name, t in family.of_all_experts(config, tensors)[1].items()}


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda d: f"{d.parent.name}-{d.name}")
def test_writes_what_is_there(directory, tmp_path):
    form = directory.parent.name
    assert cli.main(["quantize", str(source_of(directory)), str(tmp_path / "out"), "--weights", form]) is None
    written = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert written == (directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda d: f"{d.parent.name}-{d.name}")
def test_read_back_it_is_close_to_what_it_was(directory):
    before, after = of_all_experts(source_of(directory)), read_back(directory)
    assert before.keys() == after.keys()
    changed = {n for n in before if not np.array_equal(before[n].float32(), after[n].float32())}
    assert changed
    for name in changed:
        w, error = before[name].float32(), after[name].float32() - before[name].float32()
        most = 0.01 if directory.parent.name == "int8" else 0.12  # of the values' own size
        assert (w.ndim == 2 or "experts" in name) and np.sqrt((error**2).mean() / (w**2).mean()) < most, name


def test_of_a_checkpoint_with_pictures_what_is_of_text_is_packed(tmp_path):
    """With the names and the config of the Hub's, and what predicts pictures and further tokens as it is."""
    source, there = ROOT / "tests" / "golden" / "qwen3_5_moe" / "bf16", tmp_path / "there"
    text = json.loads((source / "config.json").read_text())
    there.mkdir()
    config = {"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": text.pop("tie_word_embeddings")}
    (there / "config.json").write_text(json.dumps(config))
    tensors = st.read_checkpoint(source)
    whole = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    others = ("mtp.fc.weight", "model.visual.blocks.0.mlp.weight")
    whole |= {name: st.tensor(np.ones((2, 64), np.float32)) for name in others}
    st.write(there / st.SINGLE_NAME, whole)
    assert inspect_checkpoint.summary(there)["problems"] == []
    assert cli.main(["quantize", str(there), str(tmp_path / "out"), "--weights", "int4"]) is None
    packed_text = st.read_checkpoint(ROOT / "tests" / "golden" / "weight_formats" / "int4" / "qwen3_5_moe")
    out = st.read_checkpoint(tmp_path / "out")
    assert out.keys() == {n.replace("model.", "model.language_model.", 1) for n in packed_text} | set(others)
    for name, tensor in packed_text.items():
        found = out[name.replace("model.", "model.language_model.", 1)]
        assert found.dtype == tensor.dtype and np.array_equal(found.array, tensor.array), name


def test_the_least_error_of_a_group_is_found_among_all_lines():
    """Against a search over many scales and minima in fp64."""
    rng = np.random.default_rng(1)
    for w in (rng.normal(size=64), rng.normal(size=64) ** 3, rng.uniform(2, 3, 64)):
        w = w.astype(np.float32)
        words, scales = packing.pack_int4(w.reshape(1, 64))
        found = ((packed.unpack("int4", words.reshape(1, -1), scales, 64) - w) ** 2).sum()
        low, high = w.min(), w.max()
        best = min(
            ((np.clip(np.rint((w - m) / s), 0, 15) * s + m - w) ** 2).sum()
            for s in np.linspace(0.6, 1.02, 43) * (high - low) / 15
            for m in low + np.linspace(0, 0.3, 31) * (high - low)
        )
        assert found <= 1.15 * best


def test_the_head_may_stay_or_have_a_form_of_its_own(tmp_path):
    source = GOLDEN / "xlstm" / "tied_bf16"
    for head, suffix in (("none", ""), ("int8", ".int8")):
        out = tmp_path / head
        assert cli.main(["quantize", str(source), str(out), "--weights", "int4", "--head", head]) is None
        names = st.checkpoint_sources(out)
        assert "backbone.embeddings.weight" + suffix in names
        assert any(name.endswith(".int4") for name in names)
        assert inspect_checkpoint.summary(out)["problems"] == []


def test_what_is_packed_is_not_packed_again(tmp_path, capsys):
    directory = DIRECTORIES[0]
    assert cli.main(["quantize", str(directory), str(tmp_path / "out"), "--weights", "int8"]) == 2
    assert "is packed already; nothing written" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_does_not_fit_its_config_is_refused(tmp_path, capsys):
    shutil.copytree(GOLDEN / "mamba" / "bf16", tmp_path / "in")
    values = json.loads((tmp_path / "in" / "config.json").read_text())
    key = "hidden_size" if "hidden_size" in values else "d_model"
    (tmp_path / "in" / "config.json").write_text(json.dumps({**values, key: 2 * values[key]}))
    assert cli.main(["quantize", str(tmp_path / "in"), str(tmp_path / "out"), "--weights", "int8"]) == 2
    assert "nothing written" in capsys.readouterr().err


@pytest.fixture(scope="module")
def three_processes():
    with packing.Workers(3) as workers:
        yield workers


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_the_same_bytes_whatever_the_blocks_and_processes(form, three_processes, monkeypatch):
    rng = np.random.default_rng(2)
    whole = st.tensor(rng.normal(size=(371, 70)).astype(np.float32))

    def pieces():  # cut anywhere
        flat = whole.array.reshape(-1)
        yield from (flat[:33], flat[33:1000], flat[1000:])

    def packed_with(block_bytes, workers=packing.Workers(1)):
        monkeypatch.setattr(packing, "BLOCK_BYTES", block_bytes)
        matrix = packing.Packed(st.Source("F32", whole.shape, pieces), form, workers)
        return matrix.values().load().array, matrix.scales().load().array

    wanted = packed_with(1 << 20)
    for found in (packed_with(4 * 70 * 5), packed_with(1), packed_with(4 * 70 * 5, three_processes)):
        for one, other in zip(found, wanted):
            np.testing.assert_array_equal(one, other)


def test_an_error_in_a_process_ends_the_packing(three_processes):
    with pytest.raises(ValueError, match="'x'"):
        list(three_processes.map(int, ["1", "x", "2"]))


def test_blocks_in_memory_are_bounded_by_the_processes(three_processes):
    taken = []

    def items():
        for i in range(100):
            taken.append(i)
            yield i

    for done in three_processes.map(abs, items()):
        assert taken[-1] - done < 2 * 3
    assert taken == list(range(100))


@pytest.mark.parametrize("processes", [1, 2])
def test_the_command_writes_the_same_file_with_several_processes(processes, tmp_path):
    directory = DIRECTORIES[-1]
    command = ["quantize", str(source_of(directory)), str(tmp_path), "--weights", directory.parent.name]
    assert cli.main([*command, "--processes", str(processes)]) is None
    assert (tmp_path / st.SINGLE_NAME).read_bytes() == (directory / st.SINGLE_NAME).read_bytes()


def test_a_process_that_is_killed_ends_the_packing():
    with packing.Workers(2) as workers, pytest.raises(OSError, match="a process that packs weights ended early"):
        list(workers.map(os._exit, [1, 1, 1]))


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_what_is_not_finite_is_not_a_number(form):
    w = np.ones((1, 128), np.float32)
    w[0, 70] = np.inf
    values, scales = packing.PACK[form](w.reshape(2, 64))
    back = packed.unpack(form, values.reshape(1, -1), scales, 128)
    assert np.allclose(back[0, :64], 1, atol=0.01) and np.isnan(back[0, 64:]).all()


def test_memory_is_bounded_by_the_largest_tensor(monkeypatch, tmp_path):
    """Pieces are small here, and matrices many: what stays of each would add up."""
    monkeypatch.setattr(st, "PIECE_BYTES", 1 << 15)
    monkeypatch.setattr(packing, "BLOCK_BYTES", 1 << 15)
    values = {"model_type": "mamba2", "d_model": 256, "n_layer": 24, "vocab_size": 64, "ssm_cfg": {"layer": "Mamba2"}}
    config = mamba2.config_from_dict(values)
    tensors = {n: st.tensor(np.full(s, 0.5, np.float32), "BF16") for n, s in mamba2.tensor_shapes(config).items()}
    largest = max(t.nbytes for t in tensors.values())
    source, out = tmp_path / "source.safetensors", tmp_path / "out.safetensors"
    st.write(source, tensors)
    assert source.stat().st_size > 20 * largest
    del tensors
    packed_tensors = packing.quantized(st.sources(source), mamba2, config, "int4")
    tracemalloc.start()
    try:
        st.write(out, packed_tensors, alignment=st.ALIGNMENT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.6 * largest, (peak, largest)
