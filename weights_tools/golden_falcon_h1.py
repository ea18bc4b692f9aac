"""Golden checkpoints of Falcon-H1, computed by transformers' FalconH1ForCausalLM in fp64.

Run: python -m weights_tools.golden_falcon_h1 OUT [CASE...], in the environment of tests/golden/delta_net/requirements.txt
without mamba-ssm and causal-conv1d, whose kernels need a GPU. Prompts and single steps agree, which is checked; with a
time_step_limit they would not, as transformers 5.23 applies it to prompts alone.
"""

import pathlib
import sys

from weights_tools import golden_cases as cases
from weights_tools import golden_hybrid
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


def by_transformers(values, c, tensors, seed, dtype, rows):
    from transformers import FalconH1Config, FalconH1ForCausalLM

    skipped = ("architectures", "model_type", "torch_dtype")
    config = FalconH1Config(**{k: v for k, v in values.items() if k not in skipped})
    model = golden_hybrid.load(FalconH1ForCausalLM, config, tensors, dtype)

    def state_of(layers):
        return falcon_h1.in_its_scale(c, golden_hybrid.mamba_state(layers, layers, c.mamba.width))

    return golden_hybrid.results(model, c.vocab, seed, rows, state_of)


def drawn(name):
    return golden_hybrid.drawn(falcon_h1, CASES[name])


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        golden_hybrid.make(falcon_h1, CASES[name], drawn(name), pathlib.Path(argv[0]) / name, by_transformers)


if __name__ == "__main__":
    main(sys.argv[1:])
