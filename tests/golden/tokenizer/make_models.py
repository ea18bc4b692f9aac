"""Writes models.json: what Hugging Face `tokenizers` makes of some texts with tokenizers of other kinds
than byte-level BPE with all bytes.

    pip install tokenizers==0.23.3
    python make_models.py

Each case is a whole tokenizer, trained here on a few lines, in the form of a public one (Llama 2,
Mistral, Gemma, T5, BERT, Falcon and others) or with one part of it changed; the ids of every text of
expected.json and of HARD, with control tokens taken as text ("as_text") and parsed ("parsed", of
the texts, by their number, where that is not the same), and the text that the parsed ids decode to
("decoded", likewise where it is not the text itself).
"""

import copy
import json
import random

import make_golden
import tokenizers
from make_golden import HERE, TEXTS, TRAINING
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MARK = "\u2581"
CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
HARD = [
    "<s> Hello </s>world<s>", "<unk>", "  <s>  two", "<0x0A> <0x0a>", "a\u2581b \u2581 c", "x" * 130, "\u4e00\u4e01\u4e02 \u4e00",
    "unaffable UNAFFABLE", "[CLS] unaffable [SEP]", "ﬁ" * 5, "é" * 40, "ab" * 60 + " ", "\U00020000\u9fff\u3400 x\u2a6df",
    "a\u0308\u0301 \u0345 \u0903 \u20dd", "ΑΣ ΟΔΟΣ ς", " \t x \n", "''' n't 'm do not 's 've 're . ? ! ,", "\x85x\x1fy\u200ez\ue000",
]


def hard_texts():
    """Put together at random, of characters of every kind."""
    r = random.Random(3)
    ranges = [(32, 127), (0xA0, 0x500), (0x900, 0x2100), (0x2E80, 0x3100), (0x4E00, 0xA000), (0x1F300, 0x1F700)]
    for _ in range(24):
        yield "".join(
            r.choice([" ", "  ", "the", "\n", chr(r.randrange(*r.choice(ranges)))]) for _ in range(r.randrange(30))
        )


def trained(kind, **options):
    """The JSON of a small tokenizer with a model of this kind, on words that begin with MARK."""
    model = {"BPE": models.BPE(), "Unigram": models.Unigram()}[kind]
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = {"BPE": trainers.BpeTrainer, "Unigram": trainers.UnigramTrainer}[kind]
    tokenizer.train_from_iterator(TRAINING.split("\n"), trainer(show_progress=False, **options))
    return json.loads(tokenizer.to_str())


def special(contents, **flags):
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": i, "content": content, **usual, **flags} for i, content in contents]


def llama():
    """BPE of characters that falls back to bytes, in Llama 2's form."""
    values = trained("BPE", vocab_size=450, special_tokens=[*CONTROL, *BYTES])
    values["added_tokens"] = special(enumerate(CONTROL))
    values["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": MARK}, replace(" ", MARK)],
    }
    values["pre_tokenizer"] = None
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    values["decoder"] = {"type": "Sequence", "decoders": [*fallback_steps(), strip]}
    values["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    return values


def fallback_steps():
    return [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def metaspace(**fields):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True, **fields}


def unigram(special_tokens=("<s>", "</s>", "<unk>"), **options):
    values = trained("Unigram", vocab_size=330, special_tokens=list(special_tokens), unk_token="<unk>", **options)
    values["added_tokens"] = special(enumerate(special_tokens))
    values["pre_tokenizer"] = values["decoder"] = metaspace()
    for entry in values["model"]["vocab"]:
        entry[1] = round(entry[1], 6)
    return values


def word_piece():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=330, show_progress=False, special_tokens=names)
    tokenizer.train_from_iterator([*TRAINING.split("\n"), "unaffable 一 丁 π é"], trainer)
    values = json.loads(tokenizer.to_str())
    values["model"]["max_input_chars_per_word"] = 100
    return values


def changed(values, **parts):
    """With other parts; `model` is put into the model."""
    values = copy.deepcopy(values)
    values["model"].update(parts.pop("model", {}))
    values.update(parts)
    return values


def lacking_bytes(values):
    """Without the tokens of some bytes, and what is merged of them; ids without holes."""
    keep = lambda name: name.startswith("<|") or not set("éÃ©ðŁ~") & set(name)
    values = copy.deepcopy(values)
    model = values["model"]
    names = [name for name in sorted(model["vocab"], key=model["vocab"].get) if keep(name)]
    model["vocab"] = {name: i for i, name in enumerate(names)}
    model["merges"] = [merge for merge in model["merges"] if all(keep(part) for part in merge)]
    behind = len(names)
    for token in values["added_tokens"]:
        known = model["vocab"].get(token["content"])
        token["id"], behind = (behind, behind + 1) if known is None else (known, behind)
    return values


