"""A written state as its description has it, made here byte by byte, and what the tool says of it."""

import json
import struct
from pathlib import Path

import numpy
import pytest
import xxhash

from weights_tools.__main__ import main
from weights_tools.state import compare, read_state, seen_ids

# The same file is read by the server's tests, and seeds its fuzzer.
SMALL = Path(__file__).parents[1] / "fuzz" / "corpus" / "state_form" / "small.state"


def written(header, parts):
    """The bytes of a state: after server/state/state_form.h, and nothing else."""
    text, data = json.dumps(header).encode(), b"".join(parts)
    front = b"RCRVSTAT" + struct.pack("<IIQ", 1, len(text), len(data))
    sums = [xxhash.xxh3_64_intdigest(data[at : at + 65536]) for at in range(0, len(data), 65536)]
    table = struct.pack(f"<{len(sums)}Q", *sums)
    ends = struct.pack("<Q", xxhash.xxh3_64_intdigest(front + text)), struct.pack("<Q", xxhash.xxh3_64_intdigest(table))
    return front + ends[0] + text + data + table + ends[1]


def small(change=0.0):
    matrix = numpy.arange(6, dtype="<f4").reshape(2, 3)
    matrix[1, 2] += change
    header = {
        "model": "0123456789abcdef0123456789abcdef",
        "weights": "bf16",
        "chunk": 64,
        "id": "7",
        "position": 12,
        "pending": 65,
        "sampler": {"seed": "18446744073709551615", "index": 2},
        "answer": {
            "request": "r-1",
            "digest": "00" * 16,
            "reason": "length",
            "stop": -1,
            "prompt_tokens": 11,
            "before": 0,
        },
        "arrays": [
            {"name": "C", "layer": 0, "dtype": "F32", "shape": [2, 3]},
            {"name": "n", "layer": 1, "dtype": "BF16", "shape": [2]},
            {"name": "history", "layer": -1, "dtype": "I64", "shape": [2]},
            {"name": "answer", "layer": -1, "dtype": "I32", "shape": [2]},
        ],
    }
    parts = [
        matrix.tobytes(),
        struct.pack("<2H", 0x3F80, 0xC000),  # 1 and -2
        struct.pack("<2Q", 1 << 3, 1 << 1),  # ids 3 and 65
        struct.pack("<2i", 66, 65),
    ]
    return written(header, parts)


def test_small_state_is_the_one_that_the_server_reads():
    assert SMALL.read_bytes() == small()


def test_reads_what_the_description_says():
    state = read_state(SMALL)
    assert state.header["position"] == 12
    assert state.arrays[("C", 0)].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert state.arrays[("n", 1)].tolist() == [1, -2]
    assert state.arrays[("answer", -1)].tolist() == [66, 65]
    assert seen_ids(state) == [3, 65]


def test_says_what_it_is(capsys):
    assert main(["state", str(SMALL)]) == 0
    said = capsys.readouterr().out
    assert "12 tokens, pending token 65" in said
    assert "2 different ids" in said
    assert "request r-1: 2 tokens, ended by length, seed 18446744073709551615" in said
    assert "C [2, 3] in 1 layers, largest 5" in said


def test_says_how_far_two_differ(tmp_path, capsys):
    other = tmp_path / "other.state"
    other.write_bytes(small(change=0.5))
    assert compare(read_state(SMALL), read_state(SMALL)) == ["equal, to the bit"]
    assert main(["state", str(SMALL), str(other)]) == 1
    assert "C of layer 0: 1 of 6 differ, by 0.5 at most, of 5.5" in capsys.readouterr().out


@pytest.mark.parametrize("at", range(0, len(small()), 7))
def test_any_changed_byte_is_found(tmp_path, at):
    damaged = bytearray(small())
    damaged[at] ^= 4
    (tmp_path / "damaged.state").write_bytes(damaged)
    with pytest.raises(ValueError):
        read_state(tmp_path / "damaged.state")
