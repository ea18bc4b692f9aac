"""A checkpoint of random weights from a config alone, which the server's tests serve."""

import json

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import inspect_checkpoint
from weights_tools import safetensors_io as st

CONFIGS = sorted((ROOT / "weights_tools" / "demo" / "configs").glob("*.json"))
TOKENIZER = ROOT / "weights_tools" / "demo" / "xlstm-books"


def make(config, dst, *more):
    return cli.main(["random", str(config), str(dst), *more])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_is_whole_with_the_tokenizer_of_another_directory(tmp_path, config):
    assert make(config, tmp_path / "out", "--tokenizer", str(TOKENIZER)) is None
    found = inspect_checkpoint.summary(tmp_path / "out")
    assert found["problems"] == [] and found["dtypes"] == ["BF16"]
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == (TOKENIZER / "tokenizer.model").read_bytes()
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads(config.read_text())


def test_is_the_same_for_a_seed_and_keeps_the_size_of_what_goes_through(tmp_path):
    for name, more in (("a", ()), ("b", ()), ("c", ("--seed", "1")), ("wide", ("--dtype", "F32"))):
        make(CONFIGS[0], tmp_path / name, *more)
    a, b, c, wide = (st.read_checkpoint(tmp_path / name) for name in ("a", "b", "c", "wide"))
    matrix = "model.layers.0.mlp.down_proj.weight"
    assert all(st.equal(a[name], b[name]) for name in a)
    assert not st.equal(a[matrix], c[matrix])
    values = wide[matrix].array
    assert st.equal(st.tensor(values, "BF16"), a[matrix])
    assert np.std(values) * np.sqrt(values.shape[1]) == pytest.approx(1, abs=0.02)
    assert np.mean(wide["model.norm.weight"].array) == pytest.approx(1, abs=0.05)


def test_experts_preserve_the_size_of_activations(tmp_path):
    make(next(path for path in CONFIGS if path.stem == "qwen3_5_moe"), tmp_path / "out")
    values = st.read_checkpoint(tmp_path / "out")["model.layers.0.mlp.experts.gate_up_proj"].float32()
    assert values.shape == (16, 256, 256)
    assert np.std(values) * np.sqrt(values.shape[2]) == pytest.approx(1, abs=0.02)


def test_says_what_does_not_fit_before_it_writes(tmp_path, capsys):
    values = {**json.loads(CONFIGS[0].read_text()), "vocab_size": 4095}
    (tmp_path / "config.json").write_text(json.dumps(values))
    for directory, sentence in ((TOKENIZER, "wanted at most 4095 ids, found 4096"), (tmp_path, "found none")):
        assert make(tmp_path / "config.json", tmp_path / "out", "--tokenizer", str(directory)) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    make(tmp_path / "config.json", tmp_path / "out")
    assert make(tmp_path / "config.json", tmp_path / "out") == 2
    assert "is there already" in capsys.readouterr().err
