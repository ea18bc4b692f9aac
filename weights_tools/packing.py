"""Packs the matrices of linear layers into eight or four bits, as the server does at load (kernels/formats).

Each operation is one of fp32 and rounds once, in the order of kernels/formats: the bits are the same, whatever the number
of processes. A process packs a block of rows at a time. Its values are turned so that those of a group are a column: each
operation is one over long rows. (Threads would spend their time waiting for Python's lock between the operations.)
"""

import argparse
import collections
import concurrent.futures.process
import functools
import math
import multiprocessing
import os
import signal

import numpy as np

from weights_tools import families
from weights_tools import safetensors_io as st
from weights_tools.packed import GROUP

BLOCK_BYTES = 1 << 20  # of fp32, packed at once
BYTES_EACH = 64 << 20  # of a checkpoint, for which it is worth to start a process
FORMATS = ("int8", "int4", "none")
TOO_LARGE = np.float32(2.0**112)  # and what is not finite: the whole group is NaN
NAN_BITS = np.uint16(0x7FC0)


def add_arguments(parser, required):
    parser.add_argument(
        "--weights",
        choices=FORMATS[:2],
        required=required,
        help="format of linear layers" + ("" if required else " (default: not packed)"),
    )
    parser.add_argument(
        "--head", choices=FORMATS, help="format of the embedding and the head (default: as --weights); none: not packed"
    )
    parser.add_argument(
        "--processes", type=positive, metavar="N", help="processes that pack (default: one a processor, fewer for little)"
    )


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted an integer from 1, found {text}")
    return int(text)


