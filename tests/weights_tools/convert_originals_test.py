"""Checkpoints of other packages in Hugging Face's form: state-spaces, Mamba-Codestral, other names."""

import json

import numpy as np
import pytest

import torch_writer
from checkpoints import numbers, original_names, same, write_config
from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import families, inspect_checkpoint, public_config
from weights_tools import safetensors_io as st
from weights_tools.families import mamba2

GOLDEN = ROOT / "tests" / "golden"


@pytest.mark.parametrize("case", ["mamba/original", "mamba2/original"])
def test_state_spaces_bin_gets_hugging_faces_form_and_the_same_bits(tmp_path, case, capsys):
    source = GOLDEN / case
    tensors = st.read_checkpoint(source)
    table = "backbone.embedding.weight"
    torch_writer.save(tmp_path / "pytorch_model.bin", tensors, [("lm_head.weight", table)])
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) is None
    out = capsys.readouterr().out
    assert "renamed backbone.embedding.weight to backbone.embeddings.weight" in out
    assert "dropped lm_head.weight: the same as backbone.embeddings.weight" in out
    assert "cast" not in out and "no tokenizer" in out
    found = st.read_checkpoint(tmp_path / "out")
    same(original_names(found), tensors)
    # The converted configuration is the same model: it gives the golden logits.
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    family = families.load(values["model_type"])
    golden = {n: t.array for n, t in st.read(source / "golden.safetensors").items()}
    logits, _ = family.run(family.config_from_dict(values), found, golden["tokens.1"])
    wanted = golden["logits.1"]  # rounded to fp32
    assert np.abs(logits - wanted).max() < 2e-7 * np.abs(wanted).max()


def test_public_configs_of_state_spaces_keep_their_sizes(tmp_path):
    shared = {
        "d_model": 2560,
        "n_layer": 64,
        "vocab_size": 50277,
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
    }
    more = {"d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {}, "tie_embeddings": True}
    for ssm, extra, parameters in (
        ({}, {"pad_vocab_size_multiple": 8}, 2_768_345_600),
        ({"layer": "Mamba2"}, {"pad_vocab_size_multiple": 16, **more}, 2_702_599_680),
    ):
        write_config(tmp_path, {**shared, **extra, "ssm_cfg": ssm})
        values = public_config.read(tmp_path)
        family = families.load(values["model_type"])
        assert family.parameters(family.config_from_dict(values)) == parameters


CODESTRAL = {
    "dim": 64,
    "n_layers": 2,
    "vocab_size": 97,
    "n_groups": 2,
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 1,
    "tie_embeddings": False,
    "model_type": "mamba",
}
CODESTRAL_7B = {**CODESTRAL, "dim": 4096, "n_layers": 64, "vocab_size": 32768, "n_groups": 8}


def test_codestrals_original_layout(tmp_path):
    """params.json and consolidated.safetensors, as mistral-inference reads them."""
    source, out = tmp_path / "original", tmp_path / "out"
    source.mkdir()
    (source / "params.json").write_text(json.dumps(CODESTRAL))
    (source / "tokenizer.model.v3").write_bytes(b"pieces")
    values = public_config.read(source)
    tensors = numbers(mamba2, mamba2.config_from_dict(values), "BF16")
    prefixed = {f"model.{n}": t for n, t in original_names(tensors).items()}
    st.write(source / "consolidated.safetensors", prefixed)
    assert cli.main(["convert", str(source), str(out)]) is None
    same(st.read_checkpoint(out), tensors)
    assert (out / "tokenizer.model").read_bytes() == b"pieces"
    written = json.loads((out / "config.json").read_text())
    assert (written["bos_token_id"], written["eos_token_id"]) == (1, 2)
    assert written["torch_dtype"] == "bfloat16"
    assert inspect_checkpoint.summary(out)["problems"] == []


def test_codestrals_params_are_its_hugging_face_config(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CODESTRAL_7B))
    theirs = json.loads((ROOT / "tests" / "configs" / "codestral-7b.json").read_text())
    ours = public_config.read(tmp_path)
    assert mamba2.config_from_dict(ours) == mamba2.config_from_dict(theirs)
    differing = {n for n in ours if n in theirs and ours[n] != theirs[n]}
    assert differing == {"bos_token_id", "eos_token_id", "norm_before_gate"}


def test_codestrals_folder_with_both_layouts(tmp_path):
    """The public folder holds both; Hugging Face's is taken."""
    (tmp_path / "params.json").write_text(json.dumps(CODESTRAL))
    values = public_config.read(tmp_path)
    write_config(tmp_path, values)
    tensors = numbers(mamba2, mamba2.config_from_dict(values), "BF16")
    st.write_checkpoint(tmp_path, tensors, 20_000)
    st.write(tmp_path / "consolidated.safetensors", {"model.other": tensors["backbone.norm_f.weight"]})
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out"), "--shard-gb", "2e-5"]) is None
    same(st.read_checkpoint(tmp_path / "out"), tensors)
    assert len(st.checkpoint_files(tmp_path / "out")) > 1


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({**CODESTRAL, "n_heads": 32, "head_dim": 128}, "head_dim, n_heads is not known"),
        ({**CODESTRAL, "rms_norm": False}, "rms_norm is False, wanted True"),
        ({"d_model": 64, "n_layer": 1, "vocab_size": 9, "attn_layer_idx": [3]}, "attn_layer_idx is"),
        ({"d_model": 64, "n_layer": 1, "vocab_size": 9, "ssm_cfg": {"layer": "Mamba3"}}, "is Mamba3"),
        ({"d_model": 64, "n_layer": 1, "vocab_size": 9, "ssm_cfg": {"swirl": 1}}, "swirl is not known"),
        ({"d_model": 64, "n_layer": 1, "vocab_size": 9, "swirl": 1}, "swirl is not known"),
    ],
)
def test_configs_that_mean_something_else_are_refused(tmp_path, values, sentence):
    (tmp_path / ("params.json" if "dim" in values else "config.json")).write_text(json.dumps(values))
    with pytest.raises(ValueError, match=sentence):
        public_config.read(tmp_path)


def test_prefixed_names_are_renamed(tmp_path, capsys):
    assert cli.main(["convert", str(GOLDEN / "mamba2" / "groups_prefixed"), str(tmp_path)]) is None
    wanted = st.read_checkpoint(GOLDEN / "mamba2" / "groups")
    assert st.read_checkpoint(tmp_path).keys() == wanted.keys()
    assert "renamed model.backbone.norm_f.weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    "case, strip, table",
    [
        ("xlstm/single", "backbone.", "embedding."),  # NX-AI's own package
        ("gla/gla", "", "embed_tokens."),  # the first files of flash-linear-attention
        ("gla/gla_old_mlp_tied", "model.", "embedding."),
    ],
)
def test_other_prefixes_and_tables(tmp_path, case, strip, table):
    wanted = st.read_checkpoint(GOLDEN / case)
    tensors = {n.removeprefix(strip).replace("embeddings.", table): t for n, t in wanted.items()}
    assert tensors.keys() != wanted.keys()
    st.write(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text((GOLDEN / case / "config.json").read_text())
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) is None
    same(st.read_checkpoint(tmp_path / "out"), wanted)
