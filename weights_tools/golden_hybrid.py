"""What the golden checkpoints of models with attention have in common: golden_qwen3_5, golden_granite_hybrid,
golden_nemotron_h and golden_falcon_h1, each by transformers in fp64."""

import contextlib

import numpy as np

from weights_tools import families
from weights_tools import golden_cases as cases


def random_weights(shapes, seed, norm_mean):
    """name -> fp32 array, in sizes at which every term of the forward pass shows: decays from next to none to all, scores
    of attention that prefer some rows."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(shapes.items()):
        normal = rng.standard_normal(shape)
        if "norm" in name or name.endswith(".D"):
            out[name] = (norm_mean(name) if "norm" in name else 1) + 0.4 * normal
        elif name.endswith("A_log"):
            out[name] = rng.uniform(-4, 1, shape)
        elif name.endswith(("bias", "embed_tokens.weight", "embeddings.weight")):
            out[name] = 0.5 * normal
        elif name == "lm_head.weight":
            out[name] = 5 * normal / np.sqrt(shape[-1])
        else:
            gain = 3.0 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.5
            out[name] = gain * normal / np.sqrt(shape[-1])
    return {name: value.astype(np.float32) for name, value in out.items()}


def drawn(family, case, norm_mean=lambda name: 1, config=None):
    """The weights of a case, as its file has them: name -> Tensor. case: config.json and a seed. norm_mean: name of the
    weights of a norm -> about what they are. config: where it is not that of the config.json alone."""
    values, seed = case
    shapes = family.tensor_shapes(config or family.config_from_dict(values))
    return cases.stored(random_weights(shapes, seed, norm_mean), values)


def load(model_class, config, tensors, dtype):
    """The model in evaluation, its head tied where the config says so."""
    import torch

    config._attn_implementation = config._experts_implementation = "eager"
    model = model_class(config).to(dtype).eval()
    weights = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


def results(model, vocab, seed, rows, state_of):
    """Tokens, logits and states of each sequence. rows: of each call, or None for all of a sequence in one. state_of: the
    layers of transformers' cache -> name -> array."""
    import torch

    out = []
    for tokens in cases.sequences(vocab, seed):
        ids, cache, logits = torch.from_numpy(tokens).long()[None], None, []
        for part in ids.split(rows or len(tokens), 1):
            answer = model(part, use_cache=True, past_key_values=cache)
            cache = answer.past_key_values
            logits.append(answer.logits[0])
        state = state_of(cache.layers) | {"position": np.array([len(tokens)], np.int32)}
        out.append((tokens, torch.cat(logits).numpy(), state))
    return out


def only(states):
    """Of a layer of transformers' cache, which has one, or a list of one."""
    return states[0] if isinstance(states, (list, dict)) else states


def conv_state(layers, width):
    """[layers, channels, width - 1]"""
    import torch

    return torch.stack([only(layer.conv_states)[0][:, 1 - width :] for layer in layers]).numpy()


def recurrent_state(layers):
    import torch

    return torch.stack([only(layer.recurrent_states)[0] for layer in layers]).numpy()


def keys_and_values(layers):
    """Each [layers, T, KV heads, head]"""
    import torch

    keys, values = ([getattr(layer, name)[0].transpose(0, 1) for layer in layers] for name in ("keys", "values"))
    return {"keys": torch.stack(keys).numpy(), "values": torch.stack(values).numpy()}


def mamba_state(mixers, attends, width):
    return {"conv": conv_state(mixers, width), "h": recurrent_state(mixers)} | keys_and_values(attends)


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


def make(family, case, tensors, folder, by_transformers, equations_within=1e-12):
    """Writes a golden checkpoint, and prints its row for the README: how far the equations, single steps and fp32 are from
    transformers in fp64. tensors: of drawn(). by_transformers: of (config.json, Config, tensors, seed, dtype, rows) -> results()."""
    import torch

    values, seed = case
    _, config = families.config_of(values, tensors)
    equations = [(t, *family.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    with torch.no_grad():
        fp32 = by_transformers(values, config, tensors, seed, torch.float32, None)
        with all_in_fp64():
            exact = by_transformers(values, config, tensors, seed, torch.float64, None)
            steps = by_transformers(values, config, tensors, seed, torch.float64, 1)
    differences = [cases.difference(exact, other) for other in (equations, steps, fp32)]
    words = " | ".join(f"{difference:.1e}" for difference in differences)
    print(f"| {folder.name} | {family.parameters(config):,} | {words} |")
    assert differences[0] < equations_within and differences[1] < 1e-12, differences
    cases.write(folder, values, tensors, exact)
