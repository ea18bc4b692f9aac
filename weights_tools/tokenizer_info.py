"""What the tokenizer files of a checkpoint directory say, read without a tokenizer's library."""

import json

MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}  # of SentencePiece's TrainerSpec
CONTROL = 3  # of its pieces


def summary(directory):
    """-> {"kind", "size", "control" (id -> name), "chat_template"}, or None without a tokenizer."""
    if (directory / "tokenizer.json").exists():
        out = of_json(json.loads((directory / "tokenizer.json").read_text()))
    elif (directory / "tokenizer.model").exists():
        out = of_sentencepiece((directory / "tokenizer.model").read_bytes())
    else:
        return None
    return {**out, "chat_template": has_chat_template(directory)}


def of_json(values):
    model, added = values["model"], values.get("added_tokens") or []
    ids = [token["id"] for token in added] + list(model["vocab"].values())
    kind = f"{model.get('type', 'BPE')}, {len(model.get('merges', []))} merges"
    if '"ByteLevel"' in json.dumps(values.get("pre_tokenizer")):
        kind = f"byte-level {kind}"
    elif not model.get("merges") and values.get("pre_tokenizer") is None:
        kind = "characters"
    control = {token["id"]: token["content"] for token in added if token["special"]}
    return {"kind": kind, "size": max(ids) + 1, "control": control}


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


def fields(data):
    """Field number and value of each field of a protobuf message: an int, or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            value, at = data[at : at + width], at + width
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"tokenizer.model: no protobuf, wire type {wire} at byte {at}")
        yield key >> 3, value


def varint(data, at):
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("tokenizer.model: no protobuf, it ends within a field")
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def has_chat_template(directory):
    if any((directory / f"chat_template.{ending}").exists() for ending in ("jinja", "json")):
        return True
    path = directory / "tokenizer_config.json"
    return path.exists() and bool(json.loads(path.read_text()).get("chat_template"))
