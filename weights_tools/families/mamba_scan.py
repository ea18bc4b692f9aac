"""The selective scan for training: a Triton kernel on a GPU, a loop in PyTorch elsewhere.

u dt [B, T, DI], A [DI, N], Bm Cm [B, T, N], h [B, DI, N], all fp32 -> y [B, T, DI], h after T:
h = exp(dt A) h + dt Bm u;  y = Cm . h. No gradient goes to the h that it starts from.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BLOCK = 64


def selective_scan(u, dt, A, Bm, Cm, h):
    if u.is_cuda:
        return Scan.apply(*(x.contiguous() for x in (u, dt, A, Bm, Cm, h)))
    out = []
    for t in range(u.shape[1]):
        decay = torch.exp(dt[:, t, :, None] * A)
        h = decay * h + (dt[:, t] * u[:, t])[..., None] * Bm[:, t, None]
        out.append((h * Cm[:, t, None]).sum(-1))
    return torch.stack(out, 1), h


if triton:

    @triton.jit
    def scan_forward(u, dt, A, Bm, Cm, h0, y, hs, T, DI: tl.constexpr, N: tl.constexpr, BD: tl.constexpr):
        b = tl.program_id(0).to(tl.int64)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        n = tl.arange(0, N)
        cells = d[:, None] * N + n[None, :]
        a = tl.load(A + cells)
        h = tl.load(h0 + b * DI * N + cells)
        for t in range(T):
            row = b * T + t
            step = tl.load(dt + row * DI + d)
            x = step * tl.load(u + row * DI + d)
            bt = tl.load(Bm + row * N + n)
            ct = tl.load(Cm + row * N + n)
            h = tl.exp(step[:, None] * a) * h + x[:, None] * bt[None, :]
            tl.store(hs + row * DI * N + cells, h)
            tl.store(y + row * DI + d, tl.sum(h * ct[None, :], 1))

    @triton.jit
    def scan_backward(
        u, dt, A, Bm, Cm, h0, hs, dy, du, ddt, dA, dB, dC, T, DI: tl.constexpr, N: tl.constexpr, BD: tl.constexpr
    ):
        b = tl.program_id(0).to(tl.int64)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        n = tl.arange(0, N)
        cells = d[:, None] * N + n[None, :]
        a = tl.load(A + cells)
        dh = tl.zeros((BD, N), tl.float32)
        da = tl.zeros((BD, N), tl.float32)
        for i in range(T):
            t = T - 1 - i
            row = b * T + t
            step = tl.load(dt + row * DI + d)
            x = tl.load(u + row * DI + d)
            bt = tl.load(Bm + row * N + n)
            ct = tl.load(Cm + row * N + n)
            g = tl.load(dy + row * DI + d)
            h = tl.load(hs + row * DI * N + cells)
            before = tl.load(hs + (row - 1) * DI * N + cells, mask=(cells >= 0) & (t > 0), other=0.0)
            before += tl.load(h0 + b * DI * N + cells, mask=(cells >= 0) & (t == 0), other=0.0)
            dh += g[:, None] * ct[None, :]
            tl.atomic_add(dC + row * N + n, tl.sum(g[:, None] * h, 0))
            decay = tl.exp(step[:, None] * a)
            ds = dh * before * decay
            da += ds * step[:, None]
            s = tl.sum(dh * bt[None, :], 1)
            tl.store(ddt + row * DI + d, tl.sum(ds * a, 1) + s * x)
            tl.store(du + row * DI + d, s * step)
            tl.atomic_add(dB + row * N + n, tl.sum(dh * (step * x)[:, None], 0))
            dh = dh * decay
        tl.atomic_add(dA + cells, da)


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, dt, A, Bm, Cm, h):
        batch, T, DI = u.shape
        N = A.shape[1]
        y, hs = torch.empty_like(u), u.new_empty(batch, T, DI, N)
        grid = (batch, DI // BLOCK)
        scan_forward[grid](u, dt, A, Bm, Cm, h, y, hs, T, DI, N, BLOCK)
        ctx.save_for_backward(u, dt, A, Bm, Cm, h, hs)
        last = hs[:, -1].clone()
        ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    def backward(ctx, dy, _):
        u, dt, A, Bm, Cm, h, hs = ctx.saved_tensors
        batch, T, DI = u.shape
        du, ddt = torch.empty_like(u), torch.empty_like(u)
        dA, dB, dC = torch.zeros_like(A), torch.zeros_like(Bm), torch.zeros_like(Cm)
        grid = (batch, DI // BLOCK)
        scan_backward[grid](
            u, dt, A, Bm, Cm, h, hs, dy.contiguous(), du, ddt, dA, dB, dC, T, DI, A.shape[1], BLOCK
        )
        return du, ddt, dA, dB, dC, None
