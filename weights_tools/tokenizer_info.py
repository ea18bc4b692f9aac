"""What the tokenizer files of a checkpoint directory say, read without a tokenizer's library."""

import json

from weights_tools.protobuf import fields

MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}  # of SentencePiece's TrainerSpec
CONTROL = 3  # of its pieces
UTF8_BYTES = [byte for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5]


def summary(directory):
    """-> {"kind", "size", "control" (id -> name), "chat_template"}, or None without a tokenizer."""
    if (directory / "tokenizer.json").exists():
        out = of_json(json.loads((directory / "tokenizer.json").read_text()))
    elif (directory / "tokenizer.model").exists():
        out = of_model_file(directory / "tokenizer.model")
    elif world_vocabularies(directory):
        out = of_world(world_vocabularies(directory)[0])
    else:
        return None
    return {**out, "chat_template": has_chat_template(directory)}


def world_vocabularies(directory):
    """RWKV's, rwkv_vocab_v20230424.txt: a line "ID LITERAL BYTES" for an entry."""
    return sorted(directory.glob("rwkv_vocab*.txt"))


def of_world(path):
    ids = [int(line.split(b" ", 1)[0]) for line in path.read_bytes().split(b"\n") if line.strip()]
    return {"kind": "RWKV World", "size": max(ids) + 1, "control": {0: "<|endoftext|>"}}


def of_json(values):
    model, added = values["model"], values.get("added_tokens") or []
    vocab = model["vocab"]
    if isinstance(vocab, list):  # of Unigram: pieces with scores
        vocab = {piece[0]: i for i, piece in enumerate(vocab)}
    ids = [token["id"] for token in added] + list(vocab.values())
    control = {token["id"]: token["content"] for token in added if token["special"]}
    return {"kind": kind_of(values, vocab), "size": max(ids) + 1, "control": control}


def kind_of(values, vocab):
    model = values["model"]
    kind, merges = model.get("type", "BPE"), model.get("merges") or []
    if '"ByteLevel"' in json.dumps(values.get("pre_tokenizer")):
        return f"byte-level {kind}, {len(merges)} merges{missing_bytes(model, vocab)}"
    if kind == "BPE" and not merges and values.get("pre_tokenizer") is None:
        return "characters"
    if kind == "BPE":
        kind += f", {len(merges)} merges"
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocab for byte in range(256)):
        kind += ", falls back to bytes"
    return kind


def missing_bytes(model, vocab):
    """What becomes of the bytes of texts that have no token; 13 bytes are in no text, which is UTF-8."""
    missing = [byte for byte in UTF8_BYTES if byte_name(byte) not in vocab]
    if not missing:
        return ""
    fate = "left out of texts" if model.get("unk_token") is None else f"read as {model['unk_token']}"
    return f", {len(missing)} bytes without a token: {fate}"


def byte_name(byte):
    """How byte-level BPE writes a byte: itself if it is printable, else from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(256) if other not in printable]
    return chr(byte if byte in printable else 0x100 + others.index(byte))


def of_model_file(path):
    try:
        return of_sentencepiece(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def of_sentencepiece(data):
    kind, pieces, control = 1, 0, {}
    for field, value in fields(data):
        if field == 2:  # TrainerSpec
            kind = dict(fields(value)).get(3, 1)
        if field == 1:  # SentencePiece: piece, score, type
            piece = dict(fields(value))
            if piece.get(3, 1) == CONTROL:
                control[pieces] = piece[1].decode()
            pieces += 1
    return {"kind": f"SentencePiece {MODEL_TYPES.get(kind, kind)}", "size": pieces, "control": control}


def has_chat_template(directory):
    if any((directory / f"chat_template.{ending}").exists() for ending in ("jinja", "json")):
        return True
    path = directory / "tokenizer_config.json"
    return path.exists() and bool(json.loads(path.read_text()).get("chat_template"))
