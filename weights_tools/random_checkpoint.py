"""Writes a checkpoint of random weights, to try a family, a size or a server.

The layout is that of the config's family: matrices that preserve the size of activations, norms near 1, other values
small; a seed gives the same values on every machine. --tokenizer adds the tokenizer of another directory, whose ids
must be within the config's rows. Weights are processed in pieces; needs numpy only.
"""

import json
import math
import pathlib
import zlib

import numpy as np

from weights_tools import convert, families, tokenizer_info
from weights_tools import safetensors_io as st

PIECE = 4 << 20  # values drawn at once


def add_arguments(parser):
    parser.add_argument("config", type=pathlib.Path, help="config.json, with any name")
    parser.add_argument("dst", type=pathlib.Path, help="directory to write")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="DIR", help="copy the tokenizer of this directory")
    parser.add_argument("--seed", type=int, default=0, help="seed of the values (default: 0)")
    parser.add_argument("--dtype", choices=("BF16", "F32"), default="BF16", help="type of the values (default: BF16)")
    parser.add_argument(
        "--shard-gb", type=float, default=5.0, metavar="GB", help="largest file to write (default: 5)"
    )


def main(options):
    convert.refuse_to_overwrite(options.dst)
    values = json.loads(options.config.read_text())
    family, config = families.config_of(values, ())
    if options.tokenizer:
        check_tokenizer(options.tokenizer, family, config)
    stacked = getattr(family, "EXPERTS", ())
    tensors = {}
    for name, shape in family.tensor_shapes(config).items():
        inputs = shape[-1] if any(part in name for part in stacked) else None
        tensors[name] = drawn(name, shape, options.seed, options.dtype, inputs)
    convert.write(options.dst, tensors, options.shard_gb)
    (options.dst / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    if options.tokenizer:
        convert.copy_beside(options.tokenizer, options.dst)
    print(f"{options.dst}: {len(tensors)} tensors, {family.parameters(config):,} parameters, of seed {options.seed}")


def check_tokenizer(directory, family, config):
    found = tokenizer_info.summary(directory)
    if found is None:
        raise ValueError(f"{directory}: wanted a tokenizer, found none; nothing written")
    rows = family.tensor_shapes(config)[families.table_of(family, config)][0]
    if found["size"] > rows:
        raise ValueError(f"{directory}: wanted at most {rows} ids, found {found['size']}; nothing written")


def drawn(name, shape, seed, dtype, inputs=None):
    """Normal values, for each tensor those of its name and the seed. inputs: of an output of a matrix, where they are
    fewer than the values for each of the first extent."""
    count, is_norm = math.prod(shape), "norm" in name
    deviation = 0.1 if is_norm or len(shape) < 2 else 1 / math.sqrt(max(inputs or count // shape[0], 1))
    mean = 1.0 if is_norm else 0.0

    def pieces():
        random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        for begin in range(0, count, PIECE):
            values = random.standard_normal(min(PIECE, count - begin), np.float32)
            yield st.tensor(np.float32(mean) + np.float32(deviation) * values, dtype).array

    return st.Source(dtype, tuple(shape), pieces)
