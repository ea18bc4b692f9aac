"""inspect against figures computed by others, and tokenizer files whose contents are known."""

import argparse
import gzip
import json
import os
import pathlib
import shutil

import pytest

from conftest import ROOT
from weights_tools import __main__ as cli
from weights_tools import inspect_checkpoint, tokenizer_info
from weights_tools import safetensors_io as st

DATA = pathlib.Path(os.environ.get("RECURVE_DATA", ROOT.parent / "shared" / "data"))
NEOX = DATA / "tokenizers" / "gpt-neox-20B_tokenizer.json"
FALCON = DATA / "tokenizers" / "falcon_tokenizer.json.gz"
MISTRAL = DATA / "tokenizers" / "mistral_instruct_tokenizer_240323.model.v3"
DEMO = ROOT / "weights_tools" / "demo"

# At 4.3 TB/s and 790 TFLOP/s: state (cells and convolution windows), decode in ms at batch 1, 8, 64
# and 256, prompt tokens/s.
FLOORS = {
    "xlstm-7b": (134_480_896, (3.160, 3.598, 7.101, 19.110), 60_462),
    "mamba-2.8b": (20_971_520 + 1_966_080, (1.298, 1.373, 1.970, 4.019), 148_609),
    "falcon-mamba-7b": (33_554_432 + 3_145_728, (3.276, 3.395, 4.351, 7.629), 58_351),
    "mamba2-2.7b": (167_772_160 + 2_064_384, (1.336, 1.889, 6.313, 21.479), 147_430),
    "codestral-7b": (268_435_456 + 3_932_160, (3.453, 4.340, 11.434, 35.757), 54_946),
    "gla-1.3b": (50_331_648, (0.628, 0.792, 2.103, 6.598), 312_419),
    "gla-340m": (12_582_912, (0.165, 0.206, 0.533, 1.657), 1_243_740),
    "retnet-1.3b": (100_663_296, (0.645, 0.973, 3.595, 12.584), 308_492),
    "hgrn2-1.3b": (25_165_824, (0.616, 0.698, 1.353, 3.601), 315_445),
}


@pytest.mark.parametrize("name", FLOORS)
def test_floors_of_public_models(name):
    state, decode, prefill = FLOORS[name]
    out = inspect_checkpoint.summary(ROOT / "tests" / "configs" / f"{name}.json")
    position = 4 if name.startswith("retnet") else 0  # its state holds the position too
    assert out["state_bytes_per_session"] == state + position
    found = [floor["us"] / 1000 for floor in out["decode_floor"]]
    assert found == pytest.approx(decode, abs=0.00051)
    assert out["prefill_floor"]["tokens_per_second"] == pytest.approx(prefill, abs=0.51 + prefill * 1e-6)


def test_a_step_reads_the_experts_that_its_tokens_go_to(capsys):
    path = ROOT / "tests" / "configs" / "qwen3.5-35b-a3b.json"
    out = inspect_checkpoint.summary(path)
    expert = 40 * 3 * 512 * 2048
    assert out["active_parameters"] == out["parameters"] - (256 - 8) * expert
    # By bandwidth alone: of two tokens each expert is idle with (1 - 8/256)^2.
    one, two = (
        inspect_checkpoint.summary(path, bandwidth=1, flops=1e9, batches=(b,))["decode_floor"][0]["us"] * 1e3 for b in (1, 2)
    )
    state = 2 * out["state_bytes_per_session"]
    table = 248_320 * 2048
    assert one == pytest.approx(2 * (out["active_parameters"] - table) + state)
    idle = 256 * (1 - 8 / 256) ** 2
    assert two == pytest.approx(2 * (out["parameters"] - idle * expert - table) + 2 * state)
    inspect_checkpoint.main(argparse.Namespace(dir=path, bandwidth=1, flops=1, batch=(1,), state="f32", json=False))
    assert "34,660,610,688, 3,454,988,928 active" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, state",
    {"xlstm-7b": 67_108_864 + 262_144 + 1_024, "mamba2-2.7b": 83_886_080 + 2_064_384}.items(),
)
def test_matrices_of_states_in_bf16(name, state):
    path = ROOT / "tests" / "configs" / f"{name}.json"
    exact, halved = (inspect_checkpoint.summary(path, state=s) for s in ("f32", "bf16"))
    assert halved["state_bytes_per_session"] == state
    saved = exact["state_bytes_per_session"] - state
    for one, other in zip(exact["decode_floor"], halved["decode_floor"]):
        assert one["us"] - other["us"] == pytest.approx(2 * saved * one["batch"] / 4.3e6)


