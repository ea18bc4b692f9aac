"""Writes gemma/: a small SentencePiece model with the traits of Gemma's, which is not free to be copied here, the
tokenizer.json that transformers makes of such a model, and what `sentencepiece` and `tokenizers` make of some texts.

    pip install protobuf==6.33.6 sentencepiece==0.2.1 tokenizers==0.23.3 transformers==5.23.0
    python make_gemma.py

The traits: BPE that falls back to bytes, no space in front, no normalisation, digits apart, <pad> <eos> <bos> <unk>
in this order, and pieces that the user defined: runs of line ends and of spaces, HTML's tags, and the names that
begin and end a turn, which tokenizer_config.json says are control tokens. expected.json: for each text the ids of
the model's library, and where they are others those of tokenizer.json with control tokens taken as text ("as_text")
and, with tokenizer_config.json beside it, parsed ("parsed"); for each conversation the ids of apply_chat_template.
"""

import importlib
import io
import json
import pathlib
import random
import types

import sentencepiece
import transformers
from make_golden import HERE, TEXTS, TRAINING
from make_models import HARD, hard_texts

OUT = HERE / "gemma"
TURNS = ["<start_of_turn>", "<end_of_turn>"]
RUNS = ["\n" * n for n in range(1, 32)] + ["\u2581" * n for n in range(2, 32)]
DEFINED = ["<mask>", "<2mass>", "[@BOS@]", *(f"<unused{i}>" for i in range(4)), *TURNS, *RUNS, "<table>", "</table>", "<h1>", "</h1>"]
OWN = [
    "  two   runs     of      spaces                                                   and more", "a\n\n\nb" + "\n" * 70,
    " \n \n\n  x", "1234567 3.14 7th", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<table><h1> a </h1></table>",
    "<bos>a<eos> <pad> <unk>", "<start_of_turn", "<end_of_turn>" * 3, "x<start_of_turn> <end_of_turn>y", "[@BOS@] <unused0><unused12>",
    "\t\ttabs\t", "\u2581 \u2581\u2581 mark", "<0x41><0x0A>", "é\u0301 ﬁ 你好 \U0001f999", "end ",
]
CHATS = [
    [{"role": "user", "content": "It is a truth"}],
    [{"role": "user", "content": "  Hello  "}, {"role": "assistant", "content": "of\n\n the"}, {"role": "user", "content": "1813?"}],
    [{"role": "user", "content": "1 < 2   ok\n\n\nthen"}, {"role": "assistant", "content": "é \U0001f999"}],
]


def train():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING.split("\n")), model_writer=model, model_type="bpe", vocab_size=620, byte_fallback=True,
        split_digits=True, add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="identity",
        allow_whitespace_only_pieces=True, character_coverage=1.0, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>",
        eos_piece="<eos>", bos_piece="<bos>", unk_piece="<unk>", user_defined_symbols=DEFINED, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def by_transformers(file, library):
    """What its converter makes of the file: a tokenizer of `tokenizers`."""
    converters = importlib.import_module("transformers.convert_slow_tokenizer")
    converters.GemmaSentencePieceExtractor.sp = library  # which its base class no longer sets
    slow = types.SimpleNamespace(
        vocab_file=str(file), pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>", add_prefix_space=False
    )
    return converters.GemmaConverter(slow).converted()


def random_texts():
    r = random.Random(9)
    bits = [" ", "  ", "    ", "\n", "\n\n", "the", "of", "7", "12", "é", "你", "\U0001f999", "<h1>", "<unused1>", "\u2581", "-", "'s", "\t", "<"]
    for _ in range(150):
        letters = (r.choice(bits) if r.random() < 0.5 else chr(ord("a") + r.randrange(26)) for _ in range(r.randrange(60)))
        yield "".join(letters)


def main():
    OUT.mkdir(exist_ok=True)
    (OUT / "tokenizer.model").write_bytes(train())
    library = sentencepiece.SentencePieceProcessor(model_file=str(OUT / "tokenizer.model"))
    fast = by_transformers(OUT / "tokenizer.model", library)
    (OUT / "tokenizer.json").write_text(json.dumps(json.loads(fast.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    special = {library.piece_to_id(name): name for name in ["<pad>", "<eos>", "<bos>", "<unk>", *TURNS]}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    template = (HERE.parent / "chat_template" / "gemma.jinja").read_text()
    config = {
        "added_tokens_decoder": {str(i): {"content": name, **flags} for i, name in sorted(special.items())},
        **names,
        "chat_template": template,
    }
    (OUT / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")

    texts = [*TEXTS, *HARD, *OWN, *hard_texts(), *random_texts()]
    texts = [text for text in texts if "\x00" not in text]
    expected = []
    wrapped = transformers.PreTrainedTokenizerFast.from_pretrained(OUT)  # which reads tokenizer_config.json
    for text in texts:
        fast.encode_special_tokens = True
        as_text = fast.encode(text, add_special_tokens=False).ids
        parsed = wrapped.encode(text, add_special_tokens=False)
        case = {"text": text, "sentencepiece": library.encode(text)}
        case |= {"as_text": as_text} if as_text != case["sentencepiece"] else {}
        case |= {"parsed": parsed} if parsed != as_text else {}
        expected.append(case)
        assert library.decode(case["sentencepiece"]) == text.replace("\u2581", " ")
    chats = [
        {"messages": chat, "ids": list(wrapped.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))} for chat in CHATS
    ]
    (OUT / "expected.json").write_text(json.dumps({"texts": expected, "chats": chats}, separators=(",", ":")) + "\n")
    differ = [e["text"] for e in expected if "as_text" in e and not any(turn in e["text"] for turn in TURNS)]
    print(f"{library.get_piece_size()} pieces, {len(texts)} texts; the two differ in {differ}")


if __name__ == "__main__":
    main()
