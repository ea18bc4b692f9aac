"""LSTMs of TensorFlow: its V2 checkpoints and its logits, raw arrays, and what is refused of them."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import inspect_checkpoint, tensorflow_bundle
from weights_tools import safetensors_io as st
from weights_tools.families import rnn

GOLDEN = ROOT / "tests" / "golden" / "tensorflow"
FORGET_BIAS = {"embedding": 1.0, "one_hot": 0.0}


def convert(src, dst, *options):
    return cli.main(["convert", str(src), str(dst), *options])


def error_of(capsys, *arguments):
    assert convert(*arguments) == 2
    return capsys.readouterr().err


def far_from_golden(directory, case):
    """Largest difference of a logit of the converted model from TensorFlow's."""
    values = json.loads((directory / "config.json").read_text())
    tensors = st.read_checkpoint(directory)
    golden = {n: t.array for n, t in st.read(GOLDEN / case / "golden.safetensors").items()}
    worst = 0
    for s in "01":
        logits, _ = rnn.run(rnn.config_from_dict(values), tensors, golden[f"tokens.{s}"])
        worst = max(worst, np.abs(logits - golden[f"logits.{s}"]).max())
    return worst


@pytest.mark.parametrize("case", sorted(FORGET_BIAS))
def test_a_v2_checkpoint_gives_tensorflows_logits(tmp_path, capsys, case):
    bias = FORGET_BIAS[case]
    assert convert(GOLDEN / case, tmp_path / "a", "--forget-bias", str(bias)) is None
    out = capsys.readouterr().out
    assert "dropped Variable, beta1_power, beta2_power and " in out
    assert ("no embedding: inputs are one-hot" in out) == (case == "one_hot")
    assert far_from_golden(tmp_path / "a", case) < 2e-5
    summary = inspect_checkpoint.summary(tmp_path / "a")
    assert summary["problems"] == [] and summary["tokenizer"]["kind"] == "characters"
    # The other bias is another model.
    assert convert(GOLDEN / case, tmp_path / "b", "--forget-bias", str(1 - bias)) is None
    assert far_from_golden(tmp_path / "b", case) > 0.1


def test_the_index_may_be_named(tmp_path):
    index = GOLDEN / "one_hot" / "model.ckpt.index"
    assert convert(index, tmp_path, "--forget-bias", "0") is None
    assert far_from_golden(tmp_path, "one_hot") < 2e-5


def test_of_several_checkpoints_the_latest_is_taken(tmp_path, capsys):
    for step in ("1", "2"):
        for path in (GOLDEN / "one_hot").glob("model.ckpt.*"):
            shutil.copy(path, tmp_path / path.name.replace("ckpt", f"ckpt-{step}"))
    error = error_of(capsys, tmp_path, tmp_path / "out", "--forget-bias", "0")
    assert "wanted one *.index, found model.ckpt-1.index, model.ckpt-2.index" in error
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"\n')
    assert tensorflow_bundle.index_of(tmp_path).name == "model.ckpt-2.index"


@pytest.mark.parametrize("case", sorted(FORGET_BIAS))
def test_an_unsaid_forget_bias_is_asked_for(tmp_path, capsys, case):
    error = error_of(capsys, GOLDEN / case, tmp_path / "out")
    assert "wanted forget_bias" in error and "--forget-bias 1" in error
    assert not (tmp_path / "out").exists()


def arrays_of(case):
    found = tensorflow_bundle.sources(GOLDEN / case / "model.ckpt.index")
    return {n: s.load().array for n, s in found.items() if "Adam" not in n and "power" not in n}


def write_arrays(directory, arrays, **fields):
    directory.mkdir(parents=True)
    manifest = {**fields}
    for number, (name, values) in enumerate(arrays.items()):
        values.astype("<f4").tofile(directory / f"{number}.raw")
        manifest[name] = {"filename": f"{number}.raw", "shape": list(values.shape)}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return manifest


@pytest.mark.parametrize("case", sorted(FORGET_BIAS))
def test_raw_arrays_with_a_manifest(tmp_path, capsys, case):
    arrays = arrays_of(case)
    write_arrays(tmp_path / "said", arrays, forget_bias=FORGET_BIAS[case])
    assert convert(tmp_path / "said", tmp_path / "a") is None
    assert far_from_golden(tmp_path / "a", case) < 2e-5
    assert "has no tokenizer" in capsys.readouterr().out  # there is no vocab.json
    write_arrays(tmp_path / "unsaid", arrays)
    assert "wanted forget_bias" in error_of(capsys, tmp_path / "unsaid", tmp_path / "b")
    again = error_of(capsys, tmp_path / "said", tmp_path / "b", "--forget-bias", "3")
    assert "forget_bias is" in again and "and --forget-bias 3" in again


