"""BlinkDL's RWKV-7 files through convert; what its tokenizer and its config look like to inspect."""

import json
import shutil

import numpy as np
import pytest

import torch_writer
from checkpoints import same
from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import golden_rwkv, inspect_checkpoint, rwkv_file, tokenizer_info
from weights_tools import safetensors_io as st
from weights_tools.families import rwkv7

GOLDEN = ROOT / "tests" / "golden" / "rwkv7"
WORLD = ROOT / "tests" / "golden" / "world_tokenizer" / "vocabulary.txt"


def blinkdl(case):
    """A golden checkpoint under BlinkDL's names, with what its files hold besides."""
    tensors = st.read_checkpoint(GOLDEN / case)
    arrays = golden_rwkv.blinkdl_names({n: t.array for n, t in tensors.items()})
    dtypes = {t.dtype for t in tensors.values()}
    assert len(dtypes) == 1
    out = {n: st.Tensor(min(dtypes), a) for n, a in arrays.items()}
    for name in ("v0", "v1", "v2"):  # in every public file, and of no use
        out[f"blocks.0.att.{name}"] = out["blocks.0.att.a" + name[1]]
    return out, tensors


@pytest.mark.parametrize("case", ["one_head", "heads", "bf16"])
def test_a_pth_alone_gives_the_golden_checkpoint(tmp_path, case, capsys):
    stored, wanted = blinkdl(case)
    torch_writer.save(tmp_path / "rwkv7.pth", stored)
    assert cli.main(["convert", str(tmp_path / "rwkv7.pth"), str(tmp_path / "out")]) is None
    out = capsys.readouterr().out
    assert "dropped blocks.0.att.v1: the first layer mixes no values" in out
    assert "has no tokenizer" in out
    same(st.read_checkpoint(tmp_path / "out"), wanted)
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    golden = json.loads((GOLDEN / case / "config.json").read_text())
    del values["v_low_rank_dim"], golden["v_low_rank_dim"]  # the first layer's, of no use
    assert values == golden
    assert inspect_checkpoint.summary(tmp_path / "out")["problems"] == []


def test_safetensors_with_blinkdls_names_give_the_same(tmp_path):
    stored, wanted = blinkdl("one_head")
    st.write(tmp_path / "rwkv7.safetensors", stored)
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) is None
    same(st.read_checkpoint(tmp_path / "out"), wanted)


def goose(case, prefix, layers):
    """A golden checkpoint as RWKV/RWKV7-Goose-*-HF has its tensors."""
    stored, wanted = blinkdl(case)
    out = {}
    for name, tensor in stored.items():
        name = name.replace("blocks.0.ln0", "pre_ln").replace("blocks.", layers).replace("emb.", "embeddings.")
        name = name.replace(".att.", ".attention.").replace(".ffn.", ".feed_forward.")
        out[name if name == "head.weight" else prefix + name] = tensor
    return out, wanted


GOOSE_CONFIG = {"model_type": "rwkv7", "head_size": 64, "head_size_divisor": 8, "layer_norm_epsilon": 1e-05, "lora_rank_iclr": 6}


@pytest.mark.parametrize("case, prefix, layers", [("one_head", "model.", "layers."), ("bf16", "rwkv7.", "blocks.")])
def test_the_other_hugging_face_layout_gives_the_same(tmp_path, case, prefix, layers, capsys):
    stored, wanted = goose(case, prefix, layers)
    src = tmp_path / "goose"
    src.mkdir()
    st.write(src / "model.safetensors", stored)
    (src / "config.json").write_text(json.dumps(GOOSE_CONFIG))
    assert cli.main(["convert", str(src), str(tmp_path / "out")]) is None
    assert "to BlinkDL's names" in capsys.readouterr().out
    same(st.read_checkpoint(tmp_path / "out"), wanted)
    assert inspect_checkpoint.summary(tmp_path / "out")["problems"] == []


def test_what_shapes_do_not_say_of_the_other_layout_is_refused(tmp_path, capsys):
    stored, _ = goose("one_head", "model.", "layers.")
    st.write(tmp_path / "model.safetensors", stored)
    (tmp_path / "config.json").write_text(json.dumps({**GOOSE_CONFIG, "layer_norm_epsilon": 1e-6}))
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "layer_norm_epsilon: wanted 1e-05, found 1e-06" in capsys.readouterr().err


TUNED = ROOT / "tests" / "golden" / "rwkv7_tuned"


def test_a_tuned_state_is_what_the_server_reads_of_it(tmp_path, capsys):
    assert cli.main(["convert", str(TUNED / "tuned.pth"), str(tmp_path / "out")]) is None
    assert "a tuned state of 3 layers" in capsys.readouterr().out
    path = tmp_path / "out" / "initial_state.safetensors"
    assert path.read_bytes() == (TUNED / "initial_state.safetensors").read_bytes()
    assert cli.main(["convert", str(TUNED / "tuned.pth"), str(tmp_path / "out")]) == 2
    assert "is there already" in capsys.readouterr().err


