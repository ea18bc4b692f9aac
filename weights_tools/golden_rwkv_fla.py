"""Golden checkpoints of RWKV-7 whose config says more than BlinkDL's files can, computed by flash-linear-attention in fp64.

fla's RWKV7Block runs whole, with its norms as PyTorch's (fuse_norm false). Its Triton kernels need a GPU: what fla itself
compares them with (`*_ref`, `dplr_recurrence`) stands for them.
Run: python -m weights_tools.golden_rwkv_fla OUT FLA [CASE...], in the environment of tests/golden/rwkv7/requirements.txt;
FLA: a folder with the unpacked packages fla-core and flash-linear-attention 0.6.0 in it, `fla` of both in one.
"""

import pathlib
import sys
import types

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import golden_rwkv
from weights_tools.families import common, rwkv7

# norm_eps other than 1e-5, which moves the eps of the heads' norm with it.
CASES = {"rwkv7/norm_eps": (rwkv7.Config(64, 2, 89, 64, (6, 5, 3, 8), eps=1e-4), 65)}


def drawn(name):
    config, seed = CASES[name]
    return cases.stored(golden_rwkv.random_weights(config, seed), {})


def hub_config(c):
    ranks = {f"{rwkv7.RANK_KEYS[name]}_low_rank_dim": rank for name, rank in zip(rwkv7.LORAS, c.ranks)}
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "hidden_size": c.D,
        "num_hidden_layers": c.layers,
        "vocab_size": c.vocab,
        "head_dim": c.N,
        "num_heads": c.H,
        "intermediate_size": c.F,
        "hidden_act": "sqrelu",
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": c.eps,
        "tie_word_embeddings": c.tied,
        **ranks,
        "torch_dtype": "float32",
    }


class States:
    """What fla's cache keeps of each layer, of a sequence that is computed at once."""

    def __init__(self):
        self.found = {}

    def __getitem__(self, layer):
        return {"ffn_state": None}

    def update(self, layer_idx, ffn_state, **_):
        self.found[f"ffn_shift.{layer_idx}"] = ffn_state


def kernels(fla, states):
    """What fla compares its kernels with, under the kernels' names."""
    ref = {
        name: cases.definition(fla, path, name + suffix)
        for name, suffix, path in (
            ("token_shift", "_ref", "modules/token_shift.py"),
            ("gate_output_correction", "_ref", "ops/rwkv7/gate_output_correction.py"),
        )
    }
    recurrence = cases.definition(fla, "ops/generalized_delta_rule/dplr/naive.py", "dplr_recurrence")

    def token_shift(x, cu_seqlens, output_cache=True, cache=None):
        return ref["token_shift"](x), x[:, -1]

    def recur(r, w, k, v, a, b, scale, **_):
        r, w, k, v, a, b = (x.transpose(1, 2) for x in (r * scale * r.shape[-1] ** 0.5, w, k, v, a, b))
        o, S = recurrence(r, k, v, a, b, w)  # which scales the query
        return o.transpose(1, 2), S

    def update_layer_cache(layer, cache, recurrent_state, conv_state, offset):
        states.found[f"S.{layer.layer_idx}"] = recurrent_state
        states.found[f"shift.{layer.layer_idx}"] = conv_state

    return {
        "token_shift": token_shift,
        "fused_addcmul_rwkv7": cases.definition(fla, "ops/rwkv7/fused_addcmul.py", "torch_addcmul_rwkv7"),
        "fused_k_rwkv7": cases.definition(fla, "ops/rwkv7/fused_k_update.py", "k_update_ref"),
        "gate_output_correction": ref["gate_output_correction"],
        "chunk_rwkv7": recur,
        "fused_mul_recurrent_rwkv7": lambda kk, a, **rest: recur(a=-kk, b=kk * a, **rest),
        "get_layer_cache": lambda layer, cache: None,
        "update_layer_cache": update_layer_cache,
    }


def block_class(fla, states):
    import math

    import torch

    silent = types.SimpleNamespace(warn=lambda *_: None)
    stubs = {"math": math, "warnings": silent, **kernels(fla, states)}
    lora = cases.definition(fla, "layers/rwkv6.py", "LoRA", **stubs)
    attention = cases.definition(fla, "layers/rwkv7.py", "RWKV7Attention", LoRA=lora, **stubs)
    return cases.definition(
        fla,
        "models/rwkv7/modeling_rwkv7.py",
        "RWKV7Block",
        RWKV7Attention=attention,
        ACT2FN={"sqrelu": lambda x: torch.relu(x) ** 2},  # modules/activations.py
        get_attention=lambda config, layer_idx: None,
        GradientCheckpointingLayer=torch.nn.Module,
        LayerNorm=None,
        **stubs,
    )


def by_fla(c, fla, tensors, seed, dtype):
    """-> of each sequence, tokens, logits and states."""
    import torch

    w = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    config = types.SimpleNamespace(**hub_config(c), attn_mode="chunk", fuse_norm=False, value_dim=[c.D] * c.layers)
    config.hidden_ratio = None
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        states = States()
        Block = block_class(fla, states)
        x, v_first = w["model.embeddings.weight"][torch.from_numpy(tokens).long()][None], None
        for i in range(c.layers):
            block = Block(config, i).to(dtype).eval()
            block.load_state_dict(common.under(w, f"model.layers.{i}."))
            x, _, _, v_first = block(x, past_key_values=states, use_cache=True, v_first=v_first)
        norm = torch.nn.LayerNorm(c.D, eps=c.eps).to(dtype)
        norm.load_state_dict(common.under(w, "model.norm."))
        logits = norm(x)[0] @ w["lm_head.weight"].T
        arrays = {
            name: np.concatenate([states.found[f"{name}.{i}"].numpy() for i in range(c.layers)])
            for name in ("S", "shift", "ffn_shift")
        }
        out.append((tokens, logits.numpy(), arrays))
    return out


def make(name, out, fla):
    import torch

    config, seed = CASES[name]
    tensors = drawn(name)
    with torch.no_grad():
        fp32 = by_fla(config, fla, tensors, seed, torch.float32)
        with cases.fp64():
            exact = by_fla(config, fla, tensors, seed, torch.float64)
    assert exact[0][2]["S"].dtype == np.float64
    equations = [(t, *rwkv7.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    print(
        f"{name}: fp64 to equations {cases.difference(equations, exact):.1e}, "
        f"fp32 {cases.difference(exact, fp32):.1e}, {rwkv7.parameters(config):,} parameters"
    )
    cases.write(out / name, hub_config(config), tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[2:]):
        make(name, pathlib.Path(argv[0]), argv[1])


if __name__ == "__main__":
    main(sys.argv[1:])
