"""Model families: Config, names, shapes and costs in one module each; PyTorch parts beside."""

import importlib

FAMILIES = {
    "xlstm": "xlstm",
    "xlstm_blocks": "xlstm_blocks",
    "mamba": "mamba",
    "falcon_mamba": "mamba",
    "mamba2": "mamba2",
    "gla": "gla",
    "simple_gla": "gla",
    "retnet": "gla",
    "linear_attn": "gla",
    "hgrn2": "gla",
    "rnn": "rnn",
}


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
    """-> family, Config of config.json and of the file's tensor names (empty: a file is not there)."""
    family = load(type_of(values))
    config = family.config_from_dict(values)
    if names and hasattr(family, "as_stored"):
        config = family.as_stored(config, names)
    return family, config


def prefill_flops(family, config, chunk):
    """Of a prompt's token: all weights but the embedding and the head, and the mixer."""
    shapes = family.tensor_shapes(config)
    head = "lm_head.weight" if "lm_head.weight" in shapes else next(n for n in shapes if "embed" in n)
    rows, columns = shapes[head]
    weights = family.decode_weight_bytes(config, 1) - rows * columns
    return 2 * weights + family.mixer_flops(config, chunk)
