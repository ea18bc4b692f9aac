"""Golden checkpoints of DeltaNet and Gated DeltaNet.

Gated ones: the mixer is transformers' Qwen3NextGatedDeltaNet, on a CPU in PyTorch, whose projections are put
together as that class wants them. The others, and gated ones whose beta reaches 2 or whose output gate is a
sigmoid, which that class has not: flash-linear-attention's naive functions, read from their files alone as fla needs a GPU. What is around them
(norms, convolutions, feed-forward layers) is PyTorch's functional library, over whole sequences, and is compared
with the step recurrence of families/delta_net.py.
Run: python -m weights_tools.golden_delta_net OUT FLA [CASE...], FLA being the folder of the package fla 0.6, in the
environment of tests/golden/delta_net/requirements.txt. fla must not be installed there: transformers would take its
kernels.
"""

import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools.families import common, delta_net
from weights_tools.golden_gla import naive

_DELTA = {
    "architectures": ["DeltaNetForCausalLM"],
    "model_type": "delta_net",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "swish",
    "norm_eps": 1e-3,
    "use_short_conv": True,
    "conv_size": 4,
    "attn": None,
    "attn_mode": "chunk",
    "fuse_norm": True,
    "vocab_size": 97,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_GATED = {
    **_DELTA,
    "architectures": ["GatedDeltaNetForCausalLM"],
    "model_type": "gated_deltanet",
    "num_heads": 2,
    "head_dim": 12,
    "expand_v": 1.5,
    "use_gate": True,
}
CASES = {
    "delta_net/plain": (_DELTA, 71),
    "delta_net/gate_relu": (
        {**_DELTA, "use_gate": True, "use_beta": False, "qk_activation": "relu", "expand_k": 0.5, "conv_size": 3},
        72,
    ),
    "delta_net/no_conv_elu_sum": (
        {**_DELTA, "use_short_conv": False, "qk_activation": "elu", "qk_norm": "sum", "tie_word_embeddings": True},
        73,
    ),
    "delta_net/negative": ({**_DELTA, "allow_neg_eigval": True, "expand_v": 2.0, "num_hidden_layers": 1}, 74),
    "delta_net/gated": (_GATED, 75),
    "delta_net/gated_groups": ({**_GATED, "num_v_heads": 6, "num_hidden_layers": 3}, 76),
    "delta_net/gated_negative": ({**_GATED, "allow_neg_eigval": True, "use_gate": False}, 77),
    "delta_net/gated_sigmoid": (
        {**_GATED, "output_gate_activation": "sigmoid", "hidden_size": 32, "num_hidden_layers": 1},
        79,
    ),
    "delta_net/bf16": ({**_GATED, "num_v_heads": 4, "torch_dtype": "bfloat16"}, 78),
}


def random_weights(config, seed):
    """name -> fp32 array, in sizes at which every term of the forward pass shows: betas and decays over all of
    their range, keys some of which are so short that the eps of their length counts."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(delta_net.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if "norm" in name:
            out[name] = 1 + 0.4 * normal
        elif name.endswith("A_log"):
            out[name] = rng.uniform(-3, 1.5, shape)
        elif name.endswith("dt_bias"):
            out[name] = rng.uniform(-4, 2, shape)
        elif name == "model.embeddings.weight":
            out[name] = 1.5 * normal
        else:
            gain = {"lm_head.weight": 5.0}.get(name, 3.0 if name.endswith(("a_proj.weight", "b_proj.weight")) else 1.5)
            out[name] = gain * normal / np.sqrt(shape[-1])
        if name.endswith("0.attn.k_proj.weight") and config.norm == "l2":
            out[name][: config.DK] *= 2e-3  # of the first head
    return {name: value.astype(np.float32) for name, value in out.items()}


class Recorder:
    """What the class asks of a cache: nothing is there before; what is there afterwards is kept."""

    def get_conv_state(self, *_, **__):
        return None

    get_recurrent_state = get_conv_state

    def is_recording_past(self, *_):
        return False

    def update_conv_state(self, columns, *_, conv_kernel_size):
        import torch

        self.conv = torch.nn.functional.pad(columns, (conv_kernel_size - 1, 0))[0, :, 1 - conv_kernel_size :]
        return columns

    def update_recurrent_state(self, S, *_):
        self.S = S[0]


def by_transformers(c, w, y):
    """y [T, D] -> what the mixer adds, S, conv."""
    import torch
    from transformers.models.qwen3_next import configuration_qwen3_next, modeling_qwen3_next

    config = configuration_qwen3_next.Qwen3NextConfig(
        hidden_size=c.D,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_value_heads=c.H,
        linear_num_key_heads=c.HK,
        linear_key_head_dim=c.DK,
        linear_value_head_dim=c.DV,
        linear_conv_kernel_dim=c.width,
        rms_norm_eps=c.eps,
        hidden_act="silu",
    )
    module = modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, 0).to(y.dtype)

    def by_key_head(*names):
        return torch.cat([w[f"{n}_proj.weight"].unflatten(0, (c.HK, -1)) for n in names], 1).flatten(0, 1)

    module.load_state_dict(
        {
            "in_proj_qkvz.weight": by_key_head("q", "k", "v", "g"),
            "in_proj_ba.weight": by_key_head("b", "a"),
            "conv1d.weight": torch.cat([w[f"{n}_conv1d.weight"] for n in "qkv"]),
            "dt_bias": w["dt_bias"],
            "A_log": w["A_log"],
            "norm.weight": w["o_norm.weight"],
            "out_proj.weight": w["o_proj.weight"],
        }
    )
    recorder = Recorder()
    return module(y[None], cache_params=recorder)[0], recorder.S, recorder.conv


def by_fla(c, package, w, y):
    """y [T, D] -> what the mixer adds, S, conv."""
    import torch
    from torch.nn import functional as F

    raw = [F.linear(y, w[f"{name}_proj.weight"]) for name in "qkv"]
    conv = torch.cat(raw, 1).T[:, 1 - c.width :] if c.width else None
    if c.width:
        kernels = [w[f"{name}_conv1d.weight"] for name in "qkv"]
        raw = [
            F.conv1d(F.pad(x.T[None], (c.width - 1, 0)), kernel, groups=len(kernel))[0].T
            for x, kernel in zip(raw, kernels)
        ]
    f = {"silu": F.silu, "relu": F.relu, "elu": lambda x: F.elu(x) + 1}[c.activation]
    q, k = (f(x).unflatten(-1, (c.HK, -1)).repeat_interleave(c.H // c.HK, 1)[None] for x in raw[:2])
    v = F.silu(raw[2]).unflatten(-1, (c.H, -1))[None]
    if c.norm == "sum":
        q, k = (x / x.sum(-1, keepdim=True) for x in (q, k))
    else:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    beta = F.linear(y, w["b_proj.weight"]).sigmoid()[None] if c.beta else torch.ones_like(q[..., 0])
    beta = beta * c.beta_scale
    if c.gated:
        g = -w["A_log"].exp() * F.softplus(F.linear(y, w["a_proj.weight"]) + w["dt_bias"])
        function = naive(package, "gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule")
        o, S = function(q, k, v, beta, g[None], output_final_state=True)
    else:
        function = naive(package, "delta_rule/naive.py", "delta_rule_recurrence")
        o, S = function(*(x.transpose(1, 2) for x in (q, k, v, beta)))
        o = o.transpose(1, 2)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + c.eps) * w["o_norm.weight"]
    if c.gate:
        f = {"silu": F.silu, "sigmoid": torch.sigmoid}[c.gate_activation]
        o = o * f(F.linear(y, w["g_proj.weight"])).unflatten(-1, (c.H, -1))[None]
    return F.linear(o[0].flatten(-2), w["o_proj.weight"]), S[0], conv


def by_others(c, package, tensors, seed, dtype):
    import torch
    from torch.nn import functional as F

    def rms(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.eps) * weight

    w = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        x, states = w["model.embeddings.weight"][torch.from_numpy(tokens).long()], []
        for i in range(c.layers):
            layer = common.under(w, f"model.layers.{i}.")
            attn, y = common.under(layer, "attn."), rms(x, layer["attn_norm.weight"])
            if c.gated and c.gate and c.gate_activation == "silu":
                added, S, conv = by_transformers(c, attn, y)
            else:
                added, S, conv = by_fla(c, package, attn, y)
            x = x + added
            states.append({"S": S.numpy()} | ({} if conv is None else {"conv": conv.numpy()}))
            y = rms(x, layer["mlp_norm.weight"])
            gate, up = (F.linear(y, layer[f"mlp.{n}_proj.weight"]) for n in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, layer["mlp.down_proj.weight"])
        head = w["model.embeddings.weight"] if c.tied else w["lm_head.weight"]
        logits = rms(x, w["model.norm.weight"]) @ head.T
        out.append((tokens, logits.numpy(), {n: np.stack([s[n] for s in states]) for n in states[0]}))
    return out


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(delta_net.config_from_dict(values), seed), values)


def make(name, out, package):
    import torch

    values, seed = CASES[name]
    config, tensors = delta_net.config_from_dict(values), drawn(name)
    equations = [(t, *delta_net.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    with torch.no_grad():
        fp32 = by_others(config, package, tensors, seed, torch.float32)
        with cases.fp64():
            exact = by_others(config, package, tensors, seed, torch.float64)
    print(
        f"| {name.split('/')[1]} | {delta_net.parameters(config):,} | {cases.difference(exact, equations):.1e} | "
        f"{cases.difference(exact, fp32):.1e} |"
    )
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[2:]):
        make(name, pathlib.Path(argv[0]), argv[1])


if __name__ == "__main__":
    main(sys.argv[1:])
