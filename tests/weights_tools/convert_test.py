import io
import json
import os
import pathlib
import pickle
import zipfile

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import safetensors_io as st
from weights_tools import torch_file
from weights_tools.families import rnn

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
    ids = json.loads((tmp_path / "vocab.json").read_text())
    characters = (DATA / "corpora" / text).read_text(encoding="utf-8-sig")[30_000:33_000]
    tokens = [ids[c] for c in characters if c in ids]
    logits, _ = rnn.run(rnn.config_from_dict(values), st.read_checkpoint(tmp_path), tokens)
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    bits = -log_p[np.arange(len(tokens) - 1), tokens[1:]].mean() / np.log(2)
    assert bits == pytest.approx(wanted, abs=0.01)


def test_bin_round_trips_bit_for_bit(tmp_path):
    torch = pytest.importorskip("torch")
    source = GOLDEN / "mamba" / "original"
    tensors = st.read_checkpoint(source)
    named = {n: torch.from_numpy(t.array.copy()) for n, t in tensors.items()}
    named["lm_head.weight"] = named["backbone.embedding.weight"]  # an alias, as in the public files
    torch.save(named, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) is None
    found = st.read_checkpoint(tmp_path / "out")
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[n].array, t.array) for n, t in tensors.items())


def test_strided_and_half_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(3, 4)
    torch.save({"a": x.t(), "b": x[1:, 2].bfloat16(), "c": x.half()}, tmp_path / "x.pth")
    found = torch_file.read(tmp_path / "x.pth")
    assert np.array_equal(found["a"].array, x.t().numpy())
    assert found["b"].dtype == "BF16" and found["b"].float32().tolist() == [6.0, 10.0]
    assert found["c"].dtype == "F16"


class Evil:
    def __reduce__(self):
        return (os.system, ("true",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"a": Evil()}))
    with pytest.raises(ValueError, match="wanted tensors only, found posix.system"):
        torch_file.read(path)


@pytest.mark.parametrize("data", [b"", b"not a pickle", pickle.dumps([1, 2])])
def test_bad_files_are_refused_with_a_sentence(tmp_path, data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x/data.pkl", data)
    (tmp_path / "x.bin").write_bytes(out.getvalue())
    with pytest.raises(ValueError):
        torch_file.read(tmp_path / "x.bin")


def test_prefixed_names_are_renamed(tmp_path, capsys):
    assert cli.main(["convert", str(GOLDEN / "mamba2" / "groups_prefixed"), str(tmp_path)]) is None
    wanted = st.read_checkpoint(GOLDEN / "mamba2" / "groups")
    assert st.read_checkpoint(tmp_path).keys() == wanted.keys()
    assert "renamed model.backbone.norm_f.weight" in capsys.readouterr().out


def test_an_unknown_family_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "rwkv7"}')
    st.write(tmp_path / "model.safetensors", {"a": st.tensor(np.zeros(2, np.float32))})
    assert cli.main(["convert", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "rwkv7" in capsys.readouterr().err
