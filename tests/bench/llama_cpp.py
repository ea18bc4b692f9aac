#!/usr/bin/env python3
"""llama.cpp's llama-bench and recurve-bench step, on a model of the same shape, in turns within one run.

    tests/bench/llama_cpp.py [--config tests/configs/mamba-130m.json] [--bin build/release/bin] [--rounds 3]
    tests/bench/llama_cpp.py --config tests/configs/qwen3.5-0.8b.json --prompt 512,4096 --context 0,4096 --weights bf16,int4

Builds llama-bench and llama-quantize of the llama.cpp in llama-cpp-python's source package (llama_cpp.txt), for this
machine's instructions, once, under build/llama.cpp (minutes), and writes GGUF files of random weights there: f16 by the
package's own writer, which needs PyYAML, the other types from it by its own quantiser. Both programs get the same
number of threads. Models are Mamba and Qwen3.5, with or without experts; --layers N takes the first N layers of large ones.

Each measurement is printed as it ends. The table at the end has the best of all rounds, and compares ours with the best
of llama.cpp's types for the same weights; llama.cpp rounds activations to the type of the weights, to 8 bits for 4.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "llama.cpp"
PROGRAMS = ("llama-bench", "llama-quantize")
# Our weights: llama.cpp's types, our activations.
FORMATS = {
    "bf16": (("f16", "BF16"), ("f32", "bf16")),
    "int8": (("Q8_0",), ("f32", "int8")),
    "int4": (("Q4_0", "Q4_K_M"), ("f32", "int8")),
}
NO_TOKENS = "none"
ROWS_PER_STEP = 512  # of a prompt, as llama-bench has it


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


def mamba_keys(writer, config):
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["intermediate_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["time_step_rank"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])


def mamba_layer(config, layer):
    D, DI, N, R = (config[key] for key in ("hidden_size", "intermediate_size", "state_size", "time_step_rank"))
    yield "attn_norm.weight", (D,), 0
    yield "ssm_in.weight", (2 * DI, D), D**-0.5
    yield "ssm_conv1d.weight", (DI, config["conv_kernel"]), 0.5
    yield "ssm_conv1d.bias", (DI,), 0.1
    yield "ssm_x.weight", (R + 2 * N, DI), DI**-0.5
    yield "ssm_dt.weight", (DI, R), R**-0.5
    yield "ssm_dt.bias", (DI,), 0.1
    yield "ssm_a", (DI, N), None
    yield "ssm_d", (DI,), 0
    yield "ssm_out.weight", (D, DI), DI**-0.5


def qwen_keys(writer, config):
    head, rope = config["head_dim"], config["rope_parameters"]
    heads = config["linear_num_value_heads"]
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    else:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(int(head * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * heads)
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def qwen_layer(config, layer):
    D, head = config["hidden_size"], config["head_dim"]
    H, HK = config["linear_num_value_heads"], config["linear_num_key_heads"]
    values = H * config["linear_value_head_dim"]
    channels = values + 2 * HK * config["linear_key_head_dim"]
    yield "attn_norm.weight", (D,), 0
    yield "post_attention_norm.weight", (D,), 0
    if (layer + 1) % config["full_attention_interval"] == 0:
        queries, keys = (head * config[f"num_{name}_heads"] for name in ("attention", "key_value"))
        yield "attn_q.weight", (2 * queries, D), D**-0.5
        yield "attn_k.weight", (keys, D), D**-0.5
        yield "attn_v.weight", (keys, D), D**-0.5
        yield "attn_output.weight", (D, queries), queries**-0.5
        yield "attn_q_norm.weight", (head,), 0
        yield "attn_k_norm.weight", (head,), 0
    else:
        yield "attn_qkv.weight", (channels, D), D**-0.5
        yield "attn_gate.weight", (values, D), D**-0.5
        yield "ssm_alpha.weight", (H, D), D**-0.5
        yield "ssm_beta.weight", (H, D), D**-0.5
        yield "ssm_conv1d.weight", (channels, config["linear_conv_kernel_dim"]), 0.5
        yield "ssm_dt.bias", (H,), 0.1
        yield "ssm_a", (1, H), None
        yield "ssm_norm.weight", (config["linear_value_head_dim"],), 0
        yield "ssm_out.weight", (D, values), values**-0.5
    if "num_experts" in config:
        yield from qwen_experts(config)
        return
    F = config["intermediate_size"]
    yield "ffn_gate.weight", (F, D), D**-0.5
    yield "ffn_up.weight", (F, D), D**-0.5
    yield "ffn_down.weight", (D, F), F**-0.5


def qwen_experts(config):
    D, E, F = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
    shared = config["shared_expert_intermediate_size"]
    yield "ffn_gate_inp.weight", (E, D), D**-0.5
    yield "ffn_gate_exps.weight", (E, F, D), D**-0.5
    yield "ffn_up_exps.weight", (E, F, D), D**-0.5
    yield "ffn_down_exps.weight", (E, D, F), F**-0.5
    yield "ffn_gate_inp_shexp.weight", (D,), 0
    yield "ffn_gate_shexp.weight", (shared, D), D**-0.5
    yield "ffn_up_shexp.weight", (shared, D), D**-0.5
    yield "ffn_down_shexp.weight", (D, shared), shared**-0.5


# Names, keys of the file, and names, shapes and spread of a layer's tensors there; spread 0: ones; None: decays.
FAMILIES = {
    "mamba": ("mamba", mamba_keys, mamba_layer),
    "qwen3_5_text": ("qwen35", qwen_keys, qwen_layer),
    "qwen3_5_moe_text": ("qwen35moe", qwen_keys, qwen_layer),
}


def tensors(config, of_layer):
    yield "token_embd.weight", (config["vocab_size"], config["hidden_size"]), 1
    yield "output_norm.weight", (config["hidden_size"],), 0
    if not config.get("tie_word_embeddings", True):
        yield "output.weight", (config["vocab_size"], config["hidden_size"]), config["hidden_size"] ** -0.5
    for layer in range(config["num_hidden_layers"]):
        for name, shape, spread in of_layer(config, layer):
            yield f"blk.{layer}.{name}", shape, spread


def write_f16(config, path, source):
    sys.path.insert(0, str(source / "gguf-py"))
    try:
        import gguf
    except ModuleNotFoundError as missing:
        raise SystemExit(f"llama.cpp's writer of GGUF files needs the Python package {missing.name}") from missing
    architecture, add_keys, of_layer = FAMILIES[config["model_type"]]
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, architecture, use_temp_file=True)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model(NO_TOKENS)
    add_keys(writer, config)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, shape, spread in tensors(config, of_layer):
        if spread is None:
            array = np.broadcast_to(-np.arange(1, shape[1] + 1, dtype=np.float32), shape)
            array = array if shape[0] > 1 else array[0]
        elif spread == 0:
            array = np.ones(shape, np.float32)
        else:
            array = random.standard_normal(shape, np.float32) * np.float32(spread)
        matrix = len(shape) > 1 and spread is not None and "conv1d" not in name
        writer.add_tensor(name, np.ascontiguousarray(array, np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def models(options, source, programs):
    """-> file of each type."""
    config = json.loads(options.config.read_text())
    config["num_hidden_layers"] = options.layers or config["num_hidden_layers"]
    name = f"{options.config.stem}.{config['num_hidden_layers']}"
    if config["model_type"] not in FAMILIES:
        raise SystemExit(f"{options.config}: model_type {config['model_type']}, wanted one of {', '.join(FAMILIES)}")
    types = [kind for weights in options.weights for kind in FORMATS[weights][0]]
    files = {kind: BUILD / f"{name}.{kind}.gguf" for kind in types}
    whole = BUILD / f"{name}.f16.gguf"
    if not whole.exists():
        write_f16(config, whole.with_suffix(".part"), source)
        whole.with_suffix(".part").rename(whole)
    for kind, path in files.items():
        if not path.exists():
            part = path.with_suffix(".part")
            command = [programs / "llama-quantize", whole, part, kind, str(options.threads)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            part.rename(path)
    return files


def theirs(programs, path, options):
    """-> tokens/s of each cell."""
    out = {}
    prompt, context = (",".join(map(str, some)) for some in (options.prompt, options.context))
    for words in (["-p", prompt, "-n", 0], ["-p", 0, "-n", options.tokens, "-d", context]):
        command = [programs / "llama-bench", "-m", path, "-t", options.threads, "-o", "json", "-r", 1, *words]
        done = subprocess.run([str(word) for word in command], check=True, capture_output=True)
        for row in json.loads(done.stdout):
            cell = ("prompt", row["n_prompt"]) if row["n_prompt"] else ("decode", row["n_depth"])
            out[cell] = row["avg_ts"]
    return out


def ours(weights, activations, options):
    """-> tokens/s of each cell, and how near a decode comes to the memory's bandwidth."""
    out = {}
    for name, numbers in (("prompt", options.prompt), ("decode", options.context)):
        for number in numbers:
            command = [options.bin / "recurve-bench", "--json", "step", "--config", options.config, "--random"]
            command += ["--weights", weights, "--activations", activations, "--threads", options.threads]
            command += ["--batch", 1, "--seconds", 1]
            command += ["--layers", options.layers] if options.layers else []
            prompt = ["--rows", number, "--rows-per-step", ROWS_PER_STEP]
            command += prompt if name == "prompt" else ["--rows", 1, "--context", number]
            done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
            row = next(row for row in map(json.loads, done.stdout.splitlines()) if row["bench"] == "step")
            out[name, number] = row["tok_per_s"]
            if name == "decode":
                out["percent_of_floor", number] = row["percent_of_floor"]
    return out


