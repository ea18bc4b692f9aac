"""Print a serialized state, or the difference of two.

    python -m weights_tools state FILE
    python -m weights_tools state A B

A state is a file of `recurve session export` or of a server's --state-dir. server/state/state_form.h describes its
format. Pages of a state that are in page groups are read from the files of these next to it. Every checksum is
checked, and a damaged state is refused.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy

MAGIC = b"RCRVSTAT"
VERSION, OLDEST = 4, 2
PAGE_TOKENS = 64
ITEM_BYTES = {"F32": 4, "BF16": 2, "I64": 8, "I32": 4}


@dataclass
class State:
    """A written state: its header, as JSON has it, and its arrays in order, as float32 or integers.

    arrays: {(name, layer): numpy array of the shape that the header says, with tokens in front if it grows with them}
    pieces: {name: bytes}, what it is divided into
    """

    header: dict
    arrays: dict
    pieces: dict
    version: int


def checksum(data):
    import xxhash

    return xxhash.xxh3_64_intdigest(data)


def read_state(path):
    """Reads a file, a Path, as a State. Raises ValueError with a sentence where it is none, or damaged."""
    version, header, pieces = read_file(path)
    if "first" in header:
        raise ValueError(f"{path} is a page group, not a state")
    pieces |= pages_in_groups(path, header)
    arrays = {}
    for name, piece in pieces.items():
        arrays |= dict(arrays_of([entry for entry in header["arrays"] if entry["piece"] == name], piece))
    growing = [entry for entry in header["arrays"] if entry.get("growth") == "token"]
    arrays |= dict(rows_of(growing, pieces, header["position"]))
    sizes = {name: len(piece) for name, piece in pieces.items()}
    return State(header, arrays, sizes, version)


def pages_in_groups(path, header):
    """{name: its bytes} of the pages in the base of the state, the base of that, and so on."""
    pages, end = {}, header["position"] // PAGE_TOKENS
    base = header.get("base")
    while base is not None:
        file = path.parent / f"state-{base['id']}"
        if not file.is_file():
            raise ValueError(f"{path} needs page group {base['id']}: put its file at {file}")
        if file.read_bytes()[24:32] != bytes.fromhex(base["checksum"])[::-1]:
            raise ValueError(f"{file} is not the page group that {path} was written with")
        _, group, pieces = read_file(file)
        if list(pieces) != [f"page {page}" for page in range(group["first"], end)]:
            raise ValueError(f"{file} is damaged: its pages do not end before those of the next group")
        pages |= pieces
        end, base = group["first"], group.get("base")
    return pages


def read_file(path):
    """(version, header, {name: bytes of a piece}) of a state or a page group."""
    raw = path.read_bytes()
    if len(raw) < 32 or raw[:8] != MAGIC:
        raise ValueError(f"{path} is not a state: its first 8 bytes are not those of a state")
    version, header_bytes, data_bytes, header_sum = struct.unpack_from("<IIQQ", raw, 8)
    if version > VERSION:
        raise ValueError(f"{path} has format version {version}, this program reads up to {VERSION}: use a newer program")
    if version == 0:
        raise ValueError(f"{path} is damaged: its format version is 0, expected at least 1")
    if version < OLDEST:
        raise ValueError(f"{path} has format version {version}, this program reads from {OLDEST} on: use an older program")
    data_begin = 32 + header_bytes
    if len(raw) != data_begin + data_bytes:
        raise ValueError(f"{path} has {len(raw)} bytes, its header gives another size")
    if checksum(raw[:24] + raw[32:data_begin]) != header_sum:
        raise ValueError(f"{path} is damaged: the checksum of its header differs")
    header = json.loads(raw[32:data_begin])
    return version, header, pieces_of(path, header, raw[data_begin:])


def pieces_of(path, header, data):
    """{name: its bytes}, each checked."""
    pieces, at = {}, 0
    for entry in header["pieces"]:
        piece = data[at : at + entry["bytes"]]
        at += len(piece)
        if len(piece) != entry["bytes"] or f"{checksum(piece):016x}" != entry["checksum"]:
            raise ValueError(f"{path} is damaged: the checksum of its piece {entry['name']} differs")
        pieces[entry["name"]] = piece
    if at != len(data):
        raise ValueError(f"{path} is damaged: the sizes of its pieces and of its data differ")
    return pieces


def arrays_of(entries, data):
    """Yields ((name, layer), array) for each array of the list, which lie in the data one after the other."""
    at = 0
    for entry in entries:
        count = math.prod(entry["shape"])
        part = data[at : at + count * ITEM_BYTES[entry["dtype"]]]
        at += len(part)
        yield (entry["name"], entry["layer"]), numbers(part, entry["dtype"]).reshape(entry["shape"])


def rows_of(entries, pieces, tokens):
    """Yields ((name, layer), array) for each array that has a row a token, from all pages."""
    in_page = [entry | {"shape": [PAGE_TOKENS, *entry["shape"]]} for entry in entries]
    count = math.ceil(tokens / PAGE_TOKENS) if entries else 0
    pages = [dict(arrays_of(in_page, pieces[f"page {page}"])) for page in range(count)]
    for entry in entries:
        key = entry["name"], entry["layer"]
        rows = [page[key] for page in pages] or [numpy.zeros([0, *entry["shape"]], "f4")]
        yield key, numpy.concatenate(rows)[:tokens]


def numbers(raw, dtype):
    if dtype == "BF16":
        return (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return numpy.frombuffer(raw, {"F32": "<f4", "I64": "<u8", "I32": "<i4"}[dtype])


def seen_ids(state):
    """The ids that the text has had, from the bits of its history."""
    words = state.arrays[("history", -1)]
    bits = numpy.unpackbits(words.view("u1"), bitorder="little")
    return numpy.flatnonzero(bits).tolist()


def describe(path, state):
    header = state.header
    pending = header.get("pending")
    lines = [
        f"state      {path}, format version {state.version}",
        f"model      {header['model']}, weights in {header['weights']}, prompts in chunks of {header['chunk']} tokens",
        f"position   {header['position']} tokens, pending token {'none' if pending is None else pending}",
        f"history    {len(seen_ids(state))} different ids",
    ]
    if adapter := header.get("adapter"):
        lines.append(f"adapter    {adapter['name']}, {adapter['digest']}")
    if answer := header.get("answer"):
        sampler = header["sampler"]
        lines.append(
            f"answer     request {answer['request']}: {len(state.arrays[('answer', -1)])} tokens, ended by "
            f"{answer['reason']}, seed {sampler['seed']}"
        )
    for name, size in state.pieces.items():
        lines.append(f"piece      {name}, {size} bytes")
    layers = {}
    for (name, layer), array in state.arrays.items():
        if layer >= 0:
            layers.setdefault((name, array.shape), []).append((layer, array))
    for (name, shape), all_layers in layers.items():
        largest = max((float(numpy.abs(array).max(initial=0)) for _, array in all_layers))
        lines.append(f"array      {name} {list(shape)} in {len(all_layers)} layers, largest {largest:.6g}")
    return lines


def compare(a, b):
    """Lines with the difference of two States: the largest difference of each array, and all of the header."""
    lines = []
    for key in ("model", "weights", "chunk", "position", "pending"):
        if a.header.get(key) != b.header.get(key):
            lines.append(f"{key}: {a.header.get(key)} and {b.header.get(key)}")
    for key in sorted(a.arrays.keys() | b.arrays.keys()):
        name, layer = key
        one, other = a.arrays.get(key), b.arrays.get(key)
        if one is None or other is None or one.shape != other.shape:
            lines.append(f"{name} of layer {layer}: not of one shape")
        elif one.tobytes() != other.tobytes():
            lines.append(f"{name} of layer {layer}: {difference(one, other)}")
    return lines or ["equal, to the bit"]


def difference(one, other):
    if one.dtype.kind != "f":
        return "differs"
    apart = numpy.abs(one.astype("f8") - other)
    scale = max(float(numpy.abs(one).max()), float(numpy.abs(other).max()))
    return f"{int((apart > 0).sum())} of {apart.size} differ, by {apart.max():.3g} at most, of {scale:.3g}"


def add_arguments(parser):
    parser.add_argument("file", type=Path, help="serialized state")
    parser.add_argument("other", type=Path, nargs="?", help="compare with this state")


def main(options):
    state = read_state(options.file)
    if options.other is None:
        print("\n".join(describe(options.file, state)))
        return 0
    lines = compare(state, read_state(options.other))
    print("\n".join(lines))
    return 0 if lines == ["equal, to the bit"] else 1
