"""Where implementations of the delta rules go wrong: each is tried on the goldens, whose results must tell.

The goldens are transformers' and flash-linear-attention's (tests/golden/delta_net); families_test.py shows that the
equations as they are give them, and golden_test.cc that the server does. Here they are changed in one place.
"""

import json

import numpy as np
import pytest

from conftest import ROOT
from weights_tools import golden_cases
from weights_tools import safetensors_io as st
from weights_tools.families import common, delta_net

GOLDEN = ROOT / "tests" / "golden" / "delta_net"
LENGTH = 12


def difference(case):
    """Of the logits of the first rows, relative to the largest."""
    values = json.loads((GOLDEN / case / "config.json").read_text())
    golden = st.read(GOLDEN / case / "golden.safetensors")
    tokens = golden["tokens.0"].array[:LENGTH]
    logits, _ = delta_net.run(delta_net.config_from_dict(values), st.read_checkpoint(GOLDEN / case), tokens)
    return golden_cases.difference([(tokens, golden["logits.0"].array[:LENGTH], {})], [(tokens, logits, {})])


def told(case):
    """Ten times what a server may be off by."""
    return difference(case) > 2e-4


CASES = ("plain", "gate_relu", "no_conv_elu_sum", "negative", "gated", "gated_groups", "gated_negative", "gated_sigmoid")


@pytest.mark.parametrize("case", CASES)
def test_without_a_change_there_is_no_difference(case):
    assert difference(case) < 2e-7


def test_what_is_under_the_key_is_read_after_the_decay(monkeypatch):
    """RWKV-7 reads it before."""

    def update(S, q, k, v, beta, g):
        u = beta[:, None] * (v - np.einsum("hk,hkv->hv", k, S))
        S *= np.exp(g)[:, None, None]
        S += k[:, :, None] * u[:, None, :]
        return np.einsum("hk,hkv->hv", q, S)

    monkeypatch.setattr(delta_net, "update", update)
    assert told("gated")
    assert not told("plain")  # without a decay it is the same


def test_the_output_is_of_the_new_state(monkeypatch):
    right = delta_net.update

    def update(S, q, *rest):
        o = np.einsum("hk,hkv->hv", q, S)
        right(S, q, *rest)
        return o

    monkeypatch.setattr(delta_net, "update", update)
    assert told("plain")


def test_beta_is_of_the_key_and_of_what_is_held(monkeypatch):
    """Not of the value alone."""

    def update(S, q, k, v, beta, g):
        S *= np.exp(g)[:, None, None]
        S += k[:, :, None] * (beta[:, None] * v - np.einsum("hk,hkv->hv", k, S))[:, None, :]
        return np.einsum("hk,hkv->hv", q, S)

    monkeypatch.setattr(delta_net, "update", update)
    assert told("plain")


def test_the_eps_of_a_length_stands_under_the_root(monkeypatch):
    """RWKV-7's, and PyTorch's, is a bound on the length instead."""

    def normed(c, x):
        return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), delta_net.LENGTH_EPS)

    monkeypatch.setattr(delta_net, "normed", normed)
    assert told("gated")


def test_queries_are_normed_too(monkeypatch):
    right, calls = delta_net.normed, []

    def normed(c, x):
        calls.append(x)
        return x if len(calls) % 2 else right(c, x)

    monkeypatch.setattr(delta_net, "normed", normed)
    assert told("plain")


def test_queries_are_divided_by_the_root_of_their_size(monkeypatch):
    """A norm follows, but its eps is not nothing."""
    right = delta_net.update
    monkeypatch.setattr(delta_net, "update", lambda S, q, *rest: right(S, 64 * q, *rest))
    assert told("plain")


def test_values_are_activated_whatever_queries_and_keys_are(monkeypatch):
    right = delta_net.mixer

    def mixer(c, w, y, S, conv):
        with monkeypatch.context() as context:
            context.setattr(common, "silu", lambda x: x)
            return right(c, {**w, "g_proj.weight": w["g_proj.weight"]}, y, S, conv)

    monkeypatch.setattr(delta_net, "mixer", mixer)
    assert told("gate_relu")


def test_beta_may_reach_two(monkeypatch):
    right = delta_net.gates

    def gates(c, w, y):
        beta, g = right(c, w, y)
        return beta / c.beta_scale, g

    monkeypatch.setattr(delta_net, "gates", gates)
    assert told("negative") and told("gated_negative")
    assert not told("gated")


def test_the_decay_is_of_the_softplus_with_its_bias(monkeypatch):
    right = delta_net.gates

    def gates(c, w, y):
        return right(c, w, y)[0], -np.exp(w["A_log"]) * common.sigmoid(w["a_proj.weight"] @ y + w["dt_bias"])

    monkeypatch.setattr(delta_net, "gates", gates)
    assert told("gated")


def test_heads_of_values_share_keys_one_after_the_other(monkeypatch):
    """repeat_interleave, not repeat: value heads 0 and 1 have key head 0."""

    def mixer(c, w, y, S, conv):
        q, k, v = delta_net.convolved(c, w, y, conv)
        q, k = (np.tile(delta_net.normed(c, common.silu(x).reshape(c.HK, -1)), (c.H // c.HK, 1)) for x in (q, k))
        beta, g = delta_net.gates(c, w, y)
        o = delta_net.update(S, q / np.sqrt(c.DK), k, common.silu(v).reshape(c.H, -1), beta, g)
        o = common.rms(o, w["o_norm.weight"], c.eps).reshape(-1)
        return w["o_proj.weight"] @ (o * common.silu(w["g_proj.weight"] @ y))

    monkeypatch.setattr(delta_net, "mixer", mixer)
    assert told("gated_groups")
    assert not told("gated")  # as many heads of either


def test_the_gate_comes_after_the_norm(monkeypatch):
    """Mamba-2's comes before it."""
    right = common.rms

    def rms(x, weight, eps):
        if x.ndim == 2:  # of heads, and so before the gate
            return x
        return right(x, weight, eps)

    monkeypatch.setattr(common, "rms", rms)
    assert told("gated")


def test_a_gate_that_is_a_sigmoid_is_not_multiplied_with_what_it_is_of(monkeypatch):
    monkeypatch.setitem(delta_net.GATES, "sigmoid", common.silu)
    assert told("gated_sigmoid")
    assert not told("gated")
