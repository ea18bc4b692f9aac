"""The sLSTM's recurrence for training: a Triton kernel on a GPU, a loop in PyTorch elsewhere.

x [B, T, 4, H, DH] (i f z o before the recurrent part), R [H, 4, DH out, DH in], state [4, B, H, DH]
(h c n m), all fp32 -> h [B, T, H, DH], the state after T. m cancels in h, so it takes no gradient; no
gradient goes to the state that it starts from.
"""

import torch
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

ROWS = 16


def slstm_scan(x, R, state):
    if x.is_cuda:
        rows = x.shape[0]
        more = -rows % ROWS
        x = F.pad(x, (0, 0) * 4 + (0, more))
        state = F.pad(state, (0, 0, 0, 0, 0, more))
        h, state = Scan.apply(x.contiguous(), R.contiguous(), state.contiguous())
        return h[:rows], state[:, :rows]
    h, c, n, m = state
    out = []
    for t in range(x.shape[1]):
        i, f, z, o = (x[:, t] + torch.einsum("hgoi,bhi->bgho", R, h)).unbind(1)
        kept = m + F.logsigmoid(f)
        m = torch.where(n == 0, i, torch.maximum(i, kept)).detach()
        write, keep = torch.exp(i - m), torch.exp(kept - m)
        c, n = keep * c + write * torch.tanh(z), keep * n + write
        h = torch.sigmoid(o) * c / n
        out.append(h)
    return torch.stack(out, 1), torch.stack([h, c, n, m])


if triton:

    @triton.jit
    def log_sigmoid(x):
        return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))

    @triton.jit
    def tanh(x):
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0

    @triton.jit
    def forward_kernel(x, R, s0, gates, states, T, B, H: tl.constexpr, D: tl.constexpr, BB: tl.constexpr):
        head = tl.program_id(1)
        b = tl.program_id(0) * BB + tl.arange(0, BB)
        d = tl.arange(0, D)
        e = tl.arange(0, D)
        HD: tl.constexpr = H * D
        r = R + head * 4 * D * D + d[None, :] * D + e[:, None]  # [in, out]
        ri = tl.load(r)
        rf = tl.load(r + D * D)
        rz = tl.load(r + 2 * D * D)
        ro = tl.load(r + 3 * D * D)
        at = b[:, None] * HD + head * D + d[None, :]
        h = tl.load(s0 + at)
        c = tl.load(s0 + B * HD + at)
        n = tl.load(s0 + 2 * B * HD + at)
        m = tl.load(s0 + 3 * B * HD + at)
        for t in range(T):
            g = (b[:, None] * T + t) * 4 * HD + head * D + d[None, :]
            i = tl.load(x + g) + tl.dot(h, ri)
            f = tl.load(x + g + HD) + tl.dot(h, rf)
            z = tl.load(x + g + 2 * HD) + tl.dot(h, rz)
            o = tl.load(x + g + 3 * HD) + tl.dot(h, ro)
            kept = m + log_sigmoid(f)
            mn = tl.where(n == 0.0, i, tl.maximum(i, kept))
            write = tl.exp(i - mn)
            keep = tl.exp(kept - mn)
            c = keep * c + write * tanh(z)
            n = keep * n + write
            m = mn
            h = tl.sigmoid(o) * c / n
            tl.store(gates + g, i)
            tl.store(gates + g + HD, f)
            tl.store(gates + g + 2 * HD, z)
            tl.store(gates + g + 3 * HD, o)
            tl.store(states + g, h)
            tl.store(states + g + HD, c)
            tl.store(states + g + 2 * HD, n)
            tl.store(states + g + 3 * HD, m)

    @triton.jit
    def backward_kernel(
        R, s0, gates, states, dh_out, dgates, T, B, H: tl.constexpr, D: tl.constexpr, BB: tl.constexpr
    ):
        head = tl.program_id(1)
        b = tl.program_id(0) * BB + tl.arange(0, BB)
        d = tl.arange(0, D)
        e = tl.arange(0, D)
        HD: tl.constexpr = H * D
        r = R + head * 4 * D * D + e[:, None] * D + d[None, :]  # [out, in]
        ri = tl.load(r)
        rf = tl.load(r + D * D)
        rz = tl.load(r + 2 * D * D)
        ro = tl.load(r + 3 * D * D)
        at = b[:, None] * HD + head * D + d[None, :]
        dh = tl.zeros((BB, D), tl.float32)
        dc = tl.zeros((BB, D), tl.float32)
        dn = tl.zeros((BB, D), tl.float32)
        for k in range(T):
            t = T - 1 - k
            g = (b[:, None] * T + t) * 4 * HD + head * D + d[None, :]
            p = g - 4 * HD
            later = (at >= 0) & (t > 0)
            first = (at >= 0) & (t == 0)
            i = tl.load(gates + g)
            f = tl.load(gates + g + HD)
            z = tanh(tl.load(gates + g + 2 * HD))
            o = tl.sigmoid(tl.load(gates + g + 3 * HD))
            c = tl.load(states + g + HD)
            n = tl.load(states + g + 2 * HD)
            m = tl.load(states + g + 3 * HD)
            c_old = tl.load(states + p + HD, mask=later, other=0.0)
            c_old += tl.load(s0 + B * HD + at, mask=first, other=0.0)
            n_old = tl.load(states + p + 2 * HD, mask=later, other=0.0)
            n_old += tl.load(s0 + 2 * B * HD + at, mask=first, other=0.0)
            m_old = tl.load(states + p + 3 * HD, mask=later, other=0.0)
            m_old += tl.load(s0 + 3 * B * HD + at, mask=first, other=0.0)
            write = tl.exp(i - m)
            keep = tl.exp(m_old + log_sigmoid(f) - m)
            dh += tl.load(dh_out + (b[:, None] * T + t) * HD + head * D + d[None, :])
            dc += dh * o / n
            dn -= dh * o * c / (n * n)
            do = dh * c / n * o * (1.0 - o)
            di = (dc * z + dn) * write
            # Where n was 0 the old state is 0 and keep may be anything.
            df = tl.where(n_old == 0.0, 0.0, (dc * c_old + dn * n_old) * keep * tl.sigmoid(-f))
            dz = dc * write * (1.0 - z * z)
            tl.store(dgates + g, di)
            tl.store(dgates + g + HD, df)
            tl.store(dgates + g + 2 * HD, dz)
            tl.store(dgates + g + 3 * HD, do)
            dh = tl.dot(di, ri) + tl.dot(df, rf) + tl.dot(dz, rz) + tl.dot(do, ro)
            dc = tl.where(n_old == 0.0, 0.0, dc * keep)
            dn = tl.where(n_old == 0.0, 0.0, dn * keep)


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, R, state):
        B, T, _, H, D = x.shape
        gates, states = torch.empty_like(x), torch.empty_like(x)
        forward_kernel[(B // ROWS, H)](x, R, state, gates, states, T, B, H, D, ROWS)
        ctx.save_for_backward(R, state, gates, states)
        last = states[:, -1].transpose(0, 1).contiguous()
        ctx.mark_non_differentiable(last)
        return states[:, :, 0].contiguous(), last

    @staticmethod
    def backward(ctx, dh, _):
        R, state, gates, states = ctx.saved_tensors
        B, T, _, H, D = gates.shape
        dgates = torch.empty_like(gates)
        backward_kernel[(B // ROWS, H)](
            R, state, gates, states, dh.contiguous(), dgates, T, B, H, D, ROWS
        )
        before = torch.cat([state[0][:, None], states[:, :-1, 0]], 1)
        return dgates, torch.einsum("btgho,bthi->hgoi", dgates, before), None
