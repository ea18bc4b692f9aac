"""Golden embeddings: of each golden checkpoint, the last row and the mean of the last hidden state, of length 1.

Families of transformers: the input of the head while transformers' model computes the golden logits again in fp64. The
others: the hidden state that the head turns into the golden logits, which are an independent implementation's. It is the
only one, as there are more logits than channels; where there are not, as in two cases of RWKV-7, the equations of
weights_tools/families give it, and the head must turn it into the golden logits.

Writes tests/golden/FAMILY/CASE/hidden.safetensors: last.s and mean.s, F32 [D], of the sequences s of golden.safetensors.
Run: python -m weights_tools.golden_hidden tests/golden [FAMILY/CASE ...], with transformers 5.23.0 and PyTorch 2.
"""

import contextlib
import importlib
import io
import json
import pathlib
import sys
import tempfile

import numpy as np

from weights_tools import families
from weights_tools import golden_cases as cases
from weights_tools import safetensors_io as st

# family -> its maker by transformers. Its Mamba-2 norms over all groups together, which is wrong.
MAKERS = {
    "mamba": "golden_mamba",
    "falcon_mamba": "golden_mamba",
    "mamba2": "golden_mamba",
    "recurrent_gemma": "golden_recurrent_gemma",
    "qwen3_5": "golden_qwen3_5",
    "qwen3_5_moe": "golden_qwen3_5",
    "qwen3_next": "golden_qwen3_5",
    "granite_hybrid": "golden_granite_hybrid",
    "nemotron_h": "golden_nemotron_h",
    "falcon_h1": "golden_falcon_h1",
    "xlstm": "golden_xlstm_transformers",
}


def by_transformers(maker, name, vocab):
    """The hidden states of each sequence: the maker's calls of the head in fp64 with whole sequences."""
    import torch

    found = {}

    def note(module, inputs):
        if not isinstance(module, torch.nn.Linear) or module.out_features != vocab:
            return
        (x,) = inputs
        if x.dtype != torch.float64:
            return
        x = x.reshape(-1, x.shape[-1])
        if len(x) in cases.LENGTHS:
            found[len(x)] = x.detach().numpy().copy()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
            maker.main([out, *(["-"] if maker.__name__.endswith("golden_mamba") else []), name])
            made = st.read(pathlib.Path(out) / name / "golden.safetensors")
    finally:
        hook.remove()
    return [found[length] for length in cases.LENGTHS], made


def head_of(values, tensors):
    """The head's matrix, its bias and its cap."""
    wanted = ("lm_head.weight", "model.lm_head.weight", "backbone.embeddings.weight", "backbone.embedding.weight",
              "model.embeddings.weight", "model.embed_tokens.weight", "embeddings.weight", "token_embedding.weight")  # fmt: skip
    W = next(tensors[n] for n in wanted if n in tensors).float32().astype(np.float64)
    bias = next((tensors[n].float32() for n in ("lm_head.bias", "head.bias") if n in tensors), np.zeros(len(W)))
    return W, bias, values.get("output_logit_soft_cap", 0)


def by_logits(values, tensors, golden):
    W, bias, cap = head_of(values, tensors)
    if W.shape[0] <= W.shape[1]:
        return by_equations(values, tensors, golden)
    hidden = []
    for s in range(len(cases.LENGTHS)):
        logits = golden[f"logits.{s}"].array.astype(np.float64)
        rows = (np.arctanh(logits / cap) * cap if cap else logits) - bias
        found, *_ = np.linalg.lstsq(W, rows.T, rcond=None)
        assert np.abs(W @ found - rows.T).max() < 2e-6 * np.abs(rows).max(), np.abs(W @ found - rows.T).max()
        hidden.append(found.T)
    return hidden


def by_equations(values, tensors, golden):
    family, config = families.config_of(values, tensors)
    head = tensors["lm_head.weight"].float32().astype(np.float64)
    identity = tensors | {"lm_head.weight": st.tensor(np.eye(head.shape[1], dtype=np.float32))}
    hidden = []
    for s in range(len(cases.LENGTHS)):
        rows, _ = family.run(config, identity, golden[f"tokens.{s}"].array)
        logits = golden[f"logits.{s}"].array
        assert np.abs(rows @ head.T - logits).max() < 2e-6 * np.abs(logits).max()
        hidden.append(rows)
    return hidden


def hidden_states(directory):
    """-> of each sequence [T, D], and what they come from."""
    values = json.loads((directory / "config.json").read_text())
    golden = st.read(directory / "golden.safetensors")
    tensors = st.read_checkpoint(directory)
    maker = MAKERS.get(directory.parent.name)
    if maker is not None:
        maker = importlib.import_module(f"weights_tools.{maker}")
        names = [n for n in (f"{directory.parent.name}/{directory.name}", directory.name) if n in maker.CASES]
        if names and "groups" not in (directory.name if maker.__name__.endswith("golden_mamba") else ""):
            vocab = golden["logits.0"].array.shape[1]
            hidden, made = by_transformers(maker, names[0], vocab)
            for name in ("logits.0", "logits.1"):  # they are of the same weights
                assert np.allclose(made[name].array, golden[name].array, rtol=1e-5, atol=1e-5), name
            return hidden, "transformers"
    return by_logits(values, tensors, golden), "logits"


def of_length_1(row):
    return (row / np.sqrt((row * row).sum())).astype(np.float32)


def main(argv):
    root = pathlib.Path(argv[0])
    every = sorted(str(p.parent.relative_to(root)) for p in root.glob("*/*/golden.safetensors"))
    for name in argv[1:] or every:
        if not (root / name / "config.json").exists():
            continue
        hidden, source = hidden_states(root / name)
        out = {}
        for s, rows in enumerate(hidden):
            out[f"last.{s}"] = st.tensor(of_length_1(rows[-1]), "F32")
            out[f"mean.{s}"] = st.tensor(of_length_1(rows.mean(0)), "F32")
        st.write(root / name / "hidden.safetensors", out)
        print(f"{name}: of {source}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
