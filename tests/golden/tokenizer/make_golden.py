"""Writes tokenizer.json, expected.json and characters.json: what Hugging Face `tokenizers` makes of
some texts.

    pip install tokenizers==0.23.3
    python make_golden.py

tokenizer.json is a small byte-level BPE of GPT-NeoX's form. expected.json holds variants of it
(fields of the JSON that are replaced) with the ids of every text, with control tokens taken as
text ("as_text"; of all cases but the first those, by their number, that differ from the first's) and,
where they matter, parsed ("parsed"). characters.json holds whole tokenizers of
characters, as weights_tools writes them, with the same, and the text of all ids in order.
"""

import copy
import json
import pathlib
import sys

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from weights_tools import character_tokenizer

TRAINING = """It is a truth universally acknowledged, that a single man in possession of a good
fortune, must be in want of a wife. However little known the feelings or views of such a man may be
on his first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding
families, that he is considered as the rightful property of some one or other of their daughters.
My dear Mr. Bennet, said his lady to him one day, have you heard that Netherfield Park is let at
last? Mr. Bennet replied that he had not. But it is, returned she; for Mrs. Long has just been here,
and she told me all about it. Für Élise, naïve café; 1813, 1813, 2024, 12345. I'm, we'll, they've,
she'd, it's, don't, you're.    for (int i = 0; i < 10; ++i) { x[i] += 100; }  // !!! ... ---
"""

TEXTS = [
    "",
    " ",
    "Hello world",
    " It is a truth universally acknowledged, that a single man",
    "I'm sure they'll say it's his; WE'LL SEE'S, you'Ve IT'ſ",
    "tabs\tand\nnew\n\n\nlines\r\n  and   runs of    space   ",
    "for (int i = 0; i < 10; ++i) { x[i] += 100; }  // !!! ... --- ===",
    "1 12 123 1234 12345 123456 0x1F ½ ² Ⅷ ٣٤٥ 一二三 1.5e-3",
    "café cafe\u0301 naïve ﬁne Å A\u030a \u1e9b\u0323 q\u0323\u0307 q\u0307\u0323 ㍿",
    "한국어 \u1112\u1161\u11ab 日本語のテキスト 中文，标点。 Привет, мир! שלום عالم हिन्दी ไทย",
    "🦙🦙 👩\u200d👩\u200d👧 🇩🇪 😀!",
    "a\u00a0b\u1680c\u180ed\u2003e\u2028f\u3000g\u0085h\u200bi\ufeffj",
    "_under_score __init__ snake_case kebab-case CamelCase ALLCAPS iOS McDonald",
    "<|endoftext|>It is<|padding|> of <|endoftext|><|endoftext|> x<|endoftext|",
    "<mask><mask> a <mask> b  <left>  c <right>   d<word>e <word> f_<word>,<word>é <word>",
    "   two    four        eight                        24                         25",
    "ab abc abcd abcde bcd xabcx CAFÉ cafe\u0301s ﬁx fix",
    "......,,,;;;!!??((([[[{{{$$$+++<<<>>>^^^```|||~~~ “quoted” «» … ‰ € ©",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\x00\x01\x7f nul and del",
    "a\n\n  b\n \n  c \n\n",
    "ſ K K straße STRASSE ǅ İi",
    "it.is.a.truth  .. a.. ..b",
    "e\u0301\u0301\u0323\u0323 \u0301leading mark",
]


