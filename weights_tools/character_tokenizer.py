"""tokenizer.json for models of characters: Hugging Face's BPE with no merges, so each character is a
token. A character that is no token is left out of a text, as Hugging Face's `tokenizers` does."""

import json


def values(characters, control=()):
    """characters: text -> id; control: (id, name) of tokens that stand for no text."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, name in control
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(characters.items(), key=lambda entry: entry[1])),
            "merges": [],
        },
    }


def write(directory, characters, control=()):
    text = json.dumps(values(characters, control), indent=1, ensure_ascii=False)
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
