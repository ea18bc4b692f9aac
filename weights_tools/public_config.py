"""The configurations of checkpoints that are not in Hugging Face's form, in that form.

state-spaces/mamba-* and mamba2-* have mamba_ssm's MambaConfig (d_model, n_layer, ssm_cfg); the
original of Mamba-Codestral has params.json (dim, n_layers, n_groups) of mistral-inference, which
makes a MambaConfig of it. What a config leaves out is written with mamba_ssm's default. A key or a
value that is not known to mean nothing for the forward pass is refused.
"""

import json

from weights_tools.families import common

MISTRAL = {"dim", "n_layers", "n_groups", "model_type"}
SHARED = {
    "vocab_size",
    "pad_vocab_size_multiple",
    "tie_embeddings",
    "rms_norm",
    "residual_in_fp32",
    "fused_add_norm",
}
ORIGINAL = {"d_model", "n_layer", "ssm_cfg", "d_intermediate", "attn_layer_idx", "attn_cfg"}
# Of ssm_cfg: what Hugging Face's config has another name for, with mamba_ssm's default.
MAMBA = {
    "d_state": ("state_size", 16),
    "d_conv": ("conv_kernel", 4),
    "expand": ("expand", 2),
    "bias": ("use_bias", False),
    "conv_bias": ("use_conv_bias", True),
}
MAMBA2 = {
    **MAMBA,
    "d_state": ("state_size", 128),
    "headdim": ("head_dim", 64),
    "ngroups": ("n_groups", 1),
    "chunk_size": ("chunk_size", 256),
    "dt_limit": ("time_step_limit", [0.0, float("inf")]),
}
# Of initialisation and of how others compute it.
SILENT = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path"}
SILENT2 = {"dt_min", "dt_max", "dt_init_floor", "A_init_range", "conv_init", "use_mem_eff_path"}


def read(directory):
    """-> the values of config.json in Hugging Face's form."""
    for name in ("config.json", "params.json"):
        path = directory / name
        if path.exists():
            values = json.loads(path.read_text())
            break
    else:
        raise ValueError(f"{directory}: wanted config.json or params.json, found neither")
    if "dim" in values:
        _known(path, values, MISTRAL | SHARED)
        return _of_codestral(path, values)
    if "d_model" in values:
        _known(path, values, ORIGINAL | SHARED)
        return _of_mamba_ssm(path, values)
    return values


def _of_codestral(path, values):
    _must(path, values, "model_type", "mamba")
    out = {n: v for n, v in values.items() if n in SHARED}
    out.update(d_model=values["dim"], n_layer=values["n_layers"])
    out["ssm_cfg"] = {"layer": "Mamba2", "ngroups": values["n_groups"]}
    # Mistral's tokenizer: <s> and </s>, and every text begins with <s>.
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "force_bos_token_insert": True}
    return {**_of_mamba_ssm(path, out), **ids}


def _of_mamba_ssm(path, values):
    _must(path, values, "rms_norm", True)
    _must(path, values, "d_intermediate", 0)
    _must(path, values, "attn_layer_idx", [])
    ssm, where = values.get("ssm_cfg", {}), f"{path}: ssm_cfg"
    kind = ssm.get("layer", "Mamba1")
    out = _mamba2(where, values["d_model"], ssm) if kind == "Mamba2" else _mamba(where, values, ssm)
    out.update(
        hidden_size=values["d_model"],
        num_hidden_layers=values["n_layer"],
        vocab_size=common.round_up(values["vocab_size"], values.get("pad_vocab_size_multiple", 8)),
        tie_word_embeddings=values.get("tie_embeddings", True),
        layer_norm_epsilon=1e-5,
        hidden_act="silu",
        residual_in_fp32=True,
        bos_token_id=0,  # <|endoftext|> of GPT-NeoX
        eos_token_id=0,
        pad_token_id=0,
    )
    return out


def _mamba(where, values, ssm):
    _must(where, ssm, "layer", "Mamba1")
    _known(where, ssm, set(MAMBA) | SILENT | {"layer", "dt_rank"})
    width, rank = values["d_model"], ssm.get("dt_rank", "auto")
    return {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "intermediate_size": int(width * ssm.get("expand", 2)),
        "time_step_rank": -(-width // 16) if rank == "auto" else rank,
        **{theirs: ssm.get(name, usual) for name, (theirs, usual) in MAMBA.items()},
    }


def _mamba2(where, width, ssm):
    inner = int(width * ssm.get("expand", 2))
    fixed = {
        "d_ssm": inner,
        "D_has_hdim": False,
        "rmsnorm": True,
        "norm_before_gate": False,
        "bias": False,
    }
    for name, value in fixed.items():
        _must(where, ssm, name, value)
    _known(where, ssm, set(MAMBA2) | set(fixed) | SILENT2 | {"layer"})
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "intermediate_size": inner,
        "num_heads": inner // ssm.get("headdim", 64),
        "rms_norm": True,
        "norm_before_gate": False,
        **{theirs: ssm.get(name, usual) for name, (theirs, usual) in MAMBA2.items()},
    }


def _must(where, values, name, wanted):
    if values.get(name, wanted) != wanted:
        raise ValueError(f"{where}: {name} is {values[name]}, wanted {wanted}")


def _known(where, values, names):
    unknown = sorted(set(values) - names)
    if unknown:
        raise ValueError(f"{where}: {', '.join(unknown)} is not known of any Mamba; nothing written")
