"""Weights of golden checkpoints are drawn where they are missing, and none that the results were not made with."""

import shutil

import pytest

from conftest import ROOT
from weights_tools import golden_weights

GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture
def folder(tmp_path):
    """A copy of what is stored, and of what was drawn."""
    return shutil.copytree(GOLDEN, tmp_path / "golden")


def test_what_is_missing_or_changed_is_drawn(folder):
    wanted = golden_weights.wanted_digests(folder)
    changed, missing = "mamba/hf/model.safetensors", "weight_formats/int4/gla/model.safetensors"
    (folder / changed).write_bytes(b"another's")
    (folder / missing).unlink()
    golden_weights.draw(folder)
    for path, digest in wanted.items():
        assert golden_weights.sha256((folder / path).read_bytes()) == digest, path
    assert not list(folder.rglob("*.part"))


def test_other_weights_than_the_results_were_made_with_are_refused(folder):
    path = "gla/gla/model.safetensors"
    digests = folder / golden_weights.DIGESTS
    digests.write_text(digests.read_text().replace(golden_weights.wanted_digests(folder)[path], "0" * 64))
    before = (folder / path).read_bytes()
    with pytest.raises(ValueError, match=f"{path}: drawn by numpy .* use another version of numpy"):
        golden_weights.draw(folder)
    assert (folder / path).read_bytes() == before
