"""Golden checkpoints of Falcon-H1, computed by transformers' FalconH1ForCausalLM in fp64.

Run: python -m weights_tools.golden_falcon_h1 OUT [CASE...], in the environment of tests/golden/delta_net/requirements.txt
without mamba-ssm and causal-conv1d, whose kernels need a GPU. Prompts and single steps agree, which is checked; with a
time_step_limit they would not, as transformers 5.23 applies it to prompts alone.
"""

import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import golden_qwen3_5
from weights_tools.families import falcon_h1

# The multipliers are of the sizes of the Hub's, none of them a power of two.
_BASE = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "intermediate_size": 72,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_d_ssm": 80,
    "mamba_n_heads": 5,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_norm_before_gate": False,
    "mamba_rms_norm": False,
    "mamba_use_mlp": True,
    "projectors_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-3,
    "rope_theta": 100000000000.0,
    "max_position_embeddings": 4096,
    "embedding_multiplier": 5.656854249492381,
    "lm_head_multiplier": 0.39,
    "key_multiplier": 0.78,
    "attention_in_multiplier": 1.1,
    "attention_out_multiplier": 0.9375,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.7071, 0.55, 0.85, 1.2, 0.7071],
    "mlp_multipliers": [0.8838834764831844, 0.5859375],
    "vocab_size": 97,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
CASES = {
    "falcon_h1/pattern": ({**_BASE}, 121),
    # A gated norm of three groups, a time step with a multiplier unlike that of z, one head of keys for five.
    "falcon_h1/groups": (
        {
            **_BASE,
            "hidden_size": 36,
            "num_hidden_layers": 2,
            "intermediate_size": 52,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "mamba_d_ssm": None,
            "mamba_n_heads": 9,
            "mamba_d_head": 8,
            "mamba_n_groups": 3,
            "mamba_d_state": 12,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "mamba_rms_norm": True,
            "ssm_multipliers": [0.8, 1.3, 0.6, 0.9, 1.7],
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
        },
        122,
    ),
    # The norm of whole rows, which a layer may leave to the next one.
    "falcon_h1/rows": ({**_BASE, "mamba_rms_norm": True, "num_hidden_layers": 2, "num_key_value_heads": 4}, 123),
    "falcon_h1/bf16": ({**_BASE, "torch_dtype": "bfloat16", "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_n_groups": 2}, 124),
}


def random_weights(config, seed):
    """name -> fp32 array, in sizes at which every term of the forward pass shows."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(falcon_h1.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if "norm" in name or name.endswith(".D"):
            out[name] = 1 + 0.4 * normal
        elif name.endswith("A_log"):
            out[name] = rng.uniform(-4, 1, shape)
        elif name.endswith(("bias", "embed_tokens.weight")):
            out[name] = 0.5 * normal
        elif name == "lm_head.weight":
            out[name] = 5 * normal / np.sqrt(shape[-1])
        else:
            gain = 3.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.5
            out[name] = gain * normal / np.sqrt(shape[-1])
    return {name: value.astype(np.float32) for name, value in out.items()}


def by_transformers(values, c, tensors, seed, dtype, rows):
    """rows: of each call, or None for all of a sequence in one."""
    import torch
    from transformers import FalconH1Config, FalconH1ForCausalLM

    skipped = ("architectures", "model_type", "torch_dtype")
    config = FalconH1Config(**{k: v for k, v in values.items() if k not in skipped})
    config._attn_implementation = "eager"
    model = FalconH1ForCausalLM(config).to(dtype).eval()
    weights = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        ids, cache, logits = torch.from_numpy(tokens).long()[None], None, []
        for part in ids.split(rows or len(tokens), 1):
            answer = model(part, use_cache=True, past_key_values=cache)
            cache = answer.past_key_values
            logits.append(answer.logits[0])
        conv = [golden_qwen3_5.convolution(layer)[0][:, 1 - c.mamba.width :] for layer in cache.layers]
        state = {
            "conv": torch.stack(conv).numpy(),
            "h": torch.stack([golden_qwen3_5.recurrent(layer)[0] for layer in cache.layers]).numpy(),
            "keys": torch.stack([layer.keys[0].transpose(0, 1) for layer in cache.layers]).numpy(),
            "values": torch.stack([layer.values[0].transpose(0, 1) for layer in cache.layers]).numpy(),
        }
        state = falcon_h1.in_its_scale(c, state) | {"position": np.array([len(tokens)], np.int32)}
        out.append((tokens, torch.cat(logits).numpy(), state))
    return out


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(falcon_h1.config_from_dict(values), seed), values)


def make(name, out):
    import torch

    values, seed = CASES[name]
    config, tensors = falcon_h1.config_from_dict(values), drawn(name)
    equations = [(t, *falcon_h1.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    with torch.no_grad():
        fp32 = by_transformers(values, config, tensors, seed, torch.float32, None)
        with golden_qwen3_5.all_in_fp64():
            exact = by_transformers(values, config, tensors, seed, torch.float64, None)
            steps = by_transformers(values, config, tensors, seed, torch.float64, 1)
    differences = [cases.difference(exact, other) for other in (equations, steps, fp32)]
    words = " | ".join(f"{difference:.1e}" for difference in differences)
    print(f"| {name.split('/')[1]} | {falcon_h1.parameters(config):,} | {words} |")
    assert max(differences[:2]) < 1e-12, differences
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
