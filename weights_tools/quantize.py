"""Packs the matrices of a checkpoint's linear layers into eight or four bits, as the server does at load.

Reads a directory that the server reads, and writes another: config.json and the files next to it as they
are, and safetensors in which each matrix of a linear layer, (N, K), is stored packed. K is padded with
zeros to a multiple of 64, and 64 columns of a row, a group, share a scale s and, in int4, a minimum m:

  NAME.int8         I8 [N, K]            w = s q, q from -127 to 127
  NAME.int8.scales  BF16 [N, K / 64]     s
  NAME.int4         U8 [N, K / 2]        w = s q + m, q from 0 to 15. A group is 16 little-endian words of 16
                                         bits: bits 4 i to 4 i + 3 of word j are the q of column 16 i + j
  NAME.int4.scales  BF16 [N, K / 64, 2]  s and m

The matrices of all experts of a layer, one tensor (E, N, K) or one for each expert, are stored as one of E N rows.
Embedding and head are packed too, in the format of --head. Norms, biases, convolutions, decays and matrices
of ops other than linear layers are not changed. There is no calibration: the bits are those of
`recurve-server --weights`, which uses such matrices in place, in the mapped files (--map-weights): they lie at multiples
of 64 bytes. All processors pack, in pieces: 0.2 GB and 60 MB a process, whatever the model is; needs numpy only.
Layouts that the server does not read: `convert --weights` packs them as it converts.
"""

import json
import pathlib
import shutil

from weights_tools import convert, families, inspect_checkpoint, packed, packing
from weights_tools import safetensors_io as st


def add_arguments(parser):
    parser.add_argument("src", type=pathlib.Path, help="directory to read")
    parser.add_argument("dst", type=pathlib.Path, help="directory to write")
    packing.add_arguments(parser, required=True)
    parser.add_argument(
        "--shard-gb", type=float, default=5.0, metavar="GB", help="largest file to write (default: 5)"
    )


def main(options):
    convert.refuse_to_overwrite(options.dst)
    tensors = st.checkpoint_sources(options.src)
    if any(packed.is_scales(name) for name in tensors):
        raise ValueError(f"{options.src}: is packed already; nothing written")
    values = json.loads((options.src / "config.json").read_text())
    family, config = families.config_of(values, tensors)
    config, tensors, _ = families.find_head(family, config, tensors)
    problems = inspect_checkpoint.compare(families.used(family, tensors), family.tensor_shapes(config))
    if problems:
        raise ValueError(f"{options.src}: {problems[0]} ({len(problems)} problems in all); nothing written")
    with packing.workers_for(tensors, options.processes) as workers:
        out = packing.quantized(tensors, family, config, options.weights, options.head, workers)
        convert.write(options.dst, out, options.shard_gb)
    for path in sorted(options.src.iterdir()):
        if path.is_file() and path.suffix not in (".safetensors", ".bin", ".pth") and path.name != st.INDEX_NAME:
            shutil.copyfile(path, options.dst / path.name)
    before, after = (sum(t.nbytes for t in part.values()) for part in (tensors, out))
    print(f"{options.dst}: {len(out)} tensors, {after:,} B of {before:,}")
