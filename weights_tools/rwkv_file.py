"""RWKV-7 checkpoints with BlinkDL's names, in the form that the server reads.

A .pth holds all there is to know: layers, heads, ranks and the vocabulary are shapes, and there is no config.json.
The low-rank matrices are stored [in, rank] and [rank, out], all others [out, in]. Files of other RWKVs, and of
variants of RWKV-7 that compute something else, are refused by name.
"""

import json
import pathlib
import re

import numpy as np

from weights_tools import safetensors_io as st
from weights_tools import tokenizer_info

WORLD_ROWS = 65536  # of models with the World tokenizer, whose id 0 ends a text
# BlinkDL's name under blocks.N. -> that of flash-linear-attention under model.layers.N., and what changes.
NAMES = {
    **{f"{old}.{kind}": (f"{new}.{kind}", "as it is")
       for old, new in (("ln0", "pre_norm"), ("ln1", "attn_norm"), ("ln2", "ffn_norm"), ("att.ln_x", "attn.g_norm"))
       for kind in ("weight", "bias")},
    **{f"att.x_{mix}": (f"attn.x_{mix}", "mix") for mix in "rwkvag"},
    **{f"att.{name}0": (f"attn.{name}_lora.lora.2.bias", "flat") for name in "wav"},
    **{f"att.{name}1": (f"attn.{name}_lora.lora.0.weight", "transposed") for name in "wavg"},
    **{f"att.{name}2": (f"attn.{name}_lora.lora.2.weight", "transposed") for name in "wavg"},
    **{f"att.{name}": (f"attn.{name}", "flat") for name in ("k_k", "k_a")},
    "att.r_k": ("attn.r_k", "as it is"),
    "att.receptance.weight": ("attn.r_proj.weight", "as it is"),
    "att.key.weight": ("attn.k_proj.weight", "as it is"),
    "att.value.weight": ("attn.v_proj.weight", "as it is"),
    "att.output.weight": ("attn.o_proj.weight", "as it is"),
    "ffn.x_k": ("ffn.x_k", "flat"),
    "ffn.key.weight": ("ffn.key.weight", "as it is"),
    "ffn.value.weight": ("ffn.value.weight", "as it is"),
}  # fmt: skip
OUTSIDE = {
    "emb.weight": "model.embeddings.weight",
    "ln_out.weight": "model.norm.weight",
    "ln_out.bias": "model.norm.bias",
    "head.weight": "lm_head.weight",
}
# The first of these that a file has a tensor of identifies it.
OTHERS = (
    (r"blocks\.\d+\.qkv\.", "RWKV-7b (DeepEmbed and attention), which is not supported"),
    (r"blocks\.\d+\.ffn\.(s_emb|s[012]$)", "RWKV-7a (DeepEmbed), which is not supported"),
    (r"blocks\.\d+\.(rosa|att\.rosa)", "RWKV-8 (ROSA), which is not supported"),
    (r"blocks\.\d+\.att\.time_state$", "RWKV-7 with a tuned initial state in it, which is not supported: convert each alone"),
    (r"blocks\.\d+\.att\.time_maa", "RWKV-6, which is not supported: only RWKV-7 is"),
    (r"blocks\.\d+\.att\.(time_decay|time_mix|time_first)", "RWKV-4 or 5, which is not supported: only RWKV-7 is"),
    (r"blocks\.\d+\.mlp\.", "RWKV-7's time mix with another model's feed-forward layers (ARWKV), which is not supported"),
)  # fmt: skip


# Of the checkpoints RWKV/RWKV7-Goose-*-HF, whose code is not flash-linear-attention's: BlinkDL's tensors as they are,
# under names that Hugging Face's models have. Source of the names: llama.cpp's convert_hf_to_gguf.py and gguf's
# tensor_mapping.py, which read them.
GOOSE_LAYER = re.compile(r"(?:(?:model|rwkv7?)\.)?(?:layers|blocks)\.(\d+)\.([a-z_0-9]+)\.(.+)")
GOOSE_PARTS = {"attention": "att", "feed_forward": "ffn", "pre_ln": "ln0"}
GOOSE_OUTSIDE = {
    "embeddings.weight": "emb.weight",
    "pre_ln.weight": "blocks.0.ln0.weight",
    "pre_ln.bias": "blocks.0.ln0.bias",
    "lm_head.weight": "head.weight",
}


# A tuned initial state.
TUNED = re.compile(r"blocks\.(\d+)\.att\.time_state")
TUNED_NAME = "initial_state.safetensors"


def is_tuned(tensors):
    return bool(tensors) and all(TUNED.fullmatch(name) for name in tensors)


def write_tuned(src, tensors, dst):
    """A tuned initial state, as `recurve-server --initial-state` reads it: layers.N.S [H, key, value] in fp32 in
    dst/initial_state.safetensors. BlinkDL's training code saves it [H, value, key]."""
    path = dst / TUNED_NAME
    if path.exists():
        raise ValueError(f"{path} is there already; choose another directory or remove it")
    out = {}
    for name, source in tensors.items():
        shape = source.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ValueError(f"{src}: {name}: wanted [heads, size, size], found {list(shape)}; nothing written")
        values = st.widened(source.dtype, source.load().array).astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"{src}: {name} has values that are not finite; nothing written")
        out[f"layers.{TUNED.fullmatch(name)[1]}.S"] = st.tensor(np.ascontiguousarray(values.transpose(0, 2, 1)))
    shapes = {tensor.shape for tensor in out.values()}
    if len(shapes) > 1 or len(out) != 1 + max(int(name.split(".")[1]) for name in out):
        raise ValueError(f"{src}: wanted one shape for each of the layers from 0 on; nothing written")
    dst.mkdir(parents=True, exist_ok=True)
    st.write(path, out)
    print(f"{path}: a tuned state of {len(out)} layers: recurve-server --initial-state NAME={path}")


