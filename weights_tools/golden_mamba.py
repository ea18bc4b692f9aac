"""Golden checkpoints of Mamba, Falcon Mamba and Mamba-2, computed by transformers' models in fp64.

Grouped Mamba-2 is different: transformers norms over all groups together, which is wrong, so its
results are those of mamba_ssm's plain PyTorch functions, ssd_minimal_discrete and rms_norm_ref. The
package needs a GPU to be imported; the functions are read from their files alone.
Run: python -m weights_tools.golden_mamba OUT MAMBA_SSM [CASE...], MAMBA_SSM being the folder of the
package mamba_ssm 2.3.2, with transformers 4.46 and PyTorch.
"""

import pathlib
import sys
import types

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import golden_hybrid
from weights_tools.families import mamba, mamba2

_HF = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "time_step_rank": 3,
    "layer_norm_epsilon": 1e-3,
    "hidden_act": "silu",
    "residual_in_fp32": True,
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": 97,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
_ORIGINAL = {
    "d_model": 48,
    "n_layer": 2,
    "vocab_size": 97,
    "ssm_cfg": {"d_state": 8},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 8,
}
_FALCON = {
    **_HF,
    "architectures": ["FalconMambaForCausalLM"],
    "model_type": "falcon_mamba",
    "expand": 16,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 11,
    "pad_token_id": 11,
    "torch_dtype": "bfloat16",
}
_HF2 = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 16,
    "num_heads": 4,
    "n_groups": 1,
    "chunk_size": 256,
    "layer_norm_epsilon": 1e-3,
    "hidden_act": "silu",
    "rms_norm": True,
    "norm_before_gate": True,
    "residual_in_fp32": True,
    "time_step_limit": [0.0, float("inf")],
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
    "vocab_size": 97,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
_ORIGINAL2 = {
    "d_model": 32,
    "d_intermediate": 0,
    "n_layer": 2,
    "vocab_size": 97,
    "ssm_cfg": {"layer": "Mamba2", "d_state": 16, "headdim": 16},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 16,
    "tie_embeddings": True,
}
CASES = {
    "mamba/hf": (mamba, _HF, 11),
    "mamba/original": (mamba, _ORIGINAL, 12),
    "mamba/bf16": (mamba, {**_HF, "torch_dtype": "bfloat16"}, 17),
    "mamba/bias": (mamba, {**_HF, "use_bias": True, "use_conv_bias": False}, 20),
    # Widths that no vector width divides.
    "mamba/odd": (mamba, {**_HF, "hidden_size": 37, "intermediate_size": 111}, 22),
    "falcon_mamba/bf16": (mamba, _FALCON, 13),
    "mamba2/hf": (mamba2, _HF2, 14),
    "mamba2/original": (mamba2, _ORIGINAL2, 15),
    "mamba2/bf16": (mamba2, {**_HF2, "torch_dtype": "bfloat16"}, 18),
    "mamba2/bias": (mamba2, {**_HF2, "use_bias": True, "use_conv_bias": False}, 21),
    # Eight groups of the heads, as Codestral has.
    "mamba2/groups8": (mamba2, {**_HF2, "n_groups": 8, "num_heads": 16, "head_dim": 4}, 19),
    "mamba2/groups": (mamba2, {**_HF2, "n_groups": 2}, 16),
    # Codestral's other file: the same tensors and config, names beginning with "model.".
    "mamba2/groups_prefixed": (mamba2, {**_HF2, "n_groups": 2}, 16),
}


