"""Granite 4.0 H (model_type "granitemoehybrid"), with transformers' config and names.

A layer is Mamba-2 or attention, each with a gated MLP after it. Tensors: model.embed_tokens.weight, model.norm.weight,
lm_head.weight unless tied, and for each layer input_layernorm, post_attention_layernorm, shared_mlp.input_linear
[2 F, D] (gate rows, then up rows), shared_mlp.output_linear; mamba.{in_proj, conv1d, dt_bias, A_log, D, norm, out_proj} as
mamba2.py has them, or self_attn.{q,k,v,o}_proj.
With experts: block_sparse_moe.router.layer [E, D], input_linear [E, 2 FE, D], output_linear [E, D, FE]; shared_mlp is the
expert that all tokens go to.
Golden states: conv [mamba layers, channels, width - 1], oldest first; h [mamba layers, H, P, N]; keys and values
[attention layers, T, KV heads, head]; position I32 [1].

    x = embedding_multiplier E[token];  x = x + residual_multiplier mixer(rms(x) w)
    attention: softmax(attention_multiplier q k^T) v, keys turned by position only where position_embedding_type is rope
    x = x + residual_multiplier (Wout (silu(gate) up) + experts), of rms(x) w;  logits = head (rms(x) w) / logits_scaling
"""

import dataclasses

import numpy as np

from weights_tools.families import common, experts, mamba2
from weights_tools.families.experts import Experts

# In the names of matrices that the server never packs, which quantize leaves as they are.
OTHER_OPS = ("router.layer.",)
# In the names of tensors of the matrices of all experts, which quantize packs.
EXPERTS = ("block_sparse_moe.",)


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    layers: int
    vocab: int
    F: int
    QH: int  # heads of queries in attention
    KVH: int
    types: tuple
    mamba: mamba2.Config
    eps: float = 1e-6
    theta: float = 10000.0
    rope: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    logits_scaling: float = 1.0
    tied: bool = False
    attention_bias: bool = False
    experts: Experts | None = None

    @property
    def head(self):
        return self.D // self.QH

    def attends(self, layer):
        return self.types[layer] == "attention"

    @property
    def attention_layers(self):
        return sum(map(self.attends, range(self.layers)))


def config_from_dict(values):
    get, D, layers = values.get, values["hidden_size"], values["num_hidden_layers"]
    of, count, width = None, get("num_local_experts", 8), get("shared_intermediate_size", 1024)
    if count:
        top, F = get("num_experts_per_tok", 2), get("intermediate_size", 11008)
        of = Experts(E=count, top=top, F=F, shared=width)
    types = get("layer_types") or get("layers_block_type") or ["mamba"] * layers
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    low, high = get("time_step_limit") or (0.0, float("inf"))
    heads = get("mamba_n_heads", 128)
    eps, expand = get("rms_norm_eps", 1e-6), get("mamba_expand", 2)
    rope = get("rope_parameters") or {}
    return Config(
        D=D,
        layers=layers,
        vocab=values["vocab_size"],
        F=width,
        QH=values["num_attention_heads"],
        KVH=get("num_key_value_heads") or values["num_attention_heads"],
        types=tuple(names.get(kind, kind) for kind in types),
        mamba=mamba2.Config(
            D=D,
            layers=0,
            vocab=0,
            H=heads,
            P=expand * D // heads,
            G=get("mamba_n_groups", 1),
            N=get("mamba_d_state", 256),
            width=get("mamba_d_conv", 4),
            eps=eps,
            gate_eps=eps,
            dt_min=low,
            dt_max=high,
            bias=get("mamba_proj_bias", False),
            conv_bias=get("mamba_conv_bias", True),
        ),
        eps=eps,
        theta=rope.get("rope_theta", get("rope_theta", 10000.0)),
        rope=get("position_embedding_type") == "rope",
        embedding_multiplier=get("embedding_multiplier", 1.0),
        residual_multiplier=get("residual_multiplier", 1.0),
        attention_multiplier=get("attention_multiplier", 1.0),
        logits_scaling=get("logits_scaling", 1.0),
        tied=get("tie_word_embeddings", False),
        attention_bias=get("attention_bias", False),
        experts=of,
    )


def layer_shapes(config, layer):
    c = config
    shapes = {"input_layernorm.weight": (c.D,), "post_attention_layernorm.weight": (c.D,)}
    shapes |= {"shared_mlp.input_linear.weight": (2 * c.F, c.D), "shared_mlp.output_linear.weight": (c.D, c.F)}
    if c.experts:
        e, of = "block_sparse_moe.", c.experts
        shapes |= {e + "router.layer.weight": (of.E, c.D), e + "input_linear.weight": (of.E, 2 * of.F, c.D)}
        shapes[e + "output_linear.weight"] = (of.E, c.D, of.F)
    if c.attends(layer):
        a = "self_attn."
        for name, rows in (("q", c.D), ("k", c.KVH * c.head), ("v", c.KVH * c.head), ("o", c.D)):
            shapes[f"{a}{name}_proj.weight"] = (rows, c.D)
            if c.attention_bias:
                shapes[f"{a}{name}_proj.bias"] = (rows,)
        return shapes
    return shapes | {"mamba." + name: shape for name, shape in mamba2.mixer_shapes(c.mamba).items()}


