"""The tokenizer files of a checkpoint directory, read without a tokenizer's library."""

import json

from weights_tools.protobuf import fields

MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}  # of SentencePiece's TrainerSpec
CONTROL, USER_DEFINED, BYTE = 3, 4, 6  # types of its pieces; 1, the default, is a normal one
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
ID_FILES = ("config.json", "generation_config.json")
# The eos_token_id that config classes write where none was set (model/special_ids.cc).
DEFAULT_ENDS = dict.fromkeys(("xlstm", "mamba2", "gla", "retnet", "linear_attn", "hgrn2", "rwkv7", "delta_net"), 2) | {
    "gated_deltanet": 2, "mamba": 0, "falcon_mamba": 0, "recurrent_gemma": 1,
}  # fmt: skip
UTF8_BYTES = [byte for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5]


def summary(directory):
    """-> {"kind", "size", "control" (id -> name), "by_others" (id -> the file that makes it a control token where the
    tokenizer's own does not), "ends" (id -> files), "chat_template"}, or None without a tokenizer."""
    if (directory / "tokenizer.json").exists():
        out = of_json(json.loads((directory / "tokenizer.json").read_text()))
    elif (directory / "tokenizer.model").exists():
        out = of_model_file(directory / "tokenizer.model")
    elif worlds := world_vocabularies(directory):
        if len(worlds) > 1:  # as the server has it
            names = f"{worlds[0].name} and {worlds[1].name}"
            raise ValueError(f"{directory}: wanted one vocabulary, found {names}; remove one")
        out = of_world(worlds[0])
    else:
        return None
    by_others = control_of_others(directory, out)
    control = dict(sorted({**out["control"], **{i: out["names"][i] for i in by_others}}.items()))
    ends = end_ids(directory, out, control)
    shown = {"kind": out["kind"], "size": out["size"], "control": control, "by_others": by_others, "ends": ends}
    return {**shown, "chat_template": has_chat_template(directory)}


def contents(directory, files):
    """-> (file, what it holds) of those that are there."""
    return [(f, json.loads((directory / f).read_text())) for f in files if (directory / f).exists()]


def name_of(token):
    """A token is a string, or an object with its "content"; of other forms None."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) and name else None


def stated_names(values):
    """The names of control tokens that one of TOKEN_FILES has."""
    tokens = [values[key] for key in NAMED if values.get(key) is not None]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = values.get(key) or []
        tokens += more.values() if isinstance(more, dict) else more
    decoder = values.get("added_tokens_decoder") or {}
    tokens += [token for token in decoder.values() if isinstance(token, dict) and token.get("special") is True]
    return [name for name in map(name_of, tokens) if name]


def stated_ends(values):
    ids = values.get("eos_token_id")
    return [i for i in (ids if isinstance(ids, list) else [ids]) if i is not None]


def control_of_others(directory, tokenizer):
    """-> id -> file. The rule is that of server/text/tokenizers/token_files.h; a single character of the vocabulary stays text."""
    ids = {name: i for i, name in tokenizer["names"].items()}
    out = {}
    for file, values in contents(directory, TOKEN_FILES):
        for name in stated_names(values):
            i = ids.get(name)
            if i is not None and (len(name) > 1 or i in tokenizer["added"]):
                out.setdefault(i, file)
    for file, values in contents(directory, ID_FILES):
        for i in stated_ends(values):
            if i in tokenizer["added"]:
                out.setdefault(i, file)
    return {i: file for i, file in sorted(out.items()) if i not in tokenizer["control"] and i not in tokenizer["bytes"]}


def end_ids(directory, tokenizer, control):
    """-> id -> files that state that it ends an answer, control tokens first, as server/startup/token_rules.h has it."""
    ids = {name: i for i, name in tokenizer["names"].items()}
    named = {
        file: ids.get(name_of(values.get("eos_token"))) for file, values in contents(directory, TOKEN_FILES)
    }
    own = tokenizer["end"]
    if tokenizer["end_is_guess"]:
        own = next((i for i in named.values() if i is not None), own)
    out = {}
    config = next((values for _, values in contents(directory, ID_FILES[:1])), {})
    for file, values in contents(directory, ID_FILES):
        may_be_default = file == "config.json" or values.get("_from_model_config") is True
        for i in stated_ends(values):
            default = may_be_default and DEFAULT_ENDS.get(config.get("model_type")) == i
            if i < tokenizer["size"] and not (default and own is not None and i not in control):
                out.setdefault(i, []).append(file)
    for file, i in named.items():
        if i is not None:
            out.setdefault(i, []).append(file)
    if own is not None:
        out.setdefault(own, ["the tokenizer"])
    return {i: list(dict.fromkeys(files)) for i, files in sorted(out.items(), key=lambda item: item[0] not in control)}


def world_vocabularies(directory):
    """RWKV's, rwkv_vocab_v20230424.txt: a line "ID LITERAL BYTES" for an entry."""
    return sorted(directory.glob("rwkv_vocab*.txt"))


def of_world(path):
    ids = [int(line.split(b" ", 1)[0]) for line in path.read_bytes().split(b"\n") if line.strip()]
    control = {0: "<|endoftext|>"}
    none = {"names": control, "added": {}, "bytes": {}}
    return {"kind": "RWKV World", "size": max(ids) + 1, "control": control, **none, "end": 0, "end_is_guess": False}


def of_json(values):
    model, added = values["model"], values.get("added_tokens") or []
    vocab = model["vocab"]
    if isinstance(vocab, list):  # of Unigram: pieces with scores
        vocab = {piece[0]: i for i, piece in enumerate(vocab)}
    ids = [token["id"] for token in added] + list(vocab.values())
    control = {token["id"]: token["content"] for token in added if token["special"]}
    names = {i: name for name, i in vocab.items()} | {token["id"]: token["content"] for token in added}
    ends = [i for name in ("<|endoftext|>", "</s>") for i in control if control[i] == name]
    return {
        "kind": kind_of(values, vocab),
        "size": max(ids) + 1,
        "control": control,
        "names": names,
        "added": {token["id"]: token["content"] for token in added},
        "bytes": {},
        "end": ends[0] if ends else None,
        "end_is_guess": True,  # not in the file
    }


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
    trainer, pieces = {}, []
    for field, value in fields(data):
        if field == 2:  # TrainerSpec
            trainer = dict(fields(value))
        if field == 1:  # SentencePiece: piece, score, type
            pieces.append(dict(fields(value)))

    def of_type(wanted):
        return {i: piece[1].decode() for i, piece in enumerate(pieces) if piece.get(3, 1) == wanted}

    end = trainer.get(47, b"</s>").decode()  # eos_piece
    return {
        "kind": f"SentencePiece {MODEL_TYPES.get(trainer.get(3, 1), trainer.get(3, 1))}",
        "size": len(pieces),
        "control": of_type(CONTROL),
        "names": {i: piece[1].decode(errors="replace") for i, piece in enumerate(pieces)},
        "added": of_type(USER_DEFINED),
        "bytes": of_type(BYTE),
        "end": next((i for i, name in of_type(CONTROL).items() if name == end), None),
        "end_is_guess": False,
    }


def has_chat_template(directory):
    if any((directory / f"chat_template.{ending}").exists() for ending in ("jinja", "json")):
        return True
    path = directory / "tokenizer_config.json"
    return path.exists() and bool(json.loads(path.read_text()).get("chat_template"))
