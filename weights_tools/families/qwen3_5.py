"""Qwen3.5 and Qwen3.6 (model_type "qwen3_5" and "qwen3_5_text", with experts "qwen3_5_moe" and "qwen3_5_moe_text"), text
only, and Qwen3-Next ("qwen3_next"), with transformers' config and names.

A layer is a gated delta rule ("linear_attention") or attention ("full_attention"), each with an MLP or experts after it.
Tensors: model.embed_tokens.weight, model.norm.weight, lm_head.weight unless tied, and for each layer input_layernorm,
post_attention_layernorm, mlp.{gate,up,down}_proj; linear_attn.in_proj_qkv [2 HK DK + H DV, D], in_proj_z, in_proj_b and
in_proj_a [H, D], conv1d.weight [channels, 1, width], A_log, dt_bias [H], norm.weight [DV], out_proj; or
self_attn.{q,k,v,o}_proj, q_norm and k_norm [head]. q_proj has for each head its queries, then its gate. A checkpoint
of Qwen3_5ForConditionalGeneration has model.language_model. where these have model.; mtp.* and model.visual.* are of
no use here.
With experts: mlp.gate [E, D], the router; mlp.experts.gate_up_proj [E, 2 F, D] and down_proj [E, D, F], or
mlp.experts.N.{gate,up,down}_proj.weight; mlp.shared_expert.{gate,up,down}_proj, mlp.shared_expert_gate [1, D].
Qwen3-Next has in_proj_qkvz and in_proj_ba for the four in_proj_*: by head of keys, of which each has its queries, keys,
values and gates z, and its b and a. Some of its layers may have an MLP (mlp_only_layers, decoder_sparse_step).
Norms have what their weights are more than 1, but for linear_attn.norm.
Golden states: S [delta layers, H, DK, DV]; conv [delta layers, channels, width - 1], oldest first; keys and values
[attention layers, T, KV heads, head], keys turned; position I32 [1].

    x = E[token];  y = rms(x) (1 + w)
    q, k, v = silu(conv(W y)), q and k of each head divided by their length;  b = sigmoid(Wb y)
    S = exp(-exp(A_log) softplus(Wa y + dt_bias)) S;  S = S + k (b (v - k^T S))^T;  o = (q / sqrt(DK))^T S
    x = x + Wo (rms_of_head(o) w silu(Wz y))
    or q, gate, k, v = W y;  q, k = turn(rms_of_head(.) (1 + w));  x = x + Wo (softmax(q k^T / sqrt(head)) v sigmoid(gate))
    x = x + Wdown (silu(Wgate z) Wup z), z = rms(x) (1 + w);  logits = head rms(x) (1 + w)
    or x = x + experts(z) + sigmoid(Wsharedgate z) Wdown (silu(Wgate z) Wup z) of the shared expert (experts.py)
"""

import dataclasses

import numpy as np

from weights_tools import safetensors_io as st
from weights_tools.families import common, delta_net, experts
from weights_tools.families.experts import Experts

LENGTH_EPS = 1e-6

# In the names of matrices that other ops than linear layers read, or that the server never packs, which quantize leaves as
# they are: routers, and the gate of the shared expert, which is a row of them.
OTHER_OPS = ("mlp.gate.", "shared_expert_gate.")
# In the names of tensors of the matrices of all experts, which quantize packs.
EXPERTS = ("mlp.experts.",)
# What a picture or a further token is predicted with, which the server does not read.
UNUSED = ("model.visual.", "mtp.")
PREFIXES = ("model.language_model.", "model.")


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    layers: int
    vocab: int
    F: int
    QH: int  # heads of queries in attention
    KVH: int
    head: int
    H: int  # heads of values of the delta rule
    HK: int
    DK: int
    DV: int
    types: tuple = ()
    width: int = 4
    eps: float = 1e-6
    theta: float = 10000.0
    rotary: float = 0.25
    tied: bool = False
    attention_bias: bool = False
    experts: Experts | None = None
    sparse: tuple = ()  # of each layer, whether it has experts
    by_key_head: bool = False  # in_proj_qkvz and in_proj_ba
    prefix: str = "model."

    def attends(self, layer):
        return self.types[layer] == "full_attention"

    @property
    def attention_layers(self):
        return sum(map(self.attends, range(self.layers)))

    @property
    def channels(self):
        """Of the convolution: queries, keys and values."""
        return 2 * self.HK * self.DK + self.H * self.DV

    @property
    def turned(self):
        """Channels of a head that are turned by their position."""
        return int(self.head * self.rotary)