def test_decode_is_bound_by_flops_where_they_are_few():
    path = ROOT / "tests" / "configs" / "xlstm-7b.json"
    out = inspect_checkpoint.summary(path, flops=1.0, batches=(256,))
    weights = 6_865_424_896 - 50304 * 4096
    assert out["decode_floor"][0]["us"] == pytest.approx(256 * 2 * weights / 1e12 * 1e6)


def test_tokenizer_of_the_demo():
    out = tokenizer_info.summary(DEMO / "xlstm-books")
    assert out == {
        "kind": "SentencePiece unigram",
        "size": 4096,
        "control": {1: "<s>", 2: "</s>"},
        "by_others": {},
        "ends": {1: ["config.json"], 2: ["the tokenizer"]},
        "chat_template": False,
    }


CONTROL = json.loads((ROOT / "tests" / "golden" / "tokenizer" / "control.json").read_text())


@pytest.mark.parametrize("form", ["tokenizer.json", "tokenizer.model"])
@pytest.mark.parametrize("case", CONTROL, ids=[case["name"] for case in CONTROL])
def test_control_tokens_and_ends_are_those_of_all_files(case, form, tmp_path):
    """As the server's: tests/server/startup/token_rules_test.cc reads the same cases."""
    gemma = ROOT / "tests" / "golden" / "tokenizer" / "gemma"
    shutil.copy(gemma / form, tmp_path)
    if form == "tokenizer.json":
        values = json.loads((gemma / form).read_text())
        for token in values["added_tokens"]:
            token["special"] = token["id"] < 3
        (tmp_path / form).write_text(json.dumps(values))
    for file, values in case["files"].items():
        (tmp_path / file).write_text(json.dumps(values))
    out = tokenizer_info.summary(tmp_path)
    assert sorted(out["control"]) == case["control"]
    assert set(out["by_others"]) == set(case["control"]) - {0, 1, 2}
    ends = {i: files.split(", ") for i, files in case["ends"]}
    if form == "tokenizer.model":
        ends.setdefault(1, ["the tokenizer"])
    assert {i: sorted(files) for i, files in out["ends"].items()} == {i: sorted(files) for i, files in ends.items()}


