"""Converts a checkpoint to the layout that the server reads: config.json and safetensors, as on the Hugging Face Hub.

SRC may be a directory, or one file next to its config.json, of
  safetensors, single or in shards with an index; *.bin or *.pth (torch.save's zip; nothing in it is
  run), single or in shards with an index; RWKV-7's .pth (or the same as safetensors), which needs no
  config.json; a tuned state of RWKV-7 (a .pth of blocks.N.att.time_state), which becomes
  initial_state.safetensors for recurve-server --initial-state; Mamba-Codestral's params.json and consolidated.safetensors;
  llama.cpp's GGUF (SRC is the file) of Mamba, Falcon Mamba and RWKV-7 in F32, F16, BF16, Q8_0 and Q4_0, which
  needs no config.json either; its tokenizer is not converted;
  LSTMs of TensorFlow, as raw arrays with a manifest.json or as a V2 checkpoint: see below.
If a directory has several of these, the first is used. Weights are processed in pieces, so a checkpoint
of any size needs little memory. Prints what it renames, drops and casts. Refuses unknown input before it
writes anything. --weights packs linear layers, as `quantize` does, without a copy in between.

LSTMs of TensorFlow: language models of BasicLSTMCell, or LSTMCell without peepholes and projection. SRC is
the directory of NAME.index and NAME.data-00000-of-0000N, or NAME.index itself; or of a manifest.json,
  {"forget_bias": 1.0, "TENSOR": {"filename": "FILE", "shape": [ROWS, COLUMNS]}, ...}
where FILE has the values as little-endian fp32, row after row. TENSOR is, after any scope ("rnnlm/"),
  embedding [V, E]                                  none: inputs are one-hot
  cell_L/basic_lstm_cell/kernel [inputs + H, 4 H]   L from 0; also weights, and lstm_cell; cell_0/ may be
  cell_L/basic_lstm_cell/bias [4 H]                 left out; also biases
  softmax_w [H, V], softmax_b [V]                   also dense/kernel, dense/bias; the bias may be missing
Gates are i, j, f, o. Variables of training (global_step, Adam, ...) are dropped; any other name is refused.
The cell adds forget_bias to its forget gate. No checkpoint stores it, so set it in the manifest or with
--forget-bias; BasicLSTMCell's default is 1. vocab.json {"CHARACTER": ID, ...} becomes a tokenizer.json.
"""

import collections
import json
import pathlib
import re
import shutil

from weights_tools import character_tokenizer, families, gguf_file, gguf_model, inspect_checkpoint, packing, public_config
from weights_tools import rwkv_file, tensorflow_lstm, tokenizer_info, torch_file
from weights_tools import safetensors_io as st
from weights_tools.progress import Progress

# The first of these that a directory has names its layout; the others there are not read.
LAYOUTS = (
    st.INDEX_NAME,
    st.SINGLE_NAME,
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "consolidated.safetensors",
)
SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")
# Source name -> name next to the weights.
COPIED = {
    "tokenizer.json": "tokenizer.json",
    "tokenizer.model": "tokenizer.model",
    "tokenizer.model.v3": "tokenizer.model",  # Mistral's name for it
    "tokenizer_config.json": "tokenizer_config.json",
    "special_tokens_map.json": "special_tokens_map.json",
    "chat_template.jinja": "chat_template.jinja",
    "generation_config.json": "generation_config.json",
}
FLOATS = ("F64", "F32", "F16", "BF16")
TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
KEPT_WIDE = ("A_log", ".D", "dt_bias", "dt_proj.bias")


def add_arguments(parser):
    parser.add_argument("src", type=pathlib.Path, help="directory or file to read")
    parser.add_argument("dst", type=pathlib.Path, help="directory to write")
    parser.add_argument(
        "--dtype", choices=["F32", "BF16"], help="cast matrices to this type (default: as stored)"
    )
    packing.add_arguments(parser, required=False)
    parser.add_argument(
        "--shard-gb", type=float, default=5.0, metavar="GB", help="largest file to write (default: 5)"
    )
    parser.add_argument(
        "--forget-bias",
        type=float,
        metavar="X",
        help="forget bias of the cells of TensorFlow's LSTMs",
    )


