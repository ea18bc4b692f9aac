#!/usr/bin/env python3
"""llama.cpp's llama-bench and recurve-bench step, on a model of the same shape, in turns within one run.

    tests/bench/llama_cpp.py [--config tests/configs/mamba-130m.json] [--bin build/release/bin] [--rounds 3]

Builds llama-bench and llama-quantize of the llama.cpp in llama-cpp-python's source package (llama_cpp.txt), for this
machine's instructions, once, under build/llama.cpp (minutes), and writes GGUF files of random weights there: f16 by the
package's own writer, Q8_0, Q4_0 and Q4_K_M from it by its own quantiser. Both programs get the same number of threads.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "llama.cpp"
PROGRAMS = ("llama-bench", "llama-quantize")
TYPES = ("f16", "Q8_0", "Q4_0", "Q4_K_M")
# Ours: weights, activations.
FORMATS = (("bf16", "f32"), ("int8", "f32"), ("int4", "f32"), ("bf16", "bf16"), ("int8", "int8"), ("int4", "int8"))
NO_TOKENS = "none"


def fetch_source():
    """llama.cpp as the pinned source package has it."""
    source = BUILD / "source"
    if source.is_dir():
        return source
    BUILD.mkdir(parents=True, exist_ok=True)
    package, pinned = (HERE / "llama_cpp.txt").read_text().split()
    # Of this package alone the source: what pip needs to read its metadata would be built from source too.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", package.split("==")[0]]
    subprocess.run([*command, package, "--dest", BUILD], check=True)
    archive = next(BUILD.glob("*.tar.gz"))
    if hashlib.sha256(archive.read_bytes()).hexdigest() != pinned.removeprefix("--hash=sha256:"):
        raise SystemExit(f"{archive}: not the file that llama_cpp.txt pins")
    unpacked = BUILD / "unpacked"
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked)
    next(unpacked.glob("*/vendor/llama.cpp")).rename(source)
    shutil.rmtree(unpacked)
    archive.unlink()
    return source


def build(source, jobs):
    """-> the folder of its programs."""
    folder = BUILD / "build"
    off = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_APP")
    off += ("LLAMA_OPENSSL", "LLAMA_SUBPROCESS")
    options = ["-DCMAKE_BUILD_TYPE=Release", *(f"-D{name}=OFF" for name in off)]
    # Its kernels for AMX end in SIGILL where the compiler, but not the system, offers these instructions.
    no_amx = " ".join(f"-U__AMX_{kind}__" for kind in ("TILE", "INT8", "BF16"))
    options += [f"-DCMAKE_{language}_FLAGS={no_amx}" for language in ("C", "CXX")]
    if shutil.which("ccache"):
        options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
    with (BUILD / "build.log").open("w") as log:
        for command in (
            ["cmake", "-S", source, "-B", folder, "-G", "Ninja", *options],
            ["ninja", "-C", folder, f"-j{jobs}", *PROGRAMS],
        ):
            if subprocess.run(command, stdout=log, stderr=log).returncode != 0:
                raise SystemExit(f"llama.cpp does not build: see {log.name}")
    return folder / "bin"


def tensors(config):
    """Names, shapes and spread of a Mamba's tensors in GGUF files; spread 0: ones."""
    D, DI, N, R = (config[key] for key in ("hidden_size", "intermediate_size", "state_size", "time_step_rank"))
    yield "token_embd.weight", (config["vocab_size"], D), 1
    yield "output_norm.weight", (D,), 0
    for layer in range(config["num_hidden_layers"]):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", (D,), 0
        yield at + "ssm_in.weight", (2 * DI, D), D**-0.5
        yield at + "ssm_conv1d.weight", (DI, config["conv_kernel"]), 0.5
        yield at + "ssm_conv1d.bias", (DI,), 0.1
        yield at + "ssm_x.weight", (R + 2 * N, DI), DI**-0.5
        yield at + "ssm_dt.weight", (DI, R), R**-0.5
        yield at + "ssm_dt.bias", (DI,), 0.1
        yield at + "ssm_a", (DI, N), None
        yield at + "ssm_d", (DI,), 0
        yield at + "ssm_out.weight", (D, DI), DI**-0.5


def write_f16(config, path, source):
    sys.path.insert(0, str(source / "gguf-py"))
    import gguf

    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model(NO_TOKENS)
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["intermediate_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["time_step_rank"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, shape, spread in tensors(config):
        if spread is None:
            array = np.broadcast_to(-np.arange(1, shape[1] + 1, dtype=np.float32), shape)
        elif spread == 0:
            array = np.ones(shape, np.float32)
        else:
            array = random.standard_normal(shape, np.float32) * np.float32(spread)
        matrix = len(shape) == 2 and spread is not None and "conv1d" not in name
        writer.add_tensor(name, np.ascontiguousarray(array, np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def models(config_file, source, programs, threads):
    """-> file of each type."""
    files = {kind: BUILD / f"{config_file.stem}.{kind}.gguf" for kind in TYPES}
    whole = files["f16"]
    if not whole.exists():
        write_f16(json.loads(config_file.read_text()), whole.with_suffix(".part"), source)
        whole.with_suffix(".part").rename(whole)
    for kind, path in files.items():
        if not path.exists():
            part = path.with_suffix(".part")
            command = [programs / "llama-quantize", whole, part, kind, str(threads)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            part.rename(path)
    return files


def theirs(programs, path, options):
    """-> tokens/s of a prompt, of decoding."""
    command = [programs / "llama-bench", "-m", path, "-t", options.threads, "-o", "json", "-r", 1]
    command += ["-p", options.prompt, "-n", options.tokens]
    rows = json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout)
    rates = {"prompt" if row["n_prompt"] else "decode": row["avg_ts"] for row in rows}
    return rates["prompt"], rates["decode"]


def ours(weights, activations, options):
    rates = []
    for rows in (options.prompt, 1):
        command = [options.bin / "recurve-bench", "--json", "step", "--config", options.config, "--random"]
        command += ["--weights", weights, "--activations", activations, "--threads", options.threads]
        command += ["--batch", 1, "--rows", rows, "--seconds", 1]
        out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
        rows = [json.loads(line) for line in out.splitlines()]
        rates.append(next(row for row in rows if row["bench"] == "step"))
    return rates[0]["tok_per_s"], rates[1]["tok_per_s"], rates[1]["read_GB_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "tests/configs/mamba-130m.json")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="to decode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="of the build")
    parser.add_argument("--only-build", action="store_true", help="and write the models")
    options = parser.parse_args()
    source = fetch_source()
    programs = build(source, options.jobs)
    files = models(options.config, source, programs, options.threads)
    if options.only_build:
        return
    rates = {}
    for _ in range(options.rounds):
        for kind, path in files.items():
            rates.setdefault(("llama.cpp", kind, "-"), []).append(theirs(programs, path, options))
        for weights, activations in FORMATS:
            rates.setdefault(("recurve", weights, activations), []).append(ours(weights, activations, options))
    for (program, weights, activations), found in rates.items():
        row = {"bench": "llama_cpp", "program": program, "weights": weights, "activations": activations}
        prompt, decode, *read = (statistics.median(values) for values in zip(*found, strict=True))
        row |= {"prompt_tok_per_s": round(prompt, 1), "decode_tok_per_s": round(decode, 1)}
        if read:
            row["read_GB_per_s"] = round(read[0], 1)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
