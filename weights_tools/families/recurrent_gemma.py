"""RecurrentGemma (model_type "recurrent_gemma"), with transformers' config and names.

Tensors: model.embed_tokens.weight, model.final_norm.weight, lm_head.weight unless tied, and for each layer
temporal_pre_norm, channel_pre_norm, mlp_block.{gate,up,down}_proj with biases; of a recurrent layer
temporal_block.{linear_x,linear_y,linear_out} with biases, conv_1d.{weight [W, 1, width],bias}, rg_lru.recurrent_param
[W], rg_lru.{input,recurrent}_gate_weight [H, W / H, W / H] (inputs by outputs) and _bias [H, W / H]; of one with
attention temporal_block.{q,k,v,o}_proj.weight, o_proj.bias. intermediate_size counts gate and up together.
Norms have what their weights are more than 1.
Golden states: h [recurrent layers, W]; conv [recurrent layers, W, width - 1], oldest first; ring_k and ring_v
[attention layers, window, HK, head], the row at position x in place x mod window, keys turned; position I32 [1].

    x = E[token] bf16(sqrt(D));  y = rms(x) (1 + w)
    u = conv(Wx y + b) + b;  i, r = sigmoid(u W + b) of each part;  log a = -8 r softplus(param)
    h = a h + sqrt(1 - a^2) i u, at position 0 h = i u;  x = x + Wo (h gelu_tanh(Wy y + b)) + b
    or attention over the last `window` rows, itself among them, the first half of a head's channels turned
    x = x + Wdown (gelu_tanh(Wgate y + b) (Wup y + b)) + b;  logits = cap tanh(head rms(x) / cap)
"""

import dataclasses

import numpy as np

from weights_tools.families import common

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ("gate_weight",)


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    layers: int
    vocab: int
    F: int
    H: int
    HK: int
    W: int  # channels of the recurrence
    types: tuple = ("recurrent", "recurrent", "attention")
    width: int = 4
    window: int = 2048
    eps: float = 1e-6
    cap: float = 30.0
    theta: float = 10000.0
    rotary: float = 0.5
    tied: bool = True
    attention_bias: bool = False

    @property
    def head(self):
        return self.D // self.H

    def attends(self, layer):
        return self.types[layer % len(self.types)] == "attention"

    @property
    def attention_layers(self):
        return sum(self.attends(i) for i in range(self.layers))


def config_from_dict(values):
    get = values.get
    if get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise ValueError("hidden_activation: wanted gelu_pytorch_tanh")
    rope = get("rope_parameters") or {}
    return Config(
        D=values["hidden_size"],
        layers=values["num_hidden_layers"],
        vocab=values["vocab_size"],
        F=values["intermediate_size"] // 2,
        H=values["num_attention_heads"],
        HK=get("num_key_value_heads") or values["num_attention_heads"],
        W=get("lru_width") or values["hidden_size"],
        types=tuple(get("block_types") or Config.types),
        width=get("conv1d_width", 4),
        window=get("attention_window_size", 2048),
        eps=get("rms_norm_eps", 1e-6),
        cap=get("logits_soft_cap", 30.0),
        theta=rope.get("rope_theta", get("rope_theta", 10000.0)),
        rotary=rope.get("partial_rotary_factor", get("partial_rotary_factor", 0.5)),
        tied=get("tie_word_embeddings", True),
        attention_bias=get("attention_bias", False),
    )


def temporal_shapes(config, layer):
    c = config
    if c.attends(layer):
        shapes = {}
        for name, heads in (("q", c.H), ("k", c.HK), ("v", c.HK)):
            shapes[f"{name}_proj.weight"] = (heads * c.head, c.D)
            if c.attention_bias:
                shapes[f"{name}_proj.bias"] = (heads * c.head,)
        return shapes | {"o_proj.weight": (c.D, c.H * c.head), "o_proj.bias": (c.D,)}
    shapes = {"conv_1d.weight": (c.W, 1, c.width), "conv_1d.bias": (c.W,), "rg_lru.recurrent_param": (c.W,)}
    for name in "xy":
        shapes |= {f"linear_{name}.weight": (c.W, c.D), f"linear_{name}.bias": (c.W,)}
    part = c.W // c.H
    for name in ("input", "recurrent"):
        shapes[f"rg_lru.{name}_gate_weight"] = (c.H, part, part)
        shapes[f"rg_lru.{name}_gate_bias"] = (c.H, part)
    return shapes | {"linear_out.weight": (c.D, c.W), "linear_out.bias": (c.D,)}


