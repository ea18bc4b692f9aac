"""flash-linear-attention's families of one matrix state: model_type "gla", "simple_gla", "retnet",
"linear_attn", "hgrn2". config.json has fla's keys, with fla's defaults where one is missing
(fla/models/*/configuration_*.py; for simple_gla, which has no model there, the arguments of
fla/layers/simple_gla.py, norm_eps being 1e-6 as in the other models' configs).

Tensors: model.embeddings.weight, model.norm.weight, lm_head.weight unless tied, and for each layer
attn_norm.weight, mlp_norm.weight, mlp.{gate_proj,up_proj,down_proj}.weight (before 2025-02 gate_proj
has the up rows below the gate rows and there is no up_proj), attn.o_proj.weight and
  gla         attn.{q,k,v,g}_proj, gk_proj.0.weight, gk_proj.1.{weight,bias}, g_norm_swish_gate
  simple_gla  attn.{q,k,v,g}_proj, gk_proj.{weight,bias}, g_norm_swish_gate, {q,k,v}_conv1d
  retnet      attn.{q,k,v,g}_proj, g_norm_swish_gate
  linear_attn attn.{q,k,v}_proj, norm (if output_norm is "rmsnorm")
  hgrn2       attn.{q,f,i}_proj, g_norm [D]; model.lower_bounds [layers, D]
use_short_conv adds attn.{q,k,v}_conv1d.weight, silu after it (hgrn2: q, f, i, and no silu: its layer makes
ShortConvolution with activation=None). num_kv_heads: k, v and gla's gk have so many heads, each of which
serves num_heads / num_kv_heads of q. linear_attn's feature_map: hedgehog has attn.feature_map_{q,k}.layer
{weight,bias}, t2r layer.weight, elementwise_product layer1 and layer2 {weight,bias}, of one head and the
same for all; DM, the keys of the state, is 2 DK for hedgehog and 8 DK for dpfp, otherwise DK.
Golden states: S [layers, H, DM, DV]; z [layers, H, DM] with norm_feature_map; conv [layers, q, k and v,
width - 1], oldest first; position I32 [1] of retnet.

    S = decay S + k v^T;  o = (q / sqrt(DM))^T S, S after the update;  decay of a channel of k
    gla: exp(logsigmoid(W1 W0 y + b) / 16);  simple_gla: the same of a head, exp(logsigmoid(W y + b) / 16)
    retnet: 1 - 2^(-5 - head), q and k rotated by the position;  linear_attn: 1
    hgrn2: sigmoid(f) raised to the layer's lower bound, k = 1 - decay, q = silu(q), v = i
"""

import dataclasses

import numpy as np

from weights_tools.families import common

TYPES = ("gla", "simple_gla", "retnet", "linear_attn", "hgrn2")
HGRN2_EPS = 1e-5  # fla's hgrn2.py does not pass norm_eps on to the norm of the output

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ("gk_proj.1.", "feature_map")


@dataclasses.dataclass(frozen=True)
class Config:
    type: str
    D: int
    layers: int
    vocab: int
    H: int
    DK: int
    DV: int
    F: int
    rank: int = 16
    width: int = 0  # of the short convolutions, 0: none
    eps: float = 1e-6
    divisor: float = 16.0
    floor: float = float("-inf")
    KV: int = 0  # heads of keys and values
    feature_map: str = ""
    map_tied: bool = False
    norm_q: bool = False
    norm_k: bool = False
    head_norm: bool = True
    normaliser: bool = False
    lower_bound: bool = False
    gate: bool = True
    tied: bool = False
    fused_mlp: bool = False  # how the file has it, not the config

    @property
    def DM(self):
        """Key size of a head of the state."""
        return self.DK * {"hedgehog": 2, "dpfp": 8}.get(self.feature_map, 1)

    @property
    def widths(self):
        """Of q, k and v."""
        return self.H * self.DK, self.KV * self.DK, self.KV * self.DV