def base() -> dict:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=560,
        special_tokens=["<|endoftext|>", "<|padding|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING] * 2, trainer)
    result = json.loads(tokenizer.to_str())
    size = len(result["model"]["vocab"])
    # As in GPT-NeoX: runs of spaces, the longest first, found in the normalised text.
    for i, n in enumerate(range(24, 1, -1)):
        result["added_tokens"].append(added(size + i, " " * n, special=False, normalized=True))
    return result


def added(id, content, special=True, normalized=False, single_word=False, lstrip=False, rstrip=False):
    return dict(
        id=id, content=content, single_word=single_word, lstrip=lstrip, rstrip=rstrip,
        normalized=normalized, special=special,
    )


def byte_level(prefix=False, regex=True):
    return dict(type="ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return dict(type="Split", pattern={kind: pattern}, behavior=behavior, invert=invert)


def chain(*steps):
    return dict(type="Sequence", pretokenizers=list(steps))


BYTES_ONLY = byte_level(regex=False)
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Llama 3's is that of Granite 4 and Falcon-H1 too.
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NEMOTRON = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def variants(size: int):
    """(name, replaced fields); `size` is the first id that is free."""
    pre = lambda name, value: (name, {"pre_tokenizer": value})
    yield "as it is", {}
    yield pre("prefix space", byte_level(prefix=True))
    yield pre("no regex", BYTES_ONLY)
    for form in ["NFC", "NFD", "NFKC", "NFKD"]:
        yield form, {"normalizer": {"type": form}}
    yield "no normalizer", {"normalizer": None}
    yield "normalizer sequence", {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]}
    }
    yield pre("falcon", chain(
        dict(type="Punctuation", behavior="Contiguous"), byte_level(),
        dict(type="Digits", individual_digits=False), split("[0-9][0-9][0-9]"),
    ))
    yield pre("llama 3", chain(split(LLAMA3), BYTES_ONLY))
    yield pre("cl100k", chain(split(CL100K), BYTES_ONLY))
    yield pre("o200k", chain(split(O200K), BYTES_ONLY))
    yield pre("qwen 3.5", chain(split(QWEN35), BYTES_ONLY))
    yield pre("nemotron", chain(split(NEMOTRON), BYTES_ONLY))
    yield pre("deepseek", chain(
        split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
        split(r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
              r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""),
        BYTES_ONLY,
    ))
    for behavior in BEHAVIORS:
        yield pre(f"split spaces {behavior}", chain(split(r"\s", behavior), BYTES_ONLY))
        yield pre(f"split spaces inverted {behavior}", chain(split(r"\s", behavior, True), BYTES_ONLY))
        yield pre(f"split string {behavior}", chain(split(".", behavior, kind="String"), BYTES_ONLY))
        yield pre(f"punctuation {behavior}", chain(dict(type="Punctuation", behavior=behavior), BYTES_ONLY))
        yield pre(f"empty matches {behavior}", chain(split("a*", behavior), BYTES_ONLY))
    yield pre("split empty string", chain(split("", kind="String"), BYTES_ONLY))
    yield pre("split string of symbols", chain(split("++", kind="String"), BYTES_ONLY))
    for individual in [True, False]:
        yield pre(f"digits {individual}", chain(dict(type="Digits", individual_digits=individual), BYTES_ONLY))
    for i, pattern in enumerate([
        r"\w+", r"\W+", r"[^\s]+", r"[\S]+", r"[^\S]+", r"[\w-]+", r"[\s\-x]+", r"\d+|\D", r"\p{^L}+",
        r"\P{L}", r"\p{Han}+", r"[\p{Hiragana}\p{Katakana}]+", r"\u00e9|\x{e9}|\x41", r"(?<=a)b|(?<!a)c",
        r"^.", r".$", r"\A.|.\z", r"(?>a+)b?", r"(ab)+?", r"[\]\[\\-]", r"a{2,3}", r"a{3}", r"{|}",
        r"(?i:é|ǆ|k|ß)", r"[a\-z]+", r"[-a]+", r"[a-]+",
    ]):
        yield pre(f"pattern {i}", chain(split(pattern), BYTES_ONLY))
    yield pre("bytes first", chain(BYTES_ONLY, split("Ġ", "MergedWithNext", kind="String")))
    yield pre("prefix in a chain", chain(split(r"\s", "Removed"), byte_level(prefix=True, regex=False)))
    yield "merges as strings", {"merges_as": "strings"}
    yield "ignore merges", {
        "model": {"ignore_merges": True}, "pre_tokenizer": chain(split(r"\s"), BYTES_ONLY)
    }
    flags = [
        added(size, "<mask>", lstrip=True, rstrip=True), added(size + 1, "<left>", lstrip=True),
        added(size + 2, "<right>", rstrip=True), added(size + 3, "<word>", single_word=True),
    ]
    yield "flags", {"more_added_tokens": flags}
    yield "flags, not special", {"more_added_tokens": [dict(t, special=False) for t in flags]}
    yield "flags, normalized", {"more_added_tokens": [dict(t, normalized=True) for t in flags]}
    words = ["ab", "abc", "abcde", "bcd", "café", "ﬁ"]
    for normalized in [True, False]:
        for form in ["NFC", "NFKC"]:
            yield f"words {normalized} {form}", {
                "normalizer": {"type": form},
                "more_added_tokens": [
                    added(size + i, w, special=False, normalized=normalized) for i, w in enumerate(words)
                ],
            }


