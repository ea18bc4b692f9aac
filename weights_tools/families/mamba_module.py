"""Mamba and Mamba-2 as PyTorch modules for training."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from weights_tools.families import mamba_scan
from weights_tools.families.language_model import LanguageModel, RMSNorm, convolve, depthwise, drop
from weights_tools.families.linear_attention import linear_attention


@torch.no_grad()
def time_step_bias(bias):
    """So that softplus gives 0.001 to 0.1, log-uniform."""
    dt = torch.exp(torch.rand_like(bias) * math.log(100) + math.log(0.001))
    bias.copy_(dt + torch.log(-torch.expm1(-dt)))


class MambaMixer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.in_proj = nn.Linear(c.D, 2 * c.DI, bias=False)
        self.conv1d = depthwise(c.DI, c.width)
        self.x_proj = nn.Linear(c.DI, c.R + 2 * c.N, bias=False)
        self.dt_proj = nn.Linear(c.R, c.DI)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, c.N + 1).repeat(c.DI, 1)))
        self.D = nn.Parameter(torch.ones(c.DI))
        self.out_proj = nn.Linear(c.DI, c.D, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(c.R**-0.5), c.R**-0.5)
        time_step_bias(self.dt_proj.bias)

    def forward(self, y, state):
        c, (conv, h) = self.c, state
        x, z = self.in_proj(y).chunk(2, -1)
        x, conv = convolve(self.conv1d, x, conv)
        x = F.silu(x)
        low, B, C = self.x_proj(x).split([c.R, c.N, c.N], -1)
        with torch.autocast(y.device.type, enabled=False):
            dt = F.softplus(self.dt_proj(low.float()))
            v, h = mamba_scan.selective_scan(x, dt, -torch.exp(self.A_log), B.float(), C.float(), h)
            v = (v + self.D * x) * F.silu(z.float())
        return self.out_proj(v), (conv, h)


class Mamba2Mixer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.in_proj = nn.Linear(c.D, c.DI + c.conv_width + c.H, bias=False)
        self.conv1d = depthwise(c.conv_width, c.width)
        self.dt_bias = nn.Parameter(torch.empty(c.H))
        self.A_log = nn.Parameter(torch.log(torch.empty(c.H).uniform_(1, 16)))
        self.D = nn.Parameter(torch.ones(c.H))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(c.DI))
        self.out_proj = nn.Linear(c.DI, c.D, bias=False)
        time_step_bias(self.dt_bias)

    def forward(self, y, state):
        c, (conv, h) = self.c, state
        z, xBC, dt = self.in_proj(y).split([c.DI, c.conv_width, c.H], -1)
        xBC, conv = convolve(self.conv1d, xBC, conv)
        x, B, C = F.silu(xBC).split([c.DI, c.N, c.N], -1)
        with torch.autocast(y.device.type, enabled=False):
            dt = F.softplus(dt.float() + self.dt_bias)
            x = x.unflatten(-1, (c.H, c.P))
            log_decay = (-torch.exp(self.A_log) * dt).transpose(1, 2)[..., None]
            v, h = linear_attention(
                C[:, None], B[:, None], (x * dt[..., None]).transpose(1, 2), log_decay, h, 64
            )
            v = (v.transpose(1, 2) + self.D[:, None] * x).flatten(-2) * F.silu(z.float())
            v = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + c.gate_eps) * self.norm.weight
        return self.out_proj(v), (conv, h)


class MambaBlock(nn.Module):
    def __init__(self, c, mixer):
        super().__init__()
        self.norm = RMSNorm(c.D, c.eps)
        self.mixer = mixer(c)

    def forward(self, x, state, rate):
        y, state = self.mixer(self.norm(x), state)
        return x + drop(y, rate), state


class MambaLM(LanguageModel):
    """Mamba and Mamba-2, after their configs."""

    def __init__(self, c, dropout=0.0):
        super().__init__(dropout)
        self.config = c
        self.second = hasattr(c, "H")
        mixer = Mamba2Mixer if self.second else MambaMixer
        self.backbone = nn.Module()
        self.backbone.embeddings = nn.Embedding(c.vocab, c.D)
        self.backbone.layers = nn.ModuleList([MambaBlock(c, mixer) for _ in range(c.layers)])
        self.backbone.norm_f = RMSNorm(c.D, c.eps)
        self.small_matrices(c.D, c.layers, ("out_proj.weight",))

    def check_kernels(self):
        if not self.second:
            mamba_scan.check_kernel(self.rate.device)

    def zero_state(self, batch):
        c, zeros = self.config, self.backbone.norm_f.weight.new_zeros
        if self.second:
            return [
                (zeros(batch, c.conv_width, c.width - 1), zeros(batch, c.H, c.N, c.P))
                for _ in range(c.layers)
            ]
        shapes = ((batch, c.DI, c.width - 1), (batch, c.DI, c.N))
        return [tuple(zeros(*shape) for shape in shapes) for _ in range(c.layers)]

    def forward(self, tokens, state):
        b = self.backbone
        x, state = self.walk(b.embeddings.weight, b.layers, b.norm_f, tokens, state)
        return F.linear(x, b.embeddings.weight).float(), state
