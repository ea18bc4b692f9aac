"""The sLSTM's recurrence for training: a Triton kernel on a GPU, a loop in PyTorch elsewhere.

x [B, T, 4, H, DH] (i f z o before the recurrent part), R [H, 4, DH out, DH in], state [4, B, H, DH]
(h c n m), all fp32 -> h [B, T, H, DH], the state after T. m cancels in h, so it takes no gradient; no
gradient goes to the state that it starts from.
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
ROWS, WARPS = 16, 4  # of a tile


def slstm_scan(x, R, state):
    if not (x.is_cuda and use_kernel):
        return scan_loop(x, R, state)
    return scan_kernel(x, R, state)


def check_kernel(device, heads, size):
    """Turns the kernels off if they do not agree with the loop."""
    global use_kernel
    make = torch.Generator().manual_seed(1)
    shapes = ((3, 40, 4, heads, size), (heads, 4, size, size))
    x, R = (torch.randn(shape, generator=make).to(device) for shape in shapes)
    inputs = [x.requires_grad_(), (R * size**-0.5).requires_grad_(), x.new_zeros(4, 3, heads, size)]
    use_kernel = use_kernel and agree("the sLSTM", scan_kernel, scan_loop, inputs)


def scan_kernel(x, R, state):
    rows = x.shape[0]
    more = -rows % ROWS
    x = F.pad(x, (0, 0) * 4 + (0, more))
    state = F.pad(state, (0, 0, 0, 0, 0, more))
    _, states = scan_forward(x, R, state)
    return states[:rows, 1:, 0], states[:rows, -1].transpose(0, 1).detach()


def scan_loop(x, R, state):
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
    return torch.stack(out, 1), torch.stack([h, c, n, m]).detach()


if triton:

    @triton.jit
    def log_sigmoid(x):
        return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))

    @triton.jit
    def tanh(x):
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0

    # Pointers: x gates dgates [B, T, 4, H, D], R [H, 4, D out, D in], states [B, T + 1, 4, H, D], those
    # before token 0 first. What the next token needs is loaded before the products of this one.
    @triton.jit
    def forward_kernel(x, R, gates, states, T, H: tl.constexpr, D: tl.constexpr, BB: tl.constexpr):
        head = tl.program_id(1)
        b = (tl.program_id(0) * BB + tl.arange(0, BB)).to(tl.int64)
        d = tl.arange(0, D)
        HD: tl.constexpr = H * D
        r = R + head * 4 * D * D + d[None, :] * D + d[:, None]  # [in, out]
        ri = tl.load(r)
        rf = tl.load(r + D * D)
        rz = tl.load(r + 2 * D * D)
        ro = tl.load(r + 3 * D * D)
        at = x + b[:, None] * T * 4 * HD + head * D + d[None, :]
        to = gates + b[:, None] * T * 4 * HD + head * D + d[None, :]
        s = states + b[:, None] * (T + 1) * 4 * HD + head * D + d[None, :]
        h = tl.load(s)
        c = tl.load(s + HD)
        n = tl.load(s + 2 * HD)
        m = tl.load(s + 3 * HD)
        xi = tl.load(at)
        xf = tl.load(at + HD)
        xz = tl.load(at + 2 * HD)
        xo = tl.load(at + 3 * HD)
        for t in range(T):
            at += tl.where(t + 1 < T, 4 * HD, 0)
            s += 4 * HD
            next_i = tl.load(at)
            next_f = tl.load(at + HD)
            next_z = tl.load(at + 2 * HD)
            next_o = tl.load(at + 3 * HD)
            i = xi + tl.dot(h, ri)
            f = xf + tl.dot(h, rf)
            z = xz + tl.dot(h, rz)
            o = xo + tl.dot(h, ro)
            kept = m + log_sigmoid(f)
            m = tl.where(n == 0.0, i, tl.maximum(i, kept))
            write = tl.exp(i - m)
            keep = tl.exp(kept - m)
            c = keep * c + write * tanh(z)
            n = keep * n + write
            h = tl.sigmoid(o) * c / n
            tl.store(to, i)
            tl.store(to + HD, f)
            tl.store(to + 2 * HD, z)
            tl.store(to + 3 * HD, o)
            tl.store(s, h)
            tl.store(s + HD, c)
            tl.store(s + 2 * HD, n)
            tl.store(s + 3 * HD, m)
            to += 4 * HD
            xi = next_i
            xf = next_f
            xz = next_z
            xo = next_o

    @triton.jit
    def backward_kernel(
        R, gates, states, dh_out, dgates, T, H: tl.constexpr, D: tl.constexpr, BB: tl.constexpr
    ):
        head = tl.program_id(1)
        b = (tl.program_id(0) * BB + tl.arange(0, BB)).to(tl.int64)
        d = tl.arange(0, D)
        HD: tl.constexpr = H * D
        r = R + head * 4 * D * D + d[:, None] * D + d[None, :]  # [out, in]
        ri = tl.load(r)
        rf = tl.load(r + D * D)
        rz = tl.load(r + 2 * D * D)
        ro = tl.load(r + 3 * D * D)
        last = T - 1
        g = gates + (b[:, None] * T + last) * 4 * HD + head * D + d[None, :]
        to = dgates + (b[:, None] * T + last) * 4 * HD + head * D + d[None, :]
        s = states + (b[:, None] * (T + 1) + last) * 4 * HD + head * D + d[None, :]
        y = dh_out + (b[:, None] * T + last) * HD + head * D + d[None, :]
        c = tl.load(s + 5 * HD)
        n = tl.load(s + 6 * HD)
        m = tl.load(s + 7 * HD)
        c_old = tl.load(s + HD)
        n_old = tl.load(s + 2 * HD)
        m_old = tl.load(s + 3 * HD)
        i = tl.load(g)
        f = tl.load(g + HD)
        z = tl.load(g + 2 * HD)
        o = tl.load(g + 3 * HD)
        dy = tl.load(y)
        dh = tl.zeros((BB, D), tl.float32)
        dc = tl.zeros((BB, D), tl.float32)
        dn = tl.zeros((BB, D), tl.float32)
        for k in range(T):
            back = tl.where(k + 1 < T, HD, 0)
            g -= 4 * back
            s -= 4 * back
            y -= back
            next_i = tl.load(g)
            next_f = tl.load(g + HD)
            next_z = tl.load(g + 2 * HD)
            next_o = tl.load(g + 3 * HD)
            next_dy = tl.load(y)
            next_c = tl.load(s + HD)
            next_n = tl.load(s + 2 * HD)
            next_m = tl.load(s + 3 * HD)
            z = tanh(z)
            o = tl.sigmoid(o)
            write = tl.exp(i - m)
            keep = tl.exp(m_old + log_sigmoid(f) - m)
            dh += dy
            dc += dh * o / n
            dn -= dh * o * c / (n * n)
            do = dh * c / n * o * (1.0 - o)
            di = (dc * z + dn) * write
            # Where n was 0 the old state is 0 and keep may be anything.
            df = tl.where(n_old == 0.0, 0.0, (dc * c_old + dn * n_old) * keep * tl.sigmoid(-f))
            dz = dc * write * (1.0 - z * z)
            tl.store(to, di)
            tl.store(to + HD, df)
            tl.store(to + 2 * HD, dz)
            tl.store(to + 3 * HD, do)
            to -= 4 * HD
            dh = tl.dot(di, ri) + tl.dot(df, rf) + tl.dot(dz, rz) + tl.dot(do, ro)
            dc = tl.where(n_old == 0.0, 0.0, dc * keep)
            dn = tl.where(n_old == 0.0, 0.0, dn * keep)
            c = c_old
            n = n_old
            m = m_old
            c_old = next_c
            n_old = next_n
            m_old = next_m
            i = next_i
            f = next_f
            z = next_z
            o = next_o
            dy = next_dy


@torch.library.custom_op("recurve::slstm_scan", mutates_args=())
def scan_forward(
    x: torch.Tensor, R: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> the gates after the recurrent part [B, T, 4, H, DH], the states [B, T + 1, 4, H, DH]."""
    x, R = x.contiguous(), R.contiguous()
    B, T, _, H, D = x.shape
    gates, states = torch.empty_like(x), x.new_empty(B, T + 1, 4, H, D)
    states[:, 0] = state.transpose(0, 1)
    forward_kernel[(B // ROWS, H)](x, R, gates, states, T, H, D, ROWS, num_warps=WARPS)
    return gates, states


@scan_forward.register_fake
def _(x, R, state):
    B, T, _, H, D = x.shape
    return x.new_empty(x.shape), x.new_empty(B, T + 1, 4, H, D)


@torch.library.custom_op("recurve::slstm_scan_backward", mutates_args=())
def scan_backward(
    R: torch.Tensor, gates: torch.Tensor, states: torch.Tensor, dh: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    R, dh = R.contiguous(), dh.contiguous()
    B, T, _, H, D = gates.shape
    dgates = torch.empty_like(gates)
    backward_kernel[(B // ROWS, H)](
        R, gates, states, dh, dgates, T, H, D, ROWS, num_warps=WARPS
    )
    before = states[:, :-1, 0]
    return dgates, torch.einsum("btgho,bthi->hgoi", dgates, before).contiguous()


@scan_backward.register_fake
def _(R, gates, states, dh):
    return gates.new_empty(gates.shape), R.new_empty(R.shape)


def remember(ctx, inputs, output):
    ctx.save_for_backward(inputs[1], *output)


def differentiate(ctx, _, dstates):
    return *scan_backward(*ctx.saved_tensors, dstates[:, 1:, 0]), None


scan_forward.register_autograd(differentiate, setup_context=remember)
