"""Converts a checkpoint to what the server reads: config.json and safetensors.

SRC may be a directory with *.bin or *.pth (torch.save's zip; nothing in it is run), with safetensors, or
with raw arrays and a manifest.json (character LSTMs of TensorFlow's BasicLSTMCell), or one such file
beside its config.json. Says what it renames, drops and casts; refuses what it does not know.
"""

import json
import pathlib
import shutil

import numpy as np

from weights_tools import families, inspect_checkpoint, torch_file
from weights_tools import safetensors_io as st

COPIED = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json")
KEPT_WIDE = ("A_log", ".D", "dt_bias", "dt_proj.bias")


def add_arguments(parser):
    parser.add_argument("src", type=pathlib.Path, help="directory or file to read")
    parser.add_argument("dst", type=pathlib.Path, help="directory to write")
    parser.add_argument(
        "--dtype", choices=["F32", "BF16"], help="cast matrices to this (as stored)"
    )


def files_of(src):
    """The files of one layout; what the index or the usual name says before whatever else is there."""
    if src.is_file():
        return [src]
    files = sorted(p for p in src.iterdir() if p.suffix in (".bin", ".pth", ".pt"))
    if not files and any((src / n).exists() for n in (st.SINGLE_NAME, st.INDEX_NAME)):
        files = st.checkpoint_files(src)
    return files or sorted(src.glob("*.safetensors"))


def read(src):
    """-> name -> Tensor."""
    files = files_of(src)
    if not files:
        raise ValueError(f"{src}: wanted .bin, .pth, .safetensors or manifest.json, found none")
    tensors = {}
    for number, path in enumerate(files, 1):
        print(f"reading {path.name} ({number} of {len(files)})")
        part = st.read(path) if path.suffix == ".safetensors" else torch_file.read(path)
        twice = sorted(part.keys() & tensors.keys())
        if twice:
            raise ValueError(f"{path}: {twice[0]} is in another file too; convert one layout alone")
        tensors.update(part)
    return tensors


def drop_tied_head(tensors, values):
    tied = values.get("tie_word_embeddings", values.get("tie_embeddings", "ssm_cfg" in values))
    head = tensors.get("lm_head.weight")
    for name in ("backbone.embedding.weight", "backbone.embeddings.weight", "model.embeddings.weight"):
        same = tied and head is not None and name in tensors
        if same and np.array_equal(head.array, tensors[name].array):
            print(f"dropped lm_head.weight: the same as {name}")
            return {n: t for n, t in tensors.items() if n != "lm_head.weight"}
    return tensors


def rename(tensors):
    """Codestral's consolidated file has "model." before "backbone."."""
    out = {}
    for name, value in tensors.items():
        new = name.removeprefix("model.") if name.startswith(("model.backbone.", "model.lm_head.")) else name
        if new != name:
            print(f"renamed {name} to {new}")
        out[new] = value
    return out


def cast(tensors, dtype):
    if dtype is None:
        return tensors
    out = {}
    for name, value in tensors.items():
        wanted = "F32" if name.endswith(KEPT_WIDE) or len(value.shape) < 2 else dtype
        if value.dtype != wanted:
            print(f"cast {name} from {value.dtype} to {wanted}")
            value = st.tensor(value.float32(), wanted)
        out[name] = value
    return out


def character_lstm(src):
    """-> config.json, tensors, characters by id."""
    manifest = json.loads((src / "manifest.json").read_text())
    arrays = {}
    for name, entry in manifest.items():
        array = np.fromfile(src / entry["filename"], "<f4")
        if array.size != int(np.prod(entry["shape"], dtype=np.int64)):
            raise ValueError(f"{src / entry['filename']}: wanted shape {entry['shape']}, found {array.size} values")
        arrays[name] = array.reshape(entry["shape"])
    used = {"Variable", "embedding", "rnnlm/softmax_w", "rnnlm/softmax_b"}
    tensors = {
        "embeddings.weight": arrays["embedding"],
        "lm_head.weight": arrays["rnnlm/softmax_w"].T,
        "lm_head.bias": arrays["rnnlm/softmax_b"],
    }
    layer, hidden = 0, arrays["rnnlm/softmax_w"].shape[0]
    while found := [n for n in arrays if f"/cell_{layer}/basic_lstm_cell/" in n]:
        kernel = next(arrays[n] for n in found if n.endswith(("kernel", "weights")))
        bias = next(arrays[n] for n in found if n.endswith(("bias", "biases")))
        used.update(found)
        i, j, f, o = np.split(kernel, 4, 1)
        bi, bj, bf, bo = np.split(bias, 4)
        gates = np.concatenate([i, f, j, o], 1).T  # rows i, f, g, o
        inputs = gates.shape[1] - hidden
        p = f"layers.{layer}."
        tensors[p + "weight_ih"], tensors[p + "weight_hh"] = gates[:, :inputs], gates[:, inputs:]
        # The cell adds 1 to its forget gate.
        tensors[p + "bias_ih"] = np.concatenate([bi, bf + np.float32(1), bj, bo])
        tensors[p + "bias_hh"] = np.zeros_like(bias)
        layer += 1
    unknown = sorted(set(arrays) - used)
    if unknown or layer == 0:
        raise ValueError(f"{src}: wanted BasicLSTM cells, an embedding and a softmax, found {unknown or sorted(arrays)}")
    print(f"dropped Variable; {layer} cells: gates i j f o to i f g o, forget bias + 1")
    values = {
        "model_type": "rnn",
        "cell": "lstm",
        "block": "plain",
        "vocab_size": arrays["embedding"].shape[0],
        "hidden_size": hidden,
        "embedding_size": arrays["embedding"].shape[1],
        "num_heads": 1,
        "num_hidden_layers": layer,
        "use_bias": True,
        "head_bias": True,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    characters = json.loads((src / "vocab.json").read_text())
    return values, {n: st.tensor(a, "F32") for n, a in tensors.items()}, characters


def main(options):
    src, dst = options.src, options.dst
    directory = src if src.is_dir() else src.parent
    if (directory / "manifest.json").exists() and src.is_dir():
        values, tensors, characters = character_lstm(src)
    else:
        values = json.loads((directory / "config.json").read_text())
        characters = None
        tensors = rename(read(src))
    family = families.load(families.type_of(values))
    config = family.config_from_dict(values)
    tensors = cast(drop_tied_head(tensors, values), options.dtype)
    wanted = family.tensor_shapes(config)
    entries = {n: st.Entry(t.dtype, t.shape, 0, 0) for n, t in tensors.items()}
    problems = inspect_checkpoint.compare(entries, wanted)
    if problems:
        raise ValueError(f"{src}: {problems[0]} ({len(problems)} problems in all); nothing written")
    dst.mkdir(parents=True, exist_ok=True)
    (dst / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    st.write(dst / st.SINGLE_NAME, tensors)
    if characters is not None:
        (dst / "vocab.json").write_text(json.dumps(characters, ensure_ascii=False) + "\n")
    for name in COPIED:
        if (directory / name).exists() and directory.resolve() != dst.resolve():
            shutil.copyfile(directory / name, dst / name)
    print(f"{dst}: {len(tensors)} tensors, {family.parameters(config):,} parameters")
