"""Golden checkpoints of RWKV-7, computed by BlinkDL's package rwkv in fp64.

A case is written as a .pth with BlinkDL's names, which the package reads, and goes through
weights_tools.rwkv_file into the form that the server reads. The package is changed in one place: its decay has
0.606531 for exp(-1/2), which is put in with all its digits, as its CUDA kernels and the training code have it.
Run: python -m weights_tools.golden_rwkv OUT [CASE...], in the environment of tests/golden/rwkv7/requirements.txt.
"""

import importlib.util
import os
import pathlib
import sys
import tempfile

import numpy as np

from weights_tools import golden_cases as cases
from weights_tools import rwkv_file, torch_file
from weights_tools import safetensors_io as st
from weights_tools.families import rwkv7

# D, layers, vocabulary, F, ranks of w, a, v, g; seed; dtype. Sizes are small and odd, ranks all different.
CASES = {
    "rwkv7/one_head": (rwkv7.Config(64, 3, 97, 96, (8, 6, 4, 10)), 61, "float32"),
    "rwkv7/heads": (rwkv7.Config(192, 1, 61, 40, (5, 3, 7, 9)), 62, "float32"),
    # The mixes in one tensor, as flash-linear-attention's first files have them.
    "rwkv7/one_shift": (rwkv7.Config(64, 2, 97, 272, (7, 33, 12, 20)), 63, "float32"),
    "rwkv7/bf16": (rwkv7.Config(128, 2, 101, 160, (16, 8, 4, 24)), 64, "bfloat16"),
}


def random_weights(config, seed):
    """name -> fp32 array, by the names of the server, in sizes at which every term of the forward pass shows:
    decays and learning rates over all of their range, some keys too short to be normalised, some outputs of a
    size at which the norm's eps counts."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in sorted(rwkv7.tensor_shapes(config).items()):
        normal = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            out[name] = 1 + 0.4 * normal
        elif name.endswith(("norm.bias", ".k_k", ".r_k")):
            out[name] = 0.4 * normal + name.endswith(".k_k")
        elif name.endswith("lora.2.bias"):
            out[name] = 2 * normal
        elif name.endswith((".k_a", ".x_k", ".x_r", ".x_w", ".x_v", ".x_a", ".x_g", ".x_x")):
            out[name] = rng.uniform(0, 1, shape)
        elif name.endswith("embeddings.weight"):
            out[name] = 1.5 * normal
        else:
            gain = {"lm_head.weight": 5.0}.get(name, 2.5 if "lora" in name else 1.5)
            out[name] = gain * normal / np.sqrt(shape[-1])
        if name.endswith("attn.k_k"):
            out[name][-16:] = 0  # in the last head few keys have a length
        if name.endswith("0.attn.r_proj.weight"):
            out[name] *= 0.02  # outputs of about 1e-2
    last = config.layers - 1
    out[f"model.layers.{last}.attn.k_k"][:64] *= 1e-13  # of the first head: shorter than is normalised
    return {name: value.astype(np.float32) for name, value in out.items()}


def blinkdl_names(tensors):
    """name -> fp32 array, with BlinkDL's names and shapes: the other way of rwkv_file.read."""
    outside = {new: old for old, new in rwkv_file.OUTSIDE.items()}
    inside = {new: (old, change) for old, (new, change) in rwkv_file.NAMES.items()}
    out = {}
    for name, array in tensors.items():
        if name in outside:
            out[outside[name]] = array
            continue
        _, _, layer, rest = name.split(".", 3)
        if rest == "attn.x_x":
            for mix, row in zip(rwkv7.MIXES, array.reshape(6, -1)):
                out[f"blocks.{layer}.att.x_{mix}"] = row.reshape(1, 1, -1)
            continue
        old, change = inside[rest]
        if change == "transposed":
            array = array.T
        elif change != "as it is":
            array = array.reshape(1, 1, -1)
        out[f"blocks.{layer}.{old}"] = np.ascontiguousarray(array)
    return out


