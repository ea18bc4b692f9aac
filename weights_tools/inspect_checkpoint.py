"""Prints the properties of a checkpoint and the cost of serving it. Needs numpy only.

The decode floor is the time to read the weights in bf16 and to read and write the state of each session, or the time
of the step's FLOPs if that is longer. It leaves out an embedding that is not the head, and experts that no token
selects if all are selected equally often. States are in fp32 (--state bf16: matrices in bf16), convolution windows in
bf16. The prefill floor is the time of a token's FLOPs: its weights without the head, and its mixer in chunks of 64 as
full squares. A prompt takes at least the time to read the weights.
"""

import json
import pathlib

from weights_tools import families, packed, tokenizer_info
from weights_tools import safetensors_io as st

BATCHES, CHUNK = (1, 8, 64, 256), 64
STATES = {"f32": 4, "bf16": 2}


def add_arguments(parser):
    parser.add_argument("dir", type=pathlib.Path, help="Hugging Face directory, or a config.json")
    parser.add_argument(
        "--bandwidth", type=float, default=4300.0, metavar="GB/S", help="memory bandwidth for the floors (default: 4300)"
    )
    parser.add_argument(
        "--flops", type=float, default=790.0, metavar="TFLOP/S", help="rate of matrix products in bf16 for the floors (default: 790)"
    )
    parser.add_argument(
        "--state", choices=STATES, default="f32", help="type of matrix states (default: f32)"
    )
    parser.add_argument(
        "--batch",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=BATCHES,
        metavar="B,B,...",
        help="numbers of concurrent sessions (default: 1,8,64,256)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def compare(tensors, wanted):
    """-> sentences about missing, extra and misshaped tensors."""
    problems = [
        f"missing {name} {list(shape)}" for name, shape in wanted.items() if name not in tensors
    ]
    problems += [
        f"extra {name} {list(t.shape)}" for name, t in tensors.items() if name not in wanted
    ]
    for name, shape in wanted.items():
        if name in tensors and not packed.fits(tensors[name], shape):
            problems.append(f"{name}: wanted {list(shape)}, found {list(tensors[name].shape)}")
    return problems


def summary(path, bandwidth=4300.0, flops=790.0, batches=BATCHES, state="f32"):
    """-> dict of what main prints. A path without weights is judged by its config alone."""
    path = pathlib.Path(path)
    directory = path.parent if path.is_file() else path
    values = json.loads((path if path.is_file() else path / "config.json").read_text())
    tensors = {}
    if any((directory / name).exists() for name in (st.SINGLE_NAME, st.INDEX_NAME)):
        tensors = packed.logical(st.checkpoint_sources(directory))
    family, config = families.config_of(values, tensors)
    config, tensors, head = families.find_head(family, config, tensors)
    state_bytes = family.state_bytes(config, STATES[state])
    active = family.parameters(config)
    if hasattr(family, "idle_parameters"):
        active -= round(family.idle_parameters(config, 1))
    out = {
        "family": families.type_of(values),
        "parameters": family.parameters(config),
        "active_parameters": active,
        "weight_bytes_bf16": 2 * family.parameters(config),
        "state_bytes_per_session": state_bytes,
        "decode_floor": [
            decode_floor(family, config, state_bytes, bandwidth, flops, b) for b in batches
        ],
        "prefill_floor": prefill_floor(family, config, bandwidth, flops),
        "head": head,
        "tokenizer": tokenizer_info.summary(directory),
        "bos_token_id": values.get("bos_token_id"),
    }
    if tensors:
        out["dtypes"] = sorted({tensor.dtype for tensor in tensors.values()})
        out["problems"] = compare(families.used(family, tensors), family.tensor_shapes(config))
        out["problems"] += tokens_without_row(out["tokenizer"], family.tensor_shapes(config))
    return out


def decode_floor(family, config, state_bytes, bandwidth, flops, batch):
    weights = 2 * families.weights_of_step(family, config, batch)
    memory = (weights + 2 * state_bytes * batch) / (bandwidth * 1e9)
    products = batch * 2 * families.weights_of_step(family, config, 1) / (flops * 1e12)
    seconds = max(memory, products)
    return {"batch": batch, "us": seconds * 1e6, "tokens_per_second": batch / seconds}


def prefill_floor(family, config, bandwidth, flops):
    seconds = families.prefill_flops(family, config, CHUNK) / (flops * 1e12)
    least = 2 * families.weights_of_step(family, config, 1) / (bandwidth * 1e9)
    return {"us_per_token": seconds * 1e6, "tokens_per_second": 1 / seconds, "least_us": least * 1e6}


def tokens_without_row(tokenizer, shapes):
    rows = next(shape[0] for name, shape in shapes.items() if "embed" in name)
    if tokenizer is None or tokenizer["size"] <= rows:
        return []
    return [f"the tokenizer has {tokenizer['size']} ids, the embedding {rows} rows"]


def main(options):
    """Exit status 1 when the tensors are not those that the configuration wants."""
    out = summary(options.dir, options.bandwidth, options.flops, options.batch, options.state)
    if options.json:
        print(json.dumps(out))
    else:
        print_table(out, options)
    return 1 if out.get("problems") else 0


def print_table(out, options):
    rows = [
        ("family", out["family"]),
        ("parameters", parameters_line(out)),
        ("weights in bf16", f"{out['weight_bytes_bf16']:,} B"),
        ("state per session", f"{out['state_bytes_per_session']:,} B"),
    ]
    for floor in out["decode_floor"]:
        rows.append(
            (f"decode, batch {floor['batch']}", f"{duration(floor['us'])} a step, {rate(floor)}")
        )
    prefill = out["prefill_floor"]
    rows.append(
        ("prefill", f"{rate(prefill)}; a prompt at least {duration(prefill['least_us'])}")
    )
    rows.append(("", f"floors at {options.bandwidth:g} GB/s and {options.flops:g} TFLOP/s"))
    rows.append(("head", out["head"]))
    rows.append(("tokenizer", tokenizer_line(out["tokenizer"], out["bos_token_id"])))
    if out["tokenizer"]:
        rows.append(("ends", ends_line(out["tokenizer"])))
    if "dtypes" in out:
        rows.append(("stored as", ", ".join(out["dtypes"])))
        rows.append(("tensors", "; ".join(out["problems"]) or "all there, of the right shapes"))
    for name, value in rows:
        print(f"{name:18} {value}")


def parameters_line(out):
    """With those that a token is multiplied with, where they are not all."""
    active = out["active_parameters"]
    return f"{out['parameters']:,}" + (f", {active:,} active" if active < out["parameters"] else "")


def duration(us):
    return f"{us / 1000:.3f} ms" if us >= 100 else f"{us:.3g} us"


def rate(floor):
    return f"{floor['tokens_per_second']:,.0f} tokens/s"


def tokenizer_line(tokenizer, bos):
    if tokenizer is None:
        return "none"
    control = listed(f"{i} {name}{by(tokenizer, i)}" for i, name in tokenizer["control"].items())
    parts = [
        f"{tokenizer['kind']}, {tokenizer['size']} ids",
        f"control {control or 'none'}",
        "config bos " + ("none" if bos is None else marked(bos, tokenizer)),
        "chat template" if tokenizer["chat_template"] else "no chat template",
    ]
    return "; ".join(parts)


def by(tokenizer, i):
    """The file that makes it a control token, where it is not the tokenizer's own."""
    return f" ({tokenizer['by_others'][i]})" if i in tokenizer["by_others"] else ""


def ends_line(tokenizer):
    ends = tokenizer["ends"].items()
    return listed(f"{marked(i, tokenizer)} ({', '.join(files)})" for i, files in ends) or "none stated"


def listed(texts, most=6):
    texts = list(texts)
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def marked(i, tokenizer):
    return f"{i}" if i in tokenizer["control"] else f"{i}, no control token"
