"""LSTM language models of TensorFlow's BasicLSTMCell, or of its LSTMCell without peepholes and
projection: of a V2 checkpoint, or raw arrays with a manifest.json. `convert --help` has their form."""

import json
import math
import pathlib
import re

import numpy as np

from weights_tools import safetensors_io as st
from weights_tools import tensorflow_bundle

NAMES = (
    "embedding [V, E] (none: one-hot), cell_L/basic_lstm_cell/kernel [inputs + H, 4 H] and bias [4 H] "
    "for L = 0, 1, ..., softmax_w [H, V] and softmax_b [V], each after any scope"
)
# Role of a tensor -> what its name is, after any scope. Of older files, and of layers by other names.
ROLES = {
    "embedding": r"embeddings?",
    "softmax_w": r"softmax_w|dense/kernel",
    "softmax_b": r"softmax_b|dense/bias",
    "kernel": r"(?:cell_(\d+)/)?(?:basic_)?lstm_cell(?:_(\d+))?/(?:kernel|weights)",
    "bias": r"(?:cell_(\d+)/)?(?:basic_)?lstm_cell(?:_(\d+))?/(?:bias|biases)",
    # Rates, counts and the moments that optimisers keep.
    "training": r"Variable(?:_\d+)?|global_step|learning_rate|lr|beta[12]_power|"
    r".*/(?:Adam|RMSProp|Adagrad|Momentum|ExponentialMovingAverage)(?:_\d+)?|"
    r"save_counter/\.ATTRIBUTES/VARIABLE_VALUE|_CHECKPOINTABLE_OBJECT_GRAPH",
}
FORGET_BIAS = (
    "wanted forget_bias, what the cell adds to its forget gate, which no checkpoint holds: 1.0 unless "
    "the model was built with another, as by BasicLSTMCell(H, forget_bias=0.0); set it by "
    '--forget-bias 1, or by "forget_bias": 1.0 in manifest.json'
)


def is_one(src):
    """Whether src, a directory or a file, holds such a model."""
    return manifest_of(src) is not None or tensorflow_bundle.index_of(src) is not None


def manifest_of(src):
    path = src / "manifest.json" if src.is_dir() else src
    return path if path.name == "manifest.json" and path.exists() else None


def read(src, forget_bias=None):
    """forget_bias: of --forget-bias. -> config.json, name -> Tensor, character -> id or None."""
    manifest = manifest_of(src)
    if manifest:
        sources, stored = read_manifest(manifest)
        if None not in (stored, forget_bias) and stored != forget_bias:
            raise ValueError(f"{manifest}: forget_bias is {stored}, and --forget-bias {forget_bias}")
        forget_bias = stored if forget_bias is None else forget_bias
    else:
        sources = tensorflow_bundle.sources(tensorflow_bundle.index_of(src))
    where = manifest or tensorflow_bundle.index_of(src)
    arrays, layers = by_role(where, sources)
    if forget_bias is None:
        raise ValueError(f"{where}: {FORGET_BIAS}")
    values, tensors = model_of(where, arrays, layers, np.float32(forget_bias))
    print(f"{layers} cells: gates i j f o to i f g o, forget bias + {forget_bias:g}")
    return values, {n: st.tensor(a, "F32") for n, a in tensors.items()}, characters_of(where.parent)


def read_manifest(path):
    """-> name -> Source, forget_bias or None."""
    manifest = json.loads(path.read_text())
    forget_bias = manifest.pop("forget_bias", None)
    if forget_bias is not None and not isinstance(forget_bias, (int, float)):
        raise ValueError(f"{path}: forget_bias: wanted a number, found {forget_bias!r}")
    return {name: array(path, name, entry) for name, entry in manifest.items()}, forget_bias


def array(path, name, entry):
    """The raw array of an entry of the manifest."""
    entry = entry if isinstance(entry, dict) else {}
    file, shape = entry.get("filename"), entry.get("shape")
    plain = isinstance(file, str) and pathlib.PurePath(file).name == file
    sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not plain or not sizes:
        raise ValueError(
            f'{path}: {name}: wanted {{"filename": "FILE", "shape": [ROWS, COLUMNS]}}, of a file in the '
            f"same directory, found {json.dumps(entry)}"
        )
    size = 4 * math.prod(shape)
    if (path.parent / file).stat().st_size != size:
        found = (path.parent / file).stat().st_size
        raise ValueError(
            f"{path.parent / file}: wanted {size} bytes, fp32 values of shape {shape}, found {found}"
        )

    def pieces():
        with open(path.parent / file, "rb") as values:
            yield from st.read_pieces(values, "F32", size)

    return st.Source("F32", tuple(shape), pieces)


