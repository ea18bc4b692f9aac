"""What the tokenizer files of a checkpoint directory say, read without a tokenizer's library."""

import json

from weights_tools.protobuf import fields

MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}  # of SentencePiece's TrainerSpec
CONTROL = 3  # of its pieces


def summary(directory):
    """-> {"kind", "size", "control" (id -> name), "chat_template"}, or None without a tokenizer."""
    if (directory / "tokenizer.json").exists():
        out = of_json(json.loads((directory / "tokenizer.json").read_text()))
    elif (directory / "tokenizer.model").exists():
        out = of_model_file(directory / "tokenizer.model")
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
