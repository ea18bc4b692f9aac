"""Trains tiny models on parity: after each bit (ids 0 and 1, texts "0" and "1") the answer is the parity
of all bits so far: the more likely of ids 0 and 1 as the next token. Sequences of at most 40 bits train it;
accuracy is over lengths 40 to 256, as in the FlashRNN paper's table 2. Elman, LSTM, GRU and sLSTM are
one layer in the format of families/rnn.py, several initialisations trained side by side and the best
kept; mLSTM is a small xLSTM, Mamba a small Mamba.

python -m weights_tools.parity --cell lstm --out DIR
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch
from torch.nn import functional as F

from weights_tools import character_tokenizer
from weights_tools import safetensors_io as st
from weights_tools.families import mamba, rnn, xlstm

LENGTH, SHORTEST, LONGEST = 40, 40, 256
CELLS = ("elman", "lstm", "gru", "slstm", "mlstm", "mamba")
_IDS = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 3, "torch_dtype": "float32"}

CARD = """# parity-{cell}

A tiny {cell} model of parity, {parameters:,} parameters, trained by `python -m weights_tools.parity --cell {cell}` on
random sequences of at most {length} bits ({steps} steps, {seconds:.0f} s on {device}). Tokens 0 and 1 are the bits (no BOS);
after each, the likelier of 0 and 1 as the next token is the parity of all bits so far.

| sequence lengths | accuracy on {sequences} random sequences |
|---|---|
| up to {length} (training) | {short:.4f} |
| {length} to {longest} | **{long:.4f}** |
| {longest} | {last:.4f} |
"""


class Cells(torch.nn.Module):
    """`replicas` one-layer models of one cell, no weights shared; parameters as in families/rnn.py, with
    the replica in front."""

    def __init__(self, config, replicas):
        super().__init__()
        self.c = config
        for name, shape in rnn.tensor_shapes(config).items():
            scale = 1.0 if "embed" in name else config.D**-0.5
            value = (2 * torch.rand(replicas, *shape) - 1) * scale
            if name.endswith("bias_ih") and config.cell in ("lstm", "slstm"):
                value[:, config.D : 2 * config.D] += 1.0
            self.register_parameter(name.replace(".", "-"), torch.nn.Parameter(value))

    def weight(self, name):
        return self.get_parameter(name.replace(".", "-"))

    def forward(self, bits):
        """bits [replicas, B, T] -> logits [replicas, B, T, V]."""
        c, shape = self.c, (*bits.shape[:2], self.c.D)
        w = {n: self.weight("layers.0." + n) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        table = self.weight("embeddings.weight") @ w["weight_ih"].mT + w["bias_ih"][:, None]
        one, zero = table[:, 1:2, None], table[:, 0:1, None]
        a = torch.where(bits.mT.unsqueeze(-1) == 1, one, zero)  # [replicas, T, B, gates D]
        state = {n: torch.zeros(shape, device=bits.device) for n in c.states}
        out = []
        for t in range(bits.shape[2]):
            b = torch.baddbmm(w["bias_hh"][:, None], state["h"], w["weight_hh"].mT)
            state = step(c.cell, a[:, t], b, state)
            out.append(state["h"])
        h = torch.stack(out, 2)
        head = self.weight("lm_head.weight")[:, None]
        return h @ head.mT + self.weight("lm_head.bias")[:, None, None]


def step(cell, a, b, s):
    if cell == "elman":
        return {"h": torch.tanh(a + b)}
    if cell == "gru":
        (ra, za, na), (rb, zb, nb) = a.chunk(3, -1), b.chunk(3, -1)
        z = torch.sigmoid(za + zb)
        return {"h": (1 - z) * torch.tanh(na + torch.sigmoid(ra + rb) * nb) + z * s["h"]}
    i, f, g, o = (a + b).chunk(4, -1)
    if cell == "lstm":
        c = torch.sigmoid(f) * s["c"] + torch.sigmoid(i) * torch.tanh(g)
        return {"h": torch.sigmoid(o) * torch.tanh(c), "c": c}
    kept = s["m"] + F.logsigmoid(f)
    m = torch.where(s["n"] == 0, i, torch.maximum(i, kept)).detach()
    write, keep = torch.exp(i - m), torch.exp(kept - m)
    c, n = keep * s["c"] + write * torch.tanh(g), keep * s["n"] + write
    return {"h": torch.sigmoid(o) * c / n, "c": c, "n": n, "m": m}


def configuration(cell):
    """-> config.json, its Config, the family's module."""
    if cell == "mlstm":
        config = xlstm.Config(
            hidden_size=32,
            num_blocks=2,
            num_heads=2,
            vocab_size=4,
            ffn_round_up_to_multiple_of=16,
            bos_token_id=2,
            eos_token_id=3,
            pad_token_id=3,
        )
        values = {**xlstm.hub_config(config, "float32"), "force_bos_token_insert": False}
        return values, config, xlstm
    if cell == "mamba":
        values = {
            "architectures": ["MambaForCausalLM"],
            "model_type": "mamba",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "state_size": 16,
            "conv_kernel": 4,
            "time_step_rank": 2,
            "layer_norm_epsilon": 1e-5,
            "use_bias": False,
            "use_conv_bias": True,
            "vocab_size": 4,
            "tie_word_embeddings": True,
            **_IDS,
        }
        return values, mamba.config_from_dict(values), mamba
    values = {
        "model_type": "rnn",
        "cell": cell,
        "block": "plain",
        "vocab_size": 4,
        "hidden_size": 16,
        "num_heads": 1,
        "num_hidden_layers": 1,
        "use_bias": True,
        "head_bias": True,
        "tie_word_embeddings": False,
        **_IDS,
    }
    return values, rnn.config_from_dict(values), rnn


