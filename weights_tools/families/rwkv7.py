"""RWKV-7 "Goose" (model_type "rwkv7").

config.json has flash-linear-attention's keys (fla/models/rwkv7/configuration_rwkv7.py): hidden_size,
num_hidden_layers, vocab_size, head_dim (64), num_heads, hidden_ratio or intermediate_size, norm_eps,
tie_word_embeddings, {decay,a,v,gate}_low_rank_dim. Where there is a file, its shapes say what the ranks are.
Tensors: model.embeddings.weight, model.layers.0.pre_norm, model.norm, lm_head.weight unless tied, and for each
layer attn_norm, ffn_norm; attn.x_{r,w,k,v,a,g} [1, 1, D] (in the first files one x_x [6, D]); attn.{r,k,v,o}_proj;
attn.{w,a,v,g}_lora.lora.0.weight [rank, D] and lora.2.weight [D, rank], with lora.2.bias but for g (layer 0 has no
v_lora); attn.k_k, k_a [D], r_k [H, N], g_norm; ffn.x_k, ffn.key.weight [F, D], ffn.value.weight [D, F]. Norms have
weight and bias. BlinkDL's .pth has others: weights_tools/rwkv_file.py.
Golden states: S [layers, H, N, N], keys by values; shift and ffn_shift [layers, D], the rows before.

    x_c = y + (y_before - y) mu_c, y = LN(x);  r k v = W x_r, W x_k, W x_v
    lw = -exp(-1/2) sigmoid(W2 tanh(W1 x_w) + b);  alpha = sigmoid(A2 A1 x_a + b);  g = G2 sigmoid(G1 x_g)
    v = v + (v_first - v) sigmoid(V2 V1 x_v + b);  kk = k k_k / max(|k k_k|, 1e-12);  k = k (1 + (alpha - 1) k_a)
    u = -kk^T S;  S = exp(lw) S + (kk alpha) u^T + k v^T;  o = r^T S
    x = x + Wo ((LN_of_head(o) + (r k r_k) v) g);  x = x + Wv relu(Wk (z + (z_before - z) mu))^2, z = LN(x)
"""

import dataclasses

import numpy as np

from weights_tools.families import common

SHORTEST = 1e-12
MIXES = "rwkvag"
LORAS = ("w", "a", "v", "g")
RANK_KEYS = {"w": "decay", "a": "a", "v": "v", "g": "gate"}

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ("_lora.",)


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    layers: int
    vocab: int
    F: int
    ranks: tuple  # of w, a, v and g
    N: int = 64
    eps: float = 1e-5
    tied: bool = False
    one_shift: bool = False  # how the file has it, not the config

    @property
    def H(self):
        return self.D // self.N

    @property
    def head_eps(self):
        """Of the norm behind the recurrence; 64e-5 in every checkpoint of BlinkDL."""
        return self.N * self.eps


def usual_rank(width, factor):
    """What fla's layers/rwkv7.py takes where the config names none."""
    return max(32, round(factor * width**0.5 / 32) * 32)


def config_from_dict(values):
    get, D = values.get, values["hidden_size"]
    if get("attn") is not None:
        raise ValueError("attention layers are not supported")
    if not get("norm_first", True) or not get("norm_bias", True):
        raise ValueError("norm_first false and norm_bias false are not supported")
    if get("head_dim", 64) != 64 or D % 64:
        raise ValueError("head_dim: wanted 64, and a hidden_size that is a multiple of it")
    usual = {"w": 2.5, "a": 2.5, "v": 1.7, "g": 5.0}
    ranks = (get(f"{RANK_KEYS[n]}_low_rank_dim") or usual_rank(D, usual[n]) for n in LORAS)
    return Config(
        D=D,
        layers=values["num_hidden_layers"],
        vocab=values["vocab_size"],
        F=get("intermediate_size") or common.round_up(int(D * (get("hidden_ratio") or 4.0)), 32),
        ranks=tuple(ranks),
        eps=get("norm_eps", 1e-5),
        tied=get("tie_word_embeddings", False),
    )


def as_stored(config, tensors):
    """The configuration of a file that has these tensors, by name: its ranks are those of the shapes."""
    attn = "model.layers.{}.attn."
    ranks = list(config.ranks)
    for i, name in enumerate(LORAS):
        layer = 1 if name == "v" else 0
        down = tensors.get(f"{attn.format(layer)}{name}_lora.lora.0.weight")
        if down is not None and len(down.shape) == 2:
            ranks[i] = down.shape[0]
    one_shift = attn.format(0) + "x_x" in tensors
    return dataclasses.replace(config, ranks=tuple(ranks), one_shift=one_shift)


