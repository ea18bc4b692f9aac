"""Mamba-2 and Mamba-Codestral (model_type "mamba2", or state-spaces' ssm_cfg {"layer": "Mamba2"}).

config.json is the public one, in either form:
  transformers: hidden_size, num_hidden_layers, num_heads, head_dim, n_groups, state_size, expand,
    conv_kernel, layer_norm_epsilon, time_step_limit, use_bias, use_conv_bias, vocab_size,
    tie_word_embeddings. norm_before_gate means nothing: the gate comes first.
  state-spaces: d_model, n_layer, vocab_size, pad_vocab_size_multiple, tie_embeddings and
    ssm_cfg {layer, d_state, d_conv, expand, headdim, ngroups, dt_limit}.
Tensors: backbone.embeddings.weight (state-spaces: backbone.embedding.weight), backbone.norm_f.weight,
lm_head.weight unless tied, and for each layer norm.weight, mixer.{in_proj.weight (z, x, B, C, dt),
conv1d.weight, conv1d.bias (of x, B, C), dt_bias, A_log, D (of heads), norm.weight, out_proj.weight};
Codestral's consolidated file has "model." before each. Golden states: conv [layers, DI + 2 G N,
width - 1], oldest first; h [layers, H, P, N].

    z xBC dt = Win rms(residual);  x B C = silu(conv(xBC) + b);  dt = clamp(softplus(dt + dt_bias))
    h = exp(dt A) h + dt x B^T;  y = h C + D x;  out = Wout (rms_of_each_group(y silu(z)) w)
"""

import dataclasses

import numpy as np

from weights_tools.families import common


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    layers: int
    vocab: int
    H: int
    P: int = 64
    G: int = 1
    N: int = 128
    width: int = 4
    eps: float = 1e-5
    gate_eps: float = 1e-5
    dt_min: float = 0.0
    dt_max: float = float("inf")
    tied: bool = True
    bias: bool = False
    conv_bias: bool = True
    embedding: str = "backbone.embeddings.weight"

    @property
    def DI(self):
        return self.H * self.P

    @property
    def conv_width(self):
        return self.DI + 2 * self.G * self.N


def config_from_dict(values):
    if "hidden_size" in values:
        head = values.get("head_dim", 64)
        eps = values.get("layer_norm_epsilon", 1e-5)
        low, high = values.get("time_step_limit", (0.0, float("inf")))
        return Config(
            D=values["hidden_size"],
            layers=values["num_hidden_layers"],
            vocab=values["vocab_size"],
            H=int(values["hidden_size"] * values.get("expand", 2)) // head,
            P=head,
            G=values.get("n_groups", 8),
            N=values.get("state_size", 128),
            width=values.get("conv_kernel", 4),
            eps=eps,
            gate_eps=eps,
            dt_min=low,
            dt_max=high,
            tied=values.get("tie_word_embeddings", False),
            bias=values.get("use_bias", False),
            conv_bias=values.get("use_conv_bias", True),
        )
    ssm = values["ssm_cfg"]
    if ssm.get("layer") != "Mamba2" or values.get("attn_layer_idx"):
        raise ValueError(f"ssm_cfg.layer {ssm.get('layer')} or attention layers are not Mamba-2")
    head = ssm.get("headdim", 64)
    low, high = ssm.get("dt_limit", (0.0, float("inf")))
    return Config(
        D=values["d_model"],
        layers=values["n_layer"],
        vocab=common.round_up(values["vocab_size"], values.get("pad_vocab_size_multiple", 8)),
        H=int(values["d_model"] * ssm.get("expand", 2)) // head,
        P=head,
        G=ssm.get("ngroups", 1),
        N=ssm.get("d_state", 128),
        width=ssm.get("d_conv", 4),
        dt_min=low,
        dt_max=high,
        tied=values.get("tie_embeddings", True),
        bias=ssm.get("bias", False),
        conv_bias=ssm.get("conv_bias", True),
        embedding="backbone.embedding.weight",
    )


