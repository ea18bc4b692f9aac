"""Golden checkpoints of Granite 4.0 H, computed by transformers' GraniteMoeHybridForCausalLM in fp64.

Run: python -m weights_tools.golden_granite_hybrid OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt without mamba-ssm and causal-conv1d, whose kernels need a GPU.
"""

import pathlib
import sys

from weights_tools import golden_cases as cases
from weights_tools import golden_hybrid
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
    # Three experts, two of them a token, of a width that is no multiple of anything.
    "granite_hybrid/experts": (
        {
            **_BASE,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "intermediate_size": 7,
            "shared_intermediate_size": 10,
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "mamba_d_state": 8,
            "mamba_d_head": 8,
            "vocab_size": 29,
        },
        104,
    ),
    "granite_hybrid/bf16": ({**_BASE, "torch_dtype": "bfloat16", "num_key_value_heads": 4}, 103),
}


# Of tensors, in files and in transformers' modules.
NAMES = {
    "moe.router.layer.weight": "moe.router.weight",
    "moe.input_linear.weight": "moe.experts.gate_up_proj",
    "moe.output_linear.weight": "moe.experts.down_proj",
}


def renamed(tensors):
    for old, new in NAMES.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return tensors


def by_transformers(values, c, tensors, seed, dtype, rows):
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

    skipped = ("architectures", "model_type", "torch_dtype")
    wanted = {k: v for k, v in values.items() if k not in skipped}
    if wanted["position_embedding_type"] == "nope":
        wanted["position_embedding_type"] = None
    model = golden_hybrid.load(GraniteMoeHybridForCausalLM, GraniteMoeHybridConfig(**wanted), renamed(tensors), dtype)

    def state_of(layers):
        mamba = [layers[i] for i in range(c.layers) if not c.attends(i)]
        return golden_hybrid.mamba_state(mamba, [layers[i] for i in range(c.layers) if c.attends(i)], c.mamba.width)

    return golden_hybrid.results(model, c.vocab, seed, rows, state_of)


def drawn(name):
    return golden_hybrid.drawn(granite_hybrid, CASES[name])


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        golden_hybrid.make(granite_hybrid, CASES[name], drawn(name), pathlib.Path(argv[0]) / name, by_transformers)


if __name__ == "__main__":
    main(sys.argv[1:])