def experts_from_dict(values, following):
    """following: Qwen3-Next. -> Experts or None, whether each layer has them."""
    get, layers = values.get, values["num_hidden_layers"]
    count = get("num_experts", 512 if following else 256)
    if not count:
        return None, (False,) * layers
    dense, step = get("mlp_only_layers") or (), get("decoder_sparse_step", 1)
    if not following and not get("norm_topk_prob", True):
        raise ValueError("norm_topk_prob: wanted true")
    of = Experts(
        E=count,
        top=get("num_experts_per_tok", 10 if following else 8),
        F=get("moe_intermediate_size", 512),
        shared=get("shared_expert_intermediate_size", 512),
        renormalised=get("norm_topk_prob", True),
    )
    return of, tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


def config_from_dict(values):
    kind, text = values["model_type"], values.get("text_config", {})
    # A file with pictures has the head's tie outside of its text part.
    tied = values.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    values = {**values, **text, "tie_word_embeddings": tied}
    get, layers = values.get, values["num_hidden_layers"]
    following = kind == "qwen3_next"
    of, sparse = None, (False,) * layers
    if following or kind in ("qwen3_5_moe", "qwen3_5_moe_text"):
        of, sparse = experts_from_dict(values, following)
    if get("hidden_act", "silu") != "silu":
        raise ValueError("hidden_act: wanted silu")
    rope = get("rope_parameters") or get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) not in ("default", "mrope"):
        raise ValueError("rope_parameters.rope_type: wanted default")
    interval = get("full_attention_interval", 4)
    every = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    return Config(
        D=values["hidden_size"],
        layers=layers,
        vocab=values["vocab_size"],
        F=0 if all(sparse) else values["intermediate_size"],
        QH=values["num_attention_heads"],
        KVH=get("num_key_value_heads", 2 if following or of else 4),
        head=get("head_dim") or 256,
        H=get("linear_num_value_heads", 32),
        HK=get("linear_num_key_heads", 16),
        DK=get("linear_key_head_dim", 128),
        DV=get("linear_value_head_dim", 128),
        types=tuple(get("layer_types") or every),
        width=get("linear_conv_kernel_dim", 4),
        eps=get("rms_norm_eps", 1e-6),
        theta=rope.get("rope_theta", get("rope_theta", 10000.0)),
        rotary=rope.get("partial_rotary_factor", get("partial_rotary_factor", 0.25)),
        tied=tied,
        attention_bias=get("attention_bias", False),
        experts=of,
        sparse=sparse,
        by_key_head=following,
    )


def as_stored(config, names):
    """With the names that the file has."""
    found = (prefix for prefix in PREFIXES if prefix + "norm.weight" in names)
    config = dataclasses.replace(config, prefix=next(found, config.prefix))
    if config.experts is None or any(".experts.gate_up_proj" in name for name in names):
        return config
    return dataclasses.replace(config, experts=dataclasses.replace(config.experts, each=True))


def of_all_experts(config, tensors):
    """Where the file has the matrices of each expert, those as one tensor of all. -> Config; name -> Source."""
    of, out = config.experts, dict(tensors)
    if of is None or not of.each:
        return config, out
    for layer in (i for i in range(config.layers) if config.sparse[i]):
        prefix = f"{config.prefix}layers.{layer}.mlp.experts."

        def all_of(*names):
            return [out.pop(f"{prefix}{e}.{name}_proj.weight") for e in range(of.E) for name in names]

        out[prefix + "gate_up_proj"] = st.stacked(all_of("gate", "up"), (of.E, 2 * of.F, config.D))
        out[prefix + "down_proj"] = st.stacked(all_of("down"), (of.E, config.D, of.F))
    return dataclasses.replace(config, experts=dataclasses.replace(of, each=False)), out


def mlp_shapes(prefix, F, D):
    shapes = {f"{prefix}{name}_proj.weight": (F, D) for name in ("gate", "up")}
    return shapes | {prefix + "down_proj.weight": (D, F)}