def test_names_are_refused_with_those_that_would_do(tmp_path, capsys):
    arrays = arrays_of("embedding")
    good = {"forget_bias": 1.0}
    write_arrays(tmp_path / "a", {**arrays, "rnnlm/softmax_weights": arrays["rnnlm/softmax_w"]}, **good)
    error = error_of(capsys, tmp_path / "a", tmp_path / "out")
    assert "rnnlm/softmax_weights is no tensor of such a model; wanted are embedding [V, E]" in error
    write_arrays(tmp_path / "b", {n: a for n, a in arrays.items() if "softmax_w" not in n}, **good)
    error = error_of(capsys, tmp_path / "b", tmp_path / "out")
    assert "no softmax_w; wanted are embedding [V, E]" in error and "found Variable, embedding" in error
    name = "rnnlm/rnn/multi_rnn_cell/cell_0/basic_lstm_cell/bias"
    write_arrays(tmp_path / "c", {n: a for n, a in arrays.items() if n != name}, **good)
    assert "no bias 0; wanted are" in error_of(capsys, tmp_path / "c", tmp_path / "out")
    write_arrays(tmp_path / "d", {**arrays, "other/softmax_w": arrays["rnnlm/softmax_w"]}, **good)
    error = error_of(capsys, tmp_path / "d", tmp_path / "out")
    assert "other/softmax_w and rnnlm/softmax_w are both the softmax_w" in error
    write_arrays(tmp_path / "e", {**arrays, "embedding": arrays["embedding"][:, :-1]}, **good)
    error = error_of(capsys, tmp_path / "e", tmp_path / "out")
    assert "kernel 0: wanted [39, 96], found [40, 96]" in error


@pytest.mark.parametrize(
    "entry",
    [7, {"shape": [2]}, {"filename": "../x", "shape": [2]}, {"filename": "x", "shape": [2.5]}, {}],
)
def test_an_entry_of_another_form_is_refused_by_name(tmp_path, capsys, entry):
    (tmp_path / "manifest.json").write_text(json.dumps({"embedding": entry, "forget_bias": 1}))
    error = error_of(capsys, tmp_path, tmp_path / "out")
    assert 'embedding: wanted {"filename": "FILE", "shape": [ROWS, COLUMNS]}' in error


def test_an_array_of_another_size_is_refused(tmp_path, capsys):
    write_arrays(tmp_path / "a", arrays_of("one_hot"), forget_bias=0)
    with open(tmp_path / "a" / "0.raw", "ab") as file:
        file.write(b"0")
    assert "fp32 values of shape" in error_of(capsys, tmp_path / "a", tmp_path / "out")


def test_a_forget_bias_where_there_is_none_is_refused(tmp_path, capsys):
    source = ROOT / "tests" / "golden" / "mamba" / "hf"
    assert "is for LSTMs of TensorFlow" in error_of(capsys, source, tmp_path, "--forget-bias", "1")


def test_what_is_no_index_is_refused_whatever_byte_is_wrong(tmp_path):
    """Each byte changed, and each length: a sentence, or the same names."""
    source = GOLDEN / "one_hot"
    for path in source.glob("model.ckpt.data-*"):
        shutil.copy(path, tmp_path)
    index = tmp_path / "model.ckpt.index"
    good = (source / "model.ckpt.index").read_bytes()
    rng = np.random.default_rng(5)
    refused = 0
    for at in range(len(good)):
        for data in (good[:at], good[:at] + bytes([rng.integers(256)]) + good[at + 1 :]):
            index.write_bytes(data)
            try:
                tensorflow_bundle.sources(index)
            except ValueError as error:
                refused += 1
                assert "no index of a TensorFlow checkpoint can be read" in str(error)
    assert refused > len(good)


def test_help_says_the_manifests_form(capsys):
    with pytest.raises(SystemExit):
        cli.main(["convert", "--help"])
    text = capsys.readouterr().out
    for words in ('"forget_bias"', '"filename"', "softmax_w [H, V]", "cell_L/basic_lstm_cell/kernel"):
        assert words in text


@pytest.mark.parametrize("command", [["--help"], ["inspect", "tests/golden/mamba/hf"]])
def test_without_numpy_a_sentence_says_so(command):
    code = "import sys; sys.modules['numpy'] = None\nfrom weights_tools.__main__ import main\n"
    code += f"sys.exit(main({command}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: this needs the Python package numpy" in done.stderr
