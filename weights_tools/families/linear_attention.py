"""Linear attention with decays for training, in chunks, with a carried state: the form of Mamba-2 and GLA.

    S = decay S + k v^T;  o = q^T S, S after the update
"""

import torch
from torch.nn import functional as F


def linear_attention(q, k, v, log_decay, S, chunk):
    """q k [B, H or 1, T, K], v [B, H, T, V], log_decay [B, H, T, K or 1], S [B, H, K, V]."""
    B, H, T, V = v.shape
    chunk = min(chunk, T)
    chunks = T // chunk
    q, k, v, g = (x.unflatten(2, (chunks, chunk)) for x in (q, k, v, log_decay))
    G = g.cumsum(3)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    # Only differences that decay are raised to a power: exp(-G) by itself overflows in training.
    if g.shape[-1] == 1:
        distance = (G - G.transpose(-1, -2)).masked_fill(~causal, float("-inf"))
        scores = (q @ k.transpose(-1, -2)) * torch.exp(distance)
    else:
        distance = G.unsqueeze(4) - G.unsqueeze(3)  # [B, H, chunks, token, earlier token, K]
        decay = torch.exp(distance.masked_fill(~causal[..., None], float("-inf")))
        scores = (q.unsqueeze(4) * k.unsqueeze(3) * decay).sum(-1)
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
