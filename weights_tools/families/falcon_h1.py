"""Falcon-H1 (model_type "falcon_h1"), with the config and names of the Hub.

A block is Mamba-2 and attention in parallel, then a gated MLP. Tensors: model.embed_tokens.weight,
model.final_layernorm.weight, lm_head.weight unless tied, and for each layer input_layernorm, pre_ff_layernorm,
mamba.{in_proj, conv1d, dt_bias, A_log, D, norm if mamba_rms_norm, out_proj} as mamba2.py has them,
self_attn.{q,k,v,o}_proj and feed_forward.{gate,up,down}_proj.
Golden states: conv [layers, channels, width - 1], oldest first; h [layers, H, P, N]; keys and values [layers, T, KV heads,
head]; position I32 [1]. They are those of the server, which multiplies at other places than the source, see in_its_scale().

    x = m_embedding E[token];  y = rms(x) w
    x = x + m_ssm_out mamba(m_ssm_in y) + m_attention_out attention(m_attention_in y), in_proj's rows times ssm_multipliers,
        keys times m_key, and what out_proj reads y silu(z), or rms_of_each_group(y silu(z)) w
    x = x + m_down Wdown(silu(m_gate gate) up), of rms(x) w;  logits = m_lm_head head (rms(x) w)
"""

import dataclasses

import numpy as np

from weights_tools.families import common, granite_hybrid, mamba2

# In the names of matrices that other ops than linear layers read, which quantize leaves as they are.
OTHER_OPS = ()


@dataclasses.dataclass(frozen=True)
class Config:
    D: int
    layers: int
    vocab: int
    F: int
    QH: int  # heads of queries in attention
    KVH: int
    head: int
    mamba: mamba2.Config
    gate_norm: bool = False
    eps: float = 1e-5
    theta: float = 10000.0
    tied: bool = False
    embedding: float = 1.0  # multipliers, as in the config
    lm_head: float = 1.0
    key: float = 1.0
    attention_in: float = 1.0
    attention_out: float = 1.0
    ssm_in: float = 1.0
    ssm_out: float = 1.0
    ssm: tuple = (1.0,) * 5  # z, x, B, C, dt
    mlp: tuple = (1.0,) * 2  # gate, down
    rope: bool = True  # granite_hybrid.attention() asks

    @property
    def attention_multiplier(self):
        return self.head**-0.5


def config_from_dict(values):
    get, D = values.get, values["hidden_size"]
    for name in ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"):
        if get(name):
            raise ValueError(f"{name}: wanted false")
    low, high = get("time_step_limit") or (0.0, float("inf"))
    eps, H, QH = get("rms_norm_eps", 1e-5), get("mamba_n_heads", 128), get("num_attention_heads", 32)
    inner = get("mamba_d_ssm", 1024)
    inner = get("mamba_expand", 2) * D if inner is None else inner
    rope = get("rope_parameters") or {}
    mamba = mamba2.Config(
        D=D,
        layers=0,
        vocab=0,
        H=H,
        P=inner // H,
        G=get("mamba_n_groups", 1),
        N=get("mamba_d_state", 256),
        width=get("mamba_d_conv", 4),
        eps=eps,
        gate_eps=eps,
        dt_min=low,
        dt_max=high,
        conv_bias=get("mamba_conv_bias", True),
    )
    return Config(
        D=D,
        layers=get("num_hidden_layers", 32),
        vocab=values["vocab_size"],
        F=get("intermediate_size", 14336),
        QH=QH,
        KVH=get("num_key_value_heads", 8) or QH,
        head=get("head_dim") or D // QH,
        mamba=mamba,
        gate_norm=get("mamba_rms_norm", False),
        eps=eps,
        theta=rope.get("rope_theta", get("rope_theta", 10000.0)),
        tied=get("tie_word_embeddings", False),
        embedding=get("embedding_multiplier", 1.0),
        lm_head=get("lm_head_multiplier", 1.0),
        key=get("key_multiplier", 1.0),
        attention_in=get("attention_in_multiplier", 1.0),
        attention_out=get("attention_out_multiplier", 1.0),
        ssm_in=get("ssm_in_multiplier", 1.0),
        ssm_out=get("ssm_out_multiplier", 1.0),
        ssm=tuple(get("ssm_multipliers") or (1.0,) * 5),
        mlp=tuple(get("mlp_multipliers") or (1.0,) * 2),
    )


