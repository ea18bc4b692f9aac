"""Makes the GGUF files of tests/golden/gguf from other golden checkpoints, with llama.cpp's own package.

    pip install gguf==0.19.0
    python -m weights_tools.golden_gguf tests/golden

Names and quantised values are the package's (TensorNameMap, quants), what is done to tensors is what llama.cpp's
convert_hf_to_gguf.py does: A = -exp(A_log), convolutions without their middle dimension, the mixes of RWKV-7 fused.
"""

import argparse
import json
import pathlib
import re
import sys

import gguf
import numpy as np

from weights_tools import safetensors_io as st

KINDS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
# flash-linear-attention's names -> those that the package knows, as llama.cpp's script has them.
RWKV_NAMES = (
    (r"\.attn\.(\w)_lora\.lora\.0\.weight", r".attention.\g<1>1"),
    (r"\.attn\.(\w)_lora\.lora\.2\.weight", r".attention.\g<1>2"),
    (r"\.attn\.(\w)_lora\.lora\.2\.bias", r".attention.\g<1>0"),
    (r"\.attn\.g_norm\.", ".attention.ln_x."),
    (r"\.attn\.", ".attention."),
    (r"\.ffn\.", ".feed_forward."),
    (r"\.attn_norm\.", ".ln1."),
    (r"\.ffn_norm\.", ".ln2."),
    (r"model\.norm\.", "model.ln_out."),
)


def main(golden):
    out = golden / "gguf"
    out.mkdir(exist_ok=True)
    blocks(out)
    mamba(golden / "mamba" / "hf", out / "mamba.gguf")
    rwkv7(golden / "rwkv7" / "one_head", out / "rwkv7.gguf")


def add(writer, name, array, kind):
    """array: fp32."""
    kind = KINDS[kind]
    if kind in (KINDS["f32"], KINDS["f16"]):
        return writer.add_tensor(name, array.astype(np.float16 if kind == KINDS["f16"] else np.float32))
    writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def blocks(out):
    """A matrix of each type, and the values that the package reads in it."""
    random, expected = np.random.default_rng(1), {}
    writer = gguf.GGUFWriter(out / "blocks.gguf", "mamba")
    writer.add_array("test.texts", ["a", "", "漢字"])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_bool("test.flag", True)
    writer.add_custom_alignment(64)
    for kind, number in KINDS.items():
        array = random.standard_normal((5, 96)).astype(np.float32)
        array[2, 32:64] = 0
        add(writer, kind, array, kind)
        expected[kind] = st.tensor(gguf.quants.dequantize(gguf.quants.quantize(array, number), number).astype(np.float32))
    finish(writer)
    st.write(out / "blocks.safetensors", expected)


def named(architecture, layers, name):
    names = gguf.get_tensor_name_map(architecture, layers)
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def mamba(source, path):
    values = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_embedding_length(values["hidden_size"])
    writer.add_ssm_conv_kernel(values["conv_kernel"])
    writer.add_ssm_inner_size(values["intermediate_size"])
    writer.add_ssm_state_size(values["state_size"])
    writer.add_ssm_time_step_rank(values["time_step_rank"])
    writer.add_layer_norm_rms_eps(values["layer_norm_epsilon"])
    writer.add_ssm_dt_b_c_rms(False)
    writer.add_eos_token_id(7)
    for name, tensor in st.read_checkpoint(source).items():
        array = tensor.float32()
        if name.endswith("A_log"):
            array = -np.exp(array)
        if name.endswith("conv1d.weight"):
            array = array.squeeze()
        plain = array.ndim < 2 or "conv1d" in name or name.endswith("A_log")
        new = named(gguf.MODEL_ARCH.MAMBA, values["num_hidden_layers"], name)
        add(writer, new, array, "f32" if plain else "bf16")
    finish(writer)


def rwkv7(source, path):
    values = json.loads((source / "config.json").read_text())
    layers = values["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, "rwkv7")
    writer.add_block_count(layers)
    writer.add_embedding_length(values["hidden_size"])
    writer.add_wkv_head_size(values["head_dim"])
    writer.add_layer_norm_eps(values["norm_eps"])
    mixes = {}
    for name, tensor in st.read_checkpoint(source).items():
        array = tensor.float32()
        mix = re.fullmatch(r"model\.layers\.(\d+)\.attn\.x_(\w)", name)
        if mix:
            mixes.setdefault(int(mix[1]), {})[mix[2]] = array.reshape(-1)
            continue
        for old, renamed in RWKV_NAMES:
            name = re.sub(old, renamed, name)
        new = named(gguf.MODEL_ARCH.RWKV7, layers, name)
        new += "" if new.endswith((".weight", ".bias")) else ".weight"
        if name.endswith(("r_k", "x_k")):
            array = array.reshape(-1)
        plain = array.ndim < 2 or re.search(r"\.[wavg][012]$", name)
        add(writer, new, array, "f32" if plain else "f16")
    for layer, parts in mixes.items():
        fused = np.stack([parts[mix] for mix in "rwkvag"]).reshape(6, 1, 1, -1)
        add(writer, f"blk.{layer}.time_mix_lerp_fused.weight", fused, "f32")
    finish(writer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=pathlib.Path, help="tests/golden")
    sys.exit(main(parser.parse_args().golden))
