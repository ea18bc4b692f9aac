"""Qwen3.5 as a PyTorch module for training. Keys and values of all tokens before are part of the state."""

import torch
from torch import nn
from torch.nn import functional as F

from weights_tools.families.delta_rule import delta_rule
from weights_tools.families.language_model import LanguageModel, RMSNorm, convolve, drop
from weights_tools.families.mamba_module import time_step_bias
from weights_tools.families.qwen3_5 import LENGTH_EPS

CHUNK = 64


class Norm(RMSNorm):
    """An RMS norm whose factor is 1 more than its weight."""

    def __init__(self, size, eps):
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class DeltaMixer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.in_proj_qkv = nn.Linear(c.D, c.channels, bias=False)
        self.in_proj_z = nn.Linear(c.D, c.H * c.DV, bias=False)
        self.in_proj_b = nn.Linear(c.D, c.H, bias=False)
        self.in_proj_a = nn.Linear(c.D, c.H, bias=False)
        self.conv1d = nn.Conv1d(c.channels, c.channels, c.width, groups=c.channels, bias=False)
        self.A_log = nn.Parameter(torch.log(torch.empty(c.H).uniform_(1, 16)))
        self.dt_bias = nn.Parameter(torch.empty(c.H))
        self.norm = RMSNorm(c.DV, c.eps)
        self.out_proj = nn.Linear(c.H * c.DV, c.D, bias=False)
        time_step_bias(self.dt_bias)

    def forward(self, y, state):
        c, (conv, S) = self.c, state
        joined, conv = convolve(self.conv1d, self.in_proj_qkv(y), conv)
        q, k, v = F.silu(joined).split([c.HK * c.DK, c.HK * c.DK, c.H * c.DV], -1)
        with torch.autocast(y.device.type, enabled=False):
            q, k, v = (x.unflatten(-1, (h, -1)).transpose(1, 2) for x, h in ((q, c.HK), (k, c.HK), (v, c.H)))
            q, k = (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + LENGTH_EPS) for x in (q, k))
            q, k = (x.repeat_interleave(c.H // c.HK, 1) for x in (q * c.DK**-0.5, k))
            beta = torch.sigmoid(self.in_proj_b(y.float()))
            g = -torch.exp(self.A_log) * F.softplus(self.in_proj_a(y.float()) + self.dt_bias)
            o, S = delta_rule(q, k, v, beta.transpose(1, 2), g.transpose(1, 2), S, CHUNK)
            o = self.norm(o.transpose(1, 2)).flatten(-2)
        return self.out_proj(o * F.silu(self.in_proj_z(y))), (conv, S)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.D, 2 * c.QH * c.head, bias=False)
        self.k_proj = nn.Linear(c.D, c.KVH * c.head, bias=False)
        self.v_proj = nn.Linear(c.D, c.KVH * c.head, bias=False)
        self.o_proj = nn.Linear(c.QH * c.head, c.D, bias=False)
        self.q_norm = Norm(c.head, c.eps)
        self.k_norm = Norm(c.head, c.eps)

    def forward(self, y, state):
        c, (keys, values) = self.c, state
        q, k, v = (
            f(y).unflatten(-1, (heads, -1))
            for f, heads in ((self.q_proj, c.QH), (self.k_proj, c.KVH), (self.v_proj, c.KVH))
        )
        q, gate = q.split(c.head, -1)
        past, count = keys.shape[2], y.shape[1]
        cos, sin = self.angles(past, count, y.device)
        q, k = (turned(norm(x), cos, sin).transpose(1, 2) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v.float().transpose(1, 2)], 2)
        wide = [x.repeat_interleave(c.QH // c.KVH, 1) for x in (k, v)]
        seen = None
        if past:
            seen = torch.ones(count, past + count, dtype=torch.bool, device=y.device).tril(past)
        o = F.scaled_dot_product_attention(q, *wide, attn_mask=seen, is_causal=past == 0)
        o = o.transpose(1, 2) * torch.sigmoid(gate.float())
        return self.o_proj(o.flatten(-2)), (k.detach(), v.detach())

    def angles(self, past, count, device):
        """-> cos, sin [count, 1, half of the turned channels]."""
        n = self.c.turned
        powers = torch.arange(0, n, 2, dtype=torch.float32, device=device) / n
        positions = torch.arange(past, past + count, dtype=torch.float32, device=device)
        angle = (positions[:, None] / self.c.theta**powers)[:, None]
        return torch.cos(angle), torch.sin(angle)


def turned(x, cos, sin):
    """x [B, T, heads, head]: pairs (j, j + n / 2) of the first n channels."""
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.D, c.F, bias=False)
        self.up_proj = nn.Linear(c.D, c.F, bias=False)
        self.down_proj = nn.Linear(c.F, c.D, bias=False)

    def forward(self, y):
        return self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Block(nn.Module):
    def __init__(self, c, attends):
        super().__init__()
        self.attends = attends
        if attends:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = DeltaMixer(c)
        self.mlp = Mlp(c)
        self.input_layernorm = Norm(c.D, c.eps)
        self.post_attention_layernorm = Norm(c.D, c.eps)

    def forward(self, x, state, rate):
        mixer = self.self_attn if self.attends else self.linear_attn
        y, state = mixer(self.input_layernorm(x), state)
        x = x + drop(y, rate)
        return x + drop(self.mlp(self.post_attention_layernorm(x)), rate), state


class Qwen35LM(LanguageModel):
    """Without biases of attention, with a tied head."""

    def __init__(self, c, dropout=0.0):
        super().__init__(dropout)
        self.config = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab, c.D)
        self.model.layers = nn.ModuleList([Block(c, c.attends(i)) for i in range(c.layers)])
        self.model.norm = Norm(c.D, c.eps)
        self.small_matrices(c.D, c.layers, ("o_proj.weight", "out_proj.weight", "down_proj.weight"))

    def zero_state(self, batch):
        c, zeros = self.config, self.model.norm.weight.new_zeros
        pages = [(zeros(batch, c.KVH, 0, c.head), zeros(batch, c.KVH, 0, c.head))]
        delta = [(zeros(batch, c.channels, c.width - 1), zeros(batch, c.H, c.DK, c.DV))]
        return [state for i in range(c.layers) for state in (pages if c.attends(i) else delta)]

    def forward(self, tokens, state):
        m = self.model
        x, state = self.walk(m.embed_tokens.weight, m.layers, m.norm, tokens, state)
        return F.linear(x, m.embed_tokens.weight).float(), state