def bpe_cases():
    base = llama()
    yield "llama", base
    yield "normalized control tokens", changed(base, added_tokens=special(enumerate(CONTROL), normalized=True))
    words = special([(len(base["model"]["vocab"]), "truth"), (len(base["model"]["vocab"]) + 1, " of ")], special=False)
    yield "added words", changed(base, added_tokens=base["added_tokens"] + words)
    for scheme in ["first", "always", "never"]:
        for split in [True, False]:
            cutter = metaspace(prepend_scheme=scheme, split=split)
            yield f"metaspace {scheme} {split}", changed(base, normalizer=None, pre_tokenizer=cutter)
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    yield "gemma", changed(
        base, normalizer=replace(" ", MARK), pre_tokenizer=split,
        decoder={"type": "Sequence", "decoders": fallback_steps()},
    )
    some = {name: i for name, i in base["model"]["vocab"].items() if name != "<0xE4>"}
    some["lacks"] = base["model"]["vocab"]["<0xE4>"]
    for fuse in [True, False]:
        yield f"unknown {fuse}", changed(base, model={"byte_fallback": False, "fuse_unk": fuse})
        yield f"some bytes {fuse}", changed(base, model={"vocab": some, "fuse_unk": fuse})
    yield "left out", changed(base, model={"byte_fallback": False, "unk_token": None})
    yield "whole words", changed(base, normalizer=None, pre_tokenizer=metaspace(), model={"ignore_merges": True})
    yield "byte-level, bytes lacking", lacking_bytes(make_golden.base())
    for fuse in [True, False]:
        unknown = {"unk_token": "<|padding|>", "fuse_unk": fuse}
        yield f"byte-level, bytes unknown {fuse}", changed(lacking_bytes(make_golden.base()), model=unknown)


def unigram_cases():
    base = unigram()
    yield "unigram", base
    yield "unigram, no cuts", changed(base, pre_tokenizer=metaspace(split=False))
    yield "unigram, first", changed(
        base, pre_tokenizer=metaspace(prepend_scheme="first"), decoder=metaspace(prepend_scheme="first")
    )
    yield "unigram, never", changed(
        base, pre_tokenizer=metaspace(prepend_scheme="never"), decoder=metaspace(prepend_scheme="never")
    )
    spaces = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace()]}
    yield "unigram, words", changed(base, pre_tokenizer=spaces)
    forms = [
        {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, replace(" {2,}", " ", "Regex"),
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ]
    yield "unigram, normalised", changed(base, normalizer={"type": "Sequence", "normalizers": forms})
    for form in forms:
        yield f"unigram, {form['type']}", changed(base, normalizer=form)
    yield "unigram, bytes", changed(
        unigram(["<s>", "</s>", "<unk>", *BYTES]), model={"byte_fallback": True},
        added_tokens=base["added_tokens"], decoder={"type": "Sequence", "decoders": fallback_steps()},
    )
    ties = [["<unk>", 0.0], [MARK, -1.0], ["a", -1.0], ["aa", -2.0], ["aaa", -3.0], ["b", -2.5], ["ab", -3.5]]
    yield "unigram, ties", changed(base, model={"vocab": ties, "unk_id": 0}, added_tokens=special([(0, "<unk>")]))


def word_cases():
    base = word_piece()
    yield "bert", base
    for field in ["clean_text", "handle_chinese_chars", "strip_accents", "lowercase"]:
        yield f"bert without {field}", changed(base, normalizer={**base["normalizer"], field: False})
    yield "bert, no cleanup", changed(base, decoder={**base["decoder"], "cleanup": False})
    yield "short words", changed(base, model={"max_input_chars_per_word": 5})
    for cutter in [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "CharDelimiterSplit", "delimiter": "e"}]:
        yield f"words by {cutter['type']}", changed(base, pre_tokenizer=cutter)


def main():
    texts = [*TEXTS, *HARD, *hard_texts()]
    cases, bases = [], []
    for family in [bpe_cases, unigram_cases, word_cases]:
        for name, values in family():
            case = {"name": name, **packed(values, bases), **make_golden.run(values, texts)}
            case["decoded"] = differing(case["decoded"], texts)
            case["parsed"] = differing(case["parsed"], case["as_text"])
            if name == "normalized control tokens":  # whose names `tokenizers` does not take for control
                del case["decoded"]
            cases.append(case)
    compact = lambda x: json.dumps(x, ensure_ascii=True, separators=(",", ":"))
    rows = ",\n".join(compact(case) for case in cases)
    (HERE / "models.json").write_text(
        f'{{"tokenizers":"{tokenizers.__version__}","texts":{compact(texts)},\n'
        f'"models":{compact(bases)},"cases":[\n{rows}\n]}}\n'
    )


def differing(values, usual):
    """Those that are not as usual, by their number."""
    return {i: value for i, (value, other) in enumerate(zip(values, usual, strict=True)) if value != other}


def packed(values, bases):
    """The tokenizer without what its model is made of, which is kept once for all that have it."""
    model = dict(values["model"])
    large = {key: model.pop(key) for key in ["vocab", "merges"] if key in model}
    if large not in bases:
        bases.append(large)
    return {"tokenizer": {**values, "model": model}, "model": bases.index(large)}


if __name__ == "__main__":
    main()
