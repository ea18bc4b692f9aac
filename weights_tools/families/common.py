"""What several families' numpy forms share."""

import numpy as np


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def count(shapes):
    return sum(int(np.prod(shape)) for shape in shapes.values())


def under(weights, prefix):
    """The tensors whose names begin with prefix, by the rest of their names."""
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def silu(x):
    return x * sigmoid(x)


def rms(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def layer_norm(x, weight, eps):
    """Biased variance, no bias."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight


def convolve(weight, bias, x, columns):
    """Depthwise: weight [C, 1, width], the last column for x [C]; columns [C, width - 1], oldest
    first, gain x in place."""
    window = np.concatenate([columns, x[:, None]], 1)
    columns[:] = window[:, 1:]
    return (weight.reshape(window.shape) * window).sum(1) + bias
