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
of 64 bytes. Weights are processed in pieces, in less than 1 GB whatever the model is; needs numpy only.
"""

import json
import math
import pathlib
import shutil

import numpy as np

from weights_tools import convert, families, inspect_checkpoint, packed
from weights_tools import safetensors_io as st
from weights_tools.packed import GROUP
from weights_tools.progress import Progress

ROW_BYTES = 8 << 20  # of fp32, packed at once
FORMATS = ("int8", "int4", "none")
TOO_LARGE = np.float32(2.0**112)  # and what is not finite: the whole group is NaN


def add_arguments(parser):
    parser.add_argument("src", type=pathlib.Path, help="directory to read")
    parser.add_argument("dst", type=pathlib.Path, help="directory to write")
    parser.add_argument("--weights", choices=FORMATS[:2], required=True, help="format of linear layers")
    parser.add_argument(
        "--head", choices=FORMATS, help="format of the embedding and the head (default: as --weights); none: not packed"
    )
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
    out = quantized(tensors, family, config, options.weights, options.head or options.weights)
    options.dst.mkdir(parents=True, exist_ok=True)
    progress = Progress(sum(t.nbytes for t in out.values()))
    st.write_checkpoint(options.dst, out, options.shard_gb * 1e9, progress)
    progress.finish()
    for path in sorted(options.src.iterdir()):
        if path.is_file() and path.suffix not in (".safetensors", ".bin", ".pth") and path.name != st.INDEX_NAME:
            shutil.copyfile(path, options.dst / path.name)
    before, after = (sum(t.nbytes for t in part.values()) for part in (tensors, out))
    print(f"{options.dst}: {len(out)} tensors, {after:,} B of {before:,}")


def quantized(tensors, family, config, weights, head):
    """name -> Source. Packed where the family's linear layers read it."""
    if hasattr(family, "of_all_experts"):
        _, tensors = family.of_all_experts(config, tensors)
    out, used = {}, families.used(family, tensors)
    for name, source in tensors.items():
        form = form_of(name, source.shape, family, weights, head) if name in used else "none"
        if form == "none":
            out[name] = source
            continue
        matrix = Packed(source, form)
        out[f"{name}.{form}"] = matrix.values()
        out[f"{name}.{form}.scales"] = matrix.scales()
    return out


def form_of(name, shape, family, weights, head):
    other_ops = getattr(family, "OTHER_OPS", ())
    of_experts = len(shape) == 3 and any(part in name for part in getattr(family, "EXPERTS", ()))
    is_matrix = len(shape) == 2 and name.rpartition(".")[2].startswith("weight")
    if not of_experts and not is_matrix:
        return "none"
    if any(part in name for part in ("norm", *other_ops)):
        return "none"
    return head if "embed" in name or name.endswith("lm_head.weight") else weights