def main(options):
    src, dst = options.src, options.dst
    directory = src if src.is_dir() else src.parent
    refuse_to_overwrite(dst)
    if options.head and not options.weights:
        raise ValueError("--head is for packed weights: set --weights")
    characters = None
    if of_tensorflow(src):
        values, tensors, characters = tensorflow_lstm.read(src, options.forget_bias)
    elif options.forget_bias is not None:
        raise ValueError(f"{src}: --forget-bias is for LSTMs of TensorFlow, and this is none")
    elif gguf_file.is_one(src):
        values, tensors = gguf_model.read(src)
    else:
        tensors = read(src)
        if rwkv_file.is_tuned(tensors):
            return rwkv_file.write_tuned(src, tensors, dst)
        if rwkv_file.is_goose(tensors):
            rwkv_file.check_goose_config(directory)
            tensors = rwkv_file.goose_names(tensors)
        if rwkv_file.is_one(tensors):
            values, tensors = rwkv_file.read(src, tensors)
        else:
            values = public_config.read(directory)
    family, config = families.config_of(values, tensors)
    tensors = rename(tensors, family.tensor_shapes(config))
    config, tensors = settle_head(family, config, tensors, values)
    wanted = family.tensor_shapes(config)
    tensors = cast(tensors, options.dtype)
    problems = inspect_checkpoint.compare(families.used(family, tensors), wanted)
    if problems:
        raise ValueError(f"{src}: {problems[0]} ({len(problems)} problems in all); nothing written")
    values["torch_dtype"] = TORCH[max(tensors.values(), key=lambda t: t.nbytes).dtype]
    with packing.workers_for(tensors, options.processes) as workers:
        if options.weights:
            tensors = packing.quantized(tensors, family, config, options.weights, options.head, workers)
        write(dst, tensors, options.shard_gb)
    (dst / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    if characters is not None:
        character_tokenizer.write(dst, characters)
    copy_beside(directory, dst)
    if families.type_of(values) == "rwkv7":
        rwkv_file.write_chat_template(values, dst)
    print(f"{dst}: {len(tensors)} tensors, {family.parameters(config):,} parameters")


def write(dst, tensors, shard_gb):
    dst.mkdir(parents=True, exist_ok=True)
    progress = Progress(sum(t.nbytes for t in tensors.values()))
    st.write_checkpoint(dst, tensors, shard_gb * 1e9, progress)
    progress.finish()


def of_tensorflow(src):
    """Of a directory with several layouts, a manifest.json is first and a checkpoint of TensorFlow last."""
    others = src.is_dir() and any((src / name).exists() for name in LAYOUTS)
    return tensorflow_lstm.manifest_of(src) is not None or (not others and tensorflow_lstm.is_one(src))


def refuse_to_overwrite(dst):
    for name in (st.INDEX_NAME, st.SINGLE_NAME):
        if (dst / name).exists():
            raise ValueError(f"{dst / name} is there already; choose another directory or remove it")


def read(src):
    """-> name -> Source."""
    tensors, files = {}, files_of(src)
    for path in files:
        part = st.sources(path) if path.suffix == ".safetensors" else torch_file.sources(path)
        twice = sorted(part.keys() & tensors.keys())
        if twice:
            raise ValueError(f"{path}: {twice[0]} is in another file too; convert one layout alone")
        tensors.update(part)
    print(f"reading {len(tensors)} tensors of {', '.join(path.name for path in files)}")
    return tensors


def files_of(src):
    if src.is_file():
        return [src]
    for name in LAYOUTS:
        if (src / name).exists() and name in (st.INDEX_NAME, st.SINGLE_NAME):
            return st.checkpoint_files(src)
        if (src / name).exists():
            return st.indexed_files(src / name) if name.endswith(".index.json") else [src / name]
    files = sorted(path for path in src.iterdir() if path.suffix in SUFFIXES)
    if len({path.suffix for path in files}) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise ValueError(f"{src}: wanted files of one kind of {', '.join(SUFFIXES)}, found {names}")
    return files


def rename(tensors, wanted):
    """To the names of Hugging Face's form."""
    out = {canonical(name, wanted): value for name, value in tensors.items()}
    if len(out) != len(tensors):
        raise ValueError("a tensor is there under two names, with and without a prefix")
    report("renamed", [f"{old} to {new}" for old, new in zip(tensors, out) if old != new])
    return out


def canonical(name, wanted):
    """Packages differ in the prefix ("backbone.", "model.", both or none) and in the table's name."""
    if name in wanted:
        return name
    bare = name.removeprefix("model.")
    for prefix in ("", "backbone.", "model."):
        for table in ("embedding.", "embed_tokens."):
            new = prefix + bare.replace(table, "embeddings.")
            if new in wanted or new == "lm_head.weight":
                return new
    return name


def settle_head(family, config, tensors, values):
    """A tied head that the file holds too is dropped; one that differs stays, and the config that is
    written (values) ties it no more. -> Config, tensors."""
    table = families.table_of(family, config)
    settled, kept, _ = families.find_head(family, config, tensors)
    if len(kept) < len(tensors):
        report("dropped", [f"lm_head.weight: the same as {table}"])
    if settled != config:
        report("kept", [f"lm_head.weight, which differs from {table}: the new config ties them no more"])
        keys = [key for key in ("tie_word_embeddings", "tie_weights") if key in values]
        values.update(dict.fromkeys(keys or ["tie_word_embeddings"], False))
    return settled, kept


def cast(tensors, dtype):
    """Matrices to dtype, vectors and what is exponentiated to fp32; without one only fp64 to fp32."""
    out, changes = {}, []
    for name, value in tensors.items():
        if value.dtype not in FLOATS:
            raise ValueError(f"{name}: wanted floating point, found {value.dtype}; nothing written")
        wanted = "F32" if value.dtype == "F64" else value.dtype
        if dtype is not None:
            wanted = "F32" if name.endswith(KEPT_WIDE) or len(value.shape) < 2 else dtype
        if value.dtype != wanted:
            changes.append(f"{name} from {value.dtype} to {wanted}")
            value = st.cast(value, wanted)
        out[name] = value
    report("cast", changes)
    return out


def report(verb, changes):
    """One line for the same change in all layers."""
    alike = collections.Counter(re.sub(r"\.\d+\.", ".*.", change) for change in changes)
    for change, count in alike.items():
        print(f"{verb} {change}" + (f" ({count} tensors)" if count > 1 else ""))


def copy_beside(directory, dst):
    """Tokenizer and generation files."""
    if directory.resolve() != dst.resolve():
        world = {path.name: path.name for path in tokenizer_info.world_vocabularies(directory)}
        for name, new in {**COPIED, **world}.items():
            if (directory / name).exists():
                shutil.copyfile(directory / name, dst / new)
    if tokenizer_info.summary(dst) is None:
        files = "tokenizer.json, tokenizer.model or rwkv_vocab_v20230424.txt"
        print(f"{directory} has no tokenizer: put the model's {files} into {dst}")
