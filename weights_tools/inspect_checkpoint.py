"""Prints what a checkpoint directory is and what serving it costs. Needs numpy only."""

import json
import pathlib

from weights_tools import families
from weights_tools import safetensors_io as st


def add_arguments(parser):
    parser.add_argument("dir", type=pathlib.Path, help="Hugging Face directory, or a config.json")
    parser.add_argument(
        "--bandwidth", type=float, default=4300.0, metavar="GB/S", help="memory (4300)"
    )
    parser.add_argument("--sessions", type=int, default=1, help="sessions decoding together (1)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def compare(entries, wanted):
    """-> sentences about missing, extra and misshaped tensors."""
    problems = [
        f"missing {name} {list(shape)}" for name, shape in wanted.items() if name not in entries
    ]
    problems += [
        f"extra {name} {list(e.shape)}" for name, e in entries.items() if name not in wanted
    ]
    for name, shape in wanted.items():
        if name in entries and entries[name].shape != shape:
            problems.append(f"{name}: wanted {list(shape)}, found {list(entries[name].shape)}")
    return problems


def summary(path, bandwidth, sessions):
    """-> dict of what main prints. A path without weights is judged by its config alone."""
    path = pathlib.Path(path)
    directory = path.parent if path.is_file() else path
    values = json.loads((path if path.is_file() else path / "config.json").read_text())
    kind = families.type_of(values)
    family = families.load(kind)
    config = family.config_from_dict(values)
    state, weights = family.state_bytes(config), family.decode_weight_bytes(config)
    floor = (weights + 2 * state * sessions) / (bandwidth * 1e9)
    out = {
        "family": kind,
        "parameters": family.parameters(config),
        "weight_bytes_bf16": 2 * family.parameters(config),
        "state_bytes_per_session": state,
        "decode_floor_us": round(floor * 1e6, 3),
        "decode_floor_tokens_per_second": round(sessions / floor, 1),
    }
    if any((directory / name).exists() for name in (st.SINGLE_NAME, st.INDEX_NAME)):
        entries = st.read_checkpoint_headers(directory)
        out["dtypes"] = sorted({entry.dtype for entry in entries.values()})
        out["problems"] = compare(entries, family.tensor_shapes(config))
    return out


def main(options):
    """Exit status 1 when the tensors are not those that the configuration wants."""
    out = summary(options.dir, options.bandwidth, options.sessions)
    if options.json:
        print(json.dumps(out))
    else:
        print_table(out, options)
    return 1 if out.get("problems") else 0


def print_table(out, options):
    rows = {
        "family": out["family"],
        "parameters": f"{out['parameters']:,}",
        "weights in bf16": f"{out['weight_bytes_bf16']:,} B",
        "state per session": f"{out['state_bytes_per_session']:,} B",
        "decode floor": f"{out['decode_floor_us']:,} us a step, "
        f"{out['decode_floor_tokens_per_second']:,} tokens/s "
        f"({options.sessions} session(s), {options.bandwidth:g} GB/s, bf16 weights, fp32 state)",
    }
    if "dtypes" in out:
        rows["stored as"] = ", ".join(out["dtypes"])
        rows["tensors"] = "; ".join(out["problems"]) or "all there, of the right shapes"
    for name, value in rows.items():
        print(f"{name:18} {value}")