def norm_shapes(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def layer_shapes(config, layer):
    c = config
    a, p = f"model.layers.{layer}.attn.", f"model.layers.{layer}."
    shapes = norm_shapes(p + "pre_norm", c.D) if layer == 0 else {}
    shapes |= norm_shapes(p + "attn_norm", c.D) | norm_shapes(p + "ffn_norm", c.D)
    if c.one_shift:
        shapes[a + "x_x"] = (6, c.D)
    else:
        shapes |= {f"{a}x_{mix}": (1, 1, c.D) for mix in MIXES}
    for name, rank in zip(LORAS, c.ranks):
        if name == "v" and layer == 0:
            continue
        shapes[f"{a}{name}_lora.lora.0.weight"] = (rank, c.D)
        shapes[f"{a}{name}_lora.lora.2.weight"] = (c.D, rank)
        if name != "g":
            shapes[f"{a}{name}_lora.lora.2.bias"] = (c.D,)
    shapes |= {f"{a}{name}_proj.weight": (c.D, c.D) for name in "rkvo"}
    shapes |= {a + "k_k": (c.D,), a + "k_a": (c.D,), a + "r_k": (c.H, c.N)}
    shapes |= norm_shapes(a + "g_norm", c.D)
    shapes[p + "ffn.x_k"] = (c.D,)
    shapes[p + "ffn.key.weight"], shapes[p + "ffn.value.weight"] = (c.F, c.D), (c.D, c.F)
    return shapes


def tensor_shapes(config):
    c = config
    shapes = {"model.embeddings.weight": (c.vocab, c.D)} | norm_shapes("model.norm", c.D)
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for layer in range(c.layers):
        shapes |= layer_shapes(c, layer)
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """matrix_bytes: of a value of S. The rows before are kept in fp32."""
    c = config
    return c.layers * (matrix_bytes * c.D * c.N + 2 * 4 * c.D)


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, in chunks of so many, full squares counted: four products
    of keys, the triangle and three products of values with rows of the chunk; four with the state."""
    c = config
    return c.layers * c.H * (14 * chunk * c.N + 8 * c.N * c.N)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def layer_norm(w, name, x, eps):
    return common.layer_norm(x, w[name + ".weight"], eps) + w[name + ".bias"]


def low_rank(w, name, x, between=lambda low: low):
    up = w[f"{name}_lora.lora.2.weight"] @ between(w[f"{name}_lora.lora.0.weight"] @ x)
    return up + w.get(f"{name}_lora.lora.2.bias", 0)


def log_decay(w, x):
    return -np.exp(-0.5) * common.sigmoid(low_rank(w, "w", x, np.tanh))


def gate(w, x):
    return low_rank(w, "g", x, common.sigmoid)


def mixed_value(w, v, v_first, x):
    return v + (v_first - v) * common.sigmoid(low_rank(w, "v", x))


def keys(c, w, k, alpha):
    """-> the key that is taken out, of length 1, and the one that is put in."""
    kk = (k * w["k_k"].reshape(-1)).reshape(c.H, c.N)
    kk = kk / np.maximum(np.sqrt((kk * kk).sum(-1, keepdims=True)), SHORTEST)
    return kk.reshape(-1), k * (1 + (alpha - 1) * w["k_a"].reshape(-1))


def update(S, r, lw, k, v, kk, alpha):
    """One head, S in place -> o."""
    u = -kk @ S
    S[:] = np.exp(lw)[:, None] * S + np.outer(kk * alpha, u) + np.outer(k, v)
    return r @ S


def normed(c, w, o, r, k, v):
    """[H, N] each, the bonus behind the norm."""
    mean = o.mean(-1, keepdims=True)
    scale = np.sqrt(((o - mean) ** 2).mean(-1, keepdims=True) + c.head_eps)
    weight, bias = (w[f"g_norm.{name}"].reshape(c.H, c.N) for name in ("weight", "bias"))
    bonus = (r * k * w["r_k"]).sum(-1, keepdims=True)
    return (o - mean) / scale * weight + bias + bonus * v


def shifts(w):
    if "x_x" in w:
        return dict(zip(MIXES, w["x_x"].reshape(6, -1)))
    return {mix: w[f"x_{mix}"].reshape(-1) for mix in MIXES}


def time_mix(c, w, y, before, S, v_first):
    """One token. S [H, N, N] is changed in place. -> what is added to x, the first layer's v."""
    x = {mix: y + (before - y) * mu for mix, mu in shifts(w).items()}
    r, k, v = (w[f"{n}_proj.weight"] @ x[n] for n in "rkv")
    lw, alpha = log_decay(w, x["w"]), common.sigmoid(low_rank(w, "a", x["a"]))
    if v_first is None:
        v_first = v
    else:
        v = mixed_value(w, v, v_first, x["v"])
    kk, k = keys(c, w, k, alpha)
    r, lw, k, v, kk, alpha = (z.reshape(c.H, c.N) for z in (r, lw, k, v, kk, alpha))
    o = np.stack([update(S[h], r[h], lw[h], k[h], v[h], kk[h], alpha[h]) for h in range(c.H)])
    o = normed(c, w, o, r, k, v).reshape(-1) * gate(w, x["g"])
    return w["o_proj.weight"] @ o, v_first


def feed_forward(w, y, before):
    z = y + (before - y) * w["x_k"].reshape(-1)
    return w["value.weight"] @ np.maximum(w["key.weight"] @ z, 0) ** 2


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c = config
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    S = np.zeros((c.layers, c.H, c.N, c.N))
    shift, ffn_shift = np.zeros((c.layers, c.D)), np.zeros((c.layers, c.D))
    layers = [common.under(weights, f"model.layers.{i}.") for i in range(c.layers)]
    mixers = [common.under(layer, "attn.") for layer in layers]
    ffns = [common.under(layer, "ffn.") for layer in layers]
    table = weights["model.embeddings.weight"]
    head = table if c.tied else weights["lm_head.weight"]
    logits = []
    for token in tokens:
        x, v_first = layer_norm(layers[0], "pre_norm", table[token], c.eps), None
        for i in range(c.layers):
            y = layer_norm(layers[i], "attn_norm", x, c.eps)
            out, v_first = time_mix(c, mixers[i], y, shift[i].copy(), S[i], v_first)
            shift[i] = y
            x = x + out
            y = layer_norm(layers[i], "ffn_norm", x, c.eps)
            x = x + feed_forward(ffns[i], y, ffn_shift[i].copy())
            ffn_shift[i] = y
        logits.append(head @ layer_norm(weights, "model.norm", x, c.eps))
    return np.array(logits), {"S": S, "shift": shift, "ffn_shift": ffn_shift}
