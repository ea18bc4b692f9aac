"""BlinkDL's package `rwkv` on a CPU, to compare with `recurve-bench step --config CONFIG --random`: milliseconds of a
decode and of a prompt, of one stream, with random weights of the config's shapes. The median of several; the first,
in which PyTorch compiles, does not count.

Run: $(tests/environment.sh rwkv7 tests/golden/rwkv7/requirements.txt) tests/bench/rwkv_package.py CONFIG FILE.pth
FILE.pth is made where it is not there.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))


def write(config, path):
    """A .pth in bf16 with the package's names, of the values that `weights_tools random` draws."""
    from weights_tools import golden_rwkv, random_checkpoint
    from weights_tools.families import rwkv7

    shapes = rwkv7.tensor_shapes(config)
    weights = {n: random_checkpoint.drawn(n, shape, 0, "F32").load().array for n, shape in shapes.items()}
    golden_rwkv.write_pth(path, weights, "bfloat16")


def milliseconds(call, least, seconds):
    call()
    times = []
    while len(times) < least or sum(times) < seconds:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--strategy", default="cpu fp32", help='"cpu fp32" or "cpu bf16"')
    parser.add_argument("--rows", type=int, default=512, help="of the prompt; 0: none")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--make-only", action="store_true", help="write FILE.pth, and measure nothing")
    options = parser.parse_args()
    os.environ.update(RWKV_V7_ON="1", RWKV_JIT_ON="1", RWKV_CUDA_ON="0")

    import torch

    from weights_tools.families import rwkv7

    torch.set_num_threads(options.threads)
    config = rwkv7.config_from_dict(json.loads(options.config.read_text()))
    if not options.file.exists():
        write(config, options.file)
    if options.make_only:
        return
    from rwkv.model import RWKV

    model = RWKV(model=str(options.file.with_suffix("")), strategy=options.strategy)
    ids = [(7919 * i + 11) % config.vocab for i in range(max(options.rows, 1))]
    state = model.forward(ids[:2], None)[1]
    found = {"strategy": options.strategy, "threads": options.threads}
    found["decode_ms"] = round(milliseconds(lambda: model.forward(ids[:1], state), 5, 3), 2)
    if options.rows:
        found["prompt_ms"] = round(milliseconds(lambda: model.forward(ids, None), 2, 3), 1)
        found["prompt_tok_per_s"] = round(1e3 * options.rows / found["prompt_ms"], 1)
    print(json.dumps({"config": options.config.name, **found}))


if __name__ == "__main__":
    main()