def config_from_dict(values):
    get, kind, D = values.get, values["model_type"], values["hidden_size"]
    if kind not in TYPES:
        raise ValueError(f'model_type is "{kind}", wanted one of {", ".join(TYPES)}')
    if get("attn") is not None or get("use_gv", False) or not get("use_gk", True):
        raise ValueError("attention layers, use_gv and use_gk false are not supported")
    ratio = get("hidden_ratio", 2 if kind == "retnet" else 4) or 4  # null: GatedMLP's
    heads = get("num_heads") or (8 if kind == "retnet" else 4)
    key = int(D * get("expand_k", 0.5 if kind == "gla" else 1.0)) // heads
    value = int(D * get("expand_v", 2.0 if kind == "retnet" else 1.0)) // heads
    if kind == "hgrn2":
        # num_heads counts only where expand_ratio is null.
        key = value = get("expand_ratio", 128) or D // heads
        heads = D // key
    conv = kind != "linear_attn" and get("use_short_conv", kind == "simple_gla")
    if kind == "gla" and get("gate_logit_normalizer", 16) != 16:
        raise ValueError("gate_logit_normalizer: wanted 16, which is all that fla's GLA computes with")
    return Config(
        type=kind,
        D=D,
        layers=values["num_hidden_layers"],
        vocab=values["vocab_size"],
        H=heads,
        DK=key,
        DV=value,
        F=get("intermediate_size") or common.round_up(int(D * ratio * 2 / 3), 256),
        rank=get("gate_low_rank_dim", 16),
        width=get("conv_size", 4) if conv else 0,
        eps=get("norm_eps", get("rms_norm_eps", 1e-6)),
        divisor=get("gate_logit_normalizer", 16),
        floor=get("clamp_min") if get("clamp_min") is not None else float("-inf"),
        KV=heads if kind == "hgrn2" else get("num_kv_heads") or heads,
        feature_map=get("feature_map") or ("elementwise_product" if kind == "linear_attn" else ""),
        map_tied=get("tie_feature_map_qk", False),
        norm_q=get("norm_q", False),
        norm_k=get("norm_k", False),
        head_norm=get("output_norm", "rmsnorm") == "rmsnorm",
        normaliser=get("norm_feature_map", False),
        lower_bound=kind == "hgrn2" and get("use_lower_bound", True),
        gate=kind in ("gla", "simple_gla", "retnet") and get("use_output_gate", True),
        tied=get("tie_word_embeddings", False),
    )


def as_stored(config, names):
    """The configuration of a file that has these tensors; the config does not tell its MLP's layout."""
    return dataclasses.replace(config, fused_mlp="model.layers.0.mlp.up_proj.weight" not in names)


def projections(config):
    """Names of the three that the convolutions and the recurrence take, and their rows."""
    c = config
    names = ("q", "f", "i") if c.type == "hgrn2" else ("q", "k", "v")
    return tuple(zip(names, c.widths))


# Of the feature maps that have any: names of their layers, and whether these have a bias.
MAP_LAYERS = {
    "hedgehog": (("layer",), True),
    "t2r": (("layer",), False),
    "elementwise_product": (("layer1", "layer2"), True),
}


def map_shapes(config):
    c = config
    layers, bias = (), False
    if c.type == "linear_attn":
        layers, bias = MAP_LAYERS.get(c.feature_map, (layers, bias))
    shapes = {}
    for of in "q" if c.map_tied else "qk":
        for layer in layers:
            shapes[f"feature_map_{of}.{layer}.weight"] = (c.DK, c.DK)
            if bias:
                shapes[f"feature_map_{of}.{layer}.bias"] = (c.DK,)
    return shapes


