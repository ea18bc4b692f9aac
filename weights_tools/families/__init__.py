"""Model families: Config, names, shapes and costs in one module each; PyTorch parts in other modules."""

import dataclasses
import importlib

from weights_tools import safetensors_io as st

# One line a family, as in model/families/family_list.h: its module and the model types of its configs.
MODULES = {
    "xlstm": ("xlstm",),
    "mamba": ("mamba", "falcon_mamba"),
    "mamba2": ("mamba2",),
    "gla": ("gla", "simple_gla", "retnet", "linear_attn", "hgrn2"),
    "xlstm_blocks": ("xlstm_blocks",),
    "rnn": ("rnn",),
    "rwkv7": ("rwkv7",),
    "delta_net": ("delta_net", "gated_deltanet"),
    "recurrent_gemma": ("recurrent_gemma",),
    "qwen3_5": ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"),
    "granite_hybrid": ("granitemoehybrid",),
    "nemotron_h": ("nemotron_h",),
    "falcon_h1": ("falcon_h1",),
}
FAMILIES = {model_type: module for module, types in MODULES.items() for model_type in types}


def type_of(values):
    """The configs of state-spaces name no model_type; they are known by their ssm_cfg."""
    if "model_type" not in values and "ssm_cfg" in values:
        return "mamba2" if values["ssm_cfg"].get("layer") == "Mamba2" else "mamba"
    return values.get("model_type")


def load(name):
    if name not in FAMILIES:
        raise ValueError(f"family {name} is not known, wanted one of {', '.join(FAMILIES)}")
    return importlib.import_module(f"{__name__}.{FAMILIES[name]}")


def config_of(values, names):
    """-> family, Config of config.json and of the file's tensor names (empty: a file is not there).
    What find_head() says comes on top."""
    family = load(type_of(values))
    config = family.config_from_dict(values)
    if names and hasattr(family, "as_stored"):
        config = family.as_stored(config, names)
    return family, config


def used(family, tensors):
    """Those that the server reads: name -> Source or Tensor."""
    unused = getattr(family, "UNUSED", ())
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(unused)}


HEADS = ("lm_head.weight", "model.lm_head.weight")


def find_head(family, config, tensors):
    """The matrix of the logits that the server takes (model/layers/token_weights.h): where the config
    ties it to the embedding and the file has a head with other values, that head. tensors: name ->
    Source or Tensor. -> Config, tied or not as that says; the tensors without a head that is not
    looked at; which tensor it is, in words."""
    field = "tied" if hasattr(config, "tied") else "tie_word_embeddings"
    name = next((name for name in HEADS if name in tensors), HEADS[0])
    if not getattr(config, field):
        return config, tensors, name
    if name not in tensors:
        return config, tensors, "the embedding"
    table = tensors.get(table_of(family, config))
    if table is None or not st.equal(tensors[name], table):
        words = f"{name}, which differs from the embedding though the config ties them"
        return dataclasses.replace(config, **{field: False}), tensors, words
    rest = {n: t for n, t in tensors.items() if n != name}
    return config, rest, f"the embedding; {name} is the same"


def table_of(family, config):
    """The name of the embedding."""
    return next(name for name in family.tensor_shapes(config) if "embed" in name)


def weights_of_step(family, config, tokens):
    """Values that a step of so many tokens reads: all but an embedding that is not the head, and experts without
    tokens."""
    idle = family.idle_parameters(config, tokens) if hasattr(family, "idle_parameters") else 0
    return family.decode_weight_bytes(config, 1) - round(idle)


def prefill_flops(family, config, chunk):
    """Of a prompt's token: all weights that it is multiplied with but the head, and the mixer."""
    shapes = family.tensor_shapes(config)
    head = "lm_head.weight" if "lm_head.weight" in shapes else table_of(family, config)
    rows, columns = shapes[head]
    weights = weights_of_step(family, config, 1) - rows * columns
    return 2 * weights + family.mixer_flops(config, chunk)
