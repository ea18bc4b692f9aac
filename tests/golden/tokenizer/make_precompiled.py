"""Writes precompiled.json: what Hugging Face `tokenizers` makes of some texts with normalizers of type
Precompiled and Nmt, and with a whole tokenizer in XLM-RoBERTa's form.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    python make_precompiled.py

The charsmaps are made by SentencePiece of the rules below: parts of NFKC as its own rules have them,
small enough to be committed, and rules of which one is a prefix of another.
"""

import base64
import io
import json
import os
import pathlib
import random
import tempfile
import unicodedata

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"  # sentencepiece's are of an older form

import make_models
import sentencepiece
import tokenizers
from make_golden import HERE, TEXTS, TRAINING, run
from sentencepiece import sentencepiece_model_pb2

COMPOSED = [*range(0xC0, 0x180), *range(0x1E00, 0x1E40), *range(0xAC00, 0xAC30)]  # of several characters
COMPATIBLE = [*range(0xA0, 0xC0), *range(0x2000, 0x2070), *range(0x2100, 0x2140), 0x337F, 0x3000, 0xFB01, 0xFDFA]
COMPATIBLE += [*range(0xFF00, 0xFF80)]
PREFIXES = {"a": "A", "ab": "[ab]", "e\u0301": "E", "e\u0301\u0323": "longer", "\r": "", "\r\n": "\n", "\u200d": ""}
HARD = [
    "a\u0301", "ab abb a", "e\u0301\u0323 e\u0323\u0301", "\r\n \r \n\r", "e\u0301" * 5, "\u0301\u0301", "\u1100\u1161\u11a8",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea\U0001f1eb", "ﬁ\u0301 ﬁ\u0301\u0301", "x\u0301\u0302\u0303", "\u0915\u094d\u0937",
    "\x00a\x00", "\u0600x \u0e33", "\u110b\u1161\u11ab\u1102\u1167\u11bc", "é\u200d\u0301", "\ufeff\u200b\x01\x7f\x8f\x9f\x0b\x0c",
]


def nfkc_rules():
    for code in [*COMPOSED, *COMPATIBLE]:
        c = chr(code)
        to = unicodedata.normalize("NFKC", c)
        for form in {c, unicodedata.normalize("NFD", c), unicodedata.normalize("NFKD", c)} - {to}:
            yield form, to


def charsmap(rules):
    """The precompiled charsmap that SentencePiece makes of {what: by what}."""
    code_points = lambda text: " ".join(f"{ord(c):X}" for c in text)
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "rules.tsv"
        table.write_text("".join(f"{code_points(a)}\t{code_points(b)}\n" for a, b in rules.items()))
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAINING.split("\n")), model_writer=model, vocab_size=200, minloglevel=2,
            hard_vocab_limit=False, normalization_rule_tsv=str(table),
        )
    message = sentencepiece_model_pb2.ModelProto()
    message.ParseFromString(model.getvalue())
    return base64.b64encode(message.normalizer_spec.precompiled_charsmap).decode()


def random_texts(seed, number):
    """Put together of what the rules are about and of other characters, marks and joiners."""
    r = random.Random(seed)
    ranges = [(0xC0, 0x180), (0x300, 0x370), (0x1100, 0x1200), (0xAC00, 0xAC40), (0x2000, 0x2140), (0x1F300, 0x1F700)]
    ranges += [(0xFF00, 0xFF80), (0x1F1E6, 0x1F200), (0x900, 0x980), (0xE00, 0xE80)]
    bits = [" ", "a", "b", "e", "\u0301", "\u0323", "\u200d", "\r", "\n", *PREFIXES]
    for _ in range(number):
        size = r.randrange(24)
        yield "".join(r.choice([r.choice(bits), chr(r.randrange(*r.choice(ranges)))]) for _ in range(size))


def precompiled(rules):
    return {"type": "Precompiled", "precompiled_charsmap": rules}


def normalized(normalizer, texts):
    whole = {**make_models.unigram(), "normalizer": normalizer}
    function = tokenizers.Tokenizer.from_str(json.dumps(whole)).normalizer.normalize_str
    return [function(text) for text in texts]


def xlm_roberta(rules):
    """A Unigram model behind a charsmap, as transformers exports XLM-RoBERTa's."""
    spaces = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, make_models.metaspace()]}
    forms = [precompiled(rules), make_models.replace(" {2,}", " ", "Regex")]
    normalizer = {"type": "Sequence", "normalizers": forms}
    return make_models.changed(make_models.unigram(), normalizer=normalizer, pre_tokenizer=spaces)


def main():
    texts = [*TEXTS, *HARD, *random_texts(3, 60)]
    nfkc = charsmap(dict(nfkc_rules()))
    cases = []
    for name, values in [
        ("nfkc", precompiled(nfkc)), ("prefixes", precompiled(charsmap(PREFIXES))), ("nmt", {"type": "Nmt"}),
    ]:
        cases.append({"name": name, "normalizer": values, "normalized": normalized(values, texts)})
    whole = xlm_roberta(nfkc)
    head = {"tokenizers": tokenizers.__version__, "texts": texts, "tokenizer": whole}
    head["ids"] = run(whole, texts)["as_text"]
    compact = lambda x: json.dumps(x, ensure_ascii=True, separators=(",", ":"))
    rows = ",\n".join(map(compact, cases))
    (HERE / "precompiled.json").write_text(f'{compact(head)[:-1]},"normalizers":[\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
