"""GLA as a PyTorch module for training."""

from torch import autocast, nn
from torch.nn import functional as F

from weights_tools.families.language_model import LanguageModel, RMSNorm, drop
from weights_tools.families.linear_attention import linear_attention


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
        with autocast(y.device.type, enabled=False):
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
