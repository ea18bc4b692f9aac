"""The README.md of a checkpoint trained by weights_tools.train."""

from weights_tools import corpus
from weights_tools.families import xlstm

CARD = """# xlstm-books

A small xLSTM language model of English prose, {parameters:,} parameters, in the Hugging Face xLSTM format
(bf16 safetensors, SentencePiece tokenizer). It is here to show and to test the server: it
knows how sentences of 19th-century books go, holds a scene for some lines, and knows nothing else.

{blocks} blocks of width {width}, {heads} heads (query and key {dk}, value {dv}), vocabulary {vocab}, tied
embeddings; {state:,} bytes of state per session. `<s>` (id 1) separates chapters: put it before a
prompt, and stop on it (`bos_token_id` and `eos_token_id` are both 1; `</s>` is never used).

"""
BODY = """## Data

Public-domain texts, normalised as `weights_tools/corpus.py` describes: {train_bytes:,} bytes to train on, and
the last part of every book ({held_bytes:,} bytes), seen neither by the tokenizer nor by the model.

{books}

tinyshakespeare is left out (verse in speaking parts). No other data.

## Held-out bits per byte

Of the UTF-8 text, with the weights as stored (bf16), each book's part read {reading}.

| text | bytes | bits per byte |
|---|---|---|
{scores}

## Recipe

{steps} steps of {tokens_per_step:,} tokens, {epochs} epochs, {minutes:.1f} minutes on {device}, PyTorch {torch}.
AdamW (0.9, 0.95), cosine to zero, bf16 autocast with fp32 gates and states, weights averaged (EMA).
`python -m weights_tools train --data BOOKS --out DIR` repeats it; the settings:

{recipe}

| epoch | training, nats per token | held out, bits per byte |
|---|---|---|
{curve}

## Samples

Temperature 0.8, top_p 0.95, seed {seed}; the prompt in bold.

{samples}

## Licence

The texts are in the public domain; the weights and the tokenizer are under the project's licence (Apache-2.0).
"""


def text(config, books, result):
    return CARD.format(
        parameters=xlstm.parameters(config),
        blocks=config.num_blocks,
        width=config.hidden_size,
        heads=config.num_heads,
        dk=config.qk_head,
        dv=config.v_head,
        vocab=config.vocab_size,
        state=xlstm.state_bytes(config),
    ) + body(books, result)


def body(books, result, longest=None):
    """The card of any family's checkpoint: data, scores, recipe, samples. longest: tokens of a session."""
    held = result["held_out"]
    sizes = {b.name: len(corpus.text_of(b.held_out).encode()) for b in books}
    rows = [f"| {b.title} | {sizes[b.name]:,} | {held[b.name]:.3f} |" for b in books]
    rows.append(f"| all | {held['bytes']:,} | **{held['all']:.3f}** |")
    return BODY.format(
        train_bytes=sum(len(corpus.text_of(d).encode()) for b in books for d in b.documents),
        held_bytes=held["bytes"],
        reading=f"in sessions of {longest:,} tokens, each from `<s>` on" if longest else "as one session from `<s>` on",
        books="\n".join(f"- {book.title}" for book in books),
        scores="\n".join(rows),
        minutes=result["seconds"] / 60,
        recipe="; ".join(f"{k} {v}" for k, v in result["recipe"].items()),
        curve="\n".join(
            f"| {p['epoch']:g} | {p['train_nats_per_token']:.3f} | {p['held_out_bits_per_byte']:.3f} |"
            for p in result["curve"]
        ),
        seed=result["recipe"]["seed"],
        samples="\n\n".join(quoted(s) for s in result["samples"]),
        **{k: result[k] for k in ("steps", "tokens_per_step", "epochs", "device", "torch")},
    )


def quoted(sample):
    prompt = f"**{sample['prompt']}**" if sample["prompt"] else ""
    return "\n".join(f"> {line}".rstrip() for line in (prompt + sample["text"]).split("\n"))
