import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import torch_writer
from checkpoints import numbers, same, sharded_bin, write_config
from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import inspect_checkpoint
from weights_tools import safetensors_io as st
from weights_tools.families import mamba, mamba2, rnn

DATA = pathlib.Path(os.environ.get("RECURVE_DATA", ROOT.parent / "shared" / "data"))
GOLDEN = ROOT / "tests" / "golden"
TEXTS = {
    "shakespeare": ("tinyshakespeare.txt", 2.55),
    "charlotte_bronte": ("bronte.txt", 2.00),
    "darwin": ("darwin.txt", 2.54),
    "dubois": ("dubois.txt", 2.95),
}


@pytest.mark.skipif(not (DATA / "weights").exists(), reason="the character LSTMs are not here")
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_character_lstm_has_the_known_bits_per_character(tmp_path, name):
    text, wanted = TEXTS[name]
    source = DATA / "weights" / "ml5-charRNN" / name
    assert cli.main(["convert", str(source), str(tmp_path), "--forget-bias", "1"]) is None
    values = json.loads((tmp_path / "config.json").read_text())
    ids = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert ids == json.loads((source / "vocab.json").read_text())
    out = inspect_checkpoint.summary(tmp_path)
    assert out["problems"] == []
    assert out["tokenizer"] == {
        "kind": "characters", "size": len(ids), "control": {}, "by_others": {}, "ends": {}, "chat_template": False
    }
    characters = (DATA / "corpora" / text).read_text(encoding="utf-8-sig")[30_000:33_000]
    tokens = [ids[c] for c in characters if c in ids]
    logits, _ = rnn.run(rnn.config_from_dict(values), st.read_checkpoint(tmp_path), tokens)
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    bits = -log_p[np.arange(len(tokens) - 1), tokens[1:]].mean() / np.log(2)
    assert bits == pytest.approx(wanted, abs=0.01)


def test_falcon_mamba_in_bf16(tmp_path, capsys):
    source = GOLDEN / "falcon_mamba" / "bf16"
    assert cli.main(["convert", str(source), str(tmp_path / "a")]) is None
    same(st.read_checkpoint(tmp_path / "a"), st.read_checkpoint(source))
    assert "cast" not in capsys.readouterr().out
    assert cli.main(["convert", str(source), str(tmp_path / "b"), "--dtype", "F32"]) is None
    assert "cast backbone.layers.*.mixer.in_proj.weight from BF16 to F32 (2 tensors)" in (
        capsys.readouterr().out
    )
    for name, tensor in st.read_checkpoint(tmp_path / "b").items():
        assert np.array_equal(tensor.array, st.read_checkpoint(source)[name].float32())


def test_halves_become_bf16_and_what_is_exponentiated_fp32(tmp_path):
    values = {"d_model": 32, "n_layer": 1, "vocab_size": 9, "ssm_cfg": {}}
    write_config(tmp_path, values)
    tensors = numbers(mamba, mamba.config_from_dict(values), "F16")
    torch_writer.save(tmp_path / "pytorch_model.bin", tensors)
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out"), "--dtype", "BF16"]) is None
    found = st.read_checkpoint(tmp_path / "out")
    layer = "backbone.layers.0."
    assert found[layer + "mixer.A_log"].dtype == found[layer + "norm.weight"].dtype == "F32"
    name = layer + "mixer.in_proj.weight"
    wide = tensors[name].array.astype(np.float32)
    assert found[name].dtype == "BF16"
    assert np.array_equal(found[name].array, st.bf16_bits(wide))


def test_shards_of_bin_with_an_index(tmp_path, capsys):
    source = GOLDEN / "mamba" / "hf"
    tensors = st.read_checkpoint(source)
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    sharded_bin(tmp_path, tensors, 3)
    (tmp_path / "training_args.bin").write_bytes(b"not looked at")
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) is None
    same(st.read_checkpoint(tmp_path / "out"), tensors)
    (tmp_path / "pytorch_model-00002-of-00003.bin").unlink()
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "again")]) == 2
    assert "pytorch_model-00002-of-00003.bin, which is not there" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--weights", "int4"], ["--weights", "int8", "--head", "none"]])
def test_packed_at_once_it_is_as_quantize_leaves_it(flags, tmp_path):
    source = GOLDEN / "mamba" / "hf"
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    sharded_bin(tmp_path, st.read_checkpoint(source), 2)
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "whole")]) is None
    assert cli.main(["quantize", str(tmp_path / "whole"), str(tmp_path / "then"), *flags]) is None
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "at_once"), *flags]) is None
    for name in ("config.json", st.SINGLE_NAME):
        assert (tmp_path / "then" / name).read_bytes() == (tmp_path / "at_once" / name).read_bytes()


def test_a_format_of_the_head_alone_is_refused(tmp_path, capsys):
    assert cli.main(["convert", str(GOLDEN / "mamba" / "hf"), str(tmp_path), "--head", "int8"]) == 2
    assert "--head is for packed weights: set --weights" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path, capsys):
    source = GOLDEN / "mamba" / "hf"
    assert cli.main(["convert", str(source), str(tmp_path)]) is None
    assert cli.main(["convert", str(source), str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_nothing_is_written_of_what_does_not_fit(tmp_path, capsys):
    values = {"d_model": 32, "n_layer": 1, "vocab_size": 9, "ssm_cfg": {}}
    write_config(tmp_path, values)
    tensors = numbers(mamba, mamba.config_from_dict(values))
    del tensors["backbone.norm_f.weight"]
    torch_writer.save(tmp_path / "pytorch_model.bin", tensors)
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "missing backbone.norm_f.weight [32]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# What one process needs beyond Python and numpy. VmHWM, since getrusage's maximum begins with that of
# the process that started it.
MEASURE = """
import sys
from weights_tools import __main__ as cli, convert
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
before = peak()
assert cli.main(sys.argv[1:]) is None
print("needed", peak() - before)
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("layout", ["bin", "sharded bin", "safetensors"])
def test_a_large_checkpoint_needs_memory_of_pieces(tmp_path, layout):
    values = {"d_model": 1024, "n_layer": 4, "vocab_size": 40_000, "ssm_cfg": {"layer": "Mamba2"}}
    source = tmp_path / "source"
    write_config(source, values)
    shapes = mamba2.tensor_shapes(mamba2.config_from_dict(values))
    tensors = {n: st.tensor(np.full(s, 0.5, np.float32)) for n, s in shapes.items()}
    if layout == "safetensors":
        st.write(source / "model.safetensors", tensors)
    elif layout == "bin":
        torch_writer.save(source / "pytorch_model.bin", tensors)
    else:
        sharded_bin(source, tensors, 2)
    largest = max(t.nbytes for t in tensors.values())
    total = sum(t.nbytes for t in tensors.values())
    assert (largest, total) > (160e6, 260e6)
    del tensors
    command = [sys.executable, "-c", MEASURE, "convert", source, tmp_path / "out", "--dtype", "BF16"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    needed = int(done.stdout.split("needed ")[1])
    assert needed < 0.6 * largest, done.stdout
    written = st.checkpoint_sources(tmp_path / "out").values()
    assert sum(source.nbytes for source in written) < 0.51 * total
    shutil.rmtree(tmp_path)


def test_an_unknown_family_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "rwkv8"}')
    st.write(tmp_path / "model.safetensors", {"a": st.tensor(np.zeros(2, np.float32))})
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "rwkv8" in capsys.readouterr().err
