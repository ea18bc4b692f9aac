"""The gated delta rule for training, in chunks, with a carried state.

    S = decay S;  S = S + k (beta (v - k^T S))^T;  o = q^T S, S after the update
"""

import torch
from torch.nn import functional as F


def delta_rule(q, k, v, beta, log_decay, S, chunk):
    """q k [B, H, T, K], v [B, H, T, V], beta log_decay [B, H, T], S [B, H, K, V] -> o [B, H, T, V] and the last S.
    T is a multiple of the chunk, or less.

    What a chunk adds, U, solves a triangular system: with the decay G from the chunk's beginning,
    U_t + beta_t sum_{j < t} exp(G_t - G_j) (k_t k_j) U_j = beta_t (v_t - exp(G_t) k_t^T S). It is linear in the S
    before the chunk, so that a chunk is a pair of matrices, and these are joined in a scan.
    """
    chunk = min(chunk, v.shape[2])
    q, k, v, beta, g = (x.unflatten(2, (-1, chunk)) for x in (q, k, v, beta, log_decay))
    G = g.cumsum(3)[..., None]
    ones = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device)
    # Only differences that decay are raised to a power: exp(-G) by itself overflows in training.
    decay = torch.exp((G - G.transpose(-1, -2)).masked_fill(~ones.tril(), float("-inf")))
    beta = beta[..., None]
    system = (beta * (k @ k.transpose(-1, -2)) * decay).masked_fill(~ones.tril(-1), 0)
    right = torch.cat([beta * v, beta * torch.exp(G) * k], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    added, taken = solved.split([v.shape[-1], k.shape[-1]], -1)  # U = added - taken S
    end = G[:, :, :, -1:]
    reach = (k * torch.exp(end - G)).transpose(-1, -2)
    same = torch.eye(k.shape[-1], device=k.device, dtype=k.dtype)
    before, S = carry(torch.exp(end) * same - reach @ taken, reach @ added, S)
    U = added - taken @ before
    o = (q @ k.transpose(-1, -2) * decay) @ U + (q * torch.exp(G)) @ before
    return o.flatten(2, 3), S


def carry(factor, added, S):
    """factor [B, H, chunks, K, K], added [B, H, chunks, K, V], S [B, H, K, V]: a chunk makes factor S + added of S.
    -> the states before the chunks [B, H, chunks, K, V], the state after them. Each level of the scan joins the
    pairs of twice as many chunks."""
    chunks, reach = factor.shape[2], 1
    while reach < chunks:
        later = factor[:, :, reach:]
        joined = later @ added[:, :, :-reach] + added[:, :, reach:]
        factor = torch.cat([factor[:, :, :reach], later @ factor[:, :, :-reach]], 2)
        added = torch.cat([added[:, :, :reach], joined], 2)
        reach *= 2
    after = factor @ S[:, :, None] + added
    return torch.cat([S[:, :, None], after[:, :, :-1]], 2), after[:, :, -1].detach()
