"""Golden checkpoints of Qwen3.5, with and without experts, and Qwen3-Next, computed by transformers' Qwen3_5ForCausalLM,
Qwen3_5MoeForCausalLM and Qwen3NextForCausalLM in fp64.

Run: python -m weights_tools.golden_qwen3_5 OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt without flash-linear-attention and causal-conv1d, whose kernels need a GPU.
"""

import pathlib
import sys

from weights_tools import golden_cases as cases
from weights_tools import golden_hybrid
from weights_tools import safetensors_io as st
from weights_tools.families import common, qwen3_5

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
_SMALL = {
    **_BASE,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "vocab_size": 29,
}
_MOE = {
    **_SMALL,
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
}
del _MOE["intermediate_size"]
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
    "qwen3_5_moe/pattern": (_MOE, 94),
    # Widths that are no multiples of anything, more experts, one of them a token.
    "qwen3_5_moe/bf16": (
        {
            **_MOE,
            "torch_dtype": "bfloat16",
            "num_experts": 11,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 7,
            "shared_expert_intermediate_size": 9,
        },
        95,
    ),
    # Each matrix of an expert in a separate tensor, weights that do not sum to one, and an MLP between.
    "qwen3_next/bf16": (
        {
            **_SMALL,
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "torch_dtype": "bfloat16",
            "intermediate_size": 28,
            "linear_num_value_heads": 6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            "num_experts": 17,
            "num_experts_per_tok": 5,
            "moe_intermediate_size": 7,
            "shared_expert_intermediate_size": 10,
            "norm_topk_prob": False,
            "mlp_only_layers": [1],
        },
        96,
    ),
}


def with_stacked_experts(c, tensors):
    """With the matrices of all experts of a layer in one tensor, as transformers has them."""
    if c.experts is None or not c.experts.each:
        return tensors
    out = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for i in (i for i in range(c.layers) if c.sparse[i]):
        mlp = f"model.layers.{i}.mlp."
        of_layer = {n: t.float32() for n, t in common.under(tensors, mlp).items()}
        for name, array in zip(("gate_up_proj", "down_proj"), qwen3_5.stacked(c, of_layer)):
            out[f"{mlp}experts.{name}"] = st.tensor(array, "F32")
    return out


def by_transformers(values, c, tensors, seed, dtype, rows):
    import transformers

    skipped = ("architectures", "model_type", "torch_dtype")
    class_name = values["architectures"][0]
    text = "Text" if class_name.startswith("Qwen3_5") else ""
    config_class = getattr(transformers, class_name.replace("ForCausalLM", f"{text}Config"))
    config = config_class(**{k: v for k, v in values.items() if k not in skipped})
    model = golden_hybrid.load(getattr(transformers, class_name), config, with_stacked_experts(c, tensors), dtype)

    def state_of(layers):
        delta = [layers[i] for i in range(c.layers) if not c.attends(i)]
        state = {"S": golden_hybrid.recurrent_state(delta), "conv": golden_hybrid.conv_state(delta, c.width)}
        return state | golden_hybrid.keys_and_values([layers[i] for i in range(c.layers) if c.attends(i)])

    return golden_hybrid.results(model, c.vocab, seed, rows, state_of)


def drawn(name):
    """But for the norm of the mixer, a file has what the weights of norms are more than 1."""
    config = qwen3_5.config_from_dict(CASES[name][0])
    if name.startswith("qwen3_next"):
        config = qwen3_5.as_stored(config, ())
    mean = lambda weights: int(weights.endswith("linear_attn.norm.weight"))
    return golden_hybrid.drawn(qwen3_5, CASES[name], mean, config)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        # A power in fp32 is one unit apart in NumPy and PyTorch.
        within = 1e-7 if name == "qwen3_5/groups" else 1e-12
        golden_hybrid.make(qwen3_5, CASES[name], drawn(name), pathlib.Path(argv[0]) / name, by_transformers, within)


if __name__ == "__main__":
    main(sys.argv[1:])
