"""The xLSTM step recurrence in numpy fp64: the equations written a second time.

`wrong` names one deliberate mistake; the tests show that the golden files would reveal it.
"""

import numpy as np

from weights_tools.families import xlstm


def log_sigmoid(x):
    return -np.logaddexp(0.0, -x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cap(x, limit, wrong=False):
    return x if wrong else limit * np.tanh(x / limit)


def rms(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def mix(c, w, y, state, wrong):
    heads, dk, dv = c.num_heads, c.qk_head, c.v_head
    lay = "mlstm_layer."
    q, k, v, o = (w[f"{lay}{n}.weight"] @ y for n in ("q", "k", "v", "ogate_preact"))
    shape = (heads, dk) if wrong != "heads interleaved" else (dk, heads)
    q, k = q.reshape(shape), k.reshape(shape)
    if wrong == "heads interleaved":
        q, k = q.T, k.T
    if wrong == "k scaled":
        k = k / np.sqrt(dk)
    v = v.reshape(heads, dv)
    first, second = ("f", "i") if wrong == "i and f swapped" else ("i", "f")
    i = w[f"{lay}{first}gate_preact.weight"] @ y + w[f"{lay}{first}gate_preact.bias"]
    f = w[f"{lay}{second}gate_preact.weight"] @ y + w[f"{lay}{second}gate_preact.bias"]
    i, f = (cap(g, c.gate_soft_cap, wrong == "no gate cap") for g in (i, f))
    lf = log_sigmoid(f) if wrong != "f without logsigmoid" else f
    out = np.empty((heads, dv))
    for h in range(heads):
        m_old = state["m"][h]
        m = max(lf[h] + m_old, i[h])
        keep, write = np.exp(lf[h] + m_old - m), np.exp(i[h] - m)
        numerator_state = state["C"][h].copy()
        state["C"][h] = keep * state["C"][h] + write * np.outer(k[h], v[h])
        state["n"][h] = keep * state["n"][h] + write * k[h]
        state["m"][h] = m
        if wrong != "h from the old state":
            numerator_state = state["C"][h]
        qs = q[h] / np.sqrt(dk)
        floor = 1.0 if wrong == "floor 1" else np.exp(-m)
        eps = 1e-6 if wrong == "cell eps 1e-6" else 0.0 if wrong == "no cell eps" else c.eps
        below = (
            max(abs(qs @ state["n"][h]), floor) if wrong != "no floor" else abs(qs @ state["n"][h])
        )
        out[h] = (qs @ numerator_state) / (below + eps)
    mean = 0 if wrong == "rms head norm" else out.mean(1, keepdims=True)
    variance = ((out - mean) ** 2).sum(1, keepdims=True) / (dv - (wrong == "unbiased variance"))
    eps = 1e-6 if wrong == "norm eps 1e-6" else c.norm_eps
    weight = w[f"{lay}multihead_norm.weight"].reshape(heads, dv)
    weight = weight[::-1] if wrong == "head norm weight order" else weight
    normed = ((out - mean) / np.sqrt(variance + eps) * weight).ravel()
    gate = o * sigmoid(o) if wrong == "silu output gate" else sigmoid(o)
    return w[f"{lay}out_proj.weight"] @ (gate * normed)


def run(config, tensors, tokens, wrong=None):
    """-> logits [T, V], {"C": [blocks, H, DK, DV], "n": [blocks, H, DK], "m": [blocks, H]}."""
    c = config
    norm_eps = 1e-6 if wrong == "norm eps 1e-6" else c.norm_eps
    tensors = xlstm.unfuse({n: t.float32().astype(np.float64) for n, t in tensors.items()}, c)
    embedding = tensors["backbone.embeddings.weight"]
    head = embedding if c.tie_word_embeddings else tensors["lm_head.weight"]
    shapes = {
        "C": (c.num_heads, c.qk_head, c.v_head),
        "n": (c.num_heads, c.qk_head),
        "m": (c.num_heads,),
    }
    start = {"m": -30.0} if wrong == "m starts low" else {}
    state = {n: np.full((c.num_blocks, *shape), start.get(n, 0.0)) for n, shape in shapes.items()}
    logits = []
    for token in tokens:
        x = embedding[token]
        for b in range(c.num_blocks):
            prefix = f"backbone.blocks.{b}."
            w = {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
            y = rms(x, w["norm_mlstm.weight"], norm_eps)
            x = x + mix(c, w, y, {n: s[b] for n, s in state.items()}, wrong)
            y = rms(x, w["norm_ffn.weight"], norm_eps)
            a, u = w["ffn.proj_up_gate.weight"] @ y, w["ffn.proj_up.weight"] @ y
            a, u = (u, a) if wrong == "gate and up swapped" else (a, u)
            x = x + w["ffn.proj_down.weight"] @ (a * sigmoid(a) * u)
        y = rms(x, tensors["backbone.out_norm.weight"], norm_eps)
        logits.append(cap(head @ y, c.output_logit_soft_cap, wrong == "no logit cap"))
    return np.array(logits), state


MISTAKES = (
    "heads interleaved",
    "k scaled",
    "i and f swapped",
    "no gate cap",
    "f without logsigmoid",
    "h from the old state",
    "floor 1",
    "no floor",
    "cell eps 1e-6",
    "no cell eps",
    "rms head norm",
    "unbiased variance",
    "norm eps 1e-6",
    "head norm weight order",
    "silu output gate",
    "m starts low",
    "gate and up swapped",
    "no logit cap",
)