def test_tuned_states_that_are_none_are_refused_by_name(tmp_path, capsys):
    square = np.zeros((1, 4, 4), np.float32)
    for arrays, sentence in (
        ({0: np.zeros((4, 4), np.float32)}, "wanted [heads, size, size], found [4, 4]"),
        ({0: np.full((1, 4, 4), np.nan, np.float32)}, "not finite"),
        ({0: square, 2: square}, "one shape for each of the layers from 0 on"),
        ({0: square, 1: np.zeros((2, 4, 4), np.float32)}, "one shape for each"),
    ):
        path = tmp_path / "tuned.pth"
        torch_writer.save(path, {f"blocks.{i}.att.time_state": st.tensor(a) for i, a in arrays.items()})
        assert cli.main(["convert", str(path), str(tmp_path / "out")]) == 2
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("blocks.0.ffn.s_emb.weight", r"RWKV-7a \(DeepEmbed\)"),
        ("blocks.0.qkv.qq.weight", "RWKV-7b"),
        ("blocks.1.rosa.q", r"RWKV-8 \(ROSA\)"),
        ("blocks.0.att.time_state", "tuned initial state"),
        ("blocks.0.att.time_maa_x", "RWKV-6"),
        ("blocks.0.att.time_decay", "RWKV-4 or 5"),
        ("blocks.0.mlp.up.weight", "ARWKV"),
        ("blocks.0.att.swirl", "blocks.0.att.swirl is not known of RWKV-7"),
    ],
)
def test_other_rwkvs_are_refused_by_name(tmp_path, name, sentence):
    stored, _ = blinkdl("one_head")
    stored[name] = st.tensor(np.zeros((2, 2), np.float32))
    st.write(tmp_path / "model.safetensors", stored)
    with pytest.raises(ValueError, match=sentence):
        rwkv_file.read(tmp_path, st.sources(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"blocks.0.att.r_k": (2, 32)}, "wanted heads of 64, found 32"),
        ({"blocks.0.att.w1": (2, 3, 4)}, "wanted 2 dimensions"),
        ({"blocks.0.att.g1": None}, "wanted blocks.0.att.g1, found none"),
        ({"blocks.1.att.a2": (4,)}, "blocks.1.att.a2: wanted a matrix"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(tmp_path, change, sentence):
    stored, _ = blinkdl("one_head")
    for name, shape in change.items():
        stored.pop(name)
        if shape is not None:
            stored[name] = st.tensor(np.zeros(shape, np.float32))
    st.write(tmp_path / "model.safetensors", stored)
    with pytest.raises(ValueError, match=sentence):
        rwkv_file.read(tmp_path, st.sources(tmp_path / "model.safetensors"))


def test_models_of_the_world_get_their_tokenizer_and_their_chat_format(tmp_path, capsys):
    """65,536 rows are the World tokenizer's: id 0 ends a text."""
    config = rwkv7.Config(64, 1, rwkv_file.WORLD_ROWS, 32, (4, 4, 4, 4))
    rows = {n: np.zeros(s, np.float32) for n, s in rwkv7.tensor_shapes(config).items()}
    stored = {n: st.tensor(a) for n, a in golden_rwkv.blinkdl_names(rows).items()}
    torch_writer.save(tmp_path / "world.pth", stored)
    shutil.copy(WORLD, tmp_path / "rwkv_vocab_v20230424.txt")
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out"), "--dtype", "BF16"]) is None
    assert "has no tokenizer" not in capsys.readouterr().out
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (values["bos_token_id"], values["eos_token_id"]) == (0, 0)
    found = tokenizer_info.summary(tmp_path / "out")
    assert found["kind"] == "RWKV World" and found["control"] == {0: "<|endoftext|>"}
    assert found["chat_template"] and found["size"] == 65530
    assert "Assistant:" in (tmp_path / "out" / "chat_template.jinja").read_text()


# Parameters, of which the 0.4B's are BlinkDL's own count, and bytes of a session's state.
PUBLIC = {
    (768, 12, 64, 64, 32, 128): (191_084_544, 2_359_296 + 73_728),
    (1024, 24, 64, 64, 32, 128): (450_834_432, 6_291_456 + 196_608),
    (2048, 24, 96, 96, 64, 256): (1_527_668_736, 12_582_912 + 393_216),
    (2560, 32, 96, 96, 64, 320): (2_948_065_280, 20_971_520 + 655_360),
}


@pytest.mark.parametrize("sizes", PUBLIC)
def test_public_sizes(sizes):
    width, layers, *ranks = sizes
    config = rwkv7.Config(width, layers, 65536, 4 * width, tuple(ranks))
    # BlinkDL counts what the first layer has and does not use.
    unused = width + 2 * width * ranks[2]
    assert PUBLIC[sizes] == (rwkv7.parameters(config) + unused, rwkv7.state_bytes(config))
