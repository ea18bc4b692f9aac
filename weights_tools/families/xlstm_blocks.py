"""The research xLSTM: mLSTM and sLSTM blocks (model_type "xlstm_blocks", a name given here: the package
has no config.json). config.json has the keys of the package's xLSTMLMModelConfig, nested as there:
vocab_size, embedding_dim, num_blocks, slstm_at (a list or "all"), add_post_blocks_norm, tie_weights,
mlstm_block {mlstm {num_heads, conv1d_kernel_size, qkv_proj_blocksize, proj_factor}},
slstm_block {slstm {num_heads, conv1d_kernel_size, backend}, feedforward {proj_factor, act_fn, bias}}. bias adds one
to the linear layers of mLSTM blocks, but for the head.
slstm.backend "cuda" (the package's default) or "vanilla" says how _recurrent_kernel_ and _bias_ lie.

Tensors: the package's state_dict(). token_embedding.weight, lm_head.weight (also where tied, as an
alias, or absent), xlstm_block_stack.post_blocks_norm.weight, xlstm_block_stack.blocks.{i}.xlstm_norm,
.xlstm.* and, in sLSTM blocks, .ffn_norm and .ffn.*. Norm weights are stored less one. Golden states,
blocks in order: of mLSTM blocks C [H, DH, DH], n [H, DH], m [H]; of sLSTM blocks h, c, sn, sm, each
[H, DH]; conv of all blocks one after the other, flat ([inner, 3] or [D, 3] each, oldest first).

    mLSTM: x z = Wup y;  c = silu(conv(x));  q k = Wq c, Wk c;  v = Wv x;  i f = Wi [q k v], Wf [q k v]
           the cell of families/xlstm_step.py with k / sqrt(DH), q unscaled, eps 1e-6
           out = Wdown((group_norm(h) + skip c) silu(z))
    sLSTM: c = silu(conv(y));  i f z o = Wfgate c, Wigate c, Wz y, Wo y (the names are swapped upstream)
           each + b + R h;  m' = i where n = 0, else max(i, m + logsig(f))
           c' = F c + I tanh(z);  n' = F n + I;  h = sigmoid(o) c' / n';  out = group_norm(h)
"""

import dataclasses
import math

import numpy as np

from weights_tools.families import common

NORM_EPS, CELL_EPS = 1e-5, 1e-6

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ("q_proj", "k_proj", "v_proj", "gate.", "_recurrent_kernel_")


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    vocab: int
    slstm: tuple  # of each block, whether it is an sLSTM block
    H: int = 4
    inner: int = 0
    block: int = 4
    width: int = 4
    slstm_H: int = 4
    slstm_width: int = 4
    F: int = 0
    act: str = "gelu"
    tied: bool = False
    out_norm: bool = True
    cuda_layout: bool = True
    bias: bool = False  # of the linear layers of mLSTM blocks
    ffn_bias: bool = False


def up_size(D, values, factor):
    multiple = values.get("round_proj_up_to_multiple_of", 64)
    return math.ceil(values.get("proj_factor", factor) * D / multiple) * multiple


def config_from_dict(values):
    D, blocks = values["embedding_dim"], values["num_blocks"]
    at = values.get("slstm_at", [])
    if at == "all" or values.get("mlstm_block") is None:
        at = range(blocks)
    mlstm = (values.get("mlstm_block") or {}).get("mlstm", {})
    sblock = values.get("slstm_block") or {}
    slstm, ffn = sblock.get("slstm", {}), sblock.get("feedforward")
    if slstm.get("function", "slstm") != "slstm":
        raise ValueError("functions other than slstm are not supported")
    return Config(
        D=D,
        vocab=values["vocab_size"],
        slstm=tuple(b in at for b in range(blocks)),
        H=mlstm.get("num_heads", 4),
        inner=up_size(D, mlstm, 2.0),
        block=mlstm.get("qkv_proj_blocksize", 4),
        width=mlstm.get("conv1d_kernel_size", 4),
        slstm_H=slstm.get("num_heads", 4),
        slstm_width=slstm.get("conv1d_kernel_size", 4),
        F=0 if ffn is None else up_size(D, ffn, 1.3),
        act="gelu" if ffn is None else ffn.get("act_fn", "gelu"),
        tied=values.get("tie_weights", False),
        out_norm=values.get("add_post_blocks_norm", True),
        cuda_layout=slstm.get("backend", "cuda") == "cuda",
        bias=values.get("bias", False),  # which the package writes over mlstm_block.mlstm.bias
        ffn_bias=(ffn or {}).get("bias", False),
    )


