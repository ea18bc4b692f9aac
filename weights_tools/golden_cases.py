"""What the makers of golden checkpoints share: writing a case, random weights, others' code in fp64."""

import __future__
import ast
import contextlib
import json
import pathlib

import numpy as np

from weights_tools import safetensors_io as st

LENGTHS = (101, 49)


def chosen(cases, names):
    """The cases with these names, or all."""
    unknown = set(names) - set(cases)
    if unknown:
        raise SystemExit(
            f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(cases)}"
        )
    return names or list(cases)


def stored(weights, values):
    """Arrays -> Tensors in the dtype that the config names; decays and skips of state spaces in fp32."""
    dtype = {"float32": "F32", "bfloat16": "BF16"}[values.get("torch_dtype", "float32")]
    return {
        n: st.tensor(w, "F32" if n.endswith(("A_log", ".D")) else dtype) for n, w in weights.items()
    }


def definition(package, path, name, **imported):
    """One function or class of a file whose imports need a GPU, with those of the same file that it uses; imported:
    what stands for its imports."""
    import einops
    import torch

    source = ast.parse((pathlib.Path(package) / path).read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    there = {node.name: node for node in source.body if isinstance(node, kinds) and not node.decorator_list}
    used, to_read = set(), [name]
    while to_read:
        reads = {n.id for n in ast.walk(there[to_read.pop()]) if isinstance(n, ast.Name)}
        to_read += sorted(reads & there.keys() - used - imported.keys())
        used |= reads & there.keys()
    body = [node for node in there.values() if node.name in used | {name}]
    scope = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    scope |= {"rearrange": einops.rearrange, "repeat": einops.repeat, "__name__": path, **imported}
    flags = __future__.annotations.compiler_flag  # annotations name what is not imported here
    exec(compile(ast.Module(body, []), path, "exec", flags), scope)
    return scope[name]


def sequences(vocab, seed):
    rng = np.random.default_rng(seed + 1000)
    return [rng.integers(0, vocab, length).astype(np.int32) for length in LENGTHS]


def write(directory, config, tensors, results):
    """results: of each sequence, (tokens, logits, name -> state)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    st.write(directory / st.SINGLE_NAME, tensors)
    golden = {}
    for s, (tokens, logits, state) in enumerate(results):
        golden[f"tokens.{s}"] = st.tensor(tokens)
        golden[f"logits.{s}"] = st.tensor(np.asarray(logits), "F32")
        for name, value in state.items():
            value = np.asarray(value)
            golden[f"{name}.{s}"] = st.tensor(value, None if value.dtype == np.int32 else "F32")
    st.write(directory / "golden.safetensors", golden)


def difference(one, other):
    """Largest difference relative to the largest value, over logits and states."""
    worst = 0.0
    for (_, logits, state), (_, logits2, state2) in zip(one, other):
        pairs = [(logits, logits2), *((state[n], state2[n]) for n in state)]
        for a, b in pairs:
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            if a.size:
                worst = max(worst, np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))
    return worst


@contextlib.contextmanager
def fp64():
    """Others' PyTorch code in fp64 where it asks for fp32: its casts to fp32 give fp64."""
    import torch

    to, as_float, zeros, new_zeros = (
        torch.Tensor.to,
        torch.Tensor.float,
        torch.zeros,
        torch.Tensor.new_zeros,
    )

    def wide(value):
        return torch.float64 if value is torch.float32 else value

    def widened(function):
        return lambda *args, **kwargs: function(
            *map(wide, args), **{k: wide(v) for k, v in kwargs.items()}
        )

    torch.Tensor.to, torch.zeros = widened(to), widened(zeros)
    torch.Tensor.new_zeros = widened(new_zeros)
    torch.Tensor.float = torch.Tensor.double
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float = to, as_float
        torch.zeros, torch.Tensor.new_zeros = zeros, new_zeros
        torch.set_default_dtype(default)