def random_weights(family, config, seed, tied_gain=5.0):
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(family.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if name.endswith(("norm.weight", "norm_f.weight", ".D")):
            out[name] = 1 + 0.4 * normal
        elif name.endswith("A_log"):
            out[name] = rng.uniform(-1.5, 2.5, shape)
        elif name.endswith(("dt_proj.bias", "dt_bias")):
            out[name] = rng.uniform(-4, 1, shape)
        elif name.endswith("bias"):
            out[name] = 0.3 * normal
        elif "embedding" in name:
            out[name] = 1.5 * normal
        elif name == "lm_head.weight":
            out[name] = tied_gain * normal / np.sqrt(shape[-1])
        else:
            out[name] = 1.5 * normal / np.sqrt(shape[-1])
    return {name: value.astype(np.float32) for name, value in out.items()}


def equations(family, config, tensors, seed):
    out = []
    for tokens in cases.sequences(config.vocab, seed):
        logits, state = family.run(config, tensors, tokens)
        out.append((tokens, logits, state))
    return out


def transformers_config(values, config):
    """What transformers is to be told where the checkpoint has state-spaces' config."""
    if "hidden_size" in values:
        return values
    c = config
    shared = {"vocab_size": c.vocab, "layer_norm_epsilon": c.eps, "tie_word_embeddings": c.tied}
    if isinstance(c, mamba.Config):
        return {**_HF, **shared, "state_size": c.N, "time_step_rank": c.R}
    return {**_HF2, **shared, "num_heads": c.H}


def transformers_model(values, weights):
    import torch
    import transformers as t

    if not hasattr(torch, "_dynamo"):  # PyTorch 1.13 has none, and the model only marks buffers
        torch._dynamo = types.SimpleNamespace(mark_static_address=lambda tensor: None)
    kind = values["architectures"][0]
    options = {k: v for k, v in values.items() if k not in ("architectures", "model_type")}
    model = getattr(t, kind)(getattr(t, kind.replace("ForCausalLM", "Config"))(**options))
    named = {
        n.replace("backbone.embedding.", "backbone.embeddings."): torch.from_numpy(w)
        for n, w in weights.items()
    }
    missing, extra = model.load_state_dict(named, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    model.tie_weights()
    for layer in model.backbone.layers:
        # 4.46's Mamba-2 keeps dt above time_step_min, which is a bound of its initialisation.
        layer.mixer.time_step_min = 0.0
    return model.eval()


def states_of(cache, layers):
    """Of the convolutions and of the recurrences, one of each layer."""
    if not hasattr(cache, "layers"):  # transformers 4.46
        return [[states[i] for i in range(layers)] for states in (cache.conv_states, cache.ssm_states)]
    both = ("conv_states", "recurrent_states")
    return [[golden_hybrid.only(getattr(layer, name)) for layer in cache.layers] for name in both]


def by_transformers(values, config, tensors, seed, dtype):
    import torch

    weights = {n: t.float32() for n, t in tensors.items()}
    model = transformers_model(transformers_config(values, config), weights).to(dtype)
    out = []
    with torch.no_grad():
        for tokens in cases.sequences(config.vocab, seed):
            done = model(torch.from_numpy(tokens).long()[None], use_cache=True)
            conv, h = (
                np.stack([np.asarray(layer[0].double()) for layer in layers])
                for layers in states_of(done.cache_params, config.layers)
            )
            out.append((tokens, done.logits[0].double().numpy(), {"conv": conv[..., 1:], "h": h}))
    return out


def by_mamba_ssm(c, tensors, seed, package, dtype):
    """mamba_ssm's modules/mamba2.py around its reference functions, over whole sequences."""
    import torch
    from torch.nn import functional as F

    ssd = cases.definition(package, "modules/ssd_minimal.py", "ssd_minimal_discrete")
    rms = cases.definition(package, "ops/triton/layernorm_gated.py", "rms_norm_ref")
    weights = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    layers = [mamba2.common.under(weights, f"backbone.layers.{i}.") for i in range(c.layers)]
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        x, states = weights[c.embedding][torch.from_numpy(tokens).long()], []
        for w in layers:
            y = rms(x, w["norm.weight"], None, eps=c.eps)
            y, state = mamba_ssm_mixer(c, mamba2.common.under(w, "mixer."), y, ssd, rms)
            states.append(state)
            x = x + y
        x = rms(x, weights["backbone.norm_f.weight"], None, eps=c.eps)
        head = weights[c.embedding] if c.tied else weights["lm_head.weight"]
        conv, h = (np.stack([np.asarray(s[i].double()) for s in states]) for i in range(2))
        out.append((tokens, F.linear(x, head).double().numpy(), {"conv": conv, "h": h}))
    return out


def mamba_ssm_mixer(c, w, y, ssd, rms, block=16):
    """y [T, D] -> [T, D] and the states conv, h after it."""
    import torch
    from torch.nn import functional as F

    z, xBC, dt = F.linear(y, w["in_proj.weight"]).split([c.DI, c.conv_width, c.H], -1)
    conv = F.conv1d(
        F.pad(xBC.T, (c.width - 1, 0)),
        w["conv1d.weight"],
        w["conv1d.bias"],
        groups=c.conv_width,
    )
    x, B, C = F.silu(conv).T.split([c.DI, c.G * c.N, c.G * c.N], -1)
    x = x.reshape(len(y), c.H, c.P)
    # Head j reads group j // (H / G).
    B, C = (v.reshape(len(y), c.G, c.N).repeat_interleave(c.H // c.G, 1) for v in (B, C))
    dt = F.softplus(dt + w["dt_bias"]).clamp(c.dt_min, c.dt_max)
    rest = -len(y) % block  # rows that change nothing, as dt is 0 in them
    parts = (x * dt[..., None], -torch.exp(w["A_log"]) * dt, B, C)
    padded = (torch.cat([p, p.new_zeros(rest, *p.shape[1:])])[None] for p in parts)
    out, h = ssd(*padded, block)
    out = (out[0, : len(y)] + w["D"][:, None] * x).reshape(len(y), c.DI)
    out = rms(
        out,
        w["norm.weight"],
        None,
        z=z,
        eps=c.gate_eps,
        group_size=c.DI // c.G,
        norm_before_gate=False,
    )
    return F.linear(out, w["out_proj.weight"]), (xBC.T[:, 1 - c.width :], h[0])


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    family, values, seed = CASES[name]
    tensors = cases.stored(random_weights(family, family.config_from_dict(values), seed), values)
    prefix = "model." if name.endswith("prefixed") else ""
    return {prefix + n: t for n, t in tensors.items()}


def make(name, out, package):
    import torch

    family, values, seed = CASES[name]
    config = family.config_from_dict(values)
    tensors = {n.removeprefix("model."): t for n, t in drawn(name).items()}
    by_equations = equations(family, config, tensors, seed)
    if getattr(config, "G", 1) > 1:
        source, run = "mamba_ssm", lambda d: by_mamba_ssm(config, tensors, seed, package, d)
    else:
        source, run = "transformers", lambda d: by_transformers(values, config, tensors, seed, d)
    with torch.no_grad():
        fp32 = run(torch.float32)
        with cases.fp64():
            exact = run(torch.float64)
    print(
        f"{name}: {source} fp64 to equations {cases.difference(by_equations, exact):.1e}, "
        f"fp32 {cases.difference(by_equations, fp32):.1e}, {family.parameters(config):,} parameters"
    )
    cases.write(out / name, values, drawn(name), exact)


def main(argv):
    for name in cases.chosen(CASES, argv[2:]):
        make(name, pathlib.Path(argv[0]), argv[1])


if __name__ == "__main__":
    main(sys.argv[1:])
