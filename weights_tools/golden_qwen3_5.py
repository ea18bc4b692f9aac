"""Golden checkpoints of Qwen3.5, computed by transformers' Qwen3_5ForCausalLM in fp64.

Run: python -m weights_tools.golden_qwen3_5 OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt without flash-linear-attention and causal-conv1d, whose kernels need a GPU.
"""

import contextlib
import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
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


def random_weights(config, seed):
    """name -> fp32 array, in sizes at which every term of the forward pass shows: decays from next to none to all,
    scores of attention that prefer some rows."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(qwen3_5.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if name.endswith("linear_attn.norm.weight"):
            out[name] = 1 + 0.4 * normal
        elif "norm" in name:
            out[name] = 0.4 * normal
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
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    skipped = ("architectures", "model_type", "torch_dtype")
    config = Qwen3_5TextConfig(**{k: v for k, v in values.items() if k not in skipped})
    config._attn_implementation = "eager"
    model = Qwen3_5ForCausalLM(config).to(dtype).eval()
    weights = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        ids = torch.from_numpy(tokens).long()[None]
        answer = model(ids, use_cache=True)
        cache = answer.past_key_values.layers
        delta = [cache[i] for i in range(c.layers) if not c.attends(i)]
        attends = [cache[i] for i in range(c.layers) if c.attends(i)]
        state = {
            "S": torch.stack([recurrent(layer)[0] for layer in delta]).numpy(),
            "conv": torch.stack([convolution(layer)[0][:, 1 - c.width :] for layer in delta]).numpy(),
            "keys": torch.stack([layer.keys[0].transpose(0, 1) for layer in attends]).numpy(),
            "values": torch.stack([layer.values[0].transpose(0, 1) for layer in attends]).numpy(),
        }
        state["position"] = np.array([len(tokens)], np.int32)
        out.append((tokens, answer.logits[0].numpy(), state))
    return out


def recurrent(layer):
    states = layer.recurrent_states
    return states[0] if isinstance(states, (list, dict)) else states


def convolution(layer):
    states = layer.conv_states
    return states[0] if isinstance(states, (list, dict)) else states


@contextlib.contextmanager
def all_in_fp64():
    """With the place that asks for fp32 in a way that cases.fp64() does not see: the softmax of attention."""
    import torch

    functional = torch.nn.functional
    softmax = functional.softmax
    functional.softmax = lambda x, dim, dtype=None: softmax(x, dim)
    try:
        with cases.fp64():
            yield
    finally:
        functional.softmax = softmax


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(qwen3_5.config_from_dict(values), seed), values)


def make(name, out):
    import torch

    values, seed = CASES[name]
    config, tensors = qwen3_5.config_from_dict(values), drawn(name)
    equations = [(t, *qwen3_5.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    with torch.no_grad():
        fp32 = by_transformers(values, config, tensors, seed, torch.float32)
        with all_in_fp64():
            exact = by_transformers(values, config, tensors, seed, torch.float64)
    print(
        f"| {name.split('/')[1]} | {qwen3_5.parameters(config):,} | {cases.difference(exact, equations):.1e} | "
        f"{cases.difference(exact, fp32):.1e} |"
    )
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
