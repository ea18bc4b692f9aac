"""Writes control.json: which tokens the files of a checkpoint make control tokens, and which ids end an answer.

    pip install tokenizers==0.23.3 transformers==5.23.0
    python make_control.py

The tokenizer is gemma/'s, as tokenizer.json whose own flags say so of <pad>, <eos> and <bos> alone, and as tokenizer.model,
whose pieces do; the rule is one for both. "control" are the ids that transformers calls special with those files, but for
"more", which config.json and generation_config.json add, and "fewer", single characters, which stay text: neither is known
to transformers. "ends" are the ids that these files state, with the files; tokenizer.model states 1, too.
"""

import json
import pathlib
import tempfile

import transformers

HERE = pathlib.Path(__file__).parent
OWN = [0, 1, 2]  # control tokens of the tokenizer itself
SOT, EOT, TABLE = "<start_of_turn>", "<end_of_turn>", "<table>"


def added(name, special, **more):
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {**more, "content": name, **flags, "special": special}


def value(name):
    """A token in tokenizer_config.json, as transformers writes it."""
    return added(name, True, __type="AddedToken")


CONFIG, MAP, MODEL, GENERATION = "tokenizer_config.json", "special_tokens_map.json", "config.json", "generation_config.json"
# name, files, ends, and what transformers does not know
CASES = [
    ("nothing", {}, [], {}),
    ("eos_token", {CONFIG: {"eos_token": EOT}}, [[12, CONFIG]], {}),
    ("eos_token, an object", {CONFIG: {"eos_token": value(EOT)}}, [[12, CONFIG]], {}),
    ("pad_token", {CONFIG: {"pad_token": TABLE}}, [], {}),
    ("unk_token", {CONFIG: {"unk_token": "<unk>"}}, [], {}),
    ("mask_token", {CONFIG: {"mask_token": "<mask>"}}, [], {}),
    ("a word of the vocabulary", {CONFIG: {"pad_token": "▁the"}}, [], {}),
    ("additional_special_tokens", {CONFIG: {"additional_special_tokens": [SOT, value(EOT)]}}, [], {}),
    ("extra_special_tokens, a list", {CONFIG: {"extra_special_tokens": [SOT, EOT]}}, [], {}),
    ("extra_special_tokens, names", {CONFIG: {"extra_special_tokens": {"turn_token": SOT, "end_token": EOT}}}, [], {}),
    ("added_tokens_decoder", {CONFIG: {"added_tokens_decoder": {"11": added(SOT, True), "74": added(TABLE, False)}}}, [], {}),
    ("special_tokens_map", {MAP: {"eos_token": EOT, "pad_token": added(TABLE, False)}}, [[12, MAP]], {}),
    ("special_tokens_map, a list", {MAP: {"additional_special_tokens": [SOT, EOT]}}, [], {}),
    ("both", {CONFIG: {"eos_token": EOT}, MAP: {"eos_token": EOT}}, [[12, f"{CONFIG}, {MAP}"]], {}),
    ("generation_config, one", {GENERATION: {"eos_token_id": 12}}, [[12, GENERATION]], {"more": [12]}),
    ("generation_config, a list", {GENERATION: {"eos_token_id": [1, 12]}}, [[1, GENERATION], [12, GENERATION]], {"more": [12]}),
    ("config", {MODEL: {"eos_token_id": [12, 11]}}, [[12, MODEL], [11, MODEL]], {"more": [11, 12]}),
    (
        "all of them",
        {MODEL: {"eos_token_id": 12}, GENERATION: {"eos_token_id": [12, 74]}, CONFIG: {"eos_token": EOT}},
        [[12, f"{MODEL}, {GENERATION}, {CONFIG}"], [74, GENERATION]],
        {"more": [74]},
    ),
    ("an end that is a word", {MODEL: {"eos_token_id": 400}}, [[400, MODEL]], {}),
    ("a single character", {CONFIG: {"pad_token": "e"}}, [], {"fewer": ["e"]}),
]


def own_json():
    values = json.loads((HERE / "gemma" / "tokenizer.json").read_text())
    for token in values["added_tokens"]:
        token["special"] = token["id"] in OWN
    return values


def by_transformers(files):
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        (directory / "tokenizer.json").write_text(json.dumps(own_json()))
        for name, values in files.items():
            (directory / name).write_text(json.dumps(values))
        (directory / CONFIG).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **files.get(CONFIG, {})}))
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return special | set(tokenizer.all_special_ids)


def main():
    vocabulary = own_json()["model"]["vocab"]
    out = []
    for name, files, ends, differing in CASES:
        tokenizer_files = {file: values for file, values in files.items() if file in (CONFIG, MAP)}
        control = by_transformers(tokenizer_files) | set(differing.get("more", ()))
        control -= {vocabulary[character] for character in differing.get("fewer", ())}
        out.append({"name": name, "files": files, "control": sorted(control), "ends": ends})
    lines = ",\n".join(" " + json.dumps(case, ensure_ascii=False) for case in out)
    (HERE / "control.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
