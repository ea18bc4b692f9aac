"""The committed golden files: complete, consistent, and sensitive to each mistake worth fearing."""

import filecmp

import numpy as np
import pytest

import reference
from conftest import ROOT
from weights_tools import golden, inspect_checkpoint
from weights_tools import safetensors_io as st
from weights_tools.families import xlstm

GOLDEN = ROOT / "tests" / "golden" / "xlstm"
CASES = sorted(golden.CASES)


def load(case):
    directory = GOLDEN / case
    results = {n: t.array for n, t in st.read(directory / "golden.safetensors").items()}
    return xlstm.load_config(directory), st.read_checkpoint(directory), results


@pytest.mark.parametrize("case", CASES)
def test_complete(case):
    config, tensors, results = load(case)
    assert inspect_checkpoint.summary(GOLDEN / case)["problems"] == []
    assert config == golden.CASES[case].config
    assert {t.dtype for t in tensors.values()} == {golden.CASES[case].dtype}
    c = config
    for s, length in enumerate(golden.LENGTHS):
        assert results[f"tokens.{s}"].shape == (length,)
        assert results[f"logits.{s}"].shape == (length, c.vocab_size)
        assert results[f"C.{s}"].shape == (c.num_blocks, c.num_heads, c.qk_head, c.v_head)
        assert results[f"n.{s}"].shape == (c.num_blocks, c.num_heads, c.qk_head)
        assert results[f"m.{s}"].shape == (c.num_blocks, c.num_heads)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_recurrence_written_a_second_time(case):
    config, tensors, results = load(case)
    for s in range(len(golden.LENGTHS)):
        logits, state = reference.run(config, tensors, results[f"tokens.{s}"])
        assert (
            np.abs(logits - results[f"logits.{s}"]).max() < 2e-6
        )  # fp32 storage of values up to 24
        for name in "Cnm":
            assert np.abs(state[name] - results[f"{name}.{s}"]).max() < 1e-6


def test_fused_equals_single():
    _, _, single = load("single")
    _, _, fused = load("fused")
    assert all(np.array_equal(single[name], fused[name]) for name in single)


@pytest.mark.parametrize("wrong", reference.MISTAKES)
def test_a_mistake_would_show(wrong):
    """In at least one case the mistake moves a logit by 30 times what fp32 arithmetic may."""
    worst = 0.0
    for case in ("single", "tied_bf16", "sharded"):
        config, tensors, results = load(case)
        with np.errstate(all="ignore"):
            logits, _ = reference.run(config, tensors, results["tokens.0"], wrong)
        worst = max(worst, np.nanmax(np.abs(logits - results["logits.0"])))
    assert worst > 0.009


def test_made_again_gives_the_same_weights():
    for name, case in golden.CASES.items():
        wanted = golden.store(case, golden.random_weights(case.config, case.seed))
        found = st.read_checkpoint(GOLDEN / name)
        assert all(np.array_equal(found[n].array, wanted[n].array) for n in wanted)


def test_made_again_with_pytorch_gives_the_same_results(tmp_path):
    pytest.importorskip(
        "torch", reason="making golden files needs PyTorch; the committed ones do not"
    )
    golden.write_case(tmp_path / "sharded", golden.CASES["sharded"])
    made, committed = (st.read(d / "sharded" / "golden.safetensors") for d in (tmp_path, GOLDEN))
    for name in committed:
        assert np.allclose(made[name].array, committed[name].array, rtol=1e-6, atol=1e-6)
    assert filecmp.cmp(
        tmp_path / "sharded" / "config.json", GOLDEN / "sharded" / "config.json", shallow=False
    )