def is_one(tensors):
    return "emb.weight" in tensors and any(name.startswith("blocks.0.") for name in tensors)


def is_goose(tensors):
    return any(re.search(r"\.0\.attention\.receptance\.weight$", name) for name in tensors) and any(
        name.endswith(".0.attention.k_k") for name in tensors
    )


def check_goose_config(directory):
    """Shapes determine everything but what would change the result unseen."""
    path = directory / "config.json"
    values = json.loads(path.read_text()) if path.exists() else {}
    for key, wanted in (("layer_norm_epsilon", 1e-5), ("head_size", 64), ("head_size_divisor", 8)):
        if values.get(key, wanted) != wanted:
            raise ValueError(f"{path}: {key}: wanted {wanted}, found {values[key]}; nothing written")


def goose_names(tensors):
    """name -> what is called so, by BlinkDL's names."""
    out = {}
    for name, tensor in tensors.items():
        layer = GOOSE_LAYER.fullmatch(name)
        if layer is None:
            rest = re.sub(r"^(?:model|rwkv7?)\.", "", name)
            out[GOOSE_OUTSIDE.get(rest, rest)] = tensor
        else:
            number, part, rest = layer.groups()
            out[f"blocks.{number}.{GOOSE_PARTS.get(part, part)}.{rest}"] = tensor
    print(f"renamed {len(out)} tensors to BlinkDL's names")
    return out


def read(src, tensors):
    """tensors: name -> Source, by BlinkDL's names. -> the values of config.json, the tensors by the server's."""
    for pattern, what in OTHERS:
        found = next((name for name in tensors if re.match(pattern, name)), None)
        if found is not None:
            raise ValueError(f"{src}: {found}: this is {what}; nothing written")
    values = config_of(src, tensors)
    out = {}
    for name, source in tensors.items():
        if re.fullmatch(r"blocks\.0\.att\.v[012]", name):
            print(f"dropped {name}: the first layer mixes no values")
            continue
        out.update([renamed(src, name, source)])
    print(f"renamed {len(out)} tensors to flash-linear-attention's names, and turned its low-rank matrices")
    return values, out


def renamed(src, name, source):
    if name in OUTSIDE:
        return OUTSIDE[name], source
    layer = re.match(r"blocks\.(\d+)\.(.+)", name)
    if layer is None or layer[2] not in NAMES:
        raise ValueError(f"{src}: {name} is not known of RWKV-7; nothing written")
    new, change = NAMES[layer[2]]
    new = f"model.layers.{layer[1]}.{new}"
    if change == "transposed":
        return new, transposed(src, name, source)
    if change == "flat":
        return new, reshaped(source, (int(np.prod(source.shape)),))
    if change == "mix":
        return new, reshaped(source, (1, 1, int(np.prod(source.shape))))
    return new, source


def reshaped(source, shape):
    return st.Source(source.dtype, shape, source.pieces)


def transposed(src, name, source):
    """A low-rank matrix, a few megabytes at most, is turned whole."""
    if len(source.shape) != 2:
        raise ValueError(f"{src}: {name}: wanted a matrix, found {list(source.shape)}; nothing written")

    def pieces():
        whole = np.concatenate(list(source.pieces())).reshape(source.shape)
        yield np.ascontiguousarray(whole.T).reshape(-1)

    return st.Source(source.dtype, source.shape[::-1], pieces)


def config_of(src, tensors):
    """The shapes' values, in flash-linear-attention's config keys."""

    def shape(name, dimensions=2):
        if name not in tensors:
            raise ValueError(f"{src}: wanted {name}, found none: this is no RWKV-7; nothing written")
        found = tensors[name].shape
        if len(found) != dimensions:
            raise ValueError(f"{src}: {name}: wanted {dimensions} dimensions, found {list(found)}; nothing written")
        return found

    heads, size = shape("blocks.0.att.r_k")
    rows, width = shape("emb.weight")
    if size != 64:
        raise ValueError(f"{src}: blocks.0.att.r_k: wanted heads of 64, found {size}; nothing written")
    layers = 1 + max(int(n.split(".")[1]) for n in tensors if re.match(r"blocks\.\d+\.", n))
    # The first layer's v1 is of no use, and may be missing.
    mixing = "blocks.1.att.v1" if layers > 1 else "blocks.0.att.v1"
    values = {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "vocab_size": rows,
        "head_dim": size,
        "num_heads": heads,
        "intermediate_size": shape("blocks.0.ffn.key.weight")[0],
        "hidden_act": "sqrelu",
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "decay_low_rank_dim": shape("blocks.0.att.w1")[1],
        "a_low_rank_dim": shape("blocks.0.att.a1")[1],
        "v_low_rank_dim": shape(mixing)[1] if mixing in tensors else 32,
        "gate_low_rank_dim": shape("blocks.0.att.g1")[1],
    }
    if rows == WORLD_ROWS:
        values.update(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    return values


def write_chat_template(values, dst):
    """The chat format of models with the World tokenizer, where the checkpoint has none."""
    path = dst / "chat_template.jinja"
    if values["vocab_size"] == WORLD_ROWS and not tokenizer_info.has_chat_template(dst):
        path.write_text((pathlib.Path(__file__).parent / "rwkv_chat.jinja").read_text())
        print(f"{path}: the chat format of the World and G1 models")
