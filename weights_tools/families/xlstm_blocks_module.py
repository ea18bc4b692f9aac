"""The research xLSTM as a PyTorch module for training."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from weights_tools.families import slstm_scan
from weights_tools.families.language_model import LanguageModel, convolve, depthwise, drop
from weights_tools.families.xlstm_module import mlstm_chunkwise


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
