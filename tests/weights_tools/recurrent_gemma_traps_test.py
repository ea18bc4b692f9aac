"""Where implementations of RecurrentGemma go wrong: each is tried on the goldens, whose results must tell.

The goldens are transformers' (tests/golden/recurrent_gemma); families_test.py shows that the equations as they are
give them, and golden_test.cc that the server does. Here they are changed in one place.
"""

import dataclasses
import json

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import golden_cases
from weights_tools import safetensors_io as st
from weights_tools.families import common
from weights_tools.families import recurrent_gemma as rg

GOLDEN = ROOT / "tests" / "golden" / "recurrent_gemma"


def difference(case="pattern", length=24, **changes):
    """Of the logits of the first rows, relative to the largest. 24: more than the window of 16."""
    values = json.loads((GOLDEN / case / "config.json").read_text())
    config = dataclasses.replace(rg.config_from_dict(values), **changes)
    golden = st.read(GOLDEN / case / "golden.safetensors")
    tokens = golden["tokens.0"].array[:length]
    logits, _ = rg.run(config, st.read_checkpoint(GOLDEN / case), tokens)
    return golden_cases.difference([(tokens, golden["logits.0"].array[:length], {})], [(tokens, logits, {})])


def told(*args, **changes):
    """Ten times what a server may be off by."""
    return difference(*args, **changes) > 2e-4


@pytest.mark.parametrize("case", ("pattern", "groups"))
def test_without_a_change_there_is_no_difference(case):
    assert difference(case) < 2e-7


def test_a_row_sees_itself_and_one_less_than_the_window():
    """Google's own code lets it see one more."""
    assert told(window=17)
    assert not told(window=17, length=16)  # the window is not yet full


def test_the_first_row_is_taken_in_whole(monkeypatch):
    monkeypatch.setattr(rg, "first", lambda position: False)
    assert told(length=3)


def test_what_comes_in_is_scaled_by_the_root_of_one_less_the_square(monkeypatch):
    monkeypatch.setattr(rg, "kept", lambda log_a: 1 - np.exp(log_a))
    assert told()


def test_the_decay_is_of_the_softplus_of_its_parameter(monkeypatch):
    monkeypatch.setattr(rg, "decay", lambda r, param: -8 * r * np.exp(param))
    assert told()


def test_gates_are_rows_times_matrices(monkeypatch):
    right = rg.recurrence

    def recurrence(c, w, *rest):
        turned = {n: t.swapaxes(1, 2) for n, t in w.items() if n.endswith("gate_weight")}
        return right(c, {**w, **turned}, *rest)

    monkeypatch.setattr(rg, "recurrence", recurrence)
    assert told()


def test_only_the_first_channels_of_a_head_turn(monkeypatch):
    right = rg.turned

    def turned(c, x, position):
        return right(dataclasses.replace(c, rotary=1.0), x, position)

    monkeypatch.setattr(rg, "turned", turned)
    assert told()


def test_halves_of_what_turns_are_pairs(monkeypatch):
    """Not neighbours."""
    right = rg.turned

    def turned(c, x, position):
        n = int(c.head * c.rotary)
        order = np.r_[np.arange(0, n, 2), np.arange(1, n, 2), np.arange(n, c.head)]
        out = np.empty_like(x)
        out[:, order] = right(c, x[:, order], position)
        return out

    monkeypatch.setattr(rg, "turned", turned)
    assert told()


def test_norms_have_one_more_than_their_weights(monkeypatch):
    monkeypatch.setattr(rg, "norm", common.rms)
    assert told()


def test_embeddings_are_scaled(monkeypatch):
    monkeypatch.setattr(rg, "embedding_scale", lambda width: 1.0)
    assert told()


def test_the_scale_is_rounded_to_bf16(monkeypatch):
    assert rg.embedding_scale(2560) == 50.5
    monkeypatch.setattr(rg, "embedding_scale", np.sqrt)
    assert told()


def test_gelu_is_the_one_with_a_tanh(monkeypatch):
    import math

    erf = np.vectorize(math.erf)
    monkeypatch.setattr(rg, "gelu", lambda x: x / 2 * (1 + erf(x / np.sqrt(2))))
    assert told()


def test_logits_are_capped(monkeypatch):
    monkeypatch.setattr(rg, "capped", lambda c, logits: logits)
    assert told()


def test_the_convolution_has_no_activation(monkeypatch):
    right = common.convolve
    monkeypatch.setattr(common, "convolve", lambda *args: common.silu(right(*args)))
    assert told()