def mlstm_shapes(c):
    cell = "mlstm_cell."
    biases = {f"{n}_proj.bias": (c.inner,) for n in "qkv"}
    biases |= {"proj_up.bias": (2 * c.inner,), "proj_down.bias": (c.D,)}
    return {
        **(biases if c.bias else {}),
        "proj_up.weight": (2 * c.inner, c.D),
        "conv1d.conv.weight": (c.inner, 1, c.width),
        "conv1d.conv.bias": (c.inner,),
        **{f"{n}_proj.weight": (c.inner // c.block, c.block, c.block) for n in "qkv"},
        **{f"{cell}{g}gate.weight": (c.H, 3 * c.inner) for g in "if"},
        **{f"{cell}{g}gate.bias": (c.H,) for g in "if"},
        cell + "outnorm.weight": (c.inner,),
        "learnable_skip": (c.inner,),
        "proj_down.weight": (c.D, c.inner),
    }


def slstm_shapes(c):
    DH = c.D // c.slstm_H
    kernel = (c.slstm_H, DH, 4 * DH) if c.cuda_layout else (c.slstm_H, 4 * DH, DH)
    return {
        "conv1d.conv.weight": (c.D, 1, c.slstm_width),
        "conv1d.conv.bias": (c.D,),
        **{f"{g}gate.weight": (c.slstm_H, DH, DH) for g in "fizo"},
        "slstm_cell._recurrent_kernel_": kernel,
        "slstm_cell._bias_": (4 * c.D,),
        "group_norm.weight": (c.D,),
    }


def tensor_shapes(config):
    c = config
    shapes = {"token_embedding.weight": (c.vocab, c.D)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    if c.out_norm:
        shapes["xlstm_block_stack.post_blocks_norm.weight"] = (c.D,)
    for b, is_slstm in enumerate(c.slstm):
        p = f"xlstm_block_stack.blocks.{b}."
        shapes[p + "xlstm_norm.weight"] = (c.D,)
        inside = slstm_shapes(c) if is_slstm else mlstm_shapes(c)
        gone = (c.slstm_width if is_slstm else c.width) == 0
        for name, shape in inside.items():
            if not (gone and "conv1d" in name):
                shapes[f"{p}xlstm.{name}"] = shape
        if is_slstm and c.F:
            shapes[p + "ffn_norm.weight"] = (c.D,)
            shapes[p + "ffn.proj_up.weight"] = (2 * c.F, c.D)
            shapes[p + "ffn.proj_down.weight"] = (c.D, c.F)
            if c.ffn_bias:
                shapes[p + "ffn.proj_up.bias"] = (2 * c.F,)
                shapes[p + "ffn.proj_down.bias"] = (c.D,)
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """Cells in fp32, but C of matrix_bytes a value; width - 1 columns of the convolutions in bf16."""
    c, total = config, 0
    for is_slstm in c.slstm:
        DH = c.inner // c.H
        cell = 16 * c.D if is_slstm else c.H * (matrix_bytes * DH * DH + 4 * DH + 4)
        conv = c.D * max(0, c.slstm_width - 1) if is_slstm else c.inner * max(0, c.width - 1)
        total += cell + 2 * conv
    return total


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, in chunks of so many, full squares counted; of an
    sLSTM block, whose recurrent matrices are weights, nothing."""
    DH = config.inner // config.H
    return config.slstm.count(False) * config.H * (4 * chunk * DH + 4 * DH * DH)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def recurrence(c, w):
    """-> R [4, H, DH out, DH in], b [4, H, DH], gates i f z o, from either layout."""
    H, DH = c.slstm_H, c.D // c.slstm_H
    R, b = w["slstm_cell._recurrent_kernel_"], w["slstm_cell._bias_"]
    if c.cuda_layout:
        R = R.reshape(H, DH, 4, DH).transpose(2, 0, 3, 1)
        return R, b.reshape(H, 4, DH).transpose(1, 0, 2)
    return R.reshape(H, 4, DH, DH).transpose(1, 0, 2, 3), b.reshape(4, H, DH)


def other_layout(c, name, array):
    """A kernel or bias of the vanilla layout in that of cuda."""
    H, DH = c.slstm_H, c.D // c.slstm_H
    if name.endswith("_recurrent_kernel_"):
        return np.ascontiguousarray(array.transpose(0, 2, 1))
    if name.endswith("slstm_cell._bias_"):
        return np.ascontiguousarray(array.reshape(4, H, DH).transpose(1, 0, 2)).reshape(-1)
    return array


def blockwise(weight, x, bias=0):
    """weight [blocks, out, in]."""
    return np.einsum("boi,bi->bo", weight, x.reshape(len(weight), -1)).reshape(-1) + bias


def linear(w, name, x):
    return w[name + ".weight"] @ x + w.get(name + ".bias", 0)


def group_norm(h, weight):
    """h [H, DH]: normed within each head."""
    return common.layer_norm(h, 1.0, NORM_EPS).reshape(-1) * (1 + weight)


def convolved(w, width, x, columns):
    if width == 0:
        return x
    bias = w["conv1d.conv.bias"]
    return common.silu(common.convolve(w["conv1d.conv.weight"], bias, x, columns))


def mlstm(c, w, y, state):
    x, z = np.split(linear(w, "proj_up", y), 2)
    conv = convolved(w, c.width, x, state["conv"])
    q, k, v = (
        blockwise(w[f"{n}_proj.weight"], x if n == "v" else conv, w.get(f"{n}_proj.bias", 0))
        for n in "qkv"
    )
    i, f = (
        w[f"mlstm_cell.{g}gate.weight"] @ np.concatenate([q, k, v]) + w[f"mlstm_cell.{g}gate.bias"]
        for g in "if"
    )
    q, k, v = (part.reshape(c.H, -1) for part in (q, k, v))
    k = k / np.sqrt(k.shape[1])
    log_f = common.log_sigmoid(f)
    m = np.maximum(log_f + state["m"], i)
    keep, write = np.exp(log_f + state["m"] - m), np.exp(i - m)
    C, n = state["C"], state["n"]
    C[:] = keep[:, None, None] * C + write[:, None, None] * k[:, :, None] * v[:, None, :]
    n[:] = keep[:, None] * n + write[:, None] * k
    state["m"][:] = m
    below = np.maximum(np.abs((q * n).sum(1)), np.exp(-m)) + CELL_EPS
    h = np.einsum("hk,hkv->hv", q, C) / below[:, None]
    h = group_norm(h, w["mlstm_cell.outnorm.weight"]) + w["learnable_skip"] * conv
    return linear(w, "proj_down", h * common.silu(z))


def slstm(c, w, y, state):
    conv = convolved(w, c.slstm_width, y, state["conv"])
    inputs = [blockwise(w["fgate.weight"], conv), blockwise(w["igate.weight"], conv)]
    inputs += [blockwise(w["zgate.weight"], y), blockwise(w["ogate.weight"], y)]
    R, b = recurrence(c, w)
    raw = np.stack(inputs).reshape(b.shape) + np.einsum("ghoi,hi->gho", R, state["h"]) + b
    i, f, z, o = raw
    kept = state["sm"] + common.log_sigmoid(f)
    m = np.where(state["sn"] == 0, i, np.maximum(i, kept))
    write, keep = np.minimum(1, np.exp(i - m)), np.minimum(1, np.exp(kept - m))
    state["c"][:] = keep * state["c"] + write * np.tanh(z)
    state["sn"][:] = keep * state["sn"] + write
    state["sm"][:] = m
    state["h"][:] = common.sigmoid(o) * state["c"] / state["sn"]
    return group_norm(state["h"], w["group_norm.weight"])


ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "swish": common.silu,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": common.sigmoid,
}


def zero_state(config):
    c, out = config, []
    for is_slstm in c.slstm:
        DH = c.inner // c.H
        if is_slstm:
            shape = (c.slstm_H, c.D // c.slstm_H)
            state = {name: np.zeros(shape) for name in ("h", "c", "sn", "sm")}
        else:
            state = {"C": np.zeros((c.H, DH, DH)), "n": np.zeros((c.H, DH)), "m": np.zeros(c.H)}
        columns, width = (c.D, c.slstm_width) if is_slstm else (c.inner, c.width)
        out.append({**state, "conv": np.zeros((columns, max(0, width - 1)))})
    return out


def stored_states(states):
    """Of blocks in order: arrays of one name stacked, conv flat."""
    out = {}
    for name in ("C", "n", "m", "h", "c", "sn", "sm"):
        found = [s[name] for s in states if name in s]
        if found:
            out[name] = np.stack(found)
    out["conv"] = np.concatenate([s["conv"].reshape(-1) for s in states])
    return out


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c = config
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    prefix = "xlstm_block_stack."
    blocks = [common.under(weights, f"{prefix}blocks.{b}.") for b in range(len(c.slstm))]
    layers = [common.under(block, "xlstm.") for block in blocks]
    state = zero_state(c)
    head = weights["token_embedding.weight" if c.tied else "lm_head.weight"]
    logits = []
    for token in tokens:
        x = weights["token_embedding.weight"][token]
        for b, (w, layer) in enumerate(zip(blocks, layers)):
            y = common.layer_norm(x, 1 + w["xlstm_norm.weight"], NORM_EPS)
            x = x + (slstm if c.slstm[b] else mlstm)(c, layer, y, state[b])
            if c.slstm[b] and c.F:
                y = common.layer_norm(x, 1 + w["ffn_norm.weight"], NORM_EPS)
                gate, up = np.split(linear(w, "ffn.proj_up", y), 2)
                x = x + linear(w, "ffn.proj_down", ACTIVATIONS[c.act](gate) * up)
        if c.out_norm:
            x = common.layer_norm(x, 1 + weights[prefix + "post_blocks_norm.weight"], NORM_EPS)
        logits.append(head @ x)
    return np.array(logits), stored_states(state)
