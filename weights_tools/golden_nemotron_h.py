"""Golden checkpoints of Nemotron-H without experts, computed by transformers' NemotronHForCausalLM in fp64.

Run: python -m weights_tools.golden_nemotron_h OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt without mamba-ssm and causal-conv1d, whose kernels need a GPU.

time_step_min is the lower end of what dt_bias is drawn from before training. transformers 5.23 also clamps the time step
at it, in prompts but not in single steps; the published kernels do not. Here it clamps nowhere, and prompts and single
steps of transformers agree, which is checked.
"""

import pathlib
import sys

from weights_tools import golden_cases as cases
from weights_tools import golden_hybrid
from weights_tools.families import nemotron_h

_BASE = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "hybrid_override_pattern": "M-M*-M",
    "intermediate_size": 72,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 32,
    "expand": 2,
    "use_conv_bias": True,
    "use_bias": False,
    "mlp_bias": False,
    "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-3,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "residual_in_fp32": False,
    "vocab_size": 97,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
CASES = {
    "nemotron_h/pattern": ({**_BASE}, 111),
    # Attention first, an MLP twice in a row and last, heads whose sum is no multiple of the width, biases, tied.
    "nemotron_h/groups": (
        {
            **_BASE,
            "hidden_size": 40,
            "num_hidden_layers": 7,
            "hybrid_override_pattern": "*M--*M-",
            "intermediate_size": 52,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "mamba_num_heads": 9,
            "mamba_head_dim": 8,
            "n_groups": 3,
            "ssm_state_size": 12,
            "conv_kernel": 3,
            "use_conv_bias": False,
            "use_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
        112,
    ),
    "nemotron_h/bf16": ({**_BASE, "torch_dtype": "bfloat16", "n_groups": 1}, 113),
}


def by_transformers(values, c, tensors, seed, dtype, rows):
    from transformers import NemotronHConfig, NemotronHForCausalLM

    skipped = ("architectures", "model_type", "torch_dtype", "num_hidden_layers")
    config = NemotronHConfig(**{k: v for k, v in values.items() if k not in skipped})
    weights = {n.replace("backbone.", "model."): t for n, t in tensors.items()}
    weights.setdefault("lm_head.weight", weights["model.embeddings.weight"])
    model = golden_hybrid.load(NemotronHForCausalLM, config, weights, dtype)
    for layer in model.model.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))

    def state_of(layers):
        mamba, attends = ([layers[i] for i in range(c.layers) if c.types[i] == kind] for kind in ("mamba", "attention"))
        return golden_hybrid.mamba_state(mamba, attends, c.mamba.width)

    return golden_hybrid.results(model, c.vocab, seed, rows, state_of)


def drawn(name):
    return golden_hybrid.drawn(nemotron_h, CASES[name])


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        golden_hybrid.make(nemotron_h, CASES[name], drawn(name), pathlib.Path(argv[0]) / name, by_transformers)


if __name__ == "__main__":
    main(sys.argv[1:])