def mixer_shapes(config):
    """Of the tensors of one mixer."""
    c = config
    rows = c.DI + c.conv_width + c.H
    shapes = {"in_proj.weight": (rows, c.D), "conv1d.weight": (c.conv_width, 1, c.width)}
    shapes |= {"dt_bias": (c.H,), "A_log": (c.H,), "D": (c.H,)}
    shapes |= {"norm.weight": (c.DI,), "out_proj.weight": (c.D, c.DI)}
    shapes |= {"conv1d.bias": (c.conv_width,)} if c.conv_bias else {}
    return shapes | ({"in_proj.bias": (rows,), "out_proj.bias": (c.D,)} if c.bias else {})


def tensor_shapes(config):
    c = config
    shapes = {c.embedding: (c.vocab, c.D), "backbone.norm_f.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i in range(c.layers):
        p = f"backbone.layers.{i}."
        shapes[p + "norm.weight"] = (c.D,)
        shapes |= {f"{p}mixer.{name}": shape for name, shape in mixer_shapes(c).items()}
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """matrix_bytes: of a value of h. And width - 1 columns of the convolution in bf16."""
    c = config
    return c.layers * (matrix_bytes * c.DI * c.N + 2 * c.conv_width * (c.width - 1))


def flops_of_mixer(config, chunk):
    """Of one mixer for a prompt's token outside the weights, in chunks of so many, full squares counted."""
    c = config
    return 2 * chunk * (c.N * c.G + c.DI) + 4 * c.N * c.DI


def mixer_flops(config, chunk):
    return config.layers * flops_of_mixer(config, chunk)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def mixer(c, w, y, conv, h):
    """One token. conv [DI + 2 G N, width - 1] and h [H, P, N] are changed in place. Without norm.weight: the gate alone."""
    inside = w["in_proj.weight"] @ y + w.get("in_proj.bias", 0)
    z, xBC, dt = np.split(inside, [c.DI, c.DI + c.conv_width])
    xBC = common.silu(common.convolve(w["conv1d.weight"], w.get("conv1d.bias", 0), xBC, conv))
    x, B, C = np.split(xBC, [c.DI, c.DI + c.G * c.N])
    x = x.reshape(c.H, c.P)
    B, C = (np.repeat(v.reshape(c.G, c.N), c.H // c.G, 0) for v in (B, C))
    dt = np.clip(np.logaddexp(0, dt + w["dt_bias"]), c.dt_min, c.dt_max)
    decay = np.exp(-np.exp(w["A_log"]) * dt)
    h[:] = decay[:, None, None] * h + (dt[:, None] * x)[:, :, None] * B[:, None, :]
    v = np.einsum("hpn,hn->hp", h, C) + w["D"][:, None] * x
    v = (v.reshape(-1) * common.silu(z)).reshape(c.G, -1)
    if "norm.weight" in w:
        v = common.rms(v, 1.0, c.gate_eps) * w["norm.weight"].reshape(c.G, -1)
    return w["out_proj.weight"] @ v.reshape(-1) + w.get("out_proj.bias", 0)


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c = config
    weights = {n.removeprefix("model."): t.float32().astype(np.float64) for n, t in tensors.items()}
    conv = np.zeros((c.layers, c.conv_width, c.width - 1))
    h = np.zeros((c.layers, c.H, c.P, c.N))
    layers = [common.under(weights, f"backbone.layers.{i}.") for i in range(c.layers)]
    mixers = [common.under(layer, "mixer.") for layer in layers]
    head = weights[c.embedding] if c.tied else weights["lm_head.weight"]
    logits = []
    for token in tokens:
        x = weights[c.embedding][token]
        for i in range(c.layers):
            y = common.rms(x, layers[i]["norm.weight"], c.eps)
            x = x + mixer(c, mixers[i], y, conv[i], h[i])
        logits.append(head @ common.rms(x, weights["backbone.norm_f.weight"], c.eps))
    return np.array(logits), {"conv": conv, "h": h}
