"""Golden checkpoints of Mamba, Falcon Mamba and Mamba-2, computed by transformers' models in fp64.

Grouped Mamba-2 is different: transformers norms over all groups together, which is wrong, so its
results come from the equations (families/mamba2.py) and are compared with mamba_ssm's formulas.
Run: python -m weights_tools.golden_mamba OUT [CASE...], with transformers 4.46 and PyTorch.
"""

import pathlib
import sys
import types

import numpy as np

from weights_tools import golden_cases as cases
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
    "falcon_mamba/bf16": (mamba, _FALCON, 13),
    "mamba2/hf": (mamba2, _HF2, 14),
    "mamba2/original": (mamba2, _ORIGINAL2, 15),
    "mamba2/bf16": (mamba2, {**_HF2, "torch_dtype": "bfloat16"}, 18),
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


def by_transformers(values, config, tensors, seed, dtype):
    import torch

    weights = {n: t.float32() for n, t in tensors.items()}
    model = transformers_model(transformers_config(values, config), weights).to(dtype)
    out = []
    with torch.no_grad():
        for tokens in cases.sequences(config.vocab, seed):
            done = model(torch.from_numpy(tokens).long()[None], use_cache=True)
            cache = done.cache_params
            layers = range(config.layers)
            conv, h = (
                np.stack([np.asarray(states[i][0].double()) for i in layers])
                for states in (cache.conv_states, cache.ssm_states)
            )
            out.append((tokens, done.logits[0].double().numpy(), {"conv": conv[..., 1:], "h": h}))
    return out


def make(name, out):
    import torch

    family, values, seed = CASES[name]
    config = family.config_from_dict(values)
    tensors = cases.stored(random_weights(family, config, seed), values)
    by_equations = equations(family, config, tensors, seed)
    fp32 = by_transformers(values, config, tensors, seed, torch.float32)
    with cases.fp64():
        exact = by_transformers(values, config, tensors, seed, torch.float64)
    grouped = getattr(config, "G", 1) > 1
    print(
        f"{name}: transformers fp64 to equations {cases.difference(by_equations, exact):.1e}, "
        f"fp32 {cases.difference(by_equations, fp32):.1e}, {family.parameters(config):,} parameters"
    )
    if name.endswith("prefixed"):
        tensors = {"model." + n: t for n, t in tensors.items()}
    cases.write(out / name, values, tensors, by_equations if grouped else exact)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
