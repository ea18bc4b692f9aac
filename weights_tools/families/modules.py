"""Mamba, Mamba-2, GLA and the research xLSTM as PyTorch modules for training, with carried states."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from weights_tools.families import mamba_scan, slstm_scan
from weights_tools.families.language_model import (
    LanguageModel,
    RMSNorm,
    convolve,
    depthwise,
    drop,
)
from weights_tools.families.xlstm_module import mlstm_chunkwise


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


def linear_attention(q, k, v, log_decay, S, chunk):
    """q k [B, H or 1, T, K], v [B, H, T, V], log_decay [B, H, T, K or 1], S [B, H, K, V]."""
    B, H, T, V = v.shape
    chunk = min(chunk, T)
    chunks = T // chunk
    q, k, v, g = (x.unflatten(2, (chunks, chunk)) for x in (q, k, v, log_decay))
    G = g.cumsum(3)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    if g.shape[-1] == 1:  # a decay of the head: only differences are raised to a power
        distance = (G - G.transpose(-1, -2)).masked_fill(~causal, float("-inf"))
        scores = (q @ k.transpose(-1, -2)) * torch.exp(distance)
    else:  # the chunk is short enough for exp(-G)
        scores = ((q * torch.exp(G)) @ (k * torch.exp(-G)).transpose(-1, -2)).masked_fill(~causal, 0)
    end = G[:, :, :, -1:]
    added = (k * torch.exp(end - G)).transpose(-1, -2) @ v
    before, S = carry(end.squeeze(3), added, S)
    o = scores @ v + (q * torch.exp(G)) @ before
    return o.reshape(B, H, T, V), S


def carry(log_decay, added, S):
    """log_decay [B, H, chunks, K or 1], added [B, H, chunks, K, V], S [B, H, K, V] -> the states before
    the chunks [B, H, chunks, K, V], the state after them. Chunks reach later ones through one
    lower-triangular matrix (a channel, if each has its decay), so nothing loops."""
    chunks, width = added.shape[2:4]
    after = log_decay.transpose(2, 3).cumsum(-1)  # [B, H, K or 1, chunks]
    before = F.pad(after[..., :-1], (1, 0))
    earlier = torch.ones(chunks, chunks, dtype=torch.bool, device=S.device).tril(-1)
    reach = (before[..., :, None] - after[..., None, :]).masked_fill(~earlier, float("-inf"))
    reach = torch.exp(reach)
    if reach.shape[2] == width:
        states = (reach @ added.transpose(2, 3)).transpose(2, 3)
    else:
        states = (reach[:, :, 0] @ added.flatten(3)).unflatten(3, S.shape[2:])
    states = states + torch.exp(before.transpose(2, 3))[..., None] * S[:, :, None]
    last = torch.exp(log_decay[:, :, -1])[..., None] * states[:, :, -1] + added[:, :, -1]
    return states, last.detach()


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


class GlaMixer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.D, c.H * c.DK, bias=False)
        self.k_proj = nn.Linear(c.D, c.H * c.DK, bias=False)
        self.v_proj = nn.Linear(c.D, c.H * c.DV, bias=False)
        self.g_proj = nn.Linear(c.D, c.H * c.DV, bias=False)
        self.gk_proj = nn.Sequential(
            nn.Linear(c.D, c.rank, bias=False), nn.Linear(c.rank, c.H * c.DK)
        )
        self.g_norm_swish_gate = RMSNorm(c.DV, c.eps)
        self.o_proj = nn.Linear(c.H * c.DV, c.D, bias=False)

    def forward(self, y, state):
        c = self.c
        q, k, v, gate = (
            f(y).float().unflatten(-1, (c.H, -1)).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj, self.gk_proj)
        )
        with torch.autocast(y.device.type, enabled=False):
            g = F.logsigmoid(gate) / c.divisor
            o, S = linear_attention(q * c.DK**-0.5, k, v, g, state[0], 16)
            o = self.g_norm_swish_gate(o.transpose(1, 2)).flatten(-2)
        return self.o_proj(o * F.silu(self.g_proj(y))), (S,)


class GlaMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.D, c.F, bias=False)
        self.up_proj = nn.Linear(c.D, c.F, bias=False)
        self.down_proj = nn.Linear(c.F, c.D, bias=False)

    def forward(self, y):
        return self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class GlaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attn_norm = RMSNorm(c.D, c.eps)
        self.attn = GlaMixer(c)
        self.mlp_norm = RMSNorm(c.D, c.eps)
        self.mlp = GlaMlp(c)

    def forward(self, x, state, rate):
        y, state = self.attn(self.attn_norm(x), state)
        x = x + drop(y, rate)
        return x + drop(self.mlp(self.mlp_norm(x)), rate), state


class GlaLM(LanguageModel):
    def __init__(self, c, dropout=0.0):
        super().__init__(dropout)
        self.config = c
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(c.vocab, c.D)
        self.model.layers = nn.ModuleList([GlaBlock(c) for _ in range(c.layers)])
        self.model.norm = RMSNorm(c.D, c.eps)
        self.small_matrices(c.D, c.layers, ("o_proj.weight", "down_proj.weight"))

    def zero_state(self, batch):
        c, zeros = self.config, self.model.norm.weight.new_zeros
        return [(zeros(batch, c.H, c.DK, c.DV),) for _ in range(c.layers)]

    def forward(self, tokens, state):
        m = self.model
        x, state = self.walk(m.embeddings.weight, m.layers, m.norm, tokens, state)
        return F.linear(x, m.embeddings.weight).float(), state


class Norm(nn.Module):
    """Layer norm within groups; the weight is what is added to one."""

    def __init__(self, size, groups=1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.groups = groups

    def forward(self, x):
        x = x.float().unflatten(-1, (self.groups, -1))
        return F.layer_norm(x, x.shape[-1:], eps=1e-5).flatten(-2) * (1 + self.weight)


class Conv(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.conv = depthwise(channels, width)


class Blockwise(nn.Module):
    def __init__(self, blocks, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(blocks, size, size) * math.sqrt(0.4 / size))

    def forward(self, x):
        """As one dense matrix: products of the small blocks leave a GPU idle."""
        blocks, size, _ = self.weight.shape
        own = torch.eye(blocks, device=x.device)[:, None, :, None]
        dense = self.weight[:, :, None] * own  # [block, out, block, in]
        return F.linear(x, dense.reshape(blocks * size, blocks * size))


class MlstmCell(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.igate = nn.Linear(3 * c.inner, c.H)
        self.fgate = nn.Linear(3 * c.inner, c.H)
        self.outnorm = Norm(c.inner, c.H)


class Mlstm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.proj_up = nn.Linear(c.D, 2 * c.inner, bias=False)
        self.conv1d = Conv(c.inner, c.width)
        self.q_proj, self.k_proj, self.v_proj = (
            Blockwise(c.inner // c.block, c.block) for _ in range(3)
        )
        self.mlstm_cell = MlstmCell(c)
        self.learnable_skip = nn.Parameter(torch.ones(c.inner))
        self.proj_down = nn.Linear(c.inner, c.D, bias=False)

    def forward(self, y, state):
        c, (conv, *cell) = self.c, state
        x, z = self.proj_up(y).chunk(2, -1)
        mixed, conv = convolve(self.conv1d.conv, x, conv)
        mixed = F.silu(mixed)
        with torch.autocast(y.device.type, enabled=False):
            q, k, v = self.q_proj(mixed), self.k_proj(mixed), self.v_proj(x.float())
            joined = torch.cat([q, k, v], -1)
            i = self.mlstm_cell.igate(joined).transpose(1, 2)
            f = self.mlstm_cell.fgate(joined).transpose(1, 2)
            q, k, v = (a.unflatten(-1, (c.H, -1)).transpose(1, 2) for a in (q, k, v))
            size = q.shape[-1]  # mlstm_chunkwise scales q, here k is scaled
            chunk = min(64, y.shape[1])
            h, cell = mlstm_chunkwise(
                q * size**0.5, k * size**-0.5, v, i, f, tuple(cell), chunk, 1e-6
            )
            h = self.mlstm_cell.outnorm(h.transpose(1, 2).flatten(-2))
            h = (h + self.learnable_skip * mixed) * F.silu(z.float())
        return self.proj_down(h), (conv, *cell)


class SlstmCell(nn.Module):
    def __init__(self, c):
        super().__init__()
        DH = c.D // c.slstm_H
        self._recurrent_kernel_ = nn.Parameter(torch.zeros(c.slstm_H, 4 * DH, DH))
        self._bias_ = nn.Parameter(torch.zeros(4 * c.D))


class Slstm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.conv1d = Conv(c.D, c.slstm_width)
        DH = c.D // c.slstm_H
        self.fgate, self.igate, self.zgate, self.ogate = (
            Blockwise(c.slstm_H, DH) for _ in range(4)
        )
        self.slstm_cell = SlstmCell(c)
        self.group_norm = Norm(c.D, c.slstm_H)
        with torch.no_grad():  # forget gate: its bias from 3 to 6 over the channels of a head
            bias = self.slstm_cell._bias_.view(4, c.slstm_H, DH)
            bias[1] = torch.linspace(3, 6, DH)
            bias[0] = -2.0

    def forward(self, y, state):
        c, (conv, *cell) = self.c, state
        mixed, conv = convolve(self.conv1d.conv, y, conv)
        with torch.autocast(y.device.type, enabled=False):
            mixed, y = F.silu(mixed), y.float()
            gates = [self.fgate(mixed), self.igate(mixed), self.zgate(y), self.ogate(y)]
            x = torch.stack(gates, 2) + self.slstm_cell._bias_.view(4, c.D)
            x = x.unflatten(-1, (c.slstm_H, -1))
            R = self.slstm_cell._recurrent_kernel_.unflatten(1, (4, -1))
            h, cell = slstm_scan.slstm_scan(x, R, torch.stack(cell))
            h = self.group_norm(h.flatten(-2))
        return h, (conv, *cell.unbind(0))


class GatedFfn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj_up = nn.Linear(c.D, 2 * c.F, bias=False)
        self.proj_down = nn.Linear(c.F, c.D, bias=False)

    def forward(self, y):
        gate, up = self.proj_up(y).chunk(2, -1)
        return self.proj_down(F.gelu(gate) * up)


class XlstmBlock(nn.Module):
    def __init__(self, c, is_slstm):
        super().__init__()
        self.xlstm_norm = Norm(c.D)
        self.xlstm = Slstm(c) if is_slstm else Mlstm(c)
        if is_slstm:
            self.ffn_norm = Norm(c.D)
            self.ffn = GatedFfn(c)
        self.is_slstm = is_slstm

    def forward(self, x, state, rate):
        y, state = self.xlstm(self.xlstm_norm(x), state)
        x = x + drop(y, rate)
        return (x + drop(self.ffn(self.ffn_norm(x)), rate) if self.is_slstm else x), state


class XlstmBlocksLM(LanguageModel):
    """The vanilla layout of the recurrent kernel."""

    def __init__(self, c, dropout=0.0):
        super().__init__(dropout)
        self.config = c
        self.token_embedding = nn.Embedding(c.vocab, c.D)
        self.xlstm_block_stack = nn.Module()
        self.xlstm_block_stack.blocks = nn.ModuleList([XlstmBlock(c, s) for s in c.slstm])
        self.xlstm_block_stack.post_blocks_norm = Norm(c.D)
        self.small_matrices(c.D, len(c.slstm), ("proj_down.weight",))
        with torch.no_grad():
            for block in self.xlstm_block_stack.blocks:
                if not block.is_slstm:
                    cell = block.xlstm.mlstm_cell
                    for gate in (cell.igate, cell.fgate):
                        gate.weight.zero_()
                    cell.igate.bias.fill_(-4.0)
                    cell.fgate.bias.copy_(torch.linspace(3, 6, c.H))

    def check_kernels(self):
        c = self.config
        slstm_scan.check_kernel(self.rate.device, c.slstm_H, c.D // c.slstm_H)

    def zero_state(self, batch):
        c, zeros = self.config, self.token_embedding.weight.new_zeros
        DH, out = c.inner // c.H, []
        for is_slstm in c.slstm:
            if is_slstm:
                cell = [zeros(batch, c.slstm_H, c.D // c.slstm_H) for _ in range(4)]
                out.append((zeros(batch, c.D, c.slstm_width - 1), *cell))
            else:
                cell = (zeros(batch, c.H, DH, DH), zeros(batch, c.H, DH), zeros(batch, c.H))
                out.append((zeros(batch, c.inner, c.width - 1), *cell))
        return out

    def forward(self, tokens, state):
        s, embedding = self.xlstm_block_stack, self.token_embedding.weight
        x, state = self.walk(embedding, s.blocks, s.post_blocks_norm, tokens, state)
        return F.linear(x, embedding).float(), state


MODULES = {"mamba": MambaLM, "mamba2": MambaLM, "gla": GlaLM, "xlstm_blocks": XlstmBlocksLM}
