"""RWKV-7 as a PyTorch module for training."""

import torch
from torch import autocast, nn
from torch.nn import functional as F

from weights_tools.families.language_model import LanguageModel, drop
from weights_tools.families.rwkv7 import LORAS, MIXES, SHORTEST

CHUNK = 32
BETWEEN = {"w": nn.Tanh, "a": nn.Identity, "v": nn.Identity, "g": nn.Sigmoid}


def recurrence(r, lw, k, v, a, b, S, chunk=CHUNK):
    """The chunk form of kernels/ops/rwkv7.h. r lw k v a b [B, H, T, N], S [B, H, N, N] -> o, the last S.

    Exponents are taken apart around the middle row of a chunk, which 32 rows of decays above exp(-0.6066) allow.
    """
    B, H, T, N = r.shape
    chunk = min(chunk, T)
    r, lw, k, v, a, b = (x.unflatten(2, (T // chunk, chunk)) for x in (r, lw, k, v, a, b))
    G = lw.cumsum(3)
    E, middle, end = G - lw, G[:, :, :, chunk // 2, None], G[:, :, :, -1:]
    early = torch.cat([a * torch.exp(E - middle), r * torch.exp(G - middle)], 3)
    late = torch.cat([b * torch.exp(middle - G), k * torch.exp(middle - G)], 3)
    scores = (early @ late.transpose(-1, -2)).unflatten(-1, (2, chunk)).unflatten(3, (2, chunk))
    ab, ak = (scores[:, :, :, 0, :, i].tril(-1) for i in range(2))
    rb, rk = (scores[:, :, :, 1, :, i].tril() for i in range(2))
    # What is taken out, u = W S + P, of each chunk; then outputs and the next state are linear in S too.
    one = torch.eye(chunk, dtype=ab.dtype, device=ab.device)
    W, P = torch.linalg.solve_triangular(
        one - ab, torch.cat([a * torch.exp(E), ak @ v], -1), upper=False, unitriangular=True
    ).split(N, -1)
    kept, put = ((x * torch.exp(end - G)).transpose(-1, -2) for x in (b, k))
    turned = torch.diag_embed(torch.exp(end.squeeze(3))) + kept @ W
    added = put @ v + kept @ P
    before = []
    for turn, add in zip(turned.unbind(2), added.unbind(2)):
        before.append(S)
        S = turn @ S + add
    o = (r * torch.exp(G) + rb @ W) @ torch.stack(before, 2) + rk @ v + rb @ P
    return o.reshape(B, H, T, N), S.detach()


class LowRank(nn.Module):
    def __init__(self, width, rank, between, bias):
        super().__init__()
        self.lora = nn.Sequential(
            nn.Linear(width, rank, bias=False), between(), nn.Linear(rank, width, bias=bias)
        )

    def forward(self, x):
        return self.lora(x).float()


def shifted(y, before):
    """y [B, T, D], before [B, D] -> what a mix of one adds to y, and the next `before`."""
    return torch.cat([before[:, None], y[:, :-1]], 1) - y, y[:, -1].detach()


class TimeMix(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.c, self.first = c, layer == 0
        for mix in MIXES:
            self.register_parameter(f"x_{mix}", nn.Parameter(torch.empty(1, 1, c.D)))
        for name, rank in zip(LORAS, c.ranks):
            if name != "v" or layer > 0:
                self.add_module(f"{name}_lora", LowRank(c.D, rank, BETWEEN[name], name != "g"))
        for name in "rkvo":
            self.add_module(f"{name}_proj", nn.Linear(c.D, c.D, bias=False))
        self.k_k, self.k_a = nn.Parameter(torch.full((c.D,), 0.85)), nn.Parameter(torch.ones(c.D))
        self.r_k = nn.Parameter(torch.zeros(c.H, c.N))
        self.g_norm = nn.LayerNorm(c.D)  # of each head; only its weights are taken
        self.start(layer)

    @torch.no_grad()
    def start(self, layer):
        """Mixes and biases from which layers begin to differ, as BlinkDL's RWKV-LM begins: the deeper, the less
        of the row before and the longer what is kept."""
        c, depth = self.c, layer / max(1, self.c.layers - 1)
        channel, shallow = torch.arange(c.D) / c.D, 1 - layer / c.layers
        for mix, power in zip(MIXES, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)):
            getattr(self, f"x_{mix}").copy_(1 - channel ** (power * shallow))
        self.w_lora.lora[2].bias.copy_(-6.5 + 5 * channel ** (0.85 + depth**0.5))
        self.a_lora.lora[2].bias.zero_()
        if not self.first:
            self.v_lora.lora[2].bias.fill_(1.0)

    def heads(self, x):
        return x.float().unflatten(-1, (self.c.H, self.c.N)).transpose(1, 2)

    def forward(self, y, S, shift, v_first):
        delta, shift = shifted(y, shift)
        x = {mix: y + delta * getattr(self, f"x_{mix}") for mix in MIXES}
        r, k, v = self.r_proj(x["r"]).float(), self.k_proj(x["k"]).float(), self.v_proj(x["v"]).float()
        w, alpha, gate = self.w_lora(x["w"]), self.a_lora(x["a"]), self.g_lora(x["g"])
        if self.first:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(self.v_lora(x["v"]))
        with autocast(y.device.type, enabled=False):
            lw, alpha = -0.6065306597126334 * torch.sigmoid(w), torch.sigmoid(alpha)
            kk = F.normalize(self.heads(k * self.k_k), dim=-1, eps=SHORTEST)
            k = k * (1 + (alpha - 1) * self.k_a)
            r, lw, k, alpha, heads = (self.heads(z) for z in (r, lw, k, alpha, v))
            o, S = recurrence(r, lw, k, heads, -kk, kk * alpha, S)
            o = F.layer_norm(o, (self.c.N,), eps=self.c.head_eps).transpose(1, 2).flatten(-2)
            bonus = (r * k * self.r_k[:, None]).sum(-1, keepdim=True) * heads
            o = o * self.g_norm.weight + self.g_norm.bias + bonus.transpose(1, 2).flatten(-2)
        return self.o_proj(o * gate), S, shift, v_first


class FeedForward(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.x_k = nn.Parameter(1 - (torch.arange(c.D) / c.D) ** ((1 - layer / c.layers) ** 4))
        self.key, self.value = nn.Linear(c.D, c.F, bias=False), nn.Linear(c.F, c.D, bias=False)

    def forward(self, y, shift):
        delta, shift = shifted(y, shift)
        return self.value(F.relu(self.key(y + delta * self.x_k)) ** 2), shift


class Rwkv7Block(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        if layer == 0:
            self.pre_norm = nn.LayerNorm(c.D, c.eps)
        self.attn_norm, self.ffn_norm = nn.LayerNorm(c.D, c.eps), nn.LayerNorm(c.D, c.eps)
        self.attn, self.ffn = TimeMix(c, layer), FeedForward(c, layer)

    def forward(self, x, state, rate):
        """state: what is carried, and the first layer's values, which a step hands from block to block."""
        S, shift, ffn_shift, v_first = state
        if hasattr(self, "pre_norm"):
            x = self.pre_norm(x)
        y, S, shift, v_first = self.attn(self.attn_norm(x).float(), S, shift, v_first)
        x = x + drop(y, rate)
        y, ffn_shift = self.ffn(self.ffn_norm(x).float(), ffn_shift)
        return x + drop(y, rate), (S, shift, ffn_shift, v_first)


class Rwkv7LM(LanguageModel):
    def __init__(self, c, dropout=0.0):
        super().__init__(dropout)
        self.config = c
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(c.vocab, c.D)
        self.model.layers = nn.ModuleList([Rwkv7Block(c, layer) for layer in range(c.layers)])
        self.model.norm = nn.LayerNorm(c.D, c.eps)
        self.small_matrices(c.D, c.layers, ("o_proj.weight", "value.weight", "lora.2.weight"))
        for layer in self.model.layers:
            nn.init.zeros_(layer.attn.r_k)

    def zero_state(self, batch):
        c, zeros = self.config, self.model.norm.weight.new_zeros
        shapes = ((batch, c.H, c.N, c.N), (batch, c.D), (batch, c.D))
        return [tuple(zeros(*shape) for shape in shapes) for _ in range(c.layers)]

    def forward(self, tokens, state):
        m, rate = self.model, self.rate if self.training else None
        x, out = drop(F.embedding(tokens, m.embeddings.weight), rate), []
        v_first = x  # of no use to the first block, which makes it
        for block, block_state in zip(m.layers, state):
            x, (*block_state, v_first) = self.call(block, x, (*block_state, v_first), rate)
            out.append(tuple(block_state))
        return F.linear(m.norm(x), m.embeddings.weight).float(), out
