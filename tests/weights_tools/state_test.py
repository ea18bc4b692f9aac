"""A written state as its description has it, made here byte by byte, and what the tool says of it."""

import json
import struct
from pathlib import Path

import numpy
import pytest
import xxhash

from weights_tools.__main__ import main
from weights_tools.state import compare, read_state, seen_ids

# The same files are read by the server's tests, and seed its fuzzer.
CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "state_form"
SMALL = CORPUS / "small.state"
GROWN = CORPUS / "grown.state"
PAGED = CORPUS / "paged.state"
PAGE_GROUPS = [CORPUS / "state-100", CORPUS / "state-101"]
VERSION_2 = CORPUS / "version_2.state"
# What a server has written before there was version 3.
OF_A_SERVER = Path(__file__).parents[1] / "golden" / "state_version_2" / "s.state"


def written(header, pieces, version=3):
    """The bytes of a state: after server/state/state_form.h, and nothing else. pieces: {name: bytes}"""
    listed = [{"name": name, "bytes": len(piece), "checksum": hexadecimal(piece)} for name, piece in pieces.items()]
    text, data = json.dumps(header | {"pieces": listed}).encode(), b"".join(pieces.values())
    front = b"RCRVSTAT" + struct.pack("<IIQ", version, len(text), len(data))
    return front + struct.pack("<Q", xxhash.xxh3_64_intdigest(front + text)) + text + data


def hexadecimal(piece):
    return f"{xxhash.xxh3_64_intdigest(piece):016x}"


def small(change=0.0, version=3):
    """A state of a matrix, a window that is a piece by itself, and a vector behind it in the list."""
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
            {"name": "C", "layer": 0, "dtype": "F32", "shape": [2, 3], "piece": "recurrent"},
            {"name": "ring", "layer": 0, "dtype": "I32", "shape": [3], "piece": "window"},
            {"name": "n", "layer": 1, "dtype": "BF16", "shape": [2], "piece": "recurrent"},
            {"name": "history", "layer": -1, "dtype": "I64", "shape": [2], "piece": "history"},
            {"name": "answer", "layer": -1, "dtype": "I32", "shape": [2], "piece": "answer"},
        ],
    }
    vector = struct.pack("<2H", 0x3F80, 0xC000)  # 1 and -2
    window = struct.pack("<3i", 7, 8, 9)
    history = struct.pack("<2Q", 1 << 3, 1 << 1)  # ids 3 and 65
    answer = struct.pack("<2i", 66, 65)
    recurrent = matrix.tobytes() + vector
    if version > 2:
        header["arrays"][1]["growth"] = "ring"
    pieces = {"recurrent": recurrent, "window": window, "history": history, "answer": answer}
    return written(header, pieces, version)


def grown():
    """A state of 70 tokens: a vector, and of each token a key of two numbers and a byte of it as BF16."""
    arrays = [
        {"name": "n", "layer": 0, "dtype": "F32", "shape": [2], "piece": "recurrent"},
        {"name": "K", "layer": 1, "dtype": "F32", "shape": [2], "piece": "page", "growth": "token"},
        {"name": "V", "layer": 1, "dtype": "BF16", "shape": [1], "piece": "page", "growth": "token"},
        {"name": "history", "layer": -1, "dtype": "I64", "shape": [0], "piece": "history"},
        {"name": "answer", "layer": -1, "dtype": "I32", "shape": [0], "piece": "answer"},
    ]
    keys = numpy.zeros((128, 2), "<f4")
    keys[:70] = numpy.arange(140).reshape(70, 2)
    values = numpy.zeros(128, "<u2")
    values[:70] = 0x3F80
    pages = {f"page {p}": keys[64 * p :][:64].tobytes() + values[64 * p :][:64].tobytes() for p in range(2)}
    header = {"model": "m", "weights": "bf16", "chunk": 64, "id": "1", "position": 70, "arrays": arrays}
    recurrent = struct.pack("<2f", 1, 2)
    # In any order.
    pieces = {"page 1": pages["page 1"], "recurrent": recurrent, "page 0": pages["page 0"], "history": b"", "answer": b""}
    return written(header, pieces)


def checksum_of(raw):
    return f"{struct.unpack_from('<Q', raw, 24)[0]:016x}"


def paged():
    """A state of 140 tokens, whose full pages are in two groups: [state, the first group, the second]."""
    arrays = [
        {"name": "n", "layer": 0, "dtype": "F32", "shape": [2], "piece": "recurrent"},
        {"name": "K", "layer": 1, "dtype": "F32", "shape": [2], "piece": "page", "growth": "token"},
        {"name": "history", "layer": -1, "dtype": "I64", "shape": [0], "piece": "history"},
        {"name": "answer", "layer": -1, "dtype": "I32", "shape": [0], "piece": "answer"},
    ]
    keys = numpy.zeros((192, 2), "<f4")
    keys[:140] = numpy.arange(280).reshape(140, 2)
    pages = [keys[64 * p :][:64].tobytes() for p in range(3)]
    first = written({"id": "100", "first": 0}, {"page 0": pages[0]})
    base = {"id": "100", "checksum": checksum_of(first)}
    second = written({"id": "101", "first": 1, "base": base}, {"page 1": pages[1]})
    base = {"id": "101", "checksum": checksum_of(second)}
    header = {"model": "m", "weights": "bf16", "chunk": 64, "id": "1", "position": 140, "arrays": arrays, "base": base}
    pieces = {"recurrent": struct.pack("<2f", 1, 2), "page 2": pages[2], "history": b"", "answer": b""}
    return [written(header, pieces), first, second]


