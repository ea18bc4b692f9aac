"""flash-linear-attention's DeltaNet and Gated DeltaNet: model_type "delta_net" and "gated_deltanet".

config.json has fla's keys, with fla's defaults where one is missing (fla/models/*/configuration_*.py).
Tensors: model.embeddings.weight, model.norm.weight, lm_head.weight unless tied, and for each layer
attn_norm.weight, mlp_norm.weight, mlp.{gate_proj,up_proj,down_proj}.weight, attn.{q,k,v,o}_proj.weight,
attn.{q,k,v}_conv1d.weight [channels, 1, width] with use_short_conv, attn.b_proj.weight [H, D] with use_beta,
attn.g_proj.weight with use_gate, attn.o_norm.weight [DV]; gated ones also attn.a_proj.weight [H, D], A_log and
dt_bias [H].
Golden states: S [layers, H, DK, DV]; conv [layers, q, k and v, width - 1], oldest first.

    q, k, v = silu(conv(W y)), q and k of each head divided by their length;  b = sigmoid(Wb y), or twice that
    S = exp(g) S;  S = S + k (b (v - k^T S))^T;  o = (q / sqrt(DK))^T S
    g = 0, or -exp(A_log) softplus(Wa y + dt_bias);  x = x + Wo (rms_of_head(o) silu(Wg y)), or sigmoid(Wg y)
"""

import dataclasses

import numpy as np

from weights_tools.families import common, gla

TYPES = ("delta_net", "gated_deltanet")
LENGTH_EPS = 1e-6

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ()


@dataclasses.dataclass(frozen=True)
class Config:
    type: str
    D: int
    layers: int
    vocab: int
    H: int  # heads of values
    HK: int  # heads of queries and keys
    DK: int
    DV: int
    F: int
    width: int = 4  # of the short convolutions, 0: none
    eps: float = 1e-6
    activation: str = "silu"
    norm: str = "l2"
    beta: bool = True
    beta_scale: float = 1.0
    gate: bool = False
    gate_activation: str = "silu"
    tied: bool = False

    @property
    def gated(self):
        return self.type == "gated_deltanet"

    @property
    def widths(self):
        """Of q, k and v."""
        return self.HK * self.DK, self.HK * self.DK, self.H * self.DV


def config_from_dict(values):
    get, kind, D = values.get, values["model_type"], values["hidden_size"]
    gated = kind == "gated_deltanet"
    if get("attn") is not None or get("attnres_block_size") is not None or get("conv_bias"):
        raise ValueError("attention layers, attnres_block_size and conv_bias are not supported")
    if get("output_gate_activation", "swish") not in ("swish", "silu", "sigmoid"):
        raise ValueError("output_gate_activation: wanted swish, silu or sigmoid")
    heads = get("num_heads") or (6 if gated else 16)
    key = get("head_dim", 256) if gated else int(D * get("expand_k", 1.0)) // heads
    value = int(key * get("expand_v", 2.0)) if gated else int(D * get("expand_v", 1.0)) // heads
    return Config(
        type=kind,
        D=D,
        layers=values["num_hidden_layers"],
        vocab=values["vocab_size"],
        H=(get("num_v_heads") or heads) if gated else heads,
        HK=heads,
        DK=key,
        DV=value,
        F=get("intermediate_size") or common.round_up(int(D * (get("hidden_ratio") or 4) * 2 / 3), 256),
        width=get("conv_size", 4) if get("use_short_conv", True) else 0,
        eps=get("norm_eps", 1e-6),
        activation="silu" if gated else get("qk_activation", "silu"),
        norm="l2" if gated else get("qk_norm", "l2"),
        beta=gated or get("use_beta", True),
        beta_scale=2.0 if get("allow_neg_eigval", False) else 1.0,
        gate=get("use_gate", gated),
        gate_activation="sigmoid" if gated and get("output_gate_activation") == "sigmoid" else "silu",
        tied=get("tie_word_embeddings", False),
    )


