"""Which tensor the matrix of the logits is where a config ties it to the embedding: what the file has."""

import json

import numpy as np
import pytest

import reference
from checkpoints import same
from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import families, inspect_checkpoint
from weights_tools import safetensors_io as st

GOLDEN = ROOT / "tests" / "golden"
TABLE = "backbone.embeddings.weight"


def tied_mamba(directory, head):
    """A golden checkpoint of a tied Mamba, with a separate head."""
    source = GOLDEN / "mamba" / "hf"
    values = json.loads((source / "config.json").read_text())
    assert values.get("tie_word_embeddings", True)
    tensors = st.read_checkpoint(source)
    tensors["lm_head.weight"] = head(tensors[TABLE])
    directory.mkdir(parents=True)
    st.write(directory / st.SINGLE_NAME, tensors)
    (directory / "config.json").write_text(json.dumps(values))
    return tensors


def equal(table):
    return table


def other(table):
    return st.tensor(table.array + np.float32(1), table.dtype)


def test_a_differing_head_is_one_and_its_bytes_count(tmp_path, capsys):
    tensors = tied_mamba(tmp_path / "tied", other)
    out = inspect_checkpoint.summary(tmp_path / "tied")
    assert out["problems"] == []
    assert out["head"] == "lm_head.weight, which differs from the embedding though the config ties them"
    assert out["parameters"] == sum(t.array.size for t in tensors.values())
    assert cli.main(["inspect", str(tmp_path / "tied")]) == 0
    assert f"head               {out['head']}\n" in capsys.readouterr().out


def test_an_equal_head_may_be_there(tmp_path):
    tensors = tied_mamba(tmp_path / "tied", equal)
    out = inspect_checkpoint.summary(tmp_path / "tied")
    assert out["problems"] == []
    assert out["head"] == "the embedding; lm_head.weight is the same"
    rest = sum(t.array.size for t in tensors.values()) - tensors[TABLE].array.size
    assert out["parameters"] == rest


def test_without_a_head_the_embedding_is_the_head():
    assert inspect_checkpoint.summary(GOLDEN / "mamba" / "hf")["head"] == "the embedding"
    assert inspect_checkpoint.summary(GOLDEN / "xlstm" / "single")["head"] == "lm_head.weight"


def test_convert_keeps_a_differing_head_and_unties_the_config(tmp_path, capsys):
    tensors = tied_mamba(tmp_path / "tied", other)
    assert cli.main(["convert", str(tmp_path / "tied"), str(tmp_path / "out")]) is None
    assert f"kept lm_head.weight, which differs from {TABLE}" in capsys.readouterr().out
    same(st.read_checkpoint(tmp_path / "out"), tensors)
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["tie_word_embeddings"] is False
    assert inspect_checkpoint.summary(tmp_path / "out")["head"] == "lm_head.weight"


def test_convert_drops_an_equal_head(tmp_path, capsys):
    tied_mamba(tmp_path / "tied", equal)
    assert cli.main(["convert", str(tmp_path / "tied"), str(tmp_path / "out")]) is None
    assert f"dropped lm_head.weight: the same as {TABLE}" in capsys.readouterr().out
    assert "lm_head.weight" not in st.read_checkpoint(tmp_path / "out")
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values.get("tie_word_embeddings", True)


@pytest.mark.parametrize("case", ["widths", "tied_with_head"])
def test_transformers_own_xlstm_fits(case):
    out = inspect_checkpoint.summary(GOLDEN / "xlstm" / case)
    assert out["problems"] == []
    stored = st.read_checkpoint(GOLDEN / "xlstm" / case)
    assert out["parameters"] == sum(t.array.size for t in stored.values())


def test_converted_it_gives_transformers_logits(tmp_path):
    """With the head of the file, and 46 nats off with the embedding."""
    source = GOLDEN / "xlstm" / "tied_with_head"
    assert cli.main(["convert", str(source), str(tmp_path)]) is None
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["tie_word_embeddings"] is False
    golden = {n: t.array for n, t in st.read(source / "golden.safetensors").items()}
    config = families.config_of(values, {})[1]
    logits, _ = reference.run(config, st.read_checkpoint(tmp_path), golden["tokens.1"])
    assert np.abs(logits - golden["logits.1"]).max() < 2e-6
