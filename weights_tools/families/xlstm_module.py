"""xLSTM-large as a PyTorch module for training: chunkwise-parallel mLSTM with carried state. Gates,
exponentials and norms are fp32.
"""

import torch
from torch import nn
from torch.nn import functional as F

from weights_tools.families.language_model import LanguageModel, RMSNorm, drop
from weights_tools.families.xlstm_step import soft_cap


def mlstm_chunkwise(q, k, v, i, f, state, chunk, eps):
    """q k [B, H, T, DK], v [B, H, T, DV], i f [B, H, T] after the cap, fp32; T a multiple of chunk.

    state: C [B, H, DK, DV], n [B, H, DK], m [B, H]. -> h [B, H, T, DV] and the state after T.
    With b the running sum of logsigmoid(f) in a chunk, token j reaches token t of the same chunk
    with log weight b_t - b_j + i_j, and the chunk's end with b_L - b_j + i_j. Chunks reach later
    chunks through one lower-triangular matrix, so there is no loop over time. The stabiliser m is
    that of the step recurrence; it cancels but for eps, so it takes no gradient.
    """
    c_old, n_old, m_old = state
    batch, heads, length, dk = q.shape
    chunks = length // chunk
    q, k, v = (x.reshape(batch, heads, chunks, chunk, -1) for x in (q * dk**-0.5, k, v))
    i = i.reshape(batch, heads, chunks, chunk)
    b = F.logsigmoid(f).reshape(batch, heads, chunks, chunk).cumsum(-1)

    # What each chunk adds to the state, scaled by its own largest weight.
    a = b[..., -1:] - b + i
    a_max = a.detach().amax(-1)
    weighted = k * torch.exp(a - a_max[..., None])[..., None]
    added_c = torch.einsum("bhclk,bhclv->bhckv", weighted, v)
    added_n = weighted.sum(-2)

    # The state before chunk 0 .. chunks: log weights of [old state, chunk 0, chunk 1, ...].
    through = F.pad(b[..., -1].cumsum(-1), (1, 0))
    reach = through[..., :, None] - through[..., None, 1:] + a_max[..., None, :]
    later = torch.ones(chunks + 1, chunks, dtype=torch.bool, device=q.device).tril(-1)
    reach = reach.masked_fill(~later, float("-inf"))
    reach = torch.cat([(through + m_old[..., None])[..., None], reach], -1)
    m = reach.detach().amax(-1)
    reach = torch.exp(reach - m[..., None])
    c = torch.einsum("bhsc,bhckv->bhskv", reach, torch.cat([c_old[:, :, None], added_c], 2))
    n = torch.einsum("bhsc,bhck->bhsk", reach, torch.cat([n_old[:, :, None], added_n], 2))

    # Within the chunk, and from the state before it.
    log_d = b[..., :, None] - b[..., None, :] + i[..., None, :]
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    log_d = log_d.masked_fill(~causal, float("-inf"))
    before = b + m[..., :-1, None]
    m_t = torch.maximum(log_d.detach().amax(-1), before.detach())
    scores = torch.einsum("bhctk,bhcjk->bhctj", q, k) * torch.exp(log_d - m_t[..., None])
    carried = q * torch.exp(before - m_t)[..., None]
    numerator = scores @ v + carried @ c[:, :, :-1]
    qn = scores.sum(-1) + (carried * n[:, :, :-1, None]).sum(-1)
    h = numerator / (torch.maximum(qn.abs(), torch.exp(-m_t)) + eps)[..., None]
    state = (c[:, :, -1].detach(), n[:, :, -1].detach(), m[..., -1])
    return h.reshape(batch, heads, length, -1), state