def test_small_states_are_those_that_the_server_reads():
    assert SMALL.read_bytes() == small()
    assert VERSION_2.read_bytes() == small(version=2)
    assert GROWN.read_bytes() == grown()
    assert [file.read_bytes() for file in [PAGED, *PAGE_GROUPS]] == paged()


@pytest.mark.parametrize("path", [SMALL, VERSION_2])
def test_reads_what_the_description_says(path):
    state = read_state(path)
    assert state.header["position"] == 12
    assert state.arrays[("C", 0)].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert state.arrays[("ring", 0)].tolist() == [7, 8, 9]
    assert state.arrays[("n", 1)].tolist() == [1, -2]
    assert state.arrays[("answer", -1)].tolist() == [66, 65]
    assert seen_ids(state) == [3, 65]


def test_a_state_that_grows_has_a_row_for_every_token(capsys):
    state = read_state(GROWN)
    assert state.arrays[("K", 1)].tolist() == numpy.arange(140).reshape(70, 2).tolist()
    assert state.arrays[("V", 1)].tolist() == [[1]] * 70
    assert state.arrays[("n", 0)].tolist() == [1, 2]
    assert main(["state", str(GROWN)]) == 0
    said = capsys.readouterr().out
    assert "K [70, 2] in 1 layers, largest 139" in said
    assert "page 1, 640 bytes" in said


def test_pages_in_groups_are_read_from_the_files_next_to_it(tmp_path, capsys):
    state = read_state(PAGED)
    assert state.arrays[("K", 1)].tolist() == numpy.arange(280).reshape(140, 2).tolist()
    assert list(state.pieces) == ["recurrent", "page 2", "history", "answer", "page 1", "page 0"]
    assert main(["state", str(PAGED)]) == 0
    assert "K [140, 2] in 1 layers, largest 279" in capsys.readouterr().out
    names = ["paged.state", "state-100", "state-101"]
    for name, whole in zip(names, paged(), strict=True):
        (tmp_path / name).write_bytes(whole)
    for name, whole in zip(names, paged(), strict=True):
        for at in range(len(whole)):
            (tmp_path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with pytest.raises(ValueError):
                read_state(tmp_path / "paged.state")
        (tmp_path / name).write_bytes(whole)
    with pytest.raises(ValueError, match="is a page group, not a state"):
        read_state(tmp_path / "state-101")
    (tmp_path / "state-100").unlink()
    with pytest.raises(ValueError, match="needs page group 100: put its file at"):
        read_state(tmp_path / "paged.state")


def test_reads_what_a_server_of_version_2_has_written():
    state = read_state(OF_A_SERVER)
    assert (state.version, state.header["position"]) == (2, 32)
    assert state.arrays[("hash", 0)].shape == (2,)


def test_a_version_makes_no_other_state():
    assert compare(read_state(SMALL), read_state(VERSION_2)) == ["equal, to the bit"]


@pytest.mark.parametrize(("version", "sentence"), [(5, "version 5, this program"), (1, "version 1, this program"), (0, "damaged: its format version is 0")])
def test_versions_that_it_does_not_know_are_refused_by_name(tmp_path, version, sentence):
    raw = small()
    (tmp_path / "other.state").write_bytes(raw[:8] + struct.pack("<I", version) + raw[12:])
    with pytest.raises(ValueError, match=sentence):
        read_state(tmp_path / "other.state")


def test_says_what_it_is(capsys):
    assert main(["state", str(SMALL)]) == 0
    said = capsys.readouterr().out
    assert "12 tokens, pending token 65" in said
    assert "2 different ids" in said
    assert "request r-1: 2 tokens, ended by length, seed 18446744073709551615" in said
    assert "window, 12 bytes" in said
    assert "C [2, 3] in 1 layers, largest 5" in said


def test_says_how_far_two_differ(tmp_path, capsys):
    other = tmp_path / "other.state"
    other.write_bytes(small(change=0.5))
    assert compare(read_state(SMALL), read_state(SMALL)) == ["equal, to the bit"]
    assert main(["state", str(SMALL), str(other)]) == 1
    assert "C of layer 0: 1 of 6 differ, by 0.5 at most, of 5.5" in capsys.readouterr().out


@pytest.mark.parametrize("version", [2, 3])
def test_any_changed_byte_is_found(tmp_path, version):
    whole = small(version=version)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        (tmp_path / "damaged.state").write_bytes(damaged)
        with pytest.raises(ValueError):
            read_state(tmp_path / "damaged.state")