def expert_shapes(config):
    c, of = config, config.experts
    shapes = {"mlp.gate.weight": (of.E, c.D), "mlp.shared_expert_gate.weight": (1, c.D)}
    shapes |= mlp_shapes("mlp.shared_expert.", of.shared, c.D)
    if not of.each:
        up, down = (of.E, 2 * of.F, c.D), (of.E, c.D, of.F)
        return shapes | {"mlp.experts.gate_up_proj": up, "mlp.experts.down_proj": down}
    for e in range(of.E):
        shapes |= mlp_shapes(f"mlp.experts.{e}.", of.F, c.D)
    return shapes


def layer_shapes(config, layer):
    c = config
    shapes = {"input_layernorm.weight": (c.D,), "post_attention_layernorm.weight": (c.D,)}
    shapes |= expert_shapes(c) if c.sparse[layer] else mlp_shapes("mlp.", c.F, c.D)
    if c.attends(layer):
        a = "self_attn."
        for name, rows in (("q", 2 * c.QH * c.head), ("k", c.KVH * c.head), ("v", c.KVH * c.head)):
            shapes[f"{a}{name}_proj.weight"] = (rows, c.D)
            if c.attention_bias:
                shapes[f"{a}{name}_proj.bias"] = (rows,)
        shapes[a + "o_proj.weight"] = (c.D, c.QH * c.head)
        if c.attention_bias:
            shapes[a + "o_proj.bias"] = (c.D,)
        return shapes | {a + "q_norm.weight": (c.head,), a + "k_norm.weight": (c.head,)}
    a = "linear_attn."
    rows = {"qkv": c.channels, "z": c.H * c.DV, "b": c.H, "a": c.H}
    if c.by_key_head:
        rows = {"qkvz": rows["qkv"] + rows["z"], "ba": 2 * c.H}
    return shapes | {f"{a}in_proj_{name}.weight": (count, c.D) for name, count in rows.items()} | {
        a + "conv1d.weight": (c.channels, 1, c.width),
        a + "A_log": (c.H,),
        a + "dt_bias": (c.H,),
        a + "norm.weight": (c.DV,),
        a + "out_proj.weight": (c.D, c.H * c.DV),
    }


