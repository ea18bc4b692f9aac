"""The training modules of Mamba, Mamba-2, GLA, RWKV-7, Qwen3.5 and the research xLSTM against the equations in numpy."""

import numpy as np
import pytest

from weights_tools import safetensors_io as st
from weights_tools import train_family

torch = pytest.importorskip("torch", reason="the training modules need PyTorch")

ATOL = 2e-4  # fp32 against fp64, of logits up to 10


def build(family, layers=None):
    """A small model of random weights, its config, its family's module."""
    torch.manual_seed(3)
    module = train_family.FAMILIES[family][0]
    layers = layers or {"qwen3_5": 4, "xlstm_blocks": 3}.get(family, 2)
    config = module.config_from_dict(train_family.config_of(family, 50, 128, layers))
    model = train_family.model_class(family)(config, 0.2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        model.get_parameter(embedding_of(family)).mul_(8)
    return model, config, module


def embedding_of(family):
    return {
        "gla": "model.embeddings.weight",
        "qwen3_5": "model.embed_tokens.weight",
        "rwkv7": "model.embeddings.weight",
        "xlstm_blocks": "token_embedding.weight",
    }.get(family, "backbone.embeddings.weight")


@pytest.fixture(params=sorted(train_family.FAMILIES))
def family(request):
    return request.param


def test_carried_chunks_give_the_logits_of_the_step_recurrence(family):
    model, config, module = build(family)
    model.eval()
    tokens = torch.randint(50, (1, 193))
    state, logits = model.zero_state(1), []
    with torch.no_grad():
        for begin, end in ((0, 128), (128, 192), (192, 193)):  # 2 chunks, 1 chunk, a single step
            out, state = model(tokens[:, begin:end], state)
            logits.append(out[0])
    tensors = {n: st.tensor(p.detach().numpy(), "F32") for n, p in model.named_parameters()}
    wanted, _ = module.run(config, tensors, tokens[0].numpy())
    assert np.abs(wanted).max() > 1
    assert np.abs(torch.cat(logits).numpy() - wanted).max() < ATOL


def test_gla_may_forget_all_at_once():
    """Decays of a chunk whose product is no fp32."""
    model, config, module = build("gla")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attn.gk_proj[1].bias -= 200 * torch.rand(config.H * config.DK)
    tokens = torch.randint(50, (1, 48))
    logits, _ = model.eval()(tokens, model.zero_state(1))
    tensors = {n: st.tensor(p.detach().numpy(), "F32") for n, p in model.named_parameters()}
    wanted, _ = module.run(config, tensors, tokens[0].numpy())
    assert np.abs(logits[0].detach().numpy() - wanted).max() < ATOL
    logits.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_rwkv7_may_forget_as_fast_as_it_can():
    """Decays at their bound, keys that are nearly parallel and replaced all but wholly."""
    from weights_tools.families import rwkv7, rwkv7_module

    B, H, T, N = 2, 3, 96, 64
    r, k, v, S = (torch.randn(s) for s in ((B, H, T, N),) * 3 + ((B, H, N, N),))
    for lw in (torch.full((B, H, T, N), -0.606530), -1e-4 * torch.rand(B, H, T, N)):
        kk = torch.nn.functional.normalize(torch.randn(B, H, 1, N) + 0.05 * torch.randn(B, H, T, N), dim=-1)
        alpha = torch.full((B, H, T, N), 0.99)
        found, last = rwkv7_module.recurrence(r, lw, k, v, -kk, kk * alpha, S)
        for head in range(H):
            state = S[1, head].double().numpy()
            rows = [x[1, head].double().numpy() for x in (r, lw, k, v, kk, alpha)]
            wanted = np.stack([rwkv7.update(state, *(x[t] for x in rows)) for t in range(T)])
            assert np.abs(found[1, head].numpy() - wanted).max() < 1e-5 * np.abs(wanted).max()
            assert np.abs(last[1, head].numpy() - state).max() < 1e-5 * np.abs(state).max()


def test_rows_do_not_meet_and_state_has_no_gradient(family):
    model, _, _ = build(family)
    model.eval()
    tokens = torch.randint(50, (3, 64))
    logits, state = model(tokens, model.zero_state(3))
    alone, _ = model(tokens[1:2], model.zero_state(1))
    assert (logits[1] - alone[0]).abs().max() < ATOL
    assert not any(x.requires_grad for block in state for x in block)


def test_gradients_are_those_of_differences(family, monkeypatch):
    """Without sLSTM blocks: their loop here is PyTorch's to differentiate."""
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x)  # all of it in fp64
    # The second of RWKV-7 takes values of the first, the fourth of Qwen3.5 attends.
    model, _, _ = build(family, layers={"qwen3_5": 4, "rwkv7": 2}.get(family, 1))
    model.double().eval()
    length = {"mamba": 8, "gla": 32, "rwkv7": 64}.get(family, 128)  # two chunks, where there are chunks
    tokens, state = torch.randint(50, (1, length + 1)), model.zero_state(1)

    def loss():
        logits, _ = model(tokens[:, :-1], state)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    loss().backward()
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        direction /= direction.norm()
        step, slope = 1e-4, float((parameter.grad * direction).sum())
        with torch.no_grad():
            parameter += step * direction
            above = float(loss())
            parameter -= 2 * step * direction
            below = float(loss())
            parameter += step * direction
        assert (above - below) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-8), name


