#!/usr/bin/env python3
"""A large model from a file, packed, with random weights: loaded, served over gRPC, asked, and weighed.

    tests/bench/large_model.py tests/configs/falcon-mamba-7b.json --weights int4 [--layers N] [--map-weights on]
        [--bin build/release/bin] [--keep DIR]

Writes a checkpoint of that config, as `python -m weights_tools quantize` would leave one, or takes the one in DIR, serves
it with one slot, and fails where an answer does not come or the largest resident memory is above 1.1 x (weights + states) + 64 MiB, which no
second copy of the weights fits into, at any time of loading or serving.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from weights_tools import families, packed, packing, random_checkpoint  # noqa: E402
from weights_tools import safetensors_io as st  # noqa: E402

PIECE = 1 << 24  # bytes
MOST = 64 << 20
TOKENS = 64


def random_source(dtype, shape, make):
    """make(random, count) -> an array of that type."""
    count = int(np.prod(shape, dtype=np.int64))
    step = PIECE // st.STORAGE[dtype].itemsize

    def pieces():
        random = np.random.default_rng(count)
        for first in range(0, count, step):
            yield make(random, min(step, count - first)).astype(st.STORAGE[dtype], copy=False)

    return st.Source(dtype, tuple(shape), pieces)


def matrix(name, shape, form):
    """Values of about 1 / sqrt(K)."""
    rows, groups = math.prod(shape[:-1]), -(-shape[-1] // packed.GROUP)
    size = 1 / np.sqrt(shape[-1])
    dtype, each = ("I8", packed.GROUP) if form == "int8" else ("U8", packed.GROUP // 2)
    values = random_source(dtype, (rows, groups * each), lambda r, n: np.frombuffer(r.bytes(n), np.uint8).view(dtype_of(dtype)))
    if form == "int8":
        scale = st.bf16_bits(np.full(1, size / 74, np.float32))
        scales = random_source("BF16", (rows, groups), lambda r, n: np.resize(scale, n))
    else:
        line = st.bf16_bits(np.array([size / 4.6, -7.5 * size / 4.6], np.float32))
        scales = random_source("BF16", (rows, groups, 2), lambda r, n: np.resize(line, n))
    return {f"{name}.{form}": values, f"{name}.{form}.scales": scales}


def dtype_of(name):
    return np.int8 if name == "I8" else np.uint8


def write_checkpoint(values, form, directory):
    """values: of config.json."""
    family, config = families.config_of(values, {})
    out = {}
    for name, shape in family.tensor_shapes(config).items():
        chosen = packing.form_of(name, shape, family, form, form)
        if chosen == "none":
            out[name] = random_checkpoint.drawn(name, shape, 0, "F32")
        else:
            out.update(matrix(name, shape, chosen))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))
    st.write_checkpoint(directory, out, 5e9)


def memory(pid, field):
    """Bytes: VmHWM is resident at most, RssFile of it now in mapped files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) << 10


def serve(directory, options):
    """-> seconds to serving, two answers of the same request, bytes of memory by field."""
    began = time.monotonic()
    server = subprocess.Popen(
        [options.bin / "recurve-server", "--model", directory, "--tokenizer", "none", "--weights", options.weights]
        + ["--map-weights", options.map_weights, "--slots", "1", "--listen", "127.0.0.1:0", "--prefix-memory", "0", "--max-prompt-tokens", "4096"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        address = None
        for line in server.stderr:
            found = re.search(r"event=serving .*port=(\d+)", line)
            if found:
                address = f"127.0.0.1:{found[1]}"
                break
        if address is None:
            raise SystemExit("the server ended before it served")
        loaded = time.monotonic() - began
        answers = [ask(options.bin, address) for _ in range(2)]
        return loaded, answers, {field: memory(server.pid, field) for field in ("VmHWM", "RssFile")}
    finally:
        server.terminate()
        server.communicate()


def ask(binaries, address):
    """-> seconds, ids."""
    asked = [binaries / "recurve", "generate", "--server", address, "--ids", "--prompt", "1 2 3 4 5", "--seed", "1"]
    began = time.monotonic()
    answer = subprocess.run([*asked, "--max-tokens", str(TOKENS), "--json"], capture_output=True, text=True, timeout=900)
    if answer.returncode != 0:
        raise SystemExit(f"no answer: {answer.stderr}")
    chunks = (json.loads(line).get("chunk", {}) for line in answer.stdout.splitlines())
    return round(time.monotonic() - began, 1), [i for chunk in chunks for i in chunk.get("ids", [])]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--weights", choices=["int8", "int4"], default="int4")
    parser.add_argument("--layers", type=int, help="as many layers instead of the config's")
    parser.add_argument("--map-weights", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--keep", type=pathlib.Path, help="directory for the checkpoint, which stays")
    options = parser.parse_args()
    values = json.loads(options.config.read_text())
    values["num_hidden_layers"] = options.layers or values["num_hidden_layers"]
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or pathlib.Path(temporary) / "model"
        if not directory.exists():
            write_checkpoint(values, options.weights, directory)
        weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
        loaded, answers, memory_of = serve(directory, options)
    family, config = families.config_of(values, {})
    bound = 1.1 * (weights + family.state_bytes(config)) + MOST
    row = {
        "bench": "large_model",
        "model": options.config.stem,
        "layers": values["num_hidden_layers"],
        "weights": options.weights,
        "map_weights": options.map_weights,
        "parameters": family.parameters(config),
        "weight_bytes": weights,
        "seconds_to_serving": round(loaded, 1),
        "seconds_of_answers": [seconds for seconds, _ in answers],
        "resident_bytes": memory_of["VmHWM"],
        "of_files_bytes": memory_of["RssFile"],
        "bound_bytes": round(bound),
        "ids": answers[0][1][:8],
    }
    print(json.dumps(row))
    if answers[0][1] != answers[1][1]:
        return "the same request had another answer"
    return 0 if row["resident_bytes"] <= bound else f"resident memory {row['resident_bytes']:,} is above {bound:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
