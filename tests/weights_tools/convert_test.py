import io
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import torch_writer
from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import families, inspect_checkpoint, public_config, torch_file
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
    assert cli.main(["convert", str(source), str(tmp_path)]) is None
    values = json.loads((tmp_path / "config.json").read_text())
    ids = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert ids == json.loads((source / "vocab.json").read_text())
    out = inspect_checkpoint.summary(tmp_path)
    assert out["problems"] == []
    assert out["tokenizer"] == {
        "kind": "characters", "size": len(ids), "control": {}, "chat_template": False
    }
    characters = (DATA / "corpora" / text).read_text(encoding="utf-8-sig")[30_000:33_000]
    tokens = [ids[c] for c in characters if c in ids]
    logits, _ = rnn.run(rnn.config_from_dict(values), st.read_checkpoint(tmp_path), tokens)
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    bits = -log_p[np.arange(len(tokens) - 1), tokens[1:]].mean() / np.log(2)
    assert bits == pytest.approx(wanted, abs=0.01)


def numbers(family, config, dtype="F32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = family.tensor_shapes(config)
    return {n: st.tensor(rng.standard_normal(s, np.float32), dtype) for n, s in shapes.items()}


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert np.array_equal(found[name].array, tensor.array), name


def write_config(directory, values):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))


def original_names(tensors):
    return {n.replace("backbone.embeddings.", "backbone.embedding."): t for n, t in tensors.items()}


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
    "dim": 32,
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


def sharded_bin(directory, tensors, files):
    names = sorted(tensors)
    weight_map = {n: f"pytorch_model-{i % files + 1:05}-of-{files:05}.bin" for i, n in enumerate(names)}
    for file in set(weight_map.values()):
        torch_writer.save(directory / file, {n: tensors[n] for n in names if weight_map[n] == file})
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


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
from weights_tools import __main__ as cli
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
    written = st.read_checkpoint_headers(tmp_path / "out").values()
    assert sum(entry.end - entry.begin for entry in written) < 0.51 * total
    shutil.rmtree(tmp_path)


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


def test_an_unknown_family_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "rwkv7"}')
    st.write(tmp_path / "model.safetensors", {"a": st.tensor(np.zeros(2, np.float32))})
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "rwkv7" in capsys.readouterr().err