def test_the_files_of_control_tokens_and_ends_are_said(tmp_path, capsys):
    values = json.loads((DEMO / "xlstm-books" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "vocab_size": 4096}))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 300]}')
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<unk>"}')
    shutil.copy(DEMO / "xlstm-books" / "tokenizer.model", tmp_path)
    assert cli.main(["inspect", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "control 0 <unk> (tokenizer_config.json), 1 <s>, 2 </s>; config bos 1" in out
    ends = "1 (config.json), 2 (generation_config.json), 300, no control token (generation_config.json)"
    assert f"ends               {ends}\n" in out


@pytest.mark.skipif(not NEOX.exists(), reason="the public tokenizers are not here")
def test_public_tokenizers(tmp_path):
    shutil.copy(MISTRAL, tmp_path / "tokenizer.model")
    out = tokenizer_info.summary(tmp_path)
    assert (out["kind"], out["size"]) == ("SentencePiece BPE", 32768)
    assert out["control"][1] == "<s>" and out["control"][2] == "</s>" and "[INST]" in out["control"].values()
    shutil.copy(NEOX, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    out = tokenizer_info.summary(tmp_path)
    assert (out["kind"], out["size"]) == ("byte-level BPE, 50009 merges", 50277)
    assert out["control"] == {0: "<|endoftext|>", 1: "<|padding|>"}
    assert out["chat_template"]


def golden_kind(tmp_path, name):
    golden = json.loads((ROOT / "tests" / "golden" / "tokenizer" / "models.json").read_text())
    case = next(case for case in golden["cases"] if case["name"] == name)
    values = case["tokenizer"]
    values["model"].update(golden["models"][case["model"]])
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    return tokenizer_info.summary(tmp_path)["kind"]


@pytest.mark.parametrize(
    "name, kind",
    [
        ("llama", "BPE, 130 merges, falls back to bytes"),
        ("unigram", "Unigram"),
        ("unigram, bytes", "Unigram, falls back to bytes"),
        ("bert", "WordPiece"),
        ("byte-level, bytes lacking", "byte-level BPE, 292 merges, 6 bytes without a token: left out of texts"),
        ("byte-level, bytes unknown True", "byte-level BPE, 292 merges, 6 bytes without a token: read as <|padding|>"),
    ],
)
def test_what_becomes_of_what_has_no_token_is_said(tmp_path, name, kind):
    assert golden_kind(tmp_path, name) == kind


@pytest.mark.skipif(not FALCON.exists(), reason="the public tokenizers are not here")
def test_falcon_lacks_bytes(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(gzip.decompress(FALCON.read_bytes()))
    kind = tokenizer_info.summary(tmp_path)["kind"]
    assert kind == "byte-level BPE, 64784 merges, 15 bytes without a token: left out of texts"


def test_an_id_of_the_config_that_is_no_control_token_is_pointed_out(tmp_path, capsys):
    values = json.loads((DEMO / "xlstm-books" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "eos_token_id": 100}))
    shutil.copy(DEMO / "xlstm-books" / "tokenizer.model", tmp_path)
    assert cli.main(["inspect", str(tmp_path), "--batch", "3"]) == 0
    out = capsys.readouterr().out
    assert "config bos 1; no chat template" in out
    assert "ends               2 (the tokenizer), 100, no control token (config.json)\n" in out
    assert "decode, batch 3" in out


def test_a_tokenizer_larger_than_the_embedding_is_a_problem(tmp_path):
    values = json.loads((DEMO / "xlstm-books" / "config.json").read_text())
    tensors = st.read_checkpoint(DEMO / "xlstm-books")
    for part in ("int8", "int8.scales"):
        name = f"backbone.embeddings.weight.{part}"
        tensors[name] = st.Tensor(tensors[name].dtype, tensors[name].array[:4000])
    st.write(tmp_path / st.SINGLE_NAME, tensors)
    (tmp_path / "config.json").write_text(json.dumps({**values, "vocab_size": 4000}))
    shutil.copy(DEMO / "xlstm-books" / "tokenizer.model", tmp_path)
    problems = inspect_checkpoint.summary(tmp_path)["problems"]
    assert problems == ["the tokenizer has 4096 ids, the embedding 4000 rows"]


def test_two_vocabularies_are_refused_naming_both(tmp_path):
    for name in ("rwkv_vocab_v20230424.txt", "rwkv_vocab_v20260101.txt"):
        shutil.copy(ROOT / "tests" / "golden" / "world_tokenizer" / "vocabulary.txt", tmp_path / name)
    with pytest.raises(ValueError, match="found rwkv_vocab_v20230424.txt and rwkv_vocab_v20260101.txt; remove one"):
        tokenizer_info.summary(tmp_path)


@pytest.mark.parametrize("data", [b"\x0a", b"\xff\xff\xff", b"\x0b\x00"])
def test_what_is_no_sentencepiece_model_is_refused(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ValueError, match="no protobuf"):
        tokenizer_info.summary(tmp_path)
