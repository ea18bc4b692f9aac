"""Mamba, Falcon Mamba and RWKV-7 of llama.cpp's GGUF files, by the names and in the forms that the server reads.

llama.cpp keeps A = -exp(A_log), convolutions without their middle dimension, and the mixes of RWKV-7's time mix as
one tensor (in the order r, w, k, v, a, g); a head that is the embedding is left out.
"""

import re

import numpy as np

from weights_tools import gguf_file
from weights_tools import safetensors_io as st
from weights_tools.rwkv_file import reshaped

MAMBA_OUTSIDE = {
    "token_embd.weight": "backbone.embeddings.weight",
    "output_norm.weight": "backbone.norm_f.weight",
    "output.weight": "lm_head.weight",
}
# Names under blk.N. -> those under backbone.layers.N., and what changes.
MAMBA = {
    "attn_norm.weight": ("norm.weight", "as it is"),
    "ssm_in.weight": ("mixer.in_proj.weight", "as it is"),
    "ssm_conv1d.weight": ("mixer.conv1d.weight", "convolution"),
    "ssm_conv1d.bias": ("mixer.conv1d.bias", "as it is"),
    "ssm_x.weight": ("mixer.x_proj.weight", "as it is"),
    "ssm_dt.weight": ("mixer.dt_proj.weight", "as it is"),
    "ssm_dt.bias": ("mixer.dt_proj.bias", "as it is"),
    "ssm_a": ("mixer.A_log", "logarithm"),
    "ssm_d": ("mixer.D", "as it is"),
    "ssm_out.weight": ("mixer.out_proj.weight", "as it is"),
}
RWKV_OUTSIDE = {
    "token_embd.weight": "model.embeddings.weight",
    "token_embd_norm.weight": "model.layers.0.pre_norm.weight",
    "token_embd_norm.bias": "model.layers.0.pre_norm.bias",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
}
# The same under model.layers.N.
RWKV = {
    **{f"{old}.{kind}": (f"{new}.{kind}", "as it is")
       for old, new in (("attn_norm", "attn_norm"), ("attn_norm_2", "ffn_norm"), ("time_mix_ln", "attn.g_norm"))
       for kind in ("weight", "bias")},
    **{f"time_mix_{name}0.weight": (f"attn.{name}_lora.lora.2.bias", "flat") for name in "wav"},
    **{f"time_mix_{name}1.weight": (f"attn.{name}_lora.lora.0.weight", "as it is") for name in "wavg"},
    **{f"time_mix_{name}2.weight": (f"attn.{name}_lora.lora.2.weight", "as it is") for name in "wavg"},
    **{f"time_mix_{name}.weight": (f"attn.{name}", "flat") for name in ("k_k", "k_a")},
    "time_mix_r_k.weight": ("attn.r_k", "heads"),
    "time_mix_receptance.weight": ("attn.r_proj.weight", "as it is"),
    "time_mix_key.weight": ("attn.k_proj.weight", "as it is"),
    "time_mix_value.weight": ("attn.v_proj.weight", "as it is"),
    "time_mix_output.weight": ("attn.o_proj.weight", "as it is"),
    "channel_mix_lerp_k.weight": ("ffn.x_k", "flat"),
    "channel_mix_key.weight": ("ffn.key.weight", "as it is"),
    "channel_mix_value.weight": ("ffn.value.weight", "as it is"),
}  # fmt: skip
FUSED, MIXES = "time_mix_lerp_fused.weight", "rwkvag"


def read(path):
    """-> the values of config.json, the tensors by the server's names."""
    values, tensors = gguf_file.read(path)
    architecture = values.get("general.architecture")
    if architecture not in ("mamba", "rwkv7"):
        raise ValueError(f"{path}: wanted the architecture mamba or rwkv7, found {architecture}; nothing written")
    print(f"reading {len(tensors)} tensors of {path.name}, architecture {architecture}")
    if architecture == "mamba":
        config = mamba_config(path, values, tensors)
        out = renamed(path, tensors, MAMBA_OUTSIDE, MAMBA, "backbone.layers", config)
    else:
        config = rwkv_config(path, values, tensors)
        out = renamed(path, tensors, RWKV_OUTSIDE, RWKV, "model.layers", config)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    for key in ("bos", "eos"):
        number = values.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            config[f"{key}_token_id"] = number
    return config, out


def wanted(path, values, key):
    if key not in values:
        raise ValueError(f"{path}: wanted the value {key}, found none; nothing written")
    return values[key]


