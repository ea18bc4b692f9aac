"""The committed demo checkpoints: complete, small enough, and models of English."""

import json
import math
import pathlib
import shutil

import numpy as np
import pytest

import reference
from conftest import ROOT
from weights_tools import families, inspect_checkpoint, packed
from weights_tools import safetensors_io as st
from weights_tools.families import xlstm

DEMOS = ROOT / "weights_tools" / "demo"
DEMO = DEMOS / "xlstm-books"
OTHERS = ("gla-books", "mamba-books", "mamba2-books", "qwen35-books", "rwkv7-books", "xlstm-blocks-books")
SENTENCE = "He looked at her for a moment without speaking, and then went out of the room."


def processor():
    sentencepiece = pytest.importorskip("sentencepiece", reason="reading text needs sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_file=str(DEMO / "tokenizer.model"))


def test_complete_and_of_the_right_shapes():
    out = inspect_checkpoint.summary(DEMO)
    assert out["problems"] == []
    assert out["dtypes"] == ["BF16", "int8"]
    assert out["parameters"] == 7_493_952
    assert out["state_bytes_per_session"] == 266_368


def test_small_enough_to_be_committed():
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 7_900_000


def test_config_has_the_hubs_keys_and_this_models_values():
    values = json.loads((DEMO / "config.json").read_text())
    assert values.keys() == xlstm.hub_config(xlstm.load_config(DEMO), "bfloat16").keys()
    assert values["model_type"] == "xlstm"
    assert values["architectures"] == ["xLSTMForCausalLM"]
    assert values["weight_mode"] == "single"
    assert values["bos_token_id"] == values["eos_token_id"] == 1
    assert values["head_dim"] * values["num_heads"] == values["hidden_size"]


def test_weights_are_finite():
    for name, tensor in unpacked("xlstm-books")[2].items():
        assert np.isfinite(tensor.float32()).all(), name


def test_tokenizer_keeps_text_as_it_is():
    pieces = processor()
    config = xlstm.load_config(DEMO)
    assert pieces.vocab_size() == config.vocab_size
    assert (pieces.unk_id(), pieces.bos_id(), pieces.eos_id()) == (0, config.bos_token_id, 2)
    for text in (SENTENCE, "One.\n\n  Two  spaces,\ttab, wörld 漢字 \U0001f600", " leading", ""):
        assert pieces.decode(pieces.encode(text)) == text
    assert pieces.encode("a")[0] != pieces.encode(" a")[0]  # no space is put in front


def xlstm_logits(tokens):
    return reference.run(xlstm.load_config(DEMO), unpacked("xlstm-books")[2], tokens)[0]


def bits_per_byte(ids, text, run=xlstm_logits):
    logits = run([1, *ids[:-1]])
    normaliser = np.log(np.exp(logits).sum(-1))
    nats = (normaliser - logits[np.arange(len(ids)), ids]).sum()
    return nats / len(text.encode()) / math.log(2)


def test_prefers_english_to_its_words_shuffled():
    pieces = processor()
    shuffled = "room. of without and her the at then speaking, moment looked a He out went for"
    english = bits_per_byte(pieces.encode(SENTENCE), SENTENCE)
    assert english < 1.6
    assert bits_per_byte(pieces.encode(shuffled), shuffled) > english + 0.7


def unpacked(name):
    """-> family, config, and its tensors as the server computes with them."""
    values = json.loads((DEMOS / name / "config.json").read_text())
    family = families.load(values["model_type"])
    config = family.config_from_dict(values)
    return family, config, packed.unpacked(st.read_checkpoint(DEMOS / name), family.tensor_shapes(config))


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_complete_small_and_finite(name):
    out = inspect_checkpoint.summary(DEMOS / name, 4300.0, 1)
    assert out["problems"] == []
    assert "int8" in out["dtypes"]
    assert sum(path.stat().st_size for path in (DEMOS / name).iterdir()) < 6_200_000
    assert (DEMOS / name / "tokenizer.model").readlink() == pathlib.Path("../xlstm-books/tokenizer.model")
    for tensor_name, tensor in unpacked(name)[2].items():
        assert np.isfinite(tensor.float32()).all(), tensor_name


@pytest.mark.parametrize("name", OTHERS)
def test_a_copy_of_other_families_is_plain_files(name, tmp_path):
    copy = shutil.copytree(DEMOS / name, tmp_path / name)
    assert not any(path.is_symlink() for path in copy.iterdir())
    assert (copy / "tokenizer.model").read_bytes() == (DEMO / "tokenizer.model").read_bytes()


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_prefer_english_to_its_words_shuffled(name):
    pieces = processor()
    family, config, tensors = unpacked(name)

    def run(tokens):
        return family.run(config, tensors, tokens)[0]

    shuffled = "room. of without and her the at then speaking, moment looked a He out went for"
    english = bits_per_byte(pieces.encode(SENTENCE), SENTENCE, run)
    assert english < 1.6
    assert bits_per_byte(pieces.encode(shuffled), shuffled, run) > english + 0.7


@pytest.mark.parametrize("name", ("xlstm-books", *OTHERS))
def test_documents_say_the_measured_bits_per_byte(name):
    measured = json.loads((DEMOS / name / "training.json").read_text())
    trained = measured["held_out"]["all"]
    stored = measured["held_out_int8"]["all"]
    assert stored < 1.002 * trained
    row = f"| all | 567,289 | {trained:.4f} | **{stored:.4f}** |"
    assert row in (DEMOS / name / "README.md").read_text()
    figures = (ROOT / "tests/bench/README.md").read_text().splitlines()
    rows = [line for line in figures if f"demo/{name})" in line]
    assert len(rows) == 1 and rows[0].endswith(f"| {stored:.3f} |")
