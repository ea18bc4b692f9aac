"""The selective scan for training: Triton kernels on a GPU, a loop in PyTorch elsewhere.

u dt [B, T, DI], A [DI, N], Bm Cm [B, T, N], h [B, DI, N], all fp32 -> y [B, T, DI], h after T:
h = exp(dt A) h + dt Bm u;  y = Cm . h. No gradient goes to the h that it starts from nor through the h
after T.

The kernels take a chunk of tokens at a time and scan it as a whole, state by state; the forward one
leaves the states at the chunks' edges, from which the backward one computes the rest again.
"""

import torch
from torch.nn import functional as F

from weights_tools.families.language_model import agree

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

use_kernel = triton is not None
TOKENS, CHANNELS, WARPS = 16, 32, 1  # of a tile


def selective_scan(u, dt, A, Bm, Cm, h):
    fits = u.is_cuda and use_kernel and u.shape[2] % CHANNELS == 0
    return (scan_kernel if fits else scan_loop)(u, dt, A, Bm, Cm, h)


def check_kernel(device):
    """Turns the kernels off if they do not agree with the loop."""
    global use_kernel
    make = torch.Generator().manual_seed(1)
    u, dt, Bm, Cm, h = (
        torch.randn(shape, generator=make).to(device)
        for shape in ((2, 77, 64), (2, 77, 64), (2, 77, 16), (2, 77, 16), (2, 64, 16))
    )
    A = -torch.arange(1.0, 17.0, device=device).repeat(64, 1)
    inputs = [x.requires_grad_() for x in (u, F.softplus(dt - 2), A, Bm, Cm)]
    use_kernel = use_kernel and agree("the selective scan", scan_kernel, scan_loop, [*inputs, h])


def scan_kernel(u, dt, A, Bm, Cm, h):
    y, edges = scan_forward(u, dt, A, Bm, Cm, h)
    return y, edges[:, -1].transpose(1, 2).detach()


def scan_loop(u, dt, A, Bm, Cm, h):
    out = []
    for t in range(u.shape[1]):
        decay = torch.exp(dt[:, t, :, None] * A)
        h = decay * h + (dt[:, t] * u[:, t])[..., None] * Bm[:, t, None]
        out.append((h * Cm[:, t, None]).sum(-1))
    return torch.stack(out, 1), h.detach()


if triton:

    @triton.jit
    def combine(decay, x, later_decay, later_x):
        return decay * later_decay, later_decay * x + later_x

    # Pointers: u dt y [B, T, DI], A [N, DI], Bm Cm [B, N, T], edges [B, chunks + 1, N, DI].
    @triton.jit
    def forward_kernel(
        u, dt, A, Bm, Cm, y, edges, T, chunks, DI: tl.constexpr, N: tl.constexpr, TC: tl.constexpr, BD: tl.constexpr
    ):
        b = tl.program_id(0).to(tl.int64)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        t = tl.arange(0, TC)
        for c in range(chunks):
            rows = c * TC + t
            inside = rows < T
            at = (b * T + rows)[:, None] * DI + d[None, :]
            step = tl.load(dt + at, mask=inside[:, None], other=0.0)  # past T: h stays as it is
            x = step * tl.load(u + at, mask=inside[:, None], other=0.0)
            out = tl.zeros((TC, BD), tl.float32)
            for n in range(N):
                bn = tl.load(Bm + (b * N + n) * T + rows, mask=inside, other=0.0)
                cn = tl.load(Cm + (b * N + n) * T + rows, mask=inside, other=0.0)
                edge = edges + ((b * (chunks + 1) + c) * N + n) * DI + d
                decay = tl.exp(step * tl.load(A + n * DI + d)[None, :])
                reach, h = tl.associative_scan((decay, x * bn[:, None]), 0, combine)
                h += reach * tl.load(edge)[None, :]
                out += h * cn[:, None]
                tl.store(edge + N * DI, tl.sum(tl.where(t[:, None] == TC - 1, h, 0.0), 0))
            tl.store(y + at, out, mask=inside[:, None])
            tl.debug_barrier()  # the next chunk reads the edges

    # Also dy du ddt [B, T, DI], dA later [B, N, DI] zero at first, dB dC [DI / BD, B, N, T].
    @triton.jit
    def backward_kernel(
        u, dt, A, Bm, Cm, edges, dy, du, ddt, dA, dB, dC, later, T, chunks, B,
        DI: tl.constexpr, N: tl.constexpr, TC: tl.constexpr, BD: tl.constexpr,
    ):  # fmt: skip
        b = tl.program_id(0).to(tl.int64)
        d = tl.program_id(1) * BD + tl.arange(0, BD)
        t = tl.arange(0, TC)
        for i in range(chunks):
            c = chunks - 1 - i
            rows = c * TC + t
            inside = rows < T
            at = (b * T + rows)[:, None] * DI + d[None, :]
            step = tl.load(dt + at, mask=inside[:, None], other=0.0)
            next_step = tl.load(dt + at + DI, mask=(rows + 1 < T)[:, None], other=0.0)
            v = tl.load(u + at, mask=inside[:, None], other=0.0)
            g = tl.load(dy + at, mask=inside[:, None], other=0.0)
            x = step * v
            of_u = tl.zeros((TC, BD), tl.float32)
            of_dt = tl.zeros((TC, BD), tl.float32)
            for n in range(N):
                of_row = (b * N + n) * T + rows
                of_part = ((tl.program_id(1) * B + b) * N + n) * T + rows
                cell = (b * N + n) * DI + d
                bn = tl.load(Bm + of_row, mask=inside, other=0.0)
                cn = tl.load(Cm + of_row, mask=inside, other=0.0)
                a = tl.load(A + n * DI + d)[None, :]
                added = x * bn[:, None]
                reach, h = tl.associative_scan((tl.exp(step * a), added), 0, combine)
                h += reach * tl.load(edges + ((b * (chunks + 1) + c) * N + n) * DI + d)[None, :]
                tl.store(dC + of_part, tl.sum(g * h, 1), mask=inside)
                back, dh = tl.associative_scan(
                    (tl.exp(next_step * a), g * cn[:, None]), 0, combine, reverse=True
                )
                dh += back * tl.load(later + cell)[None, :]
                tl.store(later + cell, tl.sum(tl.where(t[:, None] == 0, dh, 0.0), 0))
                tl.store(dB + of_part, tl.sum(dh * x, 1), mask=inside)
                of_decay = dh * (h - added)  # h - added: the state before, decayed
                tl.store(dA + cell, tl.load(dA + cell) + tl.sum(of_decay * step, 0))
                of_added = dh * bn[:, None]
                of_dt += of_decay * a + of_added * v
                of_u += of_added * step
            tl.store(du + at, of_u, mask=inside[:, None])
            tl.store(ddt + at, of_dt, mask=inside[:, None])
            tl.debug_barrier()


