"""Language models of recurrent cells (model_type "rnn", a format of this project: there is no public one).

config.json: cell ("elman", "lstm", "gru": PyTorch's; "flash_gru": the FlashRNN paper's; "slstm"),
block ("plain": cells stacked as by nn.LSTM; "pre_norm": x += cell(norm x), x += SwiGLU(norm x), and
a norm before the head), norm ("layer_norm", "rms_norm"), norm_eps, norm_bias, hidden_size,
embedding_size, num_heads (each sees itself only), num_hidden_layers, intermediate_size, vocab_size,
use_bias, head_bias, tie_word_embeddings, slstm_n_min (n is kept at least that: 0, or 1 as by FlashRNN).

Tensors: embeddings.weight [V, E]; layers.{l}.weight_ih [gates D, in], weight_hh [gates D, D / heads],
bias_ih and bias_hh [gates D], rows gate by gate, in a gate head by head, gates in PyTorch's order
(i f g o; r z n); layers.{l}.{norm,ffn_norm}.weight, ffn.{gate,up,down}_proj.weight and norm.weight of
pre_norm; lm_head.weight, lm_head.bias. Golden states: h, c, n, m [layers, heads, DH], as the cell has.

    a = Wx x + bx, b = Wh h + bh.   elman: h = tanh(a + b)
    lstm: c = sig(f) c + sig(i) tanh(g);  h = sig(o) tanh(c)
    gru: n = tanh(a_n + sig(r) b_n);  flash_gru: n = tanh(a_n + sig(r) tanh(b_n));  h = (1 - sig(z)) n + sig(z) h
    slstm: m' = i where n = 0, else max(i, m + logsig(f));  c = F c + I tanh(g);  n = max(F n + I, n_min)
           h = sig(o) c / n,  I = exp(i - m'), F = exp(m + logsig(f) - m')
"""

import dataclasses

import numpy as np

from weights_tools.families import common

GATES = {"elman": 1, "lstm": 4, "gru": 3, "flash_gru": 3, "slstm": 4}
STATES = {"lstm": "hc", "slstm": "hcnm"}

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ("weight_hh",)


@dataclasses.dataclass(frozen=True)
class Config:
    cell: str
    D: int
    E: int
    layers: int
    vocab: int
    H: int = 1
    F: int = 0  # of pre_norm; 0: plain
    rms_norm: bool = False
    norm_bias: bool = False
    eps: float = 1e-5
    bias: bool = True
    head_bias: bool = False
    tied: bool = False
    n_min: float = 0.0

    @property
    def gates(self):
        return GATES[self.cell]

    @property
    def states(self):
        return STATES.get(self.cell, "h")


def config_from_dict(values):
    get = values.get
    if values["cell"] not in GATES:
        raise ValueError(f'cell is "{values["cell"]}", wanted one of {", ".join(GATES)}')
    return Config(
        cell=values["cell"],
        D=values["hidden_size"],
        E=get("embedding_size", values["hidden_size"]),
        layers=values["num_hidden_layers"],
        vocab=values["vocab_size"],
        H=get("num_heads", 1),
        F=values["intermediate_size"] if get("block", "plain") == "pre_norm" else 0,
        rms_norm=get("norm", "layer_norm") == "rms_norm",
        norm_bias=get("norm_bias", False),
        eps=get("norm_eps", 1e-5),
        bias=get("use_bias", True),
        head_bias=get("head_bias", False),
        tied=get("tie_word_embeddings", False),
        n_min=get("slstm_n_min", 0.0),
    )