def apply(tokenizer: dict, patch: dict) -> dict:
    result = copy.deepcopy(tokenizer)
    for key, value in patch.items():
        if key == "model":
            result["model"].update(value)
        elif key == "more_added_tokens":
            result["added_tokens"] += value
        elif key == "merges_as":
            result["model"]["merges"] = [" ".join(m) for m in result["model"]["merges"]]
        else:
            result[key] = value
    return result


def run(patched: dict, texts=TEXTS) -> dict:
    tokenizer = Tokenizer.from_str(json.dumps(patched))
    parsed = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    tokenizer.encode_special_tokens = True
    as_text = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    decoded = [tokenizer.decode(ids, skip_special_tokens=True) for ids in parsed]
    return {"as_text": as_text, "parsed": parsed, "decoded": decoded}


BITS = ["", "0", "0110100110010110", "01 10", "<s>01</s>", "2", "1" * 300]


def characters():
    """(name, tokenizer, texts)."""
    letters = sorted(set(TRAINING) | set("\r\t£ÆÉ‘’“”—中🦙\u0301"))
    plain = {c: (7 * i + 3) % len(letters) for i, c in enumerate(letters)}
    assert len(set(plain.values())) == len(letters)
    yield "letters", character_tokenizer.values(plain), TEXTS
    # As in the vocabulary of a public model: an empty text, two spaces, an id that nothing has.
    odd = {**plain, "": len(letters), "  ": len(letters) + 2}
    yield "odd texts", character_tokenizer.values(odd), TEXTS
    control = [(len(letters), "<|endoftext|>"), (len(letters) + 1, "<mask>")]
    yield "control tokens", character_tokenizer.values(plain, control), TEXTS
    merged = character_tokenizer.values({**plain, "th": len(letters), "the": len(letters) + 1})
    merged["model"]["merges"] = [["t", "h"], ["th", "e"]]
    yield "merges across words", merged, TEXTS
    yield "bits", character_tokenizer.values({"0": 0, "1": 1}, [(2, "<s>"), (3, "</s>")]), BITS


def write_characters(compact):
    cases = []
    for name, values, texts in characters():
        size = max([*values["model"]["vocab"].values(), *(t["id"] for t in values["added_tokens"])]) + 1
        every = Tokenizer.from_str(json.dumps(values)).decode(list(range(size)), skip_special_tokens=True)
        case = {"name": name, "tokenizer": values, "texts": texts, "size": size, "every_id": every}
        cases.append({**case, **run(values, texts)})
    rows = ",\n".join(compact(case) for case in cases)
    (HERE / "characters.json").write_text(
        f'{{"tokenizers":"{tokenizers.__version__}","cases":[\n{rows}\n]}}\n'
    )


def main():
    tokenizer = base()
    size = max(t["id"] for t in tokenizer["added_tokens"]) + 1
    cases = [
        {"name": name, "patch": patch, **run(apply(tokenizer, patch))} for name, patch in variants(size)
    ]
    for case in cases[1:]:  # enough is enough
        del case["decoded"]
        alike = enumerate(zip(case["as_text"], cases[0]["as_text"], strict=True))
        case["as_text"] = {i: ids for i, (ids, first) in alike if ids != first}
        if "more_added_tokens" not in case["patch"]:
            del case["parsed"]
    compact = lambda x: json.dumps(x, ensure_ascii=True, separators=(",", ":"))
    write_characters(compact)
    (HERE / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=True, indent=1) + "\n")
    rows = ",\n".join(compact(case) for case in cases)
    (HERE / "expected.json").write_text(
        f'{{"tokenizers":"{tokenizers.__version__}","texts":{compact(TEXTS)},"cases":[\n{rows}\n]}}\n'
    )


if __name__ == "__main__":
    main()
