"""The xLSTM forward pass as a step recurrence in PyTorch: the oracle of the golden files.

Plain equations, one token at a time, in the dtype of the weights it is given; the chunkwise form
that trains the model (xlstm_module.py) is a different program and is compared with this one.

    y = RMSNorm(x; norm_mlstm);  q k v o~ = W y;  i = cap(Wi y + bi);  f = cap(Wf y + bf)
    m' = max(logsig(f) + m, i);  F = exp(logsig(f) + m - m');  I = exp(i - m')
    C' = F C + I k v^T;  n' = F n + I k;  qs = q / sqrt(DK)
    h  = C'^T qs / (max(|qs . n'|, exp(-m')) + eps)
    sigmoid input gate: F = sig(f), I = sig(i), no m, max(|qs . n'|, 1) + eps or no division at all
    x += Wout(sigmoid(o~) * LayerNorm_head(h) * w);  y = RMSNorm(x; norm_ffn)
    x += Wdown(silu(Wgate y) * (Wup y));  logits = cap(Wlm RMSNorm(x; out_norm))
"""

import torch

from weights_tools.families import xlstm


def soft_cap(x, cap):
    return cap * torch.tanh(x / cap)


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def head_norm(h, weight, eps):
    """h [H, DV]: layer norm within each head, biased variance, weight [H*DV], no bias."""
    centred = h - h.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return (centred * torch.rsqrt(variance + eps)).reshape(-1) * weight


def zero_state(config, dtype=torch.float64):
    """Per block: C [H, DK, DV], n [H, DK], m [H]; all zero, m included, whether used or not."""
    h, dk, dv = config.num_heads, config.qk_head, config.v_head
    return [
        [
            torch.zeros(h, dk, dv, dtype=dtype),
            torch.zeros(h, dk, dtype=dtype),
            torch.zeros(h, dtype=dtype),
        ]
        for _ in range(config.num_blocks)
    ]


def exponential_gates(i, f, m_old):
    """-> m, F and I, each [H]."""
    log_f = torch.nn.functional.logsigmoid(f)
    m = torch.maximum(log_f + m_old, i)
    return m, torch.exp(log_f + m_old - m), torch.exp(i - m)


def cell(config, q, k, v, i, f, state):
    """q k [H, DK], v [H, DV], i f [H] after the cap; updates state, returns h [H, DV]."""
    c_old, n_old, m_old = state
    if config.sigmoid_gate:
        m, keep, write = m_old, torch.sigmoid(f), torch.sigmoid(i)
    else:
        m, keep, write = exponential_gates(i, f, m_old)
    c = keep[:, None, None] * c_old + write[:, None, None] * (k[:, :, None] * v[:, None, :])
    n = keep[:, None] * n_old + write[:, None] * k
    state[:] = [c, n, m]
    scaled = q / config.qk_head**0.5
    numerator = torch.einsum("hk,hkv->hv", scaled, c)
    if config.sigmoid_gate and not config.normalize_siging:
        return numerator
    # With a sigmoid gate m stays 0.
    denominator = torch.maximum((scaled * n).sum(-1).abs(), torch.exp(-m)) + config.eps
    return numerator / denominator[:, None]


def block(config, w, x, state):
    """w: the block's tensors by their short names; x [D]."""
    heads = config.num_heads
    y = rms_norm(x, w["norm_mlstm.weight"], config.norm_eps)
    q, k, v = ((w[f"mlstm_layer.{name}.weight"] @ y).reshape(heads, -1) for name in ("q", "k", "v"))
    i, f = (
        soft_cap(
            w[f"mlstm_layer.{g}gate_preact.weight"] @ y + w[f"mlstm_layer.{g}gate_preact.bias"],
            config.gate_soft_cap,
        )
        for g in ("i", "f")
    )
    h = head_norm(
        cell(config, q, k, v, i, f, state), w["mlstm_layer.multihead_norm.weight"], config.norm_eps
    )
    gate = torch.sigmoid(w["mlstm_layer.ogate_preact.weight"] @ y)
    x = x + w["mlstm_layer.out_proj.weight"] @ (gate * h)
    y = rms_norm(x, w["norm_ffn.weight"], config.norm_eps)
    up = torch.nn.functional.silu(w["ffn.proj_up_gate.weight"] @ y) * (w["ffn.proj_up.weight"] @ y)
    return x + w["ffn.proj_down.weight"] @ up


def run(config, tensors, tokens, state=None):
    """tensors: name -> torch tensor (either weight mode). -> logits [T, V], state after."""
    tensors = xlstm.unfuse(tensors, config)
    embedding = tensors["backbone.embeddings.weight"]
    head = embedding if config.tie_word_embeddings else tensors["lm_head.weight"]
    prefixes = [f"backbone.blocks.{i}." for i in range(config.num_blocks)]
    blocks = [{n[len(p) :]: t for n, t in tensors.items() if n.startswith(p)} for p in prefixes]
    state = state or zero_state(config, embedding.dtype)
    logits = []
    for token in tokens:
        x = embedding[int(token)]
        for weights, block_state in zip(blocks, state):
            x = block(config, weights, x, block_state)
        x = rms_norm(x, tensors["backbone.out_norm.weight"], config.norm_eps)
        logits.append(soft_cap(head @ x, config.output_logit_soft_cap))
    return torch.stack(logits), state