def test_dropout_is_off_at_rate_zero_and_in_evaluation(family):
    model, _, _ = build(family)
    tokens = torch.randint(50, (2, 16))

    def run():
        with torch.no_grad():
            return model(tokens, model.zero_state(2))[0]

    wanted = model.eval() and run()
    dropped = model.train() and run()
    model.rate.zero_()
    assert torch.equal(run(), wanted)
    assert not torch.allclose(dropped, wanted, atol=0.1)


def test_compiled_blocks_give_the_same(family):
    """One compilation a kind of block."""
    from weights_tools.families.language_model import call_block

    model, _, _ = build(family)
    model.rate.zero_()
    tokens = torch.randint(50, (2, 8))
    state = model.zero_state(2)
    wanted, _ = model.train()(tokens, state)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model.call = torch.compile(call_block, dynamic=False, fullgraph=True, backend=backend)
    found, _ = model(tokens, state)
    assert torch.equal(found, wanted)
    assert len(graphs) == (2 if family in ("qwen3_5", "rwkv7", "xlstm_blocks") else 1)


def in_the_interpreter(code):
    """Triton runs kernels without a GPU if it was imported with TRITON_INTERPRET."""
    import os
    import subprocess
    import sys

    from conftest import ROOT

    pytest.importorskip("triton", reason="the kernels need Triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernel_of_the_selective_scan_agrees_with_the_loop():
    in_the_interpreter(
        """
import torch
from torch.nn import functional as F
from weights_tools.families import language_model, mamba_scan as m
u, dt, Bm, Cm, h = (torch.randn(s) for s in ((1, 19, 32), (1, 19, 32), (1, 19, 3), (1, 19, 3), (1, 32, 3)))
A = -torch.arange(1.0, 4.0).repeat(32, 1)
inputs = [x.requires_grad_() for x in (u, F.softplus(dt), A, Bm, Cm)] + [h]
assert language_model.agree("", m.scan_kernel, m.scan_loop, inputs, 1e-5)
last = [f(*inputs)[1] for f in (m.scan_kernel, m.scan_loop)]
assert torch.allclose(*last, atol=1e-5)
"""
    )


def test_kernel_of_the_slstm_agrees_with_the_loop():
    in_the_interpreter(
        """
import torch
from weights_tools.families import language_model, slstm_scan as s
x, R = torch.randn(3, 9, 4, 2, 16), torch.randn(2, 4, 16, 16) / 4
inputs = [x.requires_grad_(), R.requires_grad_(), x.new_zeros(4, 3, 2, 16)]
assert language_model.agree("", s.scan_kernel, s.scan_loop, inputs, 1e-5)
_, state = s.scan_loop(*inputs)
assert language_model.agree("", s.scan_kernel, s.scan_loop, [*inputs[:2], state], 1e-5)
last = [f(*inputs)[1] for f in (s.scan_kernel, s.scan_loop)]
assert torch.allclose(*last, atol=1e-5)
"""
    )