def write_pth(path, weights, dtype):
    import torch

    torch.save({n: torch.from_numpy(w).to(getattr(torch, dtype)) for n, w in blinkdl_names(weights).items()}, path)


def package():
    """The package's module, with the constant of its decay in full, and not compiled: the compiler would read the
    package's file, and knows nothing of cases.fp64()."""
    import torch

    torch.jit.ScriptModule = torch.nn.Module
    torch.jit.script = torch.jit.script_method = lambda function: function
    os.environ.update(RWKV_V7_ON="1", RWKV_JIT_ON="0", RWKV_CUDA_ON="0")
    spec = importlib.util.find_spec("rwkv.model")
    source = pathlib.Path(spec.origin).read_text()
    changed = source.replace("-0.606531 *", f"-{float(np.exp(-0.5))!r} *")
    assert changed != source
    module = importlib.util.module_from_spec(spec)
    exec(compile(changed, spec.origin, "exec"), module.__dict__)
    return module


def by_package(path, config, seed, fp64):
    """-> of each sequence, tokens, logits and states."""
    import torch

    module, out = package(), []
    model = module.RWKV(model=str(path.with_suffix("")), strategy="cpu fp32")
    if fp64:
        # Its own dtype is fp32 at the most; what it casts to fp32 on the way is fp64 within cases.fp64().
        module.DTYPE = torch.float64
    for tokens in cases.sequences(config.vocab, seed):
        logits, state = model.forward(tokens.tolist(), None, full_output=True)
        S, shift, ffn_shift = (np.stack([s.double().numpy() for s in state[i::3]]) for i in (1, 0, 2))
        arrays = {"S": S.transpose(0, 1, 3, 2), "shift": shift, "ffn_shift": ffn_shift}
        out.append((tokens, logits.double().numpy(), arrays))
    return out


def drawn(name):
    """The weights of a case, as its file has them: name -> Tensor."""
    config, seed, dtype = CASES[name]
    tensors = cases.stored(random_weights(config, seed), {"torch_dtype": dtype})
    return one_shift(config, tensors) if name.endswith("one_shift") else tensors


def make(name, out):
    config, seed, dtype = CASES[name]
    weights = random_weights(config, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pth"
        write_pth(path, weights, dtype)
        values, tensors = rwkv_file.read(path, torch_file.sources(path))
        tensors = {n: s.load() for n, s in tensors.items()}
        fp32 = by_package(path, config, seed, fp64=False)
        with cases.fp64():
            exact = by_package(path, config, seed, fp64=True)
    assert exact[0][2]["S"].dtype == np.float64
    if name.endswith("one_shift"):
        tensors = one_shift(config, tensors)
        config = rwkv7.as_stored(config, tensors)
    equations = [(t, *rwkv7.run(config, tensors, t)) for t in cases.sequences(config.vocab, seed)]
    values["torch_dtype"] = dtype
    print(
        f"{name}: fp64 to equations {cases.difference(equations, exact):.1e}, "
        f"fp32 {cases.difference(exact, fp32):.1e}, {rwkv7.parameters(config):,} parameters"
    )
    same = {n: t.array.tobytes() for n, t in tensors.items()} == {n: t.array.tobytes() for n, t in drawn(name).items()}
    assert same, "what was read from the file is not what was drawn"
    cases.write(out / name, values, tensors, exact)


def one_shift(config, tensors):
    """Each layer's six mixes as one tensor."""
    out = {n: t for n, t in tensors.items() if ".attn.x_" not in n}
    for i in range(config.layers):
        names = [f"model.layers.{i}.attn.x_{mix}" for mix in rwkv7.MIXES]
        rows = np.concatenate([tensors[n].array.reshape(1, -1) for n in names])
        out[f"model.layers.{i}.attn.x_x"] = st.Tensor(tensors[names[0]].dtype, rows)
    return out


def main(argv):
    for name in cases.chosen(CASES, argv[1:]):
        make(name, pathlib.Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