def tensor_shapes(config):
    c = config
    shapes = {"model.embeddings.weight": (c.vocab, c.D), "model.norm.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    if c.lower_bound:
        shapes["model.lower_bounds"] = (c.layers, c.D)
    for i in range(c.layers):
        p = f"model.layers.{i}."
        a, mlp = p + "attn.", p + "mlp."
        for name, rows in projections(c):
            shapes[f"{a}{name}_proj.weight"] = (rows, c.D)
            if c.width:
                shapes[f"{a}{name}_conv1d.weight"] = (rows, 1, c.width)
        for name, shape in map_shapes(c).items():
            shapes[a + name] = shape
        if c.gate:
            shapes[a + "g_proj.weight"] = (c.H * c.DV, c.D)
        if c.type == "gla":
            shapes[a + "gk_proj.0.weight"] = (c.rank, c.D)
            shapes[a + "gk_proj.1.weight"] = (c.KV * c.DK, c.rank)
            shapes[a + "gk_proj.1.bias"] = (c.KV * c.DK,)
        if c.type == "simple_gla":
            shapes[a + "gk_proj.weight"], shapes[a + "gk_proj.bias"] = (c.H, c.D), (c.H,)
        if out_norm(c):
            shapes[a + out_norm(c)] = (c.D,) if c.type == "hgrn2" else (c.DV,)
        shapes[a + "o_proj.weight"] = (c.D, c.H * c.DV)
        shapes[p + "attn_norm.weight"] = shapes[p + "mlp_norm.weight"] = (c.D,)
        shapes[mlp + "gate_proj.weight"] = (c.F * (2 if c.fused_mlp else 1), c.D)
        if not c.fused_mlp:
            shapes[mlp + "up_proj.weight"] = (c.F, c.D)
        shapes[mlp + "down_proj.weight"] = (c.D, c.F)
    return shapes


def out_norm(config):
    if config.type == "linear_attn":
        return "norm.weight" if config.head_norm else ""
    if config.type == "hgrn2" or not config.gate:
        return "g_norm.weight"
    return "g_norm_swish_gate.weight"


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """matrix_bytes: of a value of S."""
    c = config
    conv = 2 * sum(c.widths) * max(0, c.width - 1)
    z = 4 * c.H * c.DM if c.normaliser else 0
    return c.layers * (matrix_bytes * c.H * c.DM * c.DV + z + conv) + (4 if c.type == "retnet" else 0)


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, in chunks of so many, full squares counted."""
    c = config
    return c.layers * c.H * (2 * chunk * (c.DM + c.DV) + 4 * c.DM * c.DV)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


FEATURE_MAPS = {
    "": lambda x: x,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "silu": common.silu,
    "swish": common.silu,
    "sigmoid": common.sigmoid,
    "tanh": np.tanh,
}


def dpfp(x):
    both = np.maximum(np.concatenate([x, -x], -1), 0)
    return np.concatenate([both * np.roll(both, turn, -1) for turn in (1, 2, 3, 4)], -1)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mapped(c, w, x, of):
    """x [H, DK] of "q" or "k" -> [H, DM]."""

    def layer(name):
        prefix = f"feature_map_{'q' if c.map_tied else of}.{name}"
        return x @ w[prefix + ".weight"].T + w.get(prefix + ".bias", 0)

    if c.type == "linear_attn" and c.feature_map in MAP_LAYERS:
        y = [layer(name) for name in MAP_LAYERS[c.feature_map][0]]
        if c.feature_map == "hedgehog":
            x = softmax(np.concatenate([2 * y[0], -2 * y[0]], -1))
        else:
            x = np.maximum(y[0], 0) if c.feature_map == "t2r" else y[0] * y[1]
    else:
        x = dpfp(x) if c.feature_map == "dpfp" else FEATURE_MAPS[c.feature_map](x)
    norm = c.norm_q if of == "q" else c.norm_k
    return x / (x.sum(-1, keepdims=True) + 1e-4) if norm else x


def rotate(x, position):
    """x [H, DK]: pairs (j, j + DK / 2) turned by position * 10000^(-2 j / DK)."""
    half = x.shape[1] // 2
    angle = position * 10000.0 ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1
    )


def lower_bounds(weights):
    """[layers, D]: none for the first layer."""
    logits = weights["model.lower_bounds"]
    share = np.exp(logits - logits.max(0)) / np.exp(logits - logits.max(0)).sum(0)
    return np.cumsum(share, 0) - share[0]


def mixed(c, w, y, layer, conv, position, bound):
    """-> q k [H, DK], v [H, DV], log decay [H, DK] of one token."""
    parts = [w[f"{name}_proj.weight"] @ y for name, _ in projections(c)]
    if c.width:
        kernel = np.concatenate([w[f"{name}_conv1d.weight"] for name, _ in projections(c)])
        joined = common.convolve(kernel, 0, np.concatenate(parts), conv)
        joined = joined if c.type == "hgrn2" else common.silu(joined)
        parts = np.split(joined, np.cumsum(c.widths)[:2])
    q, k, v = parts[0].reshape(c.H, -1), *(part.reshape(c.KV, -1) for part in parts[1:])
    k, v = (np.repeat(x, c.H // c.KV, 0) for x in (k, v))
    log_decay = np.zeros((c.H, c.DK))
    if c.type == "hgrn2":
        q, log_decay = common.silu(q), common.log_sigmoid(k)
        if c.lower_bound and layer > 0:
            low = bound.reshape(c.H, c.DK)
            log_decay = np.logaddexp(np.log(low), np.log1p(-low) + log_decay)
        return q, 1 - np.exp(log_decay), v, log_decay
    q, k = mapped(c, w, q, "q"), mapped(c, w, k, "k")
    if c.type == "gla":
        gate = w["gk_proj.1.weight"] @ (w["gk_proj.0.weight"] @ y) + w["gk_proj.1.bias"]
        log_decay = np.maximum(common.log_sigmoid(gate) / c.divisor, c.floor)
        log_decay = np.repeat(log_decay.reshape(c.KV, c.DK), c.H // c.KV, 0)
    elif c.type == "simple_gla":
        gate = w["gk_proj.weight"] @ y + w["gk_proj.bias"]
        log_decay = log_decay + (common.log_sigmoid(gate) / c.divisor)[:, None]
    elif c.type == "retnet":
        q, k = rotate(q, position), rotate(k, position)
        log_decay = log_decay + np.log1p(-(2.0 ** (-5.0 - np.arange(c.H))))[:, None]
    return q, k, v, log_decay if c.DM == c.DK else np.zeros((c.H, c.DM))


def mixer(c, w, y, layer, state, position, bound):
    """One token; S, z and conv of the layer are changed in place."""
    q, k, v, log_decay = mixed(c, w, y, layer, state["conv"][layer], position, bound)
    q = q / np.sqrt(c.DM)
    S, z = state["S"][layer], state["z"][layer]
    S[:] = np.exp(log_decay)[:, :, None] * S + k[:, :, None] * v[:, None, :]
    o = np.einsum("hk,hkv->hv", q, S)
    if c.normaliser:
        z += k
        o = o / ((q * z).sum(1, keepdims=True) + 1e-10)
    if c.type == "hgrn2":
        o = common.rms(o.reshape(-1), w[out_norm(c)], HGRN2_EPS)
    elif c.head_norm:
        o = common.rms(o, w[out_norm(c)], c.eps)
    o = o.reshape(-1)
    return w["o_proj.weight"] @ (o * common.silu(w["g_proj.weight"] @ y) if c.gate else o)


def feed_forward(c, w, y):
    both = w["gate_proj.weight"] @ y
    if "up_proj.weight" in w:
        both = np.concatenate([both, w["up_proj.weight"] @ y])
    gate, up = np.split(both, 2)
    return w["down_proj.weight"] @ (common.silu(gate) * up)


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c = config
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    state = {
        "S": np.zeros((c.layers, c.H, c.DM, c.DV)),
        "z": np.zeros((c.layers, c.H, c.DM)),
        "conv": np.zeros((c.layers, sum(c.widths), max(0, c.width - 1))),
    }
    layers = [common.under(weights, f"model.layers.{i}.") for i in range(c.layers)]
    attn = [common.under(layer, "attn.") for layer in layers]
    mlp = [common.under(layer, "mlp.") for layer in layers]
    bounds = lower_bounds(weights) if c.lower_bound else [None] * c.layers
    head = weights["model.embeddings.weight"] if c.tied else weights["lm_head.weight"]
    logits = []
    for position, token in enumerate(tokens):
        x = weights["model.embeddings.weight"][token]
        for i in range(c.layers):
            y = common.rms(x, layers[i]["attn_norm.weight"], c.eps)
            x = x + mixer(c, attn[i], y, i, state, position, bounds[i])
            y = common.rms(x, layers[i]["mlp_norm.weight"], c.eps)
            x = x + feed_forward(c, mlp[i], y)
        logits.append(head @ common.rms(x, weights["model.norm.weight"], c.eps))
    return np.array(logits), stored_states(c, state, len(tokens))


def stored_states(config, state, position):
    kept = {"S": state["S"]}
    if config.normaliser:
        kept["z"] = state["z"]
    if config.width:
        kept["conv"] = state["conv"]
    if config.type == "retnet":
        kept["position"] = np.array([position], np.int32)
    return kept
