"""Feed-forward layers of experts, of which each token goes to some: their sizes, one token's work in fp64, and what a
step reads of them.

    s = softmax(Wrouter y);  chosen: the largest of s, of equal ones the lower number;  w = s, or s / sum of the chosen
    sum over the chosen of w_e Wdown_e (silu(Wgate_e y) Wup_e y)
"""

import dataclasses

import numpy as np

from weights_tools.families import common


@dataclasses.dataclass(frozen=True)
class Experts:
    E: int
    top: int  # of a token
    F: int
    shared: int  # width of the one that all tokens go to
    renormalised: bool = True
    each: bool = False  # a tensor for each matrix of each expert, as the file has them


def chosen(experts, logits):
    """-> numbers and weights of a token's experts."""
    shares = np.exp(logits - logits.max())
    numbers = np.argsort(-shares, kind="stable")[: experts.top]
    return numbers, shares[numbers] / (shares[numbers].sum() if experts.renormalised else shares.sum())


def mixed(experts, logits, y, up, down):
    """One token. up: [E, 2 F, D], gate rows, then up rows; down: [E, D, F]."""
    out = 0
    for e, weight in zip(*chosen(experts, logits)):
        gate, linear = np.split(up[e] @ y, 2)
        out = out + weight * (down[e] @ (common.silu(gate) * linear))
    return out


def idle_parameters(experts, D, layers, tokens):
    """What a step does not read of the experts of so many layers, where tokens go to experts evenly."""
    if experts is None:
        return 0
    idle = experts.E * (1 - experts.top / experts.E) ** tokens
    return layers * idle * 3 * experts.F * D