def tensor_shapes(config):
    c = config
    shapes = {"model.embed_tokens.weight": (c.vocab, c.D), "model.final_norm.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i in range(c.layers):
        p = f"model.layers.{i}."
        shapes[p + "temporal_pre_norm.weight"] = shapes[p + "channel_pre_norm.weight"] = (c.D,)
        shapes |= {p + "temporal_block." + n: shape for n, shape in temporal_shapes(c, i).items()}
        for name, shape in (("gate", (c.F, c.D)), ("up", (c.F, c.D)), ("down", (c.D, c.F))):
            shapes[f"{p}mlp_block.{name}_proj.weight"] = shape
            shapes[f"{p}mlp_block.{name}_proj.bias"] = shape[:1]
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """All in fp32."""
    c, attention = config, config.attention_layers
    recurrent = 4 * c.W * c.width  # h, and width - 1 rows
    return attention * 8 * c.window * c.HK * c.head + (c.layers - attention) * recurrent + 4


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights: scores and sums over a full window; the recurrence."""
    c, attention = config, config.attention_layers
    return attention * 4 * c.window * c.H * c.head + (c.layers - attention) * 4 * c.W


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def gelu(x):
    return x * common.sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def embedding_scale(width):
    """The root of the width in bf16, as transformers keeps it whatever the weights are in."""
    bits = np.array([np.sqrt(width)], np.float32).view(np.uint32)
    return float(((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)[0])


def norm(x, weight, eps):
    return common.rms(x, 1 + weight, eps)


def decay(r, param):
    """-> log a."""
    return -8 * r * np.logaddexp(0, param)


def kept(log_a):
    """The factor of what comes in: sqrt(1 - a^2)."""
    return np.sqrt(-np.expm1(2 * log_a))


def first(position):
    return position == 0


def recurrence(c, w, y, h, conv, position):
    """One token; h [W] and conv are changed in place."""
    u = w["linear_x.weight"] @ y + w["linear_x.bias"]
    u = common.convolve(w["conv_1d.weight"], w["conv_1d.bias"], u, conv)
    parts = u.reshape(c.H, 1, -1)
    gates = (parts @ w[f"rg_lru.{n}_gate_weight"] + w[f"rg_lru.{n}_gate_bias"][:, None] for n in ("input", "recurrent"))
    i, r = (common.sigmoid(gate).reshape(-1) for gate in gates)
    log_a = decay(r, w["rg_lru.recurrent_param"])
    h[:] = i * u if first(position) else np.exp(log_a) * h + kept(log_a) * i * u
    branch = gelu(w["linear_y.weight"] @ y + w["linear_y.bias"])
    return w["linear_out.weight"] @ (h * branch) + w["linear_out.bias"]


def turned(c, x, position):
    """x [heads, head]: pairs (j, j + n / 2) of the first n channels."""
    n = int(c.head * c.rotary)
    powers = np.arange(0, n, 2, dtype=np.float32) / np.float32(n)
    angle = position * (1 / np.float32(c.theta) ** powers).astype(np.float64)  # in fp32, as transformers has them
    a, b, rest = x[:, : n // 2], x[:, n // 2 : n], x[:, n:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), rest], 1)


def window_of(c, position):
    """Positions that a row sees."""
    return range(max(0, position - c.window + 1), position + 1)


def attention(c, w, y, ring_k, ring_v, position):
    """One token; the rings [window, HK, head] are changed in place."""
    q, k, v = (
        (w[f"{n}_proj.weight"] @ y + w.get(f"{n}_proj.bias", 0)).reshape(-1, c.head) for n in "qkv"
    )
    ring_k[position % c.window], ring_v[position % c.window] = turned(c, k, position), v
    places = [x % c.window for x in window_of(c, position)]
    keys, values = (ring[places].repeat(c.H // c.HK, 1) for ring in (ring_k, ring_v))
    scores = np.einsum("hd,xhd->hx", turned(c, q, position), keys) / np.sqrt(c.head)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    o = np.einsum("hx,xhd->hd", weights / weights.sum(1, keepdims=True), values)
    return w["o_proj.weight"] @ o.reshape(-1) + w["o_proj.bias"]


def feed_forward(w, y):
    gate, up = (w[f"{n}_proj.weight"] @ y + w[f"{n}_proj.bias"] for n in ("gate", "up"))
    return w["down_proj.weight"] @ (gelu(gate) * up) + w["down_proj.bias"]


def capped(c, logits):
    return c.cap * np.tanh(logits / c.cap)


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c, attends = config, config.attention_layers
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    h, conv = np.zeros((c.layers - attends, c.W)), np.zeros((c.layers - attends, c.W, c.width - 1))
    rings = np.zeros((2, attends, c.window, c.HK, c.head))
    layers = [common.under(weights, f"model.layers.{i}.") for i in range(c.layers)]
    blocks = [common.under(layer, "temporal_block.") for layer in layers]
    mlps = [common.under(layer, "mlp_block.") for layer in layers]
    table = weights["model.embed_tokens.weight"]
    head = table if c.tied else weights["lm_head.weight"]
    logits = []
    for position, token in enumerate(tokens):
        x, r, a = table[token] * embedding_scale(c.D), 0, 0
        for i in range(c.layers):
            y = norm(x, layers[i]["temporal_pre_norm.weight"], c.eps)
            if c.attends(i):
                x = x + attention(c, blocks[i], y, rings[0, a], rings[1, a], position)
                a += 1
            else:
                x = x + recurrence(c, blocks[i], y, h[r], conv[r], position)
                r += 1
            x = x + feed_forward(mlps[i], norm(x, layers[i]["channel_pre_norm.weight"], c.eps))
        logits.append(capped(c, head @ norm(x, weights["model.final_norm.weight"], c.eps)))
    position = np.array([len(tokens)], np.int32)
    return np.array(logits), {"h": h, "conv": conv, "ring_k": rings[0], "ring_v": rings[1], "position": position}