def tensor_shapes(config):
    c = config
    shapes = {"model.embed_tokens.weight": (c.vocab, c.D), "model.norm.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i in range(c.layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer_shapes(c, i).items()}
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """The part of a fixed size; matrix_bytes: of a value of h."""
    c, m = config, config.mamba
    return (c.layers - c.attention_layers) * (matrix_bytes * m.DI * m.N + 4 * m.conv_width * (m.width - 1))


def state_bytes_of_token(config, value_bytes=2):
    """Keys and values; value_bytes: of one of their values."""
    c = config
    return c.attention_layers * 2 * c.KVH * c.head * value_bytes


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, without attention, whose work follows the length of the prompt."""
    return (config.layers - config.attention_layers) * mamba2.flops_of_mixer(config.mamba, chunk)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def idle_parameters(config, tokens):
    """What a step of so many tokens does not read of the experts."""
    return experts.idle_parameters(config.experts, config.D, config.layers, tokens)


def turned(c, x, position):
    """x [heads, head]: pairs (j, j + head / 2)."""
    n = c.head
    powers = np.arange(0, n, 2, dtype=np.float32) / np.float32(n)
    angle = position * (1 / np.float32(c.theta) ** powers).astype(np.float64)  # in fp32, as transformers has them
    a, b = x[:, : n // 2], x[:, n // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)


def attention(c, w, y, keys, values):
    """One token, whose key and value are added to the lists of those before."""
    q, k, v = ((w[f"{n}_proj.weight"] @ y + w.get(f"{n}_proj.bias", 0)).reshape(-1, c.head) for n in "qkv")
    if c.rope:
        q, k = turned(c, q, len(keys)), turned(c, k, len(keys))
    keys.append(k)
    values.append(v)
    k, v = (np.array(x).repeat(c.QH // c.KVH, 1) for x in (keys, values))
    scores = np.einsum("hd,xhd->hx", q, k) * c.attention_multiplier
    weights = np.exp(scores - scores.max(1, keepdims=True))
    o = np.einsum("hx,xhd->hd", weights / weights.sum(1, keepdims=True), v)
    return w["o_proj.weight"] @ o.reshape(-1) + w.get("o_proj.bias", 0)


def sparse_feed_forward(c, w, z):
    logits = w["router.layer.weight"] @ z
    return experts.mixed(c.experts, logits, z, w["input_linear.weight"], w["output_linear.weight"])


def feed_forward(w, z):
    gate, up = np.split(w["input_linear.weight"] @ z, 2)
    return w["output_linear.weight"] @ (common.silu(gate) * up)


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c, m, attends = config, config.mamba, config.attention_layers
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    h = np.zeros((c.layers - attends, m.H, m.P, m.N))
    conv = np.zeros((c.layers - attends, m.conv_width, m.width - 1))
    keys, values = [[] for _ in range(attends)], [[] for _ in range(attends)]
    layers = [common.under(weights, f"model.layers.{i}.") for i in range(c.layers)]
    mixers = [common.under(w, "self_attn." if c.attends(i) else "mamba.") for i, w in enumerate(layers)]
    mlps = [common.under(w, "shared_mlp.") for w in layers]
    table = weights["model.embed_tokens.weight"]
    head = table if c.tied else weights["lm_head.weight"]
    logits = []
    for token in tokens:
        x, r, a = table[token] * c.embedding_multiplier, 0, 0
        for i in range(c.layers):
            y = common.rms(x, layers[i]["input_layernorm.weight"], c.eps)
            if c.attends(i):
                out = attention(c, mixers[i], y, keys[a], values[a])
                a += 1
            else:
                out = mamba2.mixer(m, mixers[i], y, conv[r], h[r])
                r += 1
            x = x + c.residual_multiplier * out
            z = common.rms(x, layers[i]["post_attention_layernorm.weight"], c.eps)
            out = feed_forward(mlps[i], z)
            if c.experts:
                out = out + sparse_feed_forward(c, common.under(layers[i], "block_sparse_moe."), z)
            x = x + c.residual_multiplier * out
        logits.append(head @ common.rms(x, weights["model.norm.weight"], c.eps) / c.logits_scaling)
    return np.array(logits), {"conv": conv, "h": h, "keys": np.array(keys), "values": np.array(values),
                              "position": np.array([len(tokens)], np.int32)}
