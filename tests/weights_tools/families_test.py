"""The committed goldens of every family against its equations, shapes against the files, public sizes."""

import json
import re

import pytest

from conftest import ROOT
from weights_tools import families, golden_cases, inspect_checkpoint
from weights_tools import safetensors_io as st

GOLDEN = ROOT / "tests" / "golden"
CASES = sorted(
    str(path.parent.relative_to(GOLDEN))
    for folder in families.MODULES | {"falcon_mamba": ()}
    if folder != "xlstm"  # whose form in numpy is in reference.py
    for path in (GOLDEN / folder).glob("*/golden.safetensors")
)


def load(case):
    values = json.loads((GOLDEN / case / "config.json").read_text())
    family = families.load(families.type_of(values))
    results = {n: t.array for n, t in st.read(GOLDEN / case / "golden.safetensors").items()}
    return family, family.config_from_dict(values), st.read_checkpoint(GOLDEN / case), results


@pytest.mark.parametrize("case", CASES)
def test_equations_give_the_golden_results(case):
    family, config, tensors, wanted = load(case)
    tokens = wanted["tokens.1"]
    logits, state = family.run(config, tensors, tokens)
    worst = golden_cases.difference(
        [(tokens, wanted["logits.1"], {n: wanted[n + ".1"] for n in state})],
        [(tokens, logits, state)],
    )
    assert worst < 2e-7  # the rounding of the file to fp32
    assert {n.split(".")[0] for n in wanted} == {"tokens", "logits", *state}


@pytest.mark.parametrize("case", [c for c in CASES if "prefixed" not in c])
def test_files_have_the_tensors_of_the_format(case):
    assert inspect_checkpoint.summary(GOLDEN / case)["problems"] == []


@pytest.mark.parametrize(
    "file, parameters",
    [
        ("mamba-2.8b.json", 2_768_345_600),
        ("falcon-h1-0.5b.json", 521_411_104),
        ("falcon-mamba-7b.json", 7_272_665_088),
        ("mamba2-2.7b.json", 2_702_599_680),
        ("codestral-7b.json", 7_285_403_648),
        ("qwen3.5-35b-a3b.json", 34_660_610_688),
        ("qwen3-next-80b-a3b.json", 79_674_391_296),
    ],
)
def test_public_sizes(file, parameters):
    summary = inspect_checkpoint.summary(ROOT / "tests" / "configs" / file)
    assert summary["parameters"] == parameters


def test_the_list_is_that_of_the_server():
    text = (ROOT / "model" / "families" / "family_list.h").read_text()
    listed = {}
    for types, module in re.findall(r"\{\{([^}]+)\}, load_(\w+)\}", text):
        listed[module] = tuple(re.findall(r'"(\w+)"', types))
    assert listed == families.MODULES
