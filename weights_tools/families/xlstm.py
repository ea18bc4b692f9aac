"""xLSTM-large (model_type "xlstm"): configuration, derived sizes, tensor names and shapes.

Sources: NX-AI xlstm 2.0.6 `xlstm_large/model.py`, transformers `configuration_xlstm.py`.
The cell is said by chunkwise_kernel: "siging" in the name of the kernel is the sigmoid input gate,
which divides by a normaliser unless normalize_siging is false (mlstm_kernels `backend_module.py`).
Dimensions: D width, H heads, DK and DV head sizes of q/k and v, F feed-forward, V vocabulary.
"""

import dataclasses
import json
import pathlib

import numpy as np


def round_up(x, multiple):
    """As upstream: a fractional x just above a multiple gives that multiple."""
    return int(((x + multiple - 1) // multiple) * multiple)


@dataclasses.dataclass(frozen=True)
class Config:
    hidden_size: int
    num_blocks: int
    num_heads: int
    vocab_size: int
    qk_dim_factor: float = 0.5
    v_dim_factor: float = 1.0
    ffn_proj_factor: float = 2.667
    ffn_round_up_to_multiple_of: int = 64
    gate_soft_cap: float = 15.0
    output_logit_soft_cap: float = 30.0
    norm_eps: float = 1e-6
    eps: float = 1e-6
    tie_word_embeddings: bool = False
    weight_mode: str = "single"
    chunkwise_kernel: str = "chunkwise--native_autograd"
    normalize_siging: bool = True
    bos_token_id: int = 0
    eos_token_id: int = 0
    pad_token_id: int = 0

    @property
    def sigmoid_gate(self):
        return "siging" in self.chunkwise_kernel

    @property
    def states(self):
        """Names of the state's arrays: C [H, DK, DV], n [H, DK], m [H]."""
        if not self.sigmoid_gate:
            return "Cnm"
        return "Cn" if self.normalize_siging else "C"

    @property
    def qk_dim(self):
        """Not rounded up, whatever mlstm_round_up_to_multiple_of says: no code looks at that."""
        return int(self.hidden_size * self.qk_dim_factor)

    @property
    def v_dim(self):
        return int(self.hidden_size * self.v_dim_factor)

    @property
    def qk_head(self):
        return self.qk_dim // self.num_heads

    @property
    def v_head(self):
        return self.v_dim // self.num_heads

    @property
    def ffn_dim(self):
        return round_up(self.hidden_size * self.ffn_proj_factor, self.ffn_round_up_to_multiple_of)

    def validate(self):
        least = min(self.qk_dim, self.v_dim)
        if least == 0 or self.qk_dim % self.num_heads or self.v_dim % self.num_heads:
            raise ValueError(
                f"qk size {self.qk_dim} and v size {self.v_dim} want to be multiples of "
                f"num_heads {self.num_heads}"
            )
        if self.weight_mode not in ("single", "fused"):
            raise ValueError(f'weight_mode is "{self.weight_mode}", wanted "single" or "fused"')
        return self


def config_from_dict(values):
    """Accepts the Hub's key pairs hidden_size|embedding_dim and num_blocks|num_hidden_layers."""
    if values.get("model_type", "xlstm") != "xlstm":
        raise ValueError(f'model_type is "{values["model_type"]}", wanted "xlstm"')
    values = dict(values)
    for ours, other in (("hidden_size", "embedding_dim"), ("num_blocks", "num_hidden_layers")):
        if values.get(ours) is None:
            values[ours] = values.get(other)
        if values[ours] is None:
            raise ValueError(f"config has neither {ours} nor {other}")
    known = {f.name for f in dataclasses.fields(Config)}
    given = {k: v for k, v in values.items() if k in known and v is not None}
    return Config(**given).validate()


def load_config(directory):
    return config_from_dict(json.loads((pathlib.Path(directory) / "config.json").read_text()))


def hub_config(config, torch_dtype):
    """Every key that the Hub's xLSTM-7b config.json has, with this model's values."""
    c = config
    siging = {"normalize_siging": c.normalize_siging} if c.sigmoid_gate else {}
    return {
        "architectures": ["xLSTMForCausalLM"],
        "model_type": "xlstm",
        "torch_dtype": torch_dtype,
        "transformers_version": "4.48.0.dev0",
        "embedding_dim": c.hidden_size,
        "hidden_size": c.hidden_size,
        "num_blocks": c.num_blocks,
        "num_hidden_layers": c.num_blocks,
        "num_heads": c.num_heads,
        "head_dim": c.v_head,
        "vocab_size": c.vocab_size,
        "tie_word_embeddings": c.tie_word_embeddings,
        "use_bias": False,
        "qk_dim_factor": c.qk_dim_factor,
        "v_dim_factor": c.v_dim_factor,
        "mlstm_round_up_to_multiple_of": 64,
        "ffn_proj_factor": c.ffn_proj_factor,
        "ffn_round_up_to_multiple_of": c.ffn_round_up_to_multiple_of,
        "gate_soft_cap": c.gate_soft_cap,
        "output_logit_soft_cap": c.output_logit_soft_cap,
        "norm_eps": c.norm_eps,
        "eps": c.eps,
        "cell_norm_eps": c.norm_eps,
        "norm_reduction_force_float32": True,
        "add_out_norm": True,
        "weight_mode": c.weight_mode,
        "mode": "inference",
        "chunk_size": 64,
        "return_last_states": True,
        "chunkwise_kernel": c.chunkwise_kernel,
        **siging,
        "sequence_kernel": "native_sequence__native",
        "step_kernel": "native",
        "autocast_kernel_dtype": "bfloat16",
        "inference_state_dtype": "float32",
        "igate_bias_init_range": -10.0,
        "max_inference_chunksize": 16384,
        "use_cache": True,
        "bos_token_id": c.bos_token_id,
        "eos_token_id": c.eos_token_id,
        "pad_token_id": c.pad_token_id,
        "force_bos_token_insert": True,
        "add_embedding_dropout": False,
        "add_forward_backend_padding": False,
        "add_post_blocks_norm": True,
        "add_post_norm": False,
        "add_qk_norm": False,
    }


def tensor_shapes(config):
    """name -> shape, as in the Hub's safetensors; no lm_head.weight when the head is tied."""
    c, d = config, config.hidden_size
    shapes = {"backbone.embeddings.weight": (c.vocab_size, d), "backbone.out_norm.weight": (d,)}
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = (c.vocab_size, d)
    for i in range(c.num_blocks):
        for name, shape in block_shapes(c).items():
            shapes[f"backbone.blocks.{i}.{name}"] = shape
    return shapes


def block_shapes(config):
    c, d, qk, v, f = config, config.hidden_size, config.qk_dim, config.v_dim, config.ffn_dim
    shapes = {
        "norm_mlstm.weight": (d,),
        "mlstm_layer.multihead_norm.weight": (v,),
        "mlstm_layer.out_proj.weight": (d, v),
        "norm_ffn.weight": (d,),
        "ffn.proj_down.weight": (d, f),
    }
    for fused, parts in fusions(c).items():
        bias = "ifgate" in fused
        if c.weight_mode == "fused":
            parts = [(fused, sum(rows for _, rows in parts))]
        for name, rows in parts:
            shapes[f"{name}.weight"] = (rows, d)
            if bias:
                shapes[f"{name}.bias"] = (rows,)
    return shapes


def fusions(config):
    """fused layer -> its single layers and their rows, in row order."""
    qk, v, f, heads = config.qk_dim, config.v_dim, config.ffn_dim, config.num_heads
    m = "mlstm_layer."
    return {
        m + "qkv_opreact": [(m + "q", qk), (m + "k", qk), (m + "v", v), (m + "ogate_preact", v)],
        m + "ifgate_preact": [(m + "igate_preact", heads), (m + "fgate_preact", heads)],
        "ffn.proj_up_gate_z": [("ffn.proj_up_gate", f), ("ffn.proj_up", f)],
    }


def fuse(tensors, config):
    """Single-mode arrays -> fused-mode arrays, by name."""
    out = dict(tensors)
    for i in range(config.num_blocks):
        block = f"backbone.blocks.{i}."
        for fused, parts in fusions(config).items():
            for kind in ("weight", "bias"):
                if f"{block}{parts[0][0]}.{kind}" in out:
                    pieces = [out.pop(f"{block}{name}.{kind}") for name, _ in parts]
                    out[f"{block}{fused}.{kind}"] = np.concatenate(pieces)
    return out


def unfuse(tensors, config):
    """Fused-mode arrays (numpy or torch) -> single-mode arrays; single-mode passes through."""
    out = dict(tensors)
    for i in range(config.num_blocks):
        block = f"backbone.blocks.{i}."
        for fused, parts in fusions(config).items():
            for kind in ("weight", "bias"):
                whole = out.pop(f"{block}{fused}.{kind}", None)
                begin = 0
                for name, rows in parts if whole is not None else ():
                    out[f"{block}{name}.{kind}"] = whole[begin : begin + rows]
                    begin += rows
    return out


def parameters(config):
    return sum(int(np.prod(shape)) for shape in tensor_shapes(config).values())


def state_bytes(config, matrix_bytes=4):
    """Bytes of one session's state, fp32; matrix_bytes: of a value of C."""
    c = config
    sizes = {"C": matrix_bytes * c.qk_head * c.v_head, "n": 4 * c.qk_head, "m": 4}
    return c.num_blocks * c.num_heads * sum(sizes[name] for name in c.states)


def mixer_flops(config, chunk):
    """Of a prompt's token outside the weights, in chunks of so many, full squares counted."""
    c = config
    head = 2 * chunk * (c.qk_head + c.v_head) + 4 * c.qk_head * c.v_head
    return c.num_blocks * c.num_heads * head


def decode_weight_bytes(config, bytes_per_weight=2):
    """Weight bytes one decode step reads: all but the embedding table (one row)."""
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return bytes_per_weight * (parameters(config) - embedding)
