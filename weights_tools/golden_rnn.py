"""Golden checkpoints of recurrent cells, computed by PyTorch's nn.RNN, nn.LSTM and nn.GRU in fp64.

Heads are to PyTorch one recurrent matrix with zeros off its blocks. sLSTM is the pointwise function of
the package xlstm (n_min 0) or flashrnn (n_min 1). The FlashRNN paper's GRU is in no package (flashrnn
has it without the inner tanh): its results come from the equations.
Run: python -m weights_tools.golden_rnn OUT PACKAGES [CASE...], PACKAGES being the folder that has xlstm 2.0.6 and
flashrnn 1.0.8.
"""

import importlib.util
import pathlib
import sys

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools.families import rnn


def _config(cell, **changes):
    return {
        "model_type": "rnn",
        "cell": cell,
        "block": "plain",
        "vocab_size": 97,
        "hidden_size": 48,
        "num_heads": 1,
        "num_hidden_layers": 2,
        "use_bias": True,
        "head_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **changes,
    }


_BLOCK = {"block": "pre_norm", "intermediate_size": 64, "norm_eps": 1e-3}
CASES = {
    "rnn/elman": (_config("elman", head_bias=True), 41),
    "rnn/lstm": (_config("lstm", head_bias=True, embedding_size=32), 42),
    "rnn/gru": (_config("gru"), 43),
    "rnn/bf16": (_config("lstm", num_heads=3, torch_dtype="bfloat16", **_BLOCK), 50),
    "rnn/lstm_heads": (_config("lstm", num_heads=3, **_BLOCK), 44),
    "rnn/gru_heads": (_config("gru", num_heads=3, tie_word_embeddings=True), 45),
    "rnn/elman_heads": (_config("elman", num_heads=3, norm="rms_norm", **_BLOCK), 46),
    "rnn/slstm": (_config("slstm", num_heads=3, **_BLOCK), 47),
    "rnn/slstm_n_min": (_config("slstm", num_heads=3, slstm_n_min=1.0), 48),
    "rnn/flash_gru": (_config("flash_gru", num_heads=3), 49),
}


def random_weights(config, seed):
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(rnn.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if "norm" in name:
            out[name] = 1 + 0.4 * normal
        elif "bias" in name:
            out[name] = 0.7 * normal
        elif name == "embeddings.weight":
            out[name] = 1.2 * normal
        elif name == "lm_head.weight":
            out[name] = 5 * normal / np.sqrt(shape[-1])
        else:
            out[name] = 1.2 * normal / np.sqrt(shape[-1])
    return {name: value.astype(np.float32) for name, value in out.items()}


def dense(c, weight):
    """weight_hh [gates D, DH] -> [gates D, D] with zeros off the heads' blocks."""
    import torch

    blocks = weight.reshape(c.gates, c.H, c.D // c.H, -1)
    return torch.cat([torch.block_diag(*gate) for gate in blocks])


def by_pytorch(c, w, x):
    """x [T, in] -> h [T, D], states [H, DH]."""
    import torch

    module = {"elman": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[c.cell]
    cell = module(x.shape[1], c.D).to(x.dtype)
    cell.weight_ih_l0.copy_(w["weight_ih"])
    cell.weight_hh_l0.copy_(dense(c, w["weight_hh"]))
    cell.bias_ih_l0.copy_(w["bias_ih"])
    cell.bias_hh_l0.copy_(w["bias_hh"])
    y, last = cell(x)
    last = last if isinstance(last, tuple) else (last,)
    return y, {n: s.reshape(c.H, -1) for n, s in zip(c.states, last)}


def pointwise(c, packages):
    path = (
        "flashrnn/flashrnn/vanilla/slstm.py"
        if c.n_min
        else "xlstm/blocks/slstm/src/vanilla/slstm.py"
    )
    spec = importlib.util.spec_from_file_location("slstm", pathlib.Path(packages) / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.flashrnn_forward_pointwise if c.n_min else module.slstm_forward_pointwise


def by_package(c, w, x, packages):
    import torch

    function, states, out = pointwise(c, packages), torch.zeros(4, 1, c.D, dtype=x.dtype), []
    R = dense(c, w["weight_hh"])
    for row in x:
        Wx = (w["weight_ih"] @ row + w["bias_ih"])[None]
        Ry, b = (R @ states[0, 0])[None], w["bias_hh"][None]
        if c.n_min:  # [B, gate, D], states [B, state, D]
            parts = (part.reshape(1, 4, -1) for part in (Wx, Ry, b))
            states = function(*parts, states.transpose(0, 1), {})[0].transpose(0, 1)
        else:
            states = function(Wx, Ry, b, states, {})[0]
        out.append(states[0, 0])
    return torch.stack(out), {n: s.reshape(c.H, -1) for n, s in zip("hcnm", states)}


def forward(c, w, tokens, packages):
    import torch
    from torch.nn import functional as F

    def norm(x, weight):
        if c.rms_norm:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.eps) * weight
        return F.layer_norm(x, x.shape[-1:], weight, eps=c.eps)

    x, states = w["embeddings.weight"][torch.from_numpy(tokens).long()], []
    for i in range(c.layers):
        layer = rnn.common.under(w, f"layers.{i}.")
        y = norm(x, layer["norm.weight"]) if c.F else x
        call = (by_package, (packages,)) if c.cell == "slstm" else (by_pytorch, ())
        y, state = call[0](c, layer, y, *call[1])
        states.append(state)
        x = x + y if c.F else y
        if c.F:
            y = norm(x, layer["ffn_norm.weight"])
            gate, up = (F.linear(y, layer[f"ffn.{n}_proj.weight"]) for n in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, layer["ffn.down_proj.weight"])
    x = norm(x, w["norm.weight"]) if c.F else x
    head = w["embeddings.weight" if c.tied else "lm_head.weight"]
    logits = F.linear(x, head, w.get("lm_head.bias"))
    return logits.numpy(), {n: torch.stack([s[n] for s in states]).numpy() for n in c.states}


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    values, seed = CASES[name]
    return cases.stored(random_weights(rnn.config_from_dict(values), seed), values)


def make(name, out, packages):
    import torch

    values, seed = CASES[name]
    c, tensors = rnn.config_from_dict(values), drawn(name)
    equations = [(t, *rnn.run(c, tensors, t)) for t in cases.sequences(c.vocab, seed)]
    results, shown = equations, "- | -"
    if c.cell != "flash_gru":
        both = []
        for dtype in (torch.float64, torch.float32):
            w = {n: torch.from_numpy(t.float32()).to(dtype) for n, t in tensors.items()}
            with torch.no_grad():
                both.append(
                    [(t, *forward(c, w, t, packages)) for t in cases.sequences(c.vocab, seed)]
                )
        results = both[0]
        shown = " | ".join(f"{cases.difference(both[0], x):.1e}" for x in (equations, both[1]))
    print(f"| {name.split('/')[1]} | {rnn.parameters(c):,} | {shown} |")
    cases.write(out / name, values, tensors, results)


def main(argv):
    for name in cases.chosen(CASES, argv[2:]):
        make(name, pathlib.Path(argv[0]), argv[1])


if __name__ == "__main__":
    main(sys.argv[1:])