def tensor_shapes(config):
    c = config
    shapes = {"model.embeddings.weight": (c.vocab, c.D), "model.norm.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i in range(c.layers):
        p = f"model.layers.{i}."
        a, mlp = p + "attn.", p + "mlp."
        for name, rows in zip("qkv", c.widths):
            shapes[f"{a}{name}_proj.weight"] = (rows, c.D)
            if c.width:
                shapes[f"{a}{name}_conv1d.weight"] = (rows, 1, c.width)
        if c.gate:
            shapes[a + "g_proj.weight"] = (c.H * c.DV, c.D)
        if c.beta:
            shapes[a + "b_proj.weight"] = (c.H, c.D)
        if c.gated:
            shapes |= {a + "a_proj.weight": (c.H, c.D), a + "A_log": (c.H,), a + "dt_bias": (c.H,)}
        shapes[a + "o_norm.weight"] = (c.DV,)
        shapes[a + "o_proj.weight"] = (c.D, c.H * c.DV)
        shapes[p + "attn_norm.weight"] = shapes[p + "mlp_norm.weight"] = (c.D,)
        shapes[mlp + "gate_proj.weight"] = shapes[mlp + "up_proj.weight"] = (c.F, c.D)
        shapes[mlp + "down_proj.weight"] = (c.D, c.F)
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """matrix_bytes: of a value of S."""
    c = config
    conv = 4 * sum(c.widths) * max(0, c.width - 1)
    return c.layers * (matrix_bytes * c.H * c.DK * c.DV + conv)


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, in chunks of so many, full squares counted: two products of
    keys, the triangle and one product of values with rows of the chunk; three with the state."""
    c = config
    return c.layers * c.H * (chunk * (4 * c.DK + 4 * c.DV) + 6 * c.DK * c.DV)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


ACTIVATIONS = {
    "silu": common.silu,
    "relu": lambda x: np.maximum(x, 0),
    "elu": gla.FEATURE_MAPS["elu"],
    "identity": lambda x: x,
}
GATES = {"silu": lambda x: common.silu(x), "sigmoid": lambda x: common.sigmoid(x)}


def normed(c, x):
    """x [HK, DK], of queries or keys."""
    if c.norm == "sum":
        return x / x.sum(-1, keepdims=True)
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + LENGTH_EPS)


def convolved(c, w, y, conv):
    """-> q, k, v, whose functions are still to come; conv of the layer is changed in place."""
    joined = np.concatenate([w[f"{name}_proj.weight"] @ y for name in "qkv"])
    if c.width:
        kernel = np.concatenate([w[f"{name}_conv1d.weight"] for name in "qkv"])
        joined = common.convolve(kernel, 0, joined, conv)
    return np.split(joined, np.cumsum(c.widths)[:2])


def gates(c, w, y):
    """-> beta [H], log decays [H]."""
    beta = c.beta_scale * (common.sigmoid(w["b_proj.weight"] @ y) if c.beta else np.ones(c.H))
    if not c.gated:
        return beta, np.zeros(c.H)
    return beta, -np.exp(w["A_log"]) * np.logaddexp(0, w["a_proj.weight"] @ y + w["dt_bias"])


def update(S, q, k, v, beta, g):
    """All heads, S [H, DK, DV] in place -> o [H, DV]."""
    S *= np.exp(g)[:, None, None]
    u = beta[:, None] * (v - np.einsum("hk,hkv->hv", k, S))
    S += k[:, :, None] * u[:, None, :]
    return np.einsum("hk,hkv->hv", q, S)


def mixer(c, w, y, S, conv):
    """One token; S and conv of the layer are changed in place."""
    q, k, v = convolved(c, w, y, conv)
    f = ACTIVATIONS[c.activation]
    q, k = (normed(c, f(x).reshape(c.HK, -1)).repeat(c.H // c.HK, 0) for x in (q, k))
    beta, g = gates(c, w, y)
    o = update(S, q / np.sqrt(c.DK), k, common.silu(v).reshape(c.H, -1), beta, g)
    o = common.rms(o, w["o_norm.weight"], c.eps).reshape(-1)
    if c.gate:
        o = o * GATES[c.gate_activation](w["g_proj.weight"] @ y)
    return w["o_proj.weight"] @ o


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c = config
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    S = np.zeros((c.layers, c.H, c.DK, c.DV))
    conv = np.zeros((c.layers, sum(c.widths), max(0, c.width - 1)))
    layers = [common.under(weights, f"model.layers.{i}.") for i in range(c.layers)]
    attn = [common.under(layer, "attn.") for layer in layers]
    mlp = [common.under(layer, "mlp.") for layer in layers]
    head = weights["model.embeddings.weight"] if c.tied else weights["lm_head.weight"]
    logits = []
    for token in tokens:
        x = weights["model.embeddings.weight"][token]
        for i in range(c.layers):
            y = common.rms(x, layers[i]["attn_norm.weight"], c.eps)
            x = x + mixer(c, attn[i], y, S[i], conv[i])
            y = common.rms(x, layers[i]["mlp_norm.weight"], c.eps)
            x = x + gla.feed_forward(c, mlp[i], y)
        logits.append(head @ common.rms(x, weights["model.norm.weight"], c.eps))
    return np.array(logits), {"S": S, **({"conv": conv} if c.width else {})}
