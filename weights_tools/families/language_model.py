"""What the training modules share. Parameter names are those of the checkpoints.

forward: tokens [B, T], state -> logits [B, T, V] fp32, state; a state is a list of tuples of tensors
[B, ...], one tuple a block, without gradient. Matrix products may run in bf16 under autocast, what
recurs is fp32. T is a multiple of the chunk, or less.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


def call_block(block, x, state, rate):
    return block(x, state, rate)


class LanguageModel(nn.Module):
    """Embedding, blocks of a residual stream, a norm, a tied head.

    A block is called through `call`, so that one compiled function can serve the blocks of a kind.
    """

    def __init__(self, dropout):
        super().__init__()
        self.register_buffer("rate", torch.tensor(dropout), persistent=False)
        self.call = call_block

    def walk(self, embedding, blocks, norm, tokens, state):
        rate = self.rate if self.training else None
        x, out = drop(F.embedding(tokens, embedding), rate), []
        for block, block_state in zip(blocks, state):
            x, block_state = self.call(block, x, block_state, rate)
            out.append(block_state)
        return norm(x), out

    def check_kernels(self):
        """Turns kernels off that do not compute on this machine what they should."""

    @torch.no_grad()
    def small_matrices(self, width, layers, ends):
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and not name.endswith(("A_log", "dt_proj.weight")):
                gain = 1 / math.sqrt(2 * layers) if name.endswith(ends) else 1.0
                parameter.normal_(0, gain * math.sqrt(0.4 / width))


def drop(x, rate):
    """Dropout whose rate is a tensor: another rate is not another function to compile."""
    if rate is None:
        return x
    return x * ((torch.rand(x.shape, device=x.device) >= rate) / (1 - rate))


def agree(name, kernel, plain, tensors, tolerance=2e-2):
    """Whether two functions of tensors -> result, ... give the same first result and gradients; says so
    if not."""
    try:
        found = [_gradients(f, tensors) for f in (kernel, plain)]
        off = float(torch.stack([(k - p).norm() / p.norm() for k, p in zip(*found)]).max())
        problem = "" if off < tolerance else f"off by {off:.2%}"  # or NaN
    except Exception as error:  # whatever goes wrong in compiling or starting it
        problem = str(error)[:300]
    if problem:
        print(f"kernel of {name} is not used: {problem}", flush=True)
    return not problem


def _gradients(function, tensors):
    tensors = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]
    y = function(*tensors)[0]
    (y * torch.linspace(-1, 1, y.numel(), device=y.device).reshape(y.shape)).sum().backward()
    return [y.detach()] + [x.grad for x in tensors if x.requires_grad]


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def depthwise(channels, width):
    return nn.Conv1d(channels, channels, width, groups=channels)


def convolve(conv, x, columns):
    """x [B, T, C], columns [B, C, width - 1] -> the same, after a depthwise causal convolution: a sum of
    shifted products, which compiles into its neighbours and whose gradients are sums too."""
    padded = torch.cat([columns.transpose(1, 2), x.float()], 1)
    taps, length = conv.weight.shape[2], x.shape[1]
    y = 0 if conv.bias is None else conv.bias
    for tap in range(taps):
        y = y + padded[:, tap : tap + length] * conv.weight[:, 0, tap]
    return y, padded[:, length:].transpose(1, 2).detach()