def by_role(where, sources):
    """-> role -> array, those of cells as "kernel 0"; number of cells. Refuses what is unknown."""
    named = {}
    for name in sorted(sources):
        role = role_of(name)
        if role is None:
            raise ValueError(f"{where}: {name} is no tensor of such a model; wanted are {NAMES}")
        named.setdefault(role, []).append(name)
    dropped = named.pop("training", [])
    layers = sum(role.startswith("kernel ") for role in named)
    wanted = ["softmax_w"] + [f"{part} {l}" for l in range(max(layers, 1)) for part in ("kernel", "bias")]
    missing = [role for role in wanted if role not in named]
    if missing:
        found = ", ".join(sorted(sources)) or "none"
        raise ValueError(f"{where}: no {missing[0]}; wanted are {NAMES}; found {found}")
    for role, names in named.items():
        if len(names) > 1:
            raise ValueError(f"{where}: {' and '.join(names)} are both the {role}")
    if dropped:
        print(f"dropped {', '.join(dropped[:3])}" + (f" and {len(dropped) - 3} more" * (len(dropped) > 3)))
    return {role: values_of(where, names[0], sources[names[0]]) for role, names in named.items()}, layers


def role_of(name):
    for role, pattern in ROLES.items():
        found = re.fullmatch(f"(?:.*?/)??(?:{pattern})", name)
        if found and found.re.groups:
            return f"{role} {found[1] or found[2] or 0}"
        if found:
            return role
    return None


def values_of(where, name, source):
    if source is None or source.dtype not in ("F64", "F32", "F16", "BF16"):
        raise ValueError(f"{where}: {name}: wanted floating point, found another type")
    return source.load().float32()


def model_of(where, arrays, layers, forget_bias):
    """-> config.json, name -> array."""
    if arrays["softmax_w"].ndim != 2:
        raise ValueError(f"{where}: softmax_w: wanted [H, V], found {list(arrays['softmax_w'].shape)}")
    hidden, vocab = arrays["softmax_w"].shape
    if "embedding" not in arrays:
        print(f"no embedding: inputs are one-hot, by an identity matrix of {vocab}")
        arrays["embedding"] = np.eye(vocab, dtype=np.float32)
    inputs = arrays["embedding"].shape[-1]
    check(where, "embedding", arrays["embedding"], (vocab, inputs))
    tensors = {"embeddings.weight": arrays["embedding"], "lm_head.weight": arrays["softmax_w"].T}
    if "softmax_b" in arrays:
        check(where, "softmax_b", arrays["softmax_b"], (vocab,))
        tensors["lm_head.bias"] = arrays["softmax_b"]
    for layer in range(layers):
        kernel, bias = arrays[f"kernel {layer}"], arrays[f"bias {layer}"]
        rows = (inputs if layer == 0 else hidden) + hidden
        check(where, f"kernel {layer}", kernel, (rows, 4 * hidden))
        check(where, f"bias {layer}", bias, (4 * hidden,))
        for name, values in cell(kernel, bias, forget_bias).items():
            tensors[f"layers.{layer}.{name}"] = values
    return {
        "model_type": "rnn",
        "cell": "lstm",
        "block": "plain",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "embedding_size": inputs,
        "num_heads": 1,
        "num_hidden_layers": layers,
        "use_bias": True,
        "head_bias": "softmax_b" in arrays,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }, tensors


def check(where, role, values, wanted):
    if values.shape != wanted:
        raise ValueError(f"{where}: {role}: wanted {list(wanted)}, found {list(values.shape)}")


def cell(kernel, bias, forget_bias):
    """TensorFlow's kernel [in + hidden, 4 hidden] with columns i, j, f, o as PyTorch's rows i, f, g, o."""
    i, j, f, o = np.split(kernel, 4, 1)
    bi, bj, bf, bo = np.split(bias, 4)
    gates = np.concatenate([i, f, j, o], 1).T
    inputs = gates.shape[1] - gates.shape[0] // 4
    return {
        "weight_ih": gates[:, :inputs],
        "weight_hh": gates[:, inputs:],
        "bias_ih": np.concatenate([bi, bf + forget_bias, bj, bo]),
        "bias_hh": np.zeros_like(bias),
    }


def characters_of(directory):
    """vocab.json, or None where there is none."""
    path = directory / "vocab.json"
    if not path.exists():
        return None
    characters = json.loads(path.read_text())
    odd = {text: i for text, i in characters.items() if len(text) != 1}
    if odd:
        print(f"vocab.json: {odd} are no single characters; the model writes but never reads them")
    return characters