class Workers:
    """Processes that compute; with one, it is this one. At most two items a process are in memory."""

    def __init__(self, count):
        self.count, self.pool = count, None
        if count > 1:
            fresh = multiprocessing.get_context("spawn")
            self.pool = concurrent.futures.ProcessPoolExecutor(count, fresh, begin_process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def map(self, function, items):
        """function(item) of each, in their order."""
        if self.pool is None:
            yield from map(function, items)
            return
        begun = collections.deque()
        for item in items:
            begun.append(self.pool.submit(function, item))
            if len(begun) >= 2 * self.count:
                yield result(begun.popleft())
        while begun:
            yield result(begun.popleft())


def begin_process():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Once it has freed so much at once, glibc does not return each block's memory to the system any more, which took
    # a third of the time.
    np.empty(16 << 20, np.uint8)


def result(future):
    try:
        return future.result()
    except concurrent.futures.process.BrokenProcessPool:
        raise OSError("a process that packs weights ended early; nothing more was written") from None


def workers_for(tensors, processes):
    """processes: None is as many as are of use."""
    size = sum(tensor.nbytes for tensor in tensors.values())
    return Workers(processes or min(len(os.sched_getaffinity(0)), 1 + size // BYTES_EACH))


def quantized(tensors, family, config, weights, head=None, workers=Workers(1)):
    """name -> Source. Packed where the family's linear layers read it; head: as weights, or none."""
    if hasattr(family, "of_all_experts"):
        _, tensors = family.of_all_experts(config, tensors)
    out, used = {}, families.used(family, tensors)
    for name, source in tensors.items():
        form = form_of(name, source.shape, family, weights, head or weights) if name in used else "none"
        if form == "none":
            out[name] = source
            continue
        matrix = Packed(source, form, workers)
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

    def __init__(self, source, form, workers):
        self.source, self.form, self.workers = source, form, workers
        self.rows, self.columns = math.prod(source.shape[:-1]), source.shape[-1]
        self.groups = -(-self.columns // GROUP)
        self.scale_pieces = None

    def values(self):
        dtype, width = ("I8", GROUP) if self.form == "int8" else ("U8", GROUP // 2)
        return st.Source(dtype, (self.rows, self.groups * width), self.value_pieces)

    def scales(self):
        shape = (self.rows, self.groups) if self.form == "int8" else (self.rows, self.groups, 2)
        return st.Source("BF16", shape, self.kept_scales)

    def value_pieces(self):
        kept = []
        pack = functools.partial(pack_rows, self.form, self.source.dtype, self.columns)
        for values, scales in self.workers.map(pack, self.row_pieces()):
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
        """Whole rows, about a block of them."""
        size = max(1, BLOCK_BYTES // (4 * self.columns)) * self.columns
        rest = np.zeros(0, st.STORAGE[self.source.dtype])
        for piece in self.source.pieces():
            rest = np.concatenate([rest, piece]) if len(rest) else piece
            whole = len(rest) // size * size
            yield from (rest[begin : begin + size] for begin in range(0, whole, size))
            rest = rest[whole:]
        if len(rest):
            yield rest


def pack_rows(form, dtype, columns, values):
    """Of whole rows as they are stored, each filled up with zeros to whole groups."""
    rows = st.widened(dtype, values).reshape(-1, columns)
    return PACK[form](np.pad(rows, ((0, 0), (0, -columns % GROUP))).reshape(-1, GROUP))


def bf16(values):
    """Rounded, as fp32."""
    return st.widened("BF16", st.bf16_bits(values))


def clip(values, least, most):
    """In place. Against arrays, as np.clip() and bounds that are scalars take several times as long."""
    count = values.shape[1]
    np.maximum(values, np.full(count, least, np.float32), out=values)
    np.minimum(values, np.full(count, most, np.float32), out=values)


def too_large(low, high):
    """What a group's extremes say of it; also of NaN."""
    return ~((-low < TOO_LARGE) & (high < TOO_LARGE))


def pack_int8(groups):
    """groups: fp32 [N, 64] -> int8 of that shape, bits of the scales [N]."""
    w = np.ascontiguousarray(groups.T)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        low, high = w.min(0), w.max(0)
        bad = too_large(low, high)
        s = bf16(np.maximum(-low, high) / np.float32(127))
        w /= np.where(s == 0, np.float32(1), s)
        np.rint(w, out=w)
        clip(w, -127, 127)
    w[:, s == 0] = 0
    w[:, bad] = 1
    return np.ascontiguousarray(w.astype(np.int8).T), np.where(bad, NAN_BITS, st.bf16_bits(s))


class Lines:
    """Lines w = s q + m through the values of groups; arrays of one block."""

    def __init__(self, w):
        self.w = w  # fp32 [64, N]
        self.q, self.product = np.empty_like(w), np.empty_like(w)
        self.lanes = np.empty((8, w.shape[1]), np.float32)
        self.sum_w = self.sum(w)

    def sum(self, values):
        """Of each group: eight lanes first."""
        lanes = np.add(values[:8], np.float32(0), out=self.lanes)
        for k in range(8, GROUP, 8):
            lanes += values[k : k + 8]
        return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))

    def sum_of_products(self, one, other):
        return self.sum(np.multiply(one, other, out=self.product))

    def find_q(self, s, m):
        """The nearest q."""
        inverse = np.where(s >= np.float32(1e-30), np.float32(1) / np.where(s == 0, np.float32(1), s), np.float32(0))
        q = np.subtract(self.w, m, out=self.q)
        q *= inverse
        np.rint(q, out=q)
        clip(q, 0, 15)

    def error(self, s, m):
        """Squared, of q."""
        difference = np.multiply(self.q, s, out=self.product)
        difference += m
        difference -= self.w
        return self.sum_of_products(difference, difference)

    def fit(self, s, m):
        """Scale and minimum of the least squared error for q; s and m where all q are the same."""
        count, sum_q = np.float32(GROUP), self.sum(self.q)
        spread = count * self.sum_of_products(self.q, self.q) - sum_q * sum_q
        fits = spread > 0
        scale = (count * self.sum_of_products(self.q, self.w) - sum_q * self.sum_w) / np.where(fits, spread, np.float32(1))
        scale = np.where(fits, scale, s)
        return scale, np.where(fits, (self.sum_w - scale * sum_q) / count, m)


def pack_int4(groups):
    """groups: fp32 [N, 64] -> uint8 [N, 32], bits of s and m [N, 2]."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        lines = Lines(np.ascontiguousarray(groups.T))
        low, high = lines.w.min(0), lines.w.max(0)
        s, m = best_line(lines, low, high)
        lines.find_q(s, m)
    bad = too_large(low, high)
    lines.q[:, bad] = 0
    q = lines.q.astype(np.uint16)
    words = q[:16] | q[16:32] << 4 | q[32:48] << 8 | q[48:] << 12
    scales = np.stack([np.where(bad, NAN_BITS, st.bf16_bits(v)) for v in (s, m)], -1)
    return np.ascontiguousarray(words.T).astype("<u2").view(np.uint8), scales


def best_line(lines, low, high):
    """Of three beginnings, each fitted twice."""
    half = np.float32(0.5)
    middle, reach = high * half + low * half, high * half - low * half
    best = None
    for share in (1.0, 0.9, 0.8):
        part = reach * np.float32(share)
        s, m = part * np.float32(2) / np.float32(15), middle - part
        for fitted in range(3):
            if fitted > 0:
                s, m = lines.fit(s, m)
            s, m = bf16(s), bf16(m)
            lines.find_q(s, m)
            found = lines.error(s, m), s, m
            better = best is None or found[0] < best[0]
            best = found if best is None else tuple(np.where(better, new, old) for new, old in zip(found, best))
    return best[1:]


PACK = {"int8": pack_int8, "int4": pack_int4}
