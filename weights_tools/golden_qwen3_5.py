"""Golden checkpoints of Qwen3.5, computed by transformers' Qwen3_5ForCausalLM in fp64.

Run: python -m weights_tools.golden_qwen3_5 OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt without flash-linear-attention and causal-conv1d, whose kernels need a GPU.
"""

import pathlib
import sys

from weights_tools import golden_cases as cases
from weights_tools import golden_hybrid
from weights_tools.families import qwen3_5

_BASE = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "intermediate_size": 72,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "rms_norm_eps": 1e-3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
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
    "qwen3_5/pattern": ({**_BASE}, 91),
    # Attention first, one head of keys for five of queries, a quarter of a head turned, values wider than keys, untied.
    "qwen3_5/groups": (
        {
            **_BASE,
            "hidden_size": 40,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "linear_attention", "full_attention"],
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 24,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 20,
            "linear_conv_kernel_dim": 3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [1, 1, 1],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
        92,
    ),
    "qwen3_5/bf16": ({**_BASE, "torch_dtype": "bfloat16", "num_key_value_heads": 4}, 93),
}


def by_transformers(values, c, tensors, seed, dtype, rows):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    skipped = ("architectures", "model_type", "torch_dtype")
    config = Qwen3_5TextConfig(**{k: v for k, v in values.items() if k not in skipped})
    model = golden_hybrid.load(Qwen3_5ForCausalLM, config, tensors, dtype)

    def state_of(layers):
        delta = [layers[i] for i in range(c.layers) if not c.attends(i)]
        state = {"S": golden_hybrid.recurrent_state(delta), "conv": golden_hybrid.conv_state(delta, c.width)}
        return state | golden_hybrid.keys_and_values([layers[i] for i in range(c.layers) if c.attends(i)])

    return golden_hybrid.results(model, c.vocab, seed, rows, state_of)


def drawn(name):
    """But for the norm of the mixer, a file has what the weights of norms are more than 1."""
    return golden_hybrid.drawn(qwen3_5, CASES[name], lambda weights: int(weights.endswith("linear_attn.norm.weight")))


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        # A power in fp32 is one unit apart in NumPy and PyTorch.
        within = 1e-7 if name == "qwen3_5/groups" else 1e-12
        golden_hybrid.make(qwen3_5, CASES[name], drawn(name), pathlib.Path(argv[0]) / name, by_transformers, within)


if __name__ == "__main__":
    main(sys.argv[1:])
