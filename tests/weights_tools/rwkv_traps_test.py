"""Where implementations of RWKV-7 go wrong: each is tried on the goldens, whose results must tell.

The goldens are the package rwkv's (tests/golden/rwkv7); families_test.py shows that the equations as they are give
them, and golden_test.cc that the server does. Here the equations are changed in one place.
"""

import json

import numpy as np
import pytest
import pytest

from conftest import ROOT
from weights_tools import golden_cases
from weights_tools import safetensors_io as st
from weights_tools.families import common, rwkv7

GOLDEN = ROOT / "tests" / "golden" / "rwkv7"
LENGTH = 12


def difference(case="one_head"):
    """Of the logits of the first rows, relative to the largest."""
    values = json.loads((GOLDEN / case / "config.json").read_text())
    tensors = st.read_checkpoint(GOLDEN / case)
    config = rwkv7.as_stored(rwkv7.config_from_dict(values), tensors)
    golden = st.read(GOLDEN / case / "golden.safetensors")
    tokens = golden["tokens.0"].array[:LENGTH]
    logits, _ = rwkv7.run(config, tensors, tokens)
    return golden_cases.difference([(tokens, golden["logits.0"].array[:LENGTH], {})], [(tokens, logits, {})])


def told(case="one_head"):
    """Ten times what a server may be off by."""
    return difference(case) > 2e-4


def test_without_a_change_there_is_no_difference():
    assert difference() < 2e-7


@pytest.mark.parametrize("case, eps", [("one_head", 1e-5), ("norm_eps", 1e-3), ("norm_eps", 64e-5)])
def test_the_heads_norm_has_the_size_of_a_head_times_the_eps(case, eps, monkeypatch):
    monkeypatch.setattr(rwkv7.Config, "head_eps", eps)
    assert told(case)


def test_short_keys_are_not_normalised(monkeypatch):
    """flash-linear-attention's kernel takes 1 / sqrt(squares + 1e-6)."""

    def keys(c, w, k, alpha):
        kk = (k * w["k_k"].reshape(-1)).reshape(c.H, c.N)
        kk = kk / np.sqrt((kk * kk).sum(-1, keepdims=True))
        return kk.reshape(-1), k * (1 + (alpha - 1) * w["k_a"].reshape(-1))

    monkeypatch.setattr(rwkv7, "keys", keys)
    assert told()


def test_the_replaced_key_is_the_one_before_it_is_scaled(monkeypatch):
    right = rwkv7.keys
    monkeypatch.setattr(rwkv7, "keys", lambda c, w, k, alpha: (right(c, w, right(c, w, k, alpha)[1], alpha)[0],
                                                               right(c, w, k, alpha)[1]))  # fmt: skip
    assert told()


def test_the_state_is_read_before_its_decay(monkeypatch):
    def update(S, r, lw, k, v, kk, alpha):
        S[:] = np.exp(lw)[:, None] * S
        S[:] = S + np.outer(kk * alpha, -kk @ S) + np.outer(k, v)
        return r @ S

    monkeypatch.setattr(rwkv7, "update", update)
    assert told()


def test_the_output_is_of_the_new_state(monkeypatch):
    right = rwkv7.update

    def update(S, r, lw, k, v, kk, alpha):
        o = r @ S
        right(S, r, lw, k, v, kk, alpha)
        return o

    monkeypatch.setattr(rwkv7, "update", update)
    assert told()


def test_the_query_is_not_divided_by_the_root_of_its_size(monkeypatch):
    right = rwkv7.update
    monkeypatch.setattr(rwkv7, "update", lambda S, r, *rest: right(S, r / 8, *rest))
    assert told()


def test_the_bonus_comes_after_the_norm(monkeypatch):
    right = rwkv7.normed

    def normed(c, w, o, r, k, v):
        bonus = (r * k * w["r_k"]).sum(-1, keepdims=True) * v
        return right(c, w, o + bonus, 0 * r, k, v)

    monkeypatch.setattr(rwkv7, "normed", normed)
    assert told()


def test_the_gate_has_its_sigmoid_between(monkeypatch):
    monkeypatch.setattr(rwkv7, "gate", lambda w, x: common.sigmoid(rwkv7.low_rank(w, "g", x)))
    assert told()


def test_the_decay_has_a_tanh_between(monkeypatch):
    monkeypatch.setattr(
        rwkv7, "log_decay", lambda w, x: -np.exp(-0.5) * common.sigmoid(rwkv7.low_rank(w, "w", x))
    )
    assert told()


def test_values_mix_with_the_first_layers(monkeypatch):
    monkeypatch.setattr(rwkv7, "mixed_value", lambda w, v, v_first, x: v)
    assert told()


def test_the_values_mix_is_of_their_input(monkeypatch):
    right = rwkv7.mixed_value
    monkeypatch.setattr(rwkv7, "mixed_value", lambda w, v, v_first, x: right(w, v, v_first, v))
    assert told()


def test_norms_have_a_mean_and_a_bias(monkeypatch):
    monkeypatch.setattr(
        rwkv7, "layer_norm", lambda w, name, x, eps: common.rms(x, w[name + ".weight"], eps)
    )
    assert told()


def test_the_feed_forward_layer_squares_its_relu(monkeypatch):
    def feed_forward(w, y, before):
        z = y + (before - y) * w["x_k"].reshape(-1)
        return w["value.weight"] @ np.maximum(w["key.weight"] @ z, 0)

    monkeypatch.setattr(rwkv7, "feed_forward", feed_forward)
    assert told()


def test_a_mix_of_one_is_the_row_before(monkeypatch):
    """RWKV-4 and 5 have it the other way round."""
    right = rwkv7.shifts
    monkeypatch.setattr(rwkv7, "shifts", lambda w: {mix: 1 - mu for mix, mu in right(w).items()})
    assert told()


def test_the_order_of_the_mixes_in_one_tensor(monkeypatch):
    monkeypatch.setattr(rwkv7, "MIXES", "rkvwag")
    assert told("one_shift")
