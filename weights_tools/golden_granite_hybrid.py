"""Golden checkpoints of Granite 4.0 H without experts, computed by transformers' GraniteMoeHybridForCausalLM in fp64.

Run: python -m weights_tools.golden_granite_hybrid OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt without mamba-ssm and causal-conv1d, whose kernels need a GPU.
"""

import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import golden_qwen3_5
from weights_tools.families import granite_hybrid

_BASE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "intermediate_size": 72,
    "shared_intermediate_size": 72,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 6,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "rms_norm_eps": 1e-3,
    "embedding_multiplier": 3,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
    "logits_scaling": 2,
    "position_embedding_type": "nope",
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "hidden_act": "silu",
    "vocab_size": 97,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
CASES = {
    "granite_hybrid/pattern": ({**_BASE}, 101),
    # Attention first and last, turned by position, one head of keys for five of queries, groups, biases, untied.
    "granite_hybrid/groups": (
        {
            **_BASE,
            "hidden_size": 40,
            "num_hidden_layers": 3,
            "layer_types": ["attention", "mamba", "attention"],
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "mamba_n_heads": 10,
            "mamba_d_head": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 12,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "position_embedding_type": "rope",
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
        102,
    ),
    "granite_hybrid/bf16": ({**_BASE, "torch_dtype": "bfloat16", "num_key_value_heads": 4}, 103),
}


def random_weights(config, seed):
    """name -> fp32 array, in sizes at which every term of the forward pass shows."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(granite_hybrid.tensor_shapes(config).items()):
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


def by_transformers(values, c, tensors, seed, dtype):
    import torch
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

    skipped = ("architectures", "model_type", "torch_dtype")
    wanted = {k: v for k, v in values.items() if k not in skipped}
    if wanted["position_embedding_type"] == "nope":
        wanted["position_embedding_type"] = None
    config = GraniteMoeHybridConfig(**wanted)
    config._attn_implementation = "eager"
    model = GraniteMoeHybridForCausalLM(config).to(dtype).eval()
    weights = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        ids = torch.from_numpy(tokens).long()[None]
        answer = model(ids, use_cache=True)
        cache = answer.past_key_values.layers
        mamba = [cache[i] for i in range(c.layers) if not c.attends(i)]
        attends = [cache[i] for i in range(c.layers) if c.attends(i)]
        conv = [golden_qwen3_5.convolution(layer)[0][:, 1 - c.mamba.width :] for layer in mamba]
        state = {
            "conv": torch.stack(conv).numpy(),
            "h": torch.stack([golden_qwen3_5.recurrent(layer)[0] for layer in mamba]).numpy(),
            "keys": torch.stack([layer.keys[0].transpose(0, 1) for layer in attends]).numpy(),
            "values": torch.stack([layer.values[0].transpose(0, 1) for layer in attends]).numpy(),
        }
        state["position"] = np.array([len(tokens)], np.int32)
        out.append((tokens, answer.logits[0].numpy(), state))
    return out


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(granite_hybrid.config_from_dict(values), seed), values)


def make(name, out):
    import torch

    values, seed = CASES[name]
    config, tensors = granite_hybrid.config_from_dict(values), drawn(name)
    equations = [(t, *granite_hybrid.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    with torch.no_grad():
        fp32 = by_transformers(values, config, tensors, seed, torch.float32)
        with golden_qwen3_5.all_in_fp64():
            exact = by_transformers(values, config, tensors, seed, torch.float64)
    print(
        f"| {name.split('/')[1]} | {granite_hybrid.parameters(config):,} | {cases.difference(exact, equations):.1e} | "
        f"{cases.difference(exact, fp32):.1e} |"
    )
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