def shape_of(path, tensors, name):
    if name not in tensors or len(tensors[name].shape) != 2:
        raise ValueError(f"{path}: wanted the matrix {name}, found none; nothing written")
    return tensors[name].shape


def mamba_config(path, values, tensors):
    falcon = bool(values.get("mamba.ssm.dt_b_c_rms", False))
    rows, width = shape_of(path, tensors, "token_embd.weight")
    return {
        "architectures": ["FalconMambaForCausalLM" if falcon else "MambaForCausalLM"],
        "model_type": "falcon_mamba" if falcon else "mamba",
        "hidden_size": width,
        "intermediate_size": wanted(path, values, "mamba.ssm.inner_size"),
        "num_hidden_layers": wanted(path, values, "mamba.block_count"),
        "state_size": wanted(path, values, "mamba.ssm.state_size"),
        "conv_kernel": wanted(path, values, "mamba.ssm.conv_kernel"),
        "time_step_rank": wanted(path, values, "mamba.ssm.time_step_rank"),
        "layer_norm_epsilon": written(wanted(path, values, "mamba.attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "use_bias": False,
        "use_conv_bias": True,
        "vocab_size": rows,
    }


def rwkv_config(path, values, tensors):
    rows, width = shape_of(path, tensors, "token_embd.weight")
    size = wanted(path, values, "rwkv7.wkv.head_size")
    if size < 1 or width % size:
        raise ValueError(f"{path}: heads of {size} do not make up a width of {width}; nothing written")
    layers = wanted(path, values, "rwkv7.block_count")
    eps = written(values.get("rwkv7.attention.layer_norm_epsilon", 1e-5))
    if eps != 1e-5:  # llama.cpp's norm of heads has 64e-5 whatever this is, fla's 64 times this
        raise ValueError(f"{path}: rwkv7.attention.layer_norm_epsilon: wanted 1e-05, found {eps}; nothing written")
    mixing = "blk.1.time_mix_v1.weight"  # the first layer mixes no values
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "vocab_size": rows,
        "head_dim": size,
        "num_heads": width // size,
        "intermediate_size": shape_of(path, tensors, "blk.0.channel_mix_key.weight")[0],
        "hidden_act": "sqrelu",
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": eps,
        "decay_low_rank_dim": shape_of(path, tensors, "blk.0.time_mix_w1.weight")[0],
        "a_low_rank_dim": shape_of(path, tensors, "blk.0.time_mix_a1.weight")[0],
        "v_low_rank_dim": shape_of(path, tensors, mixing)[0] if layers > 1 else 32,
        "gate_low_rank_dim": shape_of(path, tensors, "blk.0.time_mix_g1.weight")[0],
    }


def written(value):
    """1e-05 for the fp32 nearest to it."""
    return float(np.format_float_positional(np.float32(value), unique=True))


def renamed(path, tensors, outside, names, layers, config):
    out = {}
    for name, source in tensors.items():
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if name in outside:
            out[outside[name]] = source
        elif layer and layer[2] == FUSED and names is RWKV:
            for i, mix in enumerate(MIXES):
                out[f"{layers}.{layer[1]}.attn.x_{mix}"] = part(path, name, source, i)
        elif layer and layer[1] == "0" and re.fullmatch(r"time_mix_v[012]\.weight", layer[2]):
            print(f"dropped {name}: the first layer mixes no values")
        elif layer and layer[2] in names:
            new, change = names[layer[2]]
            out[f"{layers}.{layer[1]}.{new}"] = changed(source, change, config)
        else:
            raise ValueError(f"{path}: {name} is not known of this architecture; nothing written")
    return out


def changed(source, change, config):
    size = int(np.prod(source.shape))
    if change == "flat":
        return reshaped(source, (size,))
    if change == "heads":
        return reshaped(source, (config["num_heads"], config["head_dim"]))
    if change == "convolution":
        return reshaped(source, (source.shape[0], 1, *source.shape[1:]))
    if change == "logarithm":
        return st.Source("F32", source.shape, lambda: (np.log(-st.widened(source.dtype, p)) for p in source.pieces()))
    return source


def part(path, name, source, i):
    """One of the six rows, each of the model's width."""
    size = int(np.prod(source.shape))
    if size % len(MIXES):
        raise ValueError(f"{path}: {name}: wanted six rows, found {list(source.shape)}; nothing written")
    width = size // len(MIXES)

    def pieces():
        yield np.concatenate(list(source.pieces()))[i * width : (i + 1) * width]

    return st.Source(source.dtype, (1, 1, width), pieces)