@torch.library.custom_op("recurve::selective_scan", mutates_args=())
def scan_forward(
    u: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, Bm: torch.Tensor, Cm: torch.Tensor, h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> y, the states at the chunks' edges [B, chunks + 1, N, DI]."""
    u, dt = u.contiguous(), dt.contiguous()
    A, Bm, Cm = turned(A, Bm, Cm)
    batch, T, DI = u.shape
    N, chunks = A.shape[0], triton.cdiv(T, TOKENS)
    y, edges = torch.empty_like(u), u.new_empty(batch, chunks + 1, N, DI)
    edges[:, 0] = h.transpose(1, 2)
    grid = (batch, DI // CHANNELS)
    forward_kernel[grid](
        u, dt, A, Bm, Cm, y, edges, T, chunks, DI, N, TOKENS, CHANNELS, num_warps=WARPS
    )
    return y, edges


@scan_forward.register_fake
def _(u, dt, A, Bm, Cm, h):
    batch, T, DI = u.shape
    return u.new_empty(u.shape), u.new_empty(batch, -(-T // TOKENS) + 1, A.shape[1], DI)


@torch.library.custom_op("recurve::selective_scan_backward", mutates_args=())
def scan_backward(
    u: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, Bm: torch.Tensor, Cm: torch.Tensor,
    edges: torch.Tensor, dy: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    u, dt, dy = u.contiguous(), dt.contiguous(), dy.contiguous()
    A, Bm, Cm = turned(A, Bm, Cm)
    batch, T, DI = u.shape
    N, chunks, parts = A.shape[0], triton.cdiv(T, TOKENS), DI // CHANNELS
    du, ddt = torch.empty_like(u), torch.empty_like(u)
    dA, later = u.new_zeros(batch, N, DI), u.new_zeros(batch, N, DI)
    dB, dC = u.new_empty(parts, batch, N, T), u.new_empty(parts, batch, N, T)
    backward_kernel[(batch, parts)](
        u, dt, A, Bm, Cm, edges.contiguous(), dy, du, ddt, dA, dB, dC, later, T, chunks, batch,
        DI, N, TOKENS, CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    dB, dC = dB.sum(0).transpose(1, 2), dC.sum(0).transpose(1, 2)
    return du, ddt, dA.sum(0).t().contiguous(), dB.contiguous(), dC.contiguous()


@scan_backward.register_fake
def _(u, dt, A, Bm, Cm, edges, dy):
    return tuple(x.new_empty(x.shape) for x in (u, dt, A, Bm, Cm))


def turned(A, Bm, Cm):
    return A.t().contiguous(), Bm.transpose(1, 2).contiguous(), Cm.transpose(1, 2).contiguous()


def remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5], output[1])


def differentiate(ctx, dy, _):
    return *scan_backward(*ctx.saved_tensors, dy), None


scan_forward.register_autograd(differentiate, setup_context=remember)
