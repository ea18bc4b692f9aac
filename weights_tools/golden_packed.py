"""Makes the packed golden checkpoints of tests/golden/weight_formats: int4/FAMILY of each family's golden
checkpoint in bf16, and int8 of one, by `quantize`; where the family has a form in numpy, with its
logits in fp64 from the values that the file holds.

    python -m weights_tools.golden_packed tests/golden
"""

import argparse
import json
import pathlib
import sys

import numpy as np

from weights_tools import __main__ as cli
from weights_tools import families, packed, packing
from weights_tools import safetensors_io as st

SOURCES = {
    "delta_net": "bf16",
    "falcon_h1": "bf16",
    "falcon_mamba": "bf16",
    "gla": "bf16",
    "granite_hybrid": "bf16",
    "mamba": "bf16",
    "mamba2": "bf16",
    "nemotron_h": "bf16",
    "qwen3_5": "bf16",
    "qwen3_5_moe": "bf16",
    "qwen3_next": "bf16",
    "recurrent_gemma": "bf16",
    "rnn": "bf16",
    "rwkv7": "bf16",
    "xlstm": "tied_bf16",
    "xlstm_blocks": "bf16",
}
TOKENS = 24  # of each sequence of the source


def cases():
    """-> form, family."""
    for name in SOURCES:
        for form in ("int8", "int4") if name == "mamba" else ("int4",):
            yield form, name


def drawn(golden, form, name):
    """The weights of a case, as its file has them: name -> Source. The family's checkpoint in bf16 is there."""
    source = golden / name / SOURCES[name]
    tensors = st.checkpoint_sources(source)
    family, config = families.config_of(json.loads((source / "config.json").read_text()), tensors)
    config, tensors, _ = families.find_head(family, config, tensors)
    return packing.quantized(tensors, family, config, form)


def main(golden):
    for form, name in cases():
        make(golden / name / SOURCES[name], golden / "weight_formats" / form / name, form)


def make(source, directory, form):
    cli.run(["quantize", str(source), str(directory), "--weights", form])
    (directory / "golden.safetensors").unlink(missing_ok=True)
    values = json.loads((directory / "config.json").read_text())
    stored = st.read_checkpoint(directory)
    family, config = families.config_of(values, packed.logical(stored))
    if not hasattr(family, "run"):
        return
    tensors = packed.unpacked(stored, family.tensor_shapes(config))
    given, out = st.read(source / "golden.safetensors"), {}
    for s in range(2):
        tokens = given[f"tokens.{s}"].array[:TOKENS]
        logits, _ = family.run(config, tensors, tokens)
        out[f"tokens.{s}"] = st.tensor(tokens)
        out[f"logits.{s}"] = st.tensor(np.asarray(logits), "F32")
    st.write(directory / "golden.safetensors", out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=pathlib.Path, help="tests/golden")
    sys.exit(main(parser.parse_args().golden))