class One(torch.nn.Module):
    """A model with carried states as if it were one replica from a zero state."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, bits):
        return self.model(bits[0], self.model.zero_state(bits.shape[1]))[0][None]


def model_of(cell, config, replicas):
    if cell == "mlstm":
        from weights_tools.families.xlstm_module import XLSTM

        return One(XLSTM(config))
    if cell == "mamba":
        from weights_tools.families.mamba_module import MambaLM

        return One(MambaLM(config))
    return Cells(config, replicas)


def parity(bits):
    return bits.cumsum(-1) % 2


def train(model, options):
    """Lengths grow over the first half of the steps, so that the first answers are learnt first."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    replicas = 1 if isinstance(model, One) else options.replicas
    begin = time.time()
    for count in range(options.steps):
        passed = max(count / options.steps, (time.time() - begin) / options.max_seconds)
        if passed >= 1:
            break
        length = min(LENGTH, 2 + int(2 * LENGTH * passed))
        bits = torch.randint(0, 2, (replicas, options.rows, length), device=options.device)
        logits = model(bits)
        loss = F.cross_entropy(logits.flatten(0, 2), parity(bits).flatten()) * replicas
        loss.backward()
        for parameter in model.parameters():  # of each replica by itself
            grad = parameter.grad.flatten(1) if replicas > 1 else parameter.grad.flatten()[None]
            norm = grad.norm(dim=1, keepdim=True)
            grad.mul_(torch.clamp(0.5 / (norm + 1e-6), max=1.0))
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(1, (count + 1) / 50) * min(1, 4 * (1 - passed))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if count % 250 == 0:
            print(f"{options.cell} {count} length {length} loss {loss.item() / replicas:.4f}", flush=True)
    return count + 1, time.time() - begin


@torch.no_grad()
def accuracy(model, options, sequences=1024):
    """-> of each replica and length, the share of right answers [replicas, LONGEST]."""
    replicas = 1 if isinstance(model, One) else options.replicas
    model.eval()
    generator = torch.Generator().manual_seed(12345)
    bits = torch.randint(0, 2, (sequences, LONGEST), generator=generator).to(options.device)
    bits = bits.expand(replicas, -1, -1)
    right = model(bits)[..., :2].argmax(-1) == parity(bits)
    return right.float().mean(1).cpu().numpy()


def main(argv):
    parser = argparse.ArgumentParser(prog="python -m weights_tools.parity", description=__doc__)
    parser.add_argument("--cell", required=True, choices=CELLS)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--max-seconds", type=float, default=200)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    torch.manual_seed(options.seed)
    values, config, family = configuration(options.cell)
    model = model_of(options.cell, config, options.replicas).to(options.device)
    steps, seconds = train(model, options)
    share = accuracy(model, options)
    best = int(share[:, SHORTEST - 1 :].mean(1).argmax())
    if isinstance(model, One):
        weights = dict(model.model.named_parameters())
    else:
        weights = {n: model.weight(n)[best] for n in family.tensor_shapes(config)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    tensors = {n: st.tensor(w.detach().cpu().numpy(), "F32") for n, w in weights.items()}
    st.write(options.out / st.SINGLE_NAME, tensors)
    character_tokenizer.write(options.out, {"0": 0, "1": 1}, [(2, "<s>"), (3, "</s>")])
    result = {
        "cell": options.cell,
        "parameters": family.parameters(config),
        "length": LENGTH,
        "longest": LONGEST,
        "steps": steps,
        "seconds": seconds,
        "sequences": 1024,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "a CPU",
        "short": float(share[best, :LENGTH].mean()),
        "long": float(share[best, SHORTEST - 1 :].mean()),
        "last": float(share[best, -1]),
    }
    (options.out / "README.md").write_text(CARD.format(**result))
    print(result, np.round(share[:, SHORTEST - 1 :].mean(1), 4).tolist(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
