"""Mamba and Falcon Mamba (model_type "mamba", "falcon_mamba"; state-spaces' config has none).

config.json is the public one, in either form:
  transformers: hidden_size, num_hidden_layers, intermediate_size, state_size, conv_kernel,
    time_step_rank, layer_norm_epsilon, use_bias, use_conv_bias, vocab_size, tie_word_embeddings;
    falcon_mamba also mixer_rms_eps (1e-6), and its expand means nothing.
  state-spaces: d_model, n_layer, vocab_size, pad_vocab_size_multiple, tie_embeddings and
    ssm_cfg {d_state, d_conv, expand, dt_rank}.
Tensors: backbone.embeddings.weight (state-spaces: backbone.embedding.weight), backbone.norm_f.weight,
lm_head.weight unless tied, and for each layer norm.weight, mixer.{in_proj.weight (x, then z),
conv1d.weight, conv1d.bias, x_proj.weight (dt, B, C), dt_proj.weight, dt_proj.bias, A_log, D,
out_proj.weight}. Golden states: conv [layers, DI, width - 1], oldest first; h [layers, DI, N].

    x z = Win rms(residual);  x = silu(conv(x) + b);  dl B C = Wx x  (falcon: each divided by its rms)
    dt = softplus(Wdt dl + bdt);  h = exp(dt A) h + dt B x;  y = (C . h + D x) silu(z);  out = Wout y
"""

import dataclasses

import numpy as np

from weights_tools.families import common

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ("dt_proj", "A_log")


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    layers: int
    vocab: int
    DI: int
    N: int = 16
    R: int = 1
    width: int = 4
    eps: float = 1e-5
    mixer_eps: float = 0.0  # falcon_mamba: of the norms of dt, B and C
    tied: bool = True
    bias: bool = False
    conv_bias: bool = True
    embedding: str = "backbone.embeddings.weight"


def config_from_dict(values):
    if "hidden_size" in values:
        D = values["hidden_size"]
        rank = values.get("time_step_rank", "auto")
        falcon = values.get("model_type") == "falcon_mamba"
        return Config(
            D=D,
            layers=values["num_hidden_layers"],
            vocab=values["vocab_size"],
            DI=values.get("intermediate_size") or int(D * values.get("expand", 2)),
            N=values.get("state_size", 16),
            R=-(-D // 16) if rank == "auto" else rank,
            width=values.get("conv_kernel", 4),
            eps=values.get("layer_norm_epsilon", 1e-5),
            mixer_eps=values.get("mixer_rms_eps", 1e-6) if falcon else 0.0,
            tied=values.get("tie_word_embeddings", True),
            bias=values.get("use_bias", False),
            conv_bias=values.get("use_conv_bias", True),
        )
    ssm = values.get("ssm_cfg", {})
    if ssm.get("layer", "Mamba1") != "Mamba1" or values.get("attn_layer_idx"):
        raise ValueError(f"ssm_cfg.layer {ssm.get('layer')} or attention layers are not Mamba")
    D, rank = values["d_model"], ssm.get("dt_rank", "auto")
    return Config(
        D=D,
        layers=values["n_layer"],
        vocab=common.round_up(values["vocab_size"], values.get("pad_vocab_size_multiple", 8)),
        DI=int(D * ssm.get("expand", 2)),
        N=ssm.get("d_state", 16),
        R=-(-D // 16) if rank == "auto" else rank,
        width=ssm.get("d_conv", 4),
        tied=values.get("tie_embeddings", True),
        bias=ssm.get("bias", False),
        conv_bias=ssm.get("conv_bias", True),
        embedding="backbone.embedding.weight",
    )


def tensor_shapes(config):
    c = config
    shapes = {c.embedding: (c.vocab, c.D), "backbone.norm_f.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i in range(c.layers):
        p = f"backbone.layers.{i}."
        shapes[p + "norm.weight"] = (c.D,)
        m = p + "mixer."
        shapes[m + "in_proj.weight"] = (2 * c.DI, c.D)
        shapes[m + "conv1d.weight"] = (c.DI, 1, c.width)
        if c.conv_bias:
            shapes[m + "conv1d.bias"] = (c.DI,)
        shapes[m + "x_proj.weight"] = (c.R + 2 * c.N, c.DI)
        shapes[m + "dt_proj.weight"] = (c.DI, c.R)
        shapes[m + "dt_proj.bias"] = (c.DI,)
        shapes[m + "A_log"] = (c.DI, c.N)
        shapes[m + "D"] = (c.DI,)
        shapes[m + "out_proj.weight"] = (c.D, c.DI)
        if c.bias:
            shapes[m + "in_proj.bias"], shapes[m + "out_proj.bias"] = (2 * c.DI,), (c.D,)
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """matrix_bytes: of a value of h. And width - 1 columns of the convolution in bf16."""
    c = config
    return c.layers * c.DI * (matrix_bytes * c.N + 2 * (c.width - 1))


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights; the scan takes 7 an element of the state."""
    del chunk
    return 7 * config.layers * config.DI * config.N


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def mixer(c, w, y, conv, h):
    """One token. conv [DI, width - 1] and h [DI, N] are changed in place."""
    x, z = np.split(w["in_proj.weight"] @ y + w.get("in_proj.bias", 0), 2)
    x = common.silu(common.convolve(w["conv1d.weight"], w.get("conv1d.bias", 0), x, conv))
    low, B, C = np.split(w["x_proj.weight"] @ x, [c.R, c.R + c.N])
    if c.mixer_eps:
        low, B, C = (common.rms(v, 1.0, c.mixer_eps) for v in (low, B, C))
    dt = np.logaddexp(0, w["dt_proj.weight"] @ low + w["dt_proj.bias"])
    h[:] = np.exp(-np.exp(w["A_log"]) * dt[:, None]) * h + (dt * x)[:, None] * B
    y = (h @ C + w["D"] * x) * common.silu(z)
    return w["out_proj.weight"] @ y + w.get("out_proj.bias", 0)


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c = config
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    conv = np.zeros((c.layers, c.DI, c.width - 1))
    h = np.zeros((c.layers, c.DI, c.N))
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