def tensor_shapes(config):
    c = config
    shapes = {"embeddings.weight": (c.vocab, c.E)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    if c.head_bias:
        shapes["lm_head.bias"] = (c.vocab,)
    norms = ["norm."] if c.F else []
    for i in range(c.layers):
        p = f"layers.{i}."
        shapes[p + "weight_ih"] = (c.gates * c.D, c.E if i == 0 else c.D)
        shapes[p + "weight_hh"] = (c.gates * c.D, c.D // c.H)
        if c.bias:
            shapes[p + "bias_ih"] = shapes[p + "bias_hh"] = (c.gates * c.D,)
        if c.F:
            norms += [p + "norm.", p + "ffn_norm."]
            shapes[p + "ffn.gate_proj.weight"] = shapes[p + "ffn.up_proj.weight"] = (c.F, c.D)
            shapes[p + "ffn.down_proj.weight"] = (c.D, c.F)
    for norm in norms:
        shapes[norm + "weight"] = (c.D,)
        if c.norm_bias:
            shapes[norm + "bias"] = (c.D,)
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """Vectors only, in fp32."""
    del matrix_bytes
    return 4 * config.layers * len(config.states) * config.D


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights: nothing, the recurrent matrices are weights."""
    del config, chunk
    return 0


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.E
    return bytes_per_weight * (parameters(config) - embedding)


def cell(c, w, x, state):
    """One token; state: name -> [H, DH], changed in place. -> h [D]."""
    shape = (c.gates, c.H, c.D // c.H)
    a = (w["weight_ih"] @ x + w.get("bias_ih", 0)).reshape(shape)
    kernel = w["weight_hh"].reshape(*shape, -1)
    b = np.einsum("ghoi,hi->gho", kernel, state["h"])
    b = b + np.reshape(w.get("bias_hh", np.zeros(c.gates * c.D)), shape)
    sig = common.sigmoid
    if c.cell == "elman":
        state["h"][:] = np.tanh(a[0] + b[0])
    elif c.cell in ("gru", "flash_gru"):
        r, z = sig(a[:2] + b[:2])
        n = np.tanh(a[2] + r * (np.tanh(b[2]) if c.cell == "flash_gru" else b[2]))
        state["h"][:] = (1 - z) * n + z * state["h"]
    elif c.cell == "lstm":
        i, f, g, o = a + b
        state["c"][:] = sig(f) * state["c"] + sig(i) * np.tanh(g)
        state["h"][:] = sig(o) * np.tanh(state["c"])
    else:
        i, f, g, o = a + b
        kept = state["m"] + common.log_sigmoid(f)
        m = np.where(state["n"] == 0, i, np.maximum(i, kept))
        write, keep = np.exp(i - m), np.exp(kept - m)
        state["c"][:] = keep * state["c"] + write * np.tanh(g)
        state["n"][:] = np.maximum(keep * state["n"] + write, c.n_min)
        state["m"][:] = m
        state["h"][:] = sig(o) * state["c"] / state["n"]
    return state["h"].reshape(-1)


def norm(c, w, name, x):
    kind = common.rms if c.rms_norm else common.layer_norm
    return kind(x, w[name + ".weight"], c.eps) + w.get(name + ".bias", 0)


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c = config
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    layers = [common.under(weights, f"layers.{i}.") for i in range(c.layers)]
    states = {n: np.zeros((c.layers, c.H, c.D // c.H)) for n in c.states}
    head = weights["embeddings.weight" if c.tied else "lm_head.weight"]
    logits = []
    for token in tokens:
        x = weights["embeddings.weight"][token]
        for i, w in enumerate(layers):
            state = {n: s[i] for n, s in states.items()}
            if not c.F:
                x = cell(c, w, x, state).copy()
                continue
            x = x + cell(c, w, norm(c, w, "norm", x), state)
            y = norm(c, w, "ffn_norm", x)
            hidden = common.silu(w["ffn.gate_proj.weight"] @ y) * (w["ffn.up_proj.weight"] @ y)
            x = x + w["ffn.down_proj.weight"] @ hidden
        if c.F:
            x = norm(c, weights, "norm", x)
        logits.append(head @ x + weights.get("lm_head.bias", 0))
    return np.array(logits), states