class HeadNorm(nn.Module):
    """Layer norm within each head, weight only."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, h):
        h = F.layer_norm(h.float(), h.shape[-1:], eps=self.eps)
        return h.flatten(-2) * self.weight


class MlstmLayer(nn.Module):
    def __init__(self, c, chunk):
        super().__init__()
        self.config, self.chunk = c, chunk
        d = c.hidden_size
        self.q = nn.Linear(d, c.qk_dim, bias=False)
        self.k = nn.Linear(d, c.qk_dim, bias=False)
        self.v = nn.Linear(d, c.v_dim, bias=False)
        self.ogate_preact = nn.Linear(d, c.v_dim, bias=False)
        self.igate_preact = nn.Linear(d, c.num_heads)
        self.fgate_preact = nn.Linear(d, c.num_heads)
        self.multihead_norm = HeadNorm(c.v_dim, c.norm_eps)
        self.out_proj = nn.Linear(c.v_dim, d, bias=False)

    def forward(self, y, state):
        batch, length, _ = y.shape
        heads, cap = self.config.num_heads, self.config.gate_soft_cap
        q, k, v = (
            layer(y).float().reshape(batch, length, heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        with torch.autocast(y.device.type, enabled=False):
            i = soft_cap(self.igate_preact(y), cap).transpose(1, 2)
            f = soft_cap(self.fgate_preact(y), cap).transpose(1, 2)
            chunk = min(self.chunk, length)
            h, state = mlstm_chunkwise(q, k, v, i, f, state, chunk, self.config.eps)
            h = self.multihead_norm(h.transpose(1, 2))
        return self.out_proj(torch.sigmoid(self.ogate_preact(y)) * h), state


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj_up_gate = nn.Linear(c.hidden_size, c.ffn_dim, bias=False)
        self.proj_up = nn.Linear(c.hidden_size, c.ffn_dim, bias=False)
        self.proj_down = nn.Linear(c.ffn_dim, c.hidden_size, bias=False)

    def forward(self, y):
        return self.proj_down(F.silu(self.proj_up_gate(y)) * self.proj_up(y))


class Block(nn.Module):
    def __init__(self, c, chunk):
        super().__init__()
        self.norm_mlstm = RMSNorm(c.hidden_size, c.norm_eps)
        self.mlstm_layer = MlstmLayer(c, chunk)
        self.norm_ffn = RMSNorm(c.hidden_size, c.norm_eps)
        self.ffn = FeedForward(c)

    def forward(self, x, state, rate):
        y, state = self.mlstm_layer(self.norm_mlstm(x), state)
        x = x + drop(y, rate)
        return x + drop(self.ffn(self.norm_ffn(x)), rate), state


class XLSTM(LanguageModel):
    """forward: tokens [B, T], state -> logits [B, T, V] fp32 after the cap, state."""

    def __init__(self, config, chunk=64, dropout=0.0):
        super().__init__(dropout)
        c = self.config = config
        self.backbone = nn.Module()
        self.backbone.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.backbone.blocks = nn.ModuleList([Block(c, chunk) for _ in range(c.num_blocks)])
        self.backbone.out_norm = RMSNorm(c.hidden_size, c.norm_eps)
        if not c.tie_word_embeddings:
            self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self):
        """Small normal matrices, outputs of a residual branch smaller with depth; gate weights 0,
        input-gate bias -10, forget-gate bias from 3 to 6 over the heads (arXiv 2503.14376, E.2)."""
        c = self.config
        small = (2 / (5 * c.hidden_size)) ** 0.5
        for name, parameter in self.named_parameters():
            if name.endswith("igate_preact.bias"):
                parameter.fill_(-10.0)
            elif name.endswith("fgate_preact.bias"):
                parameter.copy_(torch.linspace(3.0, 6.0, c.num_heads))
            elif "gate_preact.weight" in name and "ogate" not in name:
                parameter.zero_()
            elif parameter.ndim == 2:
                branch_end = name.endswith(("out_proj.weight", "proj_down.weight"))
                parameter.normal_(0, small / (2 * c.num_blocks) ** 0.5 if branch_end else small)

    def zero_state(self, batch):
        c, device = self.config, self.backbone.embeddings.weight.device
        shapes = ((c.qk_head, c.v_head), (c.qk_head,), ())
        return [
            tuple(torch.zeros(batch, c.num_heads, *shape, device=device) for shape in shapes)
            for _ in range(c.num_blocks)
        ]

    def forward(self, tokens, state):
        c, b = self.config, self.backbone
        x, state = self.walk(b.embeddings.weight, b.blocks, b.out_norm, tokens, state)
        head = b.embeddings if c.tie_word_embeddings else self.lm_head
        return soft_cap(F.linear(x, head.weight).float(), c.output_logit_soft_cap), state