class Packed:
    """A matrix in one of the forms, as two Sources that are read one after the other."""

    def __init__(self, source, form):
        self.source, self.pack = source, PACK[form]
        self.rows, self.columns = math.prod(source.shape[:-1]), source.shape[-1]
        self.groups = -(-self.columns // GROUP)
        self.form, self.scale_pieces = form, None

    def values(self):
        dtype, width = ("I8", GROUP) if self.form == "int8" else ("U8", GROUP // 2)
        return st.Source(dtype, (self.rows, self.groups * width), self.value_pieces)

    def scales(self):
        shape = (self.rows, self.groups) if self.form == "int8" else (self.rows, self.groups, 2)
        return st.Source("BF16", shape, self.kept_scales)

    def value_pieces(self):
        kept = []
        for rows in self.row_pieces():
            values, scales = self.pack(rows.reshape(len(rows), self.groups, GROUP))
            kept.append(scales.reshape(-1))
            yield values.reshape(-1)
        self.scale_pieces = kept

    def kept_scales(self):
        """Those that value_pieces() left, so that a matrix is packed once where both are written. They are given
        away: those of all matrices together would take a 32nd of the checkpoint."""
        if self.scale_pieces is None:
            for _ in self.value_pieces():
                pass
        pieces, self.scale_pieces = self.scale_pieces, None
        yield from pieces

    def row_pieces(self):
        """fp32, whole rows filled up with zeros."""
        at_once = max(1, ROW_BYTES // (4 * self.columns))
        rest = np.zeros(0, np.float32)
        for piece in self.source.pieces():
            rest = np.concatenate([rest, st.widened(self.source.dtype, piece)])
            while len(rest) >= at_once * self.columns:
                yield self.padded(rest[: at_once * self.columns])
                rest = rest[at_once * self.columns :]
        if len(rest):
            yield self.padded(rest)

    def padded(self, values):
        rows = values.reshape(-1, self.columns)
        return np.pad(rows, ((0, 0), (0, self.groups * GROUP - self.columns)))


# Every operation below is one of fp32 and rounds once, in the order of kernels/formats: the bits are the same.


def bf16(values):
    """Rounded, as fp32."""
    return st.widened("BF16", st.bf16_bits(values))


def pack_int8(w):
    """w: fp32 [rows, groups, 64] -> int8 of that shape, scales' bits [rows, groups]."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        s = bf16(np.abs(w).max(-1) / np.float32(127))
        q = np.rint(w / np.where(s == 0, np.float32(1), s)[..., None])
        q = np.where((s == 0)[..., None], np.float32(0), np.clip(q, -127, 127))
    bad = ~(np.abs(w) < TOO_LARGE).all(-1)
    q = np.where(bad[..., None], np.float32(1), q)
    return q.astype(np.int8), np.where(bad, np.uint16(0x7FC0), st.bf16_bits(s))


def lane_sums(values):
    """Of the last axis, 64 values: eight lanes first."""
    lanes = np.zeros(values.shape[:-1] + (8,), np.float32)
    for k in range(0, GROUP, 8):
        lanes = lanes + values[..., k : k + 8]
    a = [lanes[..., i] for i in range(8)]
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))


def nearest_line(w, s, m):
    s, m = bf16(s), bf16(m)
    inverse = np.where(s >= np.float32(1e-30), np.float32(1) / np.where(s == 0, np.float32(1), s), 0)
    q = np.clip(np.rint((w - m[..., None]) * inverse.astype(np.float32)[..., None]), 0, 15)
    return s, m, q


def fit(w, q, s, m):
    """Scale and minimum of the least squared error for these q."""
    count = np.float32(GROUP)
    sum_q, sum_w = lane_sums(q), lane_sums(w)
    spread = count * lane_sums(q * q) - sum_q * sum_q
    fits = spread > 0
    scale = (count * lane_sums(q * w) - sum_q * sum_w) / np.where(fits, spread, np.float32(1))
    scale = np.where(fits, scale, s)
    return scale, np.where(fits, (sum_w - scale * sum_q) / count, m)


def pack_int4(w):
    """w: fp32 [rows, groups, 64] -> uint8 [rows, groups, 32], bits of s and m [rows, groups, 2]."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        low, high, half = w.min(-1), w.max(-1), np.float32(0.5)
        middle = high * half + low * half
        best = None
        for share in (1.0, 0.9, 0.8):
            reach = (high * half - low * half) * np.float32(share)
            s, m = reach * np.float32(2) / np.float32(15), middle - reach
            for _ in range(3):
                line_s, line_m, q = nearest_line(w, s, m)
                error = (q * line_s[..., None] + line_m[..., None]) - w
                error = lane_sums(error * error)
                if best is None:
                    best = error, line_s, line_m, q
                else:
                    better = error < best[0]
                    old, new = best, (error, line_s, line_m, q)
                    best = tuple(
                        np.where(better[..., None] if a.ndim > better.ndim else better, a, b)
                        for a, b in zip(new, old)
                    )
                s, m = fit(w, q, s, m)
    _, s, m, q = best
    bad = ~(np.abs(w) < TOO_LARGE).all(-1)
    q = np.where(bad[..., None], np.float32(0), q).astype(np.uint16)
    q = q.reshape(q.shape[:-1] + (4, 16))
    words = q[..., 0, :] | q[..., 1, :] << 4 | q[..., 2, :] << 8 | q[..., 3, :] << 12
    scales = np.stack([np.where(bad, np.uint16(0x7FC0), st.bf16_bits(v)) for v in (s, m)], -1)
    return words.astype("<u2").view(np.uint8), scales


PACK = {"int8": pack_int8, "int4": pack_int4}