def best(rounds):
    """Of each cell."""
    return {cell: max(found[cell] for found in rounds) for cell in rounds[0]}


def print_table(rates, options):
    """Markdown: each cell of ours, the best of theirs and how many times that ours is."""
    cells = [("prompt", n) for n in options.prompt] + [("decode", n) for n in options.context]
    print("\n| weights, activations | cell | Recurve, tokens/s | llama.cpp, tokens/s | ratio | % of read bandwidth |")
    print("|---|---|---|---|---|---|")
    for weights in options.weights:
        kinds, activations = FORMATS[weights]
        for type_ in activations:
            mine = rates["recurve", weights, type_]
            for cell in cells:
                kind = max(kinds, key=lambda kind: rates["llama.cpp", kind, "-"][cell])
                other = rates["llama.cpp", kind, "-"][cell]
                share = mine.get(("percent_of_floor", cell[1])) if cell[0] == "decode" else None
                name = f"prompt of {cell[1]:,}" if cell[0] == "prompt" else f"decode at {cell[1]:,}"
                print(f"| {weights}, {type_} | {name} | {mine[cell]:.1f} | {other:.1f} ({kind}) | "
                      f"{mine[cell] / other:.2f} | {'' if share is None else f'{share:.0f}'} |")


def print_row(name, found):
    program, weights, activations = name
    row = {"bench": "llama_cpp", "program": program, "weights": weights, "activations": activations}
    row |= {f"{cell}_{number}": round(rate, 1) for (cell, number), rate in found.items()}
    print(json.dumps(row), flush=True)


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "tests/configs/mamba-130m.json")
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=numbers, default=[512], help="tokens, e.g. 512,4096")
    parser.add_argument("--context", type=numbers, default=[0], help="tokens before those decoded; 0 unless it grows")
    parser.add_argument("--tokens", type=int, default=64, help="to decode")
    parser.add_argument("--weights", type=lambda text: text.split(","), default=list(FORMATS), help="e.g. bf16,int4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="of the build")
    parser.add_argument("--only-build", action="store_true", help="and write the models")
    options = parser.parse_args()
    source = fetch_source()
    programs = build(source, options.jobs)
    files = models(options, source, programs)
    if options.only_build:
        return
    rates = {}

    def measured(name, found):
        print_row(name, found)
        rates.setdefault(name, []).append(found)

    for _ in range(options.rounds):
        for weights in options.weights:
            kinds, activations = FORMATS[weights]
            for kind in kinds:
                measured(("llama.cpp", kind, "-"), theirs(programs, files[kind], options))
            for type_ in activations:
                measured(("recurve", weights, type_), ours(weights, type_, options))
    rates = {name: best(rounds) for name, rounds in rates.items()}
    print_table(rates, options)


if __name__ == "__main__":
    main()
