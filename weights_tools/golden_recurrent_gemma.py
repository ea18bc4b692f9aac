"""Golden checkpoints of RecurrentGemma, computed by transformers' RecurrentGemmaForCausalLM in fp64.

One full forward pass a sequence, as the class forgets its convolution's rows when a second call brings several
tokens. Its own states are read where it has them: h from the recurrent units, keys and values from the cache, the
convolution's rows from its input.
Run: python -m weights_tools.golden_recurrent_gemma OUT [CASE...], in the environment of
tests/golden/delta_net/requirements.txt.
"""

import contextlib
import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools.families import recurrent_gemma

_BASE = {
    "architectures": ["RecurrentGemmaForCausalLM"],
    "model_type": "recurrent_gemma",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "lru_width": 48,
    "intermediate_size": 72,
    "attention_window_size": 16,
    "conv1d_width": 4,
    "logits_soft_cap": 6.0,
    "rms_norm_eps": 1e-3,
    "block_types": ["recurrent", "recurrent", "attention"],
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "attention_bias": False,
    "hidden_activation": "gelu_pytorch_tanh",
    "vocab_size": 97,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
CASES = {
    "recurrent_gemma/pattern": ({**_BASE, "num_hidden_layers": 5}, 81),
    # Shared keys, a window longer than the second sequence, another width and untied.
    "recurrent_gemma/groups": (
        {
            **_BASE,
            "num_key_value_heads": 2,
            "attention_window_size": 64,
            "block_types": ["attention", "recurrent"],
            "num_hidden_layers": 2,
            "tie_word_embeddings": False,
            "conv1d_width": 3,
            "attention_bias": True,
        },
        82,
    ),
    "recurrent_gemma/bf16": ({**_BASE, "torch_dtype": "bfloat16", "attention_window_size": 23}, 83),
}


def random_weights(config, seed):
    """name -> fp32 array, in sizes at which every term of the forward pass shows: decays from next to none to all,
    scores of attention that prefer some rows, logits that reach their cap."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(recurrent_gemma.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if "norm" in name:
            out[name] = 0.4 * normal
        elif name.endswith("recurrent_param"):
            out[name] = rng.uniform(-9, 1, shape)
        elif name.endswith("bias"):
            out[name] = 0.5 * normal
        elif name.endswith("embed_tokens.weight"):
            out[name] = 0.5 * normal
        elif name == "lm_head.weight":
            out[name] = 5 * normal / np.sqrt(shape[-1])
        else:
            gain = 3.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.5
            fan_in = shape[1] if name.endswith("gate_weight") else shape[-1]
            out[name] = gain * normal / np.sqrt(fan_in)
    return {name: value.astype(np.float32) for name, value in out.items()}


def by_transformers(values, c, tensors, seed, dtype):
    import torch
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    skipped = ("architectures", "model_type", "torch_dtype")
    config = RecurrentGemmaConfig(**{k: v for k, v in values.items() if k not in skipped})
    config._attn_implementation = "eager"
    model = RecurrentGemmaForCausalLM(config).to(dtype).eval()
    weights = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    blocks = [layer.temporal_block for layer in model.model.layers]
    seen = {}  # of each layer: what its convolution was given, or keys and values
    for i, block in enumerate(blocks):
        if c.attends(i):
            continue
        block.linear_x.register_forward_hook(lambda m, a, out, i=i: seen.__setitem__(i, out))
    out = []
    for tokens in cases.sequences(c.vocab, seed):
        cache = Rows()
        ids = torch.from_numpy(tokens).long()[None]
        logits = model(ids, past_key_values=cache, use_cache=True).logits[0]
        recurrent = [i for i in range(c.layers) if not c.attends(i)]
        conv = [seen[i][0].T[:, 1 - c.width :] for i in recurrent]
        h = [blocks[i].rg_lru.recurrent_states[0] for i in recurrent]
        rings = {name: np.stack([ring(c, rows[n]) for rows in cache.rows]) for n, name in enumerate(("ring_k", "ring_v"))}
        state = {"h": torch.stack(h).numpy(), "conv": torch.stack(conv).numpy(), **rings}
        out.append((tokens, logits.numpy(), state | {"position": np.array([len(tokens)], np.int32)}))
    return out


class Rows:
    """A cache that keeps all keys and values; what the class asks of one."""

    def __init__(self):
        self.rows = []

    def update(self, keys, values, _layer):
        self.rows.append((keys[0].transpose(0, 1).numpy(), values[0].transpose(0, 1).numpy()))  # [T, HK, head]
        return keys, values

    def get_seq_length(self, *_):
        return 0

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length, *_):
        return query_length, 0

    is_compileable = False
    is_sliding = [True]


@contextlib.contextmanager
def all_in_fp64():
    """The two places that ask for fp32 in a way that cases.fp64() does not see: the softmax of attention and the
    sums of the recurrence."""
    import torch
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    functional, scan = torch.nn.functional, RecurrentGemmaRglru._rnn_scan
    softmax, defaults = functional.softmax, scan.__defaults__
    functional.softmax = lambda x, dim, dtype=None: softmax(x, dim)
    scan.__defaults__ = (torch.float64,)
    try:
        with cases.fp64():
            yield
    finally:
        functional.softmax, scan.__defaults__ = softmax, defaults


def ring(c, rows):
    """[T, HK, head] -> the last `window` of them in their places."""
    out = np.zeros((c.window, *rows.shape[1:]), rows.dtype)
    for x in range(max(0, len(rows) - c.window), len(rows)):
        out[x % c.window] = rows[x]
    return out


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(recurrent_gemma.config_from_dict(values), seed), values)


def make(name, out):
    import torch

    values, seed = CASES[name]
    config, tensors = recurrent_gemma.config_from_dict(values), drawn(name)
    equations = [(t, *recurrent_gemma.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    with torch.no_grad():
        fp32 = by_transformers(values, config, tensors, seed, torch.float32)
        with all_in_fp64():
            exact = by_transformers(values, config, tensors, seed, torch.float64)
    print(
        f"| {name.split('/')[1]} | {recurrent_gemma.parameters(config):,} | {cases.difference(exact, equations):.1e} | "
        f"{cases.difference(exact, fp32):.1e} |"
    )
    cases.write(out / name, values, tensors, exact)


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
