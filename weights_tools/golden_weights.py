"""Draws the weights of the golden checkpoints, which are random, from the seeds of their cases.

So their SHA-256 are stored with the golden results, in DIGESTS, and not they. CMake calls this where tests are
configured, and the tests of weights_tools do: it takes a second the first time, and needs numpy.

    python -m weights_tools.golden_weights tests/golden [--digests]
"""

import argparse
import hashlib
import os
import pathlib
import sys
import tempfile

DIGESTS = "weights.sha256"  # as sha256sum writes and checks it


def checkpoints(folder):
    """-> path below tests/golden of each, with a function that gives its tensors, and the most bytes of a file of it.
    Those that are packed come last, as they are made of others' files."""
    from weights_tools import golden, golden_packed, golden_xlstm_siging, golden_xlstm_transformers
    from weights_tools import golden_delta_net, golden_falcon_h1, golden_gla, golden_granite_hybrid, golden_mamba
    from weights_tools import golden_nemotron_h, golden_qwen3_5, golden_recurrent_gemma
    from weights_tools import golden_rnn, golden_rwkv, golden_rwkv_fla, golden_xlstm_blocks

    families = (golden_delta_net, golden_falcon_h1, golden_gla, golden_granite_hybrid, golden_mamba, golden_nemotron_h)
    for maker in (*families, golden_qwen3_5, golden_recurrent_gemma, golden_rnn, golden_rwkv, golden_rwkv_fla, golden_xlstm_blocks):
        for name in maker.CASES:
            yield name, lambda maker=maker, name=name: maker.drawn(name), golden.Case.shard_bytes
    for maker in (golden, golden_xlstm_siging, golden_xlstm_transformers):
        for name, case in maker.CASES.items():
            case = maker.untied(case) if hasattr(maker, "untied") else case
            yield f"xlstm/{name}", lambda case=case: golden.drawn(case), case.shard_bytes
    for case in golden_packed.cases():
        path = "/".join(("weight_formats", *case))
        yield path, lambda case=case: golden_packed.drawn(folder, *case), golden.Case.shard_bytes


def files_of(checkpoint, tensors, shard_bytes):
    """-> name -> bytes of each file of a checkpoint, which is packed as quantize does it, or as files of the Hub are."""
    from weights_tools import safetensors_io as st

    alignment = st.ALIGNMENT if checkpoint.startswith("weight_formats/") else 8
    with tempfile.TemporaryDirectory() as folder:
        st.write_checkpoint(pathlib.Path(folder), tensors, shard_bytes, alignment=alignment)
        return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())}


def wanted_digests(golden):
    """-> path below tests/golden -> SHA-256."""
    lines = (golden / DIGESTS).read_text().splitlines()
    return {path: digest for digest, path in (line.split("  ", 1) for line in lines)}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def draw(golden):
    """Writes the files that are missing or others'. ValueError where numpy draws others than the results were made
    with."""
    golden = pathlib.Path(golden)
    wanted = wanted_digests(golden)
    there = {p for p in wanted if (golden / p).exists() and sha256((golden / p).read_bytes()) == wanted[p]}
    if len(there) == len(wanted):
        return
    for name, tensors, shard_bytes in checkpoints(golden):
        for file, data in files_of(name, tensors(), shard_bytes).items():
            path = f"{name}/{file}"
            if path in there:
                continue
            if path not in wanted:
                raise ValueError(f"{golden / DIGESTS}: has no line for {path}: make it again with --digests")
            found = sha256(data)
            if found != wanted[path]:
                import numpy

                raise ValueError(
                    f"{path}: drawn by numpy {numpy.__version__} its SHA-256 is {found}, wanted {wanted[path]}: use "
                    "another version of numpy (1.24 and 2.4 draw what is wanted)"
                )
            part = golden / f"{path}.{os.getpid()}.part"
            part.write_bytes(data)
            part.rename(golden / path)


def write_digests(golden):
    """Of what is drawn now: after a case was added or changed, and its results made again."""
    lines = []
    for name, tensors, shard_bytes in checkpoints(golden):
        for file, data in files_of(name, tensors(), shard_bytes).items():
            lines.append(f"{sha256(data)}  {name}/{file}\n")
    (golden / DIGESTS).write_text("".join(sorted(lines, key=lambda line: line.split()[1])))


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=pathlib.Path, help="tests/golden")
    parser.add_argument("--digests", action="store_true", help="print the digests of the drawn weights instead")
    options = parser.parse_args(argv)
    try:
        (write_digests if options.digests else draw)(options.golden)
    except (ValueError, ModuleNotFoundError) as error:
        return f"error: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