def layer_shapes(config):
    c = config
    queries, keys = c.QH * c.head, c.KVH * c.head
    shapes = {"input_layernorm.weight": (c.D,), "pre_ff_layernorm.weight": (c.D,)}
    shapes |= {f"self_attn.{n}_proj.weight": (rows, c.D) for n, rows in (("q", queries), ("k", keys), ("v", keys))}
    shapes |= {"self_attn.o_proj.weight": (c.D, queries), "feed_forward.down_proj.weight": (c.D, c.F)}
    shapes |= {f"feed_forward.{n}_proj.weight": (c.F, c.D) for n in ("gate", "up")}
    mixer = mamba2.mixer_shapes(c.mamba)
    if not c.gate_norm:
        del mixer["norm.weight"]
    return shapes | {"mamba." + name: shape for name, shape in mixer.items()}


def tensor_shapes(config):
    c = config
    shapes = {"model.embed_tokens.weight": (c.vocab, c.D), "model.final_layernorm.weight": (c.D,)}
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.D)
    for i in range(c.layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer_shapes(c).items()}
    return shapes


def parameters(config):
    return common.count(tensor_shapes(config))


def state_bytes(config, matrix_bytes=4):
    """The part of a fixed size; matrix_bytes: of a value of h."""
    m = config.mamba
    return config.layers * (matrix_bytes * m.DI * m.N + 4 * m.conv_width * (m.width - 1))


def state_bytes_of_token(config, value_bytes=2):
    """Keys and values; value_bytes: of one of their values."""
    return config.layers * 2 * config.KVH * config.head * value_bytes


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, without attention, whose work follows the length of the prompt."""
    return config.layers * mamba2.flops_of_mixer(config.mamba, chunk)


def decode_weight_bytes(config, bytes_per_weight=2):
    embedding = 0 if config.tied else config.vocab * config.D
    return bytes_per_weight * (parameters(config) - embedding)


def parts(config, multipliers):
    """One number for each of z, x, B, C, dt -> one for each row of in_proj."""
    m = config.mamba
    return np.repeat(multipliers, (m.DI, m.DI, m.G * m.N, m.G * m.N, m.H))


def in_its_scale(config, state):
    """The states of the source as the server stores them. Its convolution reads rows that have all been multiplied as z,
    and its keys and values are multiplied with m_attention_out m_gate / m_down, as what attention adds is, but not with m_key."""
    c, m = config, config.mamba
    channels = parts(c, c.ssm)[m.DI : m.DI + m.conv_width]
    added = c.attention_out * c.mlp[0] / c.mlp[1]
    changed = {"conv": state["conv"] * (c.ssm[0] / channels)[:, None], "values": state["values"] * added}
    return state | changed | {"keys": state["keys"] * (added / c.key)}


def feed_forward(c, w, z):
    gate = common.silu(c.mlp[0] * (w["gate_proj.weight"] @ z))
    return c.mlp[1] * (w["down_proj.weight"] @ (gate * (w["up_proj.weight"] @ z)))


def run(config, tensors, tokens):
    """The step recurrence in fp64. tensors: name -> Tensor. -> logits [T, V], states."""
    c, m = config, config.mamba
    weights = {n: t.float32().astype(np.float64) for n, t in tensors.items()}
    h = np.zeros((c.layers, m.H, m.P, m.N))
    conv = np.zeros((c.layers, m.conv_width, m.width - 1))
    keys, values = [[] for _ in range(c.layers)], [[] for _ in range(c.layers)]
    layers = [common.under(weights, f"model.layers.{i}.") for i in range(c.layers)]
    mixers, attends, mlps = ([common.under(w, n) for w in layers] for n in ("mamba.", "self_attn.", "feed_forward."))
    for mixer, attention in zip(mixers, attends):
        mixer["in_proj.weight"] = mixer["in_proj.weight"] * parts(c, c.ssm)[:, None]
        attention["k_proj.weight"] = attention["k_proj.weight"] * c.key
    table = weights["model.embed_tokens.weight"]
    head = table if c.tied else weights["lm_head.weight"]
    logits = []
    for token in tokens:
        x = table[token] * c.embedding
        for i in range(c.layers):
            y = common.rms(x, layers[i]["input_layernorm.weight"], c.eps)
            mixed = c.ssm_out * mamba2.mixer(m, mixers[i], c.ssm_in * y, conv[i], h[i])
            attended = granite_hybrid.attention(c, attends[i], c.attention_in * y, keys[i], values[i])
            x = x + mixed + c.attention_out * attended
            x = x + feed_forward(c, mlps[i], common.rms(x, layers[i]["pre_ff_layernorm.weight"], c.eps))
        logits.append(c.lm_head * (head @ common.rms(x, weights["model.final_layernorm.weight"], c.eps)))
    states = {"conv": conv, "h": h, "keys": np.array(keys), "values": np.array(values)}
    return np.array(logits), in_its_scale(c, states) | {"position": np.array([len(tokens)], np.int32)}