def tensor_shapes(config):
    c = config
    shapes = {c.prefix + "embed_tokens.weight": (c.vocab, c.D), c.prefix + "norm.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i in range(c.layers):
        shapes |= {f"{c.prefix}layers.{i}.{name}": shape for name, shape in layer_shapes(c, i).items()}
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """The part of a fixed size; matrix_bytes: of a value of S."""
    c = config
    delta = c.layers - c.attention_layers
    return delta * (matrix_bytes * c.H * c.DK * c.DV + 4 * c.channels * (c.width - 1))


def state_bytes_of_token(config, value_bytes=2):
    """Keys and values; value_bytes: of one of their values."""
    c = config
    return c.attention_layers * 2 * c.KVH * c.head * value_bytes


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, without attention, whose work follows the length of the prompt."""
    c = config
    delta = c.layers - c.attention_layers
    return delta * c.H * (chunk * (4 * c.DK + 4 * c.DV) + 6 * c.DK * c.DV)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def idle_parameters(config, tokens):
    """What a step of so many tokens does not read of the experts."""
    return experts.idle_parameters(config.experts, config.D, sum(config.sparse), tokens)


def norm(x, weight, eps):
    return common.rms(x, 1 + weight, eps)


def projected(c, w, y):
    """-> q, k and v in one, z, b, a."""
    if not c.by_key_head:
        return (w[f"in_proj_{name}.weight"] @ y for name in ("qkv", "z", "b", "a"))
    heads, values = (w["in_proj_qkvz.weight"] @ y).reshape(c.HK, -1), c.H // c.HK * c.DV
    q, k, v, z = (part.reshape(-1) for part in np.split(heads, np.cumsum([c.DK, c.DK, values]), 1))
    b, a = (part.reshape(-1) for part in np.split((w["in_proj_ba.weight"] @ y).reshape(c.HK, -1), 2, 1))
    return np.concatenate([q, k, v]), z, b, a


def delta_rule(c, w, y, S, conv):
    """One token; S and conv of the layer are changed in place."""
    qkv, z, b, a = projected(c, w, y)
    joined = common.silu(common.convolve(w["conv1d.weight"], 0, qkv, conv))
    q, k, v = np.split(joined, np.cumsum([c.HK * c.DK, c.HK * c.DK]))
    q, k = (x.reshape(c.HK, -1) for x in (q, k))
    q, k = ((x / np.sqrt((x * x).sum(-1, keepdims=True) + LENGTH_EPS)).repeat(c.H // c.HK, 0) for x in (q, k))
    beta = common.sigmoid(b)
    g = -np.exp(w["A_log"]) * np.logaddexp(0, a + w["dt_bias"])
    o = delta_net.update(S, q / np.sqrt(c.DK), k, v.reshape(c.H, -1), beta, g)
    o = common.rms(o, w["norm.weight"], c.eps).reshape(-1) * common.silu(z)
    return w["out_proj.weight"] @ o


def turned(c, x, position):
    """x [heads, head]: pairs (j, j + n / 2) of the first n channels."""
    n = c.turned
    powers = np.arange(0, n, 2, dtype=np.float32) / np.float32(n)
    angle = position * (1 / np.float32(c.theta) ** powers).astype(np.float64)  # in fp32, as transformers has them
    a, b, rest = x[:, : n // 2], x[:, n // 2 : n], x[:, n:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), rest], 1)


def attention(c, w, y, keys, values):
    """One token, whose key and value are added to the lists of those before."""
    q, k, v = (
        (w[f"{n}_proj.weight"] @ y + w.get(f"{n}_proj.bias", 0)).reshape(heads, -1)
        for n, heads in (("q", c.QH), ("k", c.KVH), ("v", c.KVH))
    )
    q, gate = q[:, : c.head], q[:, c.head :]
    position = len(keys)
    q, k = (turned(c, norm(x, w[f"{n}_norm.weight"], c.eps), position) for n, x in (("q", q), ("k", k)))
    keys.append(k)
    values.append(v)
    k, v = (np.array(x).repeat(c.QH // c.KVH, 1) for x in (keys, values))
    scores = np.einsum("hd,xhd->hx", q, k) / np.sqrt(c.head)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    o = np.einsum("hx,xhd->hd", weights / weights.sum(1, keepdims=True), v)
    return w["o_proj.weight"] @ (o * common.sigmoid(gate)).reshape(-1) + w.get("o_proj.bias", 0)


def stacked(c, w):
    """up and down of all experts, of a layer that has them."""
    if not c.experts.each:
        return w["experts.gate_up_proj"], w["experts.down_proj"]
    of = [common.under(w, f"experts.{e}.") for e in range(c.experts.E)]
    up = [np.concatenate([one["gate_proj.weight"], one["up_proj.weight"]]) for one in of]
    return np.stack(up), np.stack([one["down_proj.weight"] for one in of])


def sparse_feed_forward(c, w, z):
    out = experts.mixed(c.experts, w["gate.weight"] @ z, z, *stacked(c, w))
    return out + common.sigmoid(w["shared_expert_gate.weight"] @ z) * feed_forward(common.under(w, "shared_expert."), z)


def feed_forward(w, z):
    return w["down_proj.weight"] @ (common.silu(w["gate_proj.weight"] @ z) * (w["up_proj.weight"] @ z))


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c, attends = config, config.attention_layers
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    S = np.zeros((c.layers - attends, c.H, c.DK, c.DV))
    conv = np.zeros((c.layers - attends, c.channels, c.width - 1))
    keys, values = [[] for _ in range(attends)], [[] for _ in range(attends)]
    layers = [common.under(weights, f"{c.prefix}layers.{i}.") for i in range(c.layers)]
    mixers = [common.under(w, "self_attn." if c.attends(i) else "linear_attn.") for i, w in enumerate(layers)]
    mlps = [common.under(w, "mlp.") for w in layers]
    table = weights[c.prefix + "embed_tokens.weight"]
    head = table if c.tied else weights["lm_head.weight"]
    logits = []
    for token in tokens:
        x, d, a = table[token], 0, 0
        for i in range(c.layers):
            y = norm(x, layers[i]["input_layernorm.weight"], c.eps)
            if c.attends(i):
                x = x + attention(c, mixers[i], y, keys[a], values[a])
                a += 1
            else:
                x = x + delta_rule(c, mixers[i], y, S[d], conv[d])
                d += 1
            z = norm(x, layers[i]["post_attention_layernorm.weight"], c.eps)
            x = x + (sparse_feed_forward(c, mlps[i], z) if c.sparse[i] else feed_forward(mlps[i], z))
        logits.append(head @ norm(x, weights[c.prefix + "norm.weight"], c.eps))
    return np.array(logits), {"S": S, "conv": conv, "keys": np.array(keys), "values": np.array(values),
                              "position": np.array([len(tokens)], np.int32)}
