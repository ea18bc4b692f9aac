"""Nemotron-H without experts (model_type "nemotron_h"), with the config and names of the Hub.

A layer is Mamba-2, attention without positions, or an MLP without a gate. Tensors: backbone.embeddings.weight,
backbone.norm_f.weight, lm_head.weight unless tied, and for each layer norm.weight and mixer.*: {in_proj, conv1d, dt_bias,
A_log, D, norm, out_proj} as mamba2.py has them, {q,k,v,o}_proj, or {up,down}_proj.
Golden states: conv [Mamba-2 layers, channels, width - 1], oldest first; h [Mamba-2 layers, H, P, N]; keys and values
[attention layers, T, KV heads, head]; position I32 [1].

    x = x + mixer(rms(x) w), mixer one of Mamba-2, softmax(q k^T / sqrt(head)) v and Wdown max(Wup y, 0)^2
"""

import dataclasses

import numpy as np

from weights_tools.families import common, granite_hybrid, mamba2

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ()

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_TYPES = {"linear_attention": "mamba", "full_attention": "attention"}


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    vocab: int
    F: int
    QH: int  # heads of queries in attention
    KVH: int
    head: int
    types: tuple
    mamba: mamba2.Config
    eps: float = 1e-5
    tied: bool = False
    mlp_bias: bool = False
    rope: bool = False  # granite_hybrid.attention() asks

    @property
    def layers(self):
        return len(self.types)

    @property
    def attention_multiplier(self):
        return self.head**-0.5

    def count(self, kind):
        return self.types.count(kind)


def layer_types(values):
    given = values.get("layers_block_type") or values.get("layer_types")
    if given is None:
        given = [_LETTERS.get(letter, letter) for letter in values["hybrid_override_pattern"]]
    types = tuple(_TYPES.get(kind, kind) for kind in given)
    if set(types) - {"mamba", "attention", "mlp"}:
        raise ValueError(f"layers {sorted(set(types))}: wanted mamba, attention and mlp, experts without a gate are not supported")
    return types


def config_from_dict(values):
    get, D = values.get, values["hidden_size"]
    low, high = get("time_step_limit") or (0.0, float("inf"))
    eps, H, P = get("layer_norm_epsilon", 1e-5), get("mamba_num_heads", 128), get("mamba_head_dim", 64)
    mamba = mamba2.Config(
        D=D,
        layers=0,
        vocab=0,
        H=H,
        P=P,
        G=get("n_groups", 8),
        N=get("ssm_state_size", 128),
        width=get("conv_kernel", 4),
        eps=eps,
        gate_eps=eps,
        dt_min=low,
        dt_max=high,
        bias=get("use_bias", False),
        conv_bias=get("use_conv_bias", True),
    )
    return Config(
        D=D,
        vocab=values["vocab_size"],
        F=get("intermediate_size", 21504),
        QH=get("num_attention_heads", 32),
        KVH=get("num_key_value_heads", 8),
        head=get("head_dim", get("attention_head_dim", 128)),
        types=layer_types(values),
        mamba=mamba,
        eps=eps,
        tied=get("tie_word_embeddings", False),
        mlp_bias=get("mlp_bias", False),
    )


def linear_shapes(name, rows, columns, bias):
    shapes = {f"{name}.weight": (rows, columns)}
    return shapes | ({f"{name}.bias": (rows,)} if bias else {})


def layer_shapes(config, kind):
    c = config
    if kind == "attention":
        keys, queries = c.KVH * c.head, c.QH * c.head
        shapes = {f"{name}_proj.weight": (rows, c.D) for name, rows in (("q", queries), ("k", keys), ("v", keys))}
        shapes |= {"o_proj.weight": (c.D, queries)}
    elif kind == "mlp":
        shapes = linear_shapes("up_proj", c.F, c.D, c.mlp_bias) | linear_shapes("down_proj", c.D, c.F, c.mlp_bias)
    else:
        shapes = mamba2.mixer_shapes(c.mamba)
    return {"norm.weight": (c.D,)} | {"mixer." + name: shape for name, shape in shapes.items()}


def tensor_shapes(config):
    c = config
    shapes = {"backbone.embeddings.weight": (c.vocab, c.D), "backbone.norm_f.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i, kind in enumerate(c.types):
        shapes |= {f"backbone.layers.{i}.{name}": shape for name, shape in layer_shapes(c, kind).items()}
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """The part of a fixed size; matrix_bytes: of a value of h."""
    m = config.mamba
    return config.count("mamba") * (matrix_bytes * m.DI * m.N + 4 * m.conv_width * (m.width - 1))


def state_bytes_of_token(config, value_bytes=2):
    """Keys and values; value_bytes: of one of their values."""
    return config.count("attention") * 2 * config.KVH * config.head * value_bytes


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, without attention, whose work follows the length of the prompt."""
    return config.count("mamba") * mamba2.flops_of_mixer(config.mamba, chunk)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def feed_forward(w, z):
    hidden = np.maximum(w["up_proj.weight"] @ z + w.get("up_proj.bias", 0), 0) ** 2
    return w["down_proj.weight"] @ hidden + w.get("down_proj.bias", 0)


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c, m, attends = config, config.mamba, config.count("attention")
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    h = np.zeros((c.count("mamba"), m.H, m.P, m.N))
    conv = np.zeros((c.count("mamba"), m.conv_width, m.width - 1))
    keys, values = [[] for _ in range(attends)], [[] for _ in range(attends)]
    layers = [common.under(weights, f"backbone.layers.{i}.") for i in range(c.layers)]
    mixers = [common.under(w, "mixer.") for w in layers]
    table = weights["backbone.embeddings.weight"]
    head = table if c.tied else weights["lm_head.weight"]
    logits = []
    for token in tokens:
        x, r, a = table[token], 0, 0
        for i, kind in enumerate(c.types):
            y = common.rms(x, layers[i]["norm.weight"], c.eps)
            if kind == "attention":
                x = x + granite_hybrid.attention(c, mixers[i], y, keys[a], values[a])
                a += 1
            elif kind == "mlp":
                x = x + feed_forward(mixers[i], y)
            else:
                x = x + mamba2.mixer(m, mixers[i], y, conv[r], h[r])
                r += 1
        logits.append(head @ common.rms(x, weights["backbone.norm_f.weight"], c.eps))
    states = {"conv": conv, "h": h, "keys": np.array(keys), "values": np.array(values)}
    return np.array(logits), states | {"position": np.array([len(tokens)], np.int32)}
