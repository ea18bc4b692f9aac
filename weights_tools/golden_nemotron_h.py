"""Golden checkpoints of Nemotron-H without experts, computed by transformers' NemotronHForCausalLM in fp64.

Run: python -m weights_tools.golden_nemotron_h OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt without mamba-ssm and causal-conv1d, whose kernels need a GPU.

time_step_min is the lower end of what dt_bias is drawn from before training. transformers 5.23 also clamps the time step
at it, in prompts but not in single steps; the published kernels do not. Here it clamps nowhere, and prompts and single
steps of transformers agree, which is checked.
"""

import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import golden_qwen3_5
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


def random_weights(config, seed):
    """name -> fp32 array, in sizes at which every term of the forward pass shows."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(nemotron_h.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if "norm" in name or name.endswith(".D"):
            out[name] = 1 + 0.4 * normal
        elif name.endswith("A_log"):
            out[name] = rng.uniform(-4, 1, shape)
        elif name.endswith(("bias", "embeddings.weight")):
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
    from transformers import NemotronHConfig, NemotronHForCausalLM

    skipped = ("architectures", "model_type", "torch_dtype", "num_hidden_layers")
    config = NemotronHConfig(**{k: v for k, v in values.items() if k not in skipped})
    config._attn_implementation = "eager"
    model = NemotronHForCausalLM(config).to(dtype).eval()
    for layer in model.model.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))
    names = {n: n.replace("backbone.", "model.") for n in tensors}
    weights = {names[n]: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    weights.setdefault("lm_head.weight", weights["model.embeddings.weight"])
    model.load_state_dict(weights)
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        ids, cache, logits = torch.from_numpy(tokens).long()[None], None, []
        for part in ids.split(rows or len(tokens), 1):
            answer = model(part, use_cache=True, past_key_values=cache)
            cache = answer.past_key_values
            logits.append(answer.logits[0])
        mamba = [cache.layers[i] for i in range(c.layers) if c.types[i] == "mamba"]
        attends = [cache.layers[i] for i in range(c.layers) if c.types[i] == "attention"]
        conv = [golden_qwen3_5.convolution(layer)[0][:, 1 - c.mamba.width :] for layer in mamba]
        state = {
            "conv": torch.stack(conv).numpy(),
            "h": torch.stack([golden_qwen3_5.recurrent(layer)[0] for layer in mamba]).numpy(),
            "keys": torch.stack([layer.keys[0].transpose(0, 1) for layer in attends]).numpy(),
            "values": torch.stack([layer.values[0].transpose(0, 1) for layer in attends]).numpy(),
        }
        state["position"] = np.array([len(tokens)], np.int32)
        out.append((tokens, torch.cat(logits).numpy(), state))
    return out


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(nemotron_h.config_from_dict(values), seed), values)


def make(name, out):
    import torch

    values, seed = CASES[name]
    config, tensors = nemotron_h.config_from_dict(values), drawn(name)
    equations = [(t, *nemotron_h.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    with torch.no_grad():
        fp32 = by_transformers(values, config, tensors, seed, torch.float32, None)
        with golden_qwen3_5.all_in_fp64():
            exact = by_transformers(values, config, tensors, seed, torch.float64, None)
            steps = by_transformers(values, config, tensors, seed, torch.float64, 1)
    differences = [cases.difference(exact, other) for other in (equations, steps, fp32)]
    assert max(differences[:2]) < 1e-12, differences
    words = " | ".join(f"{difference:.1e}" for difference in differences)
    print(f"| {name.split('/')[1]} | {nemotron_h.parameters(config):,} | {words} |")
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
