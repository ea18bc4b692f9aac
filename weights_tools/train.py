"""Trains a small xLSTM on public-domain books and writes it in the Hub's xLSTM format.

The defaults are those of the checkpoint in weights_tools/demo/xlstm-books. The text is one stream of
chapters, which is divided into rows. Each row is read in segments and keeps its state from one
segment to the next, as in a long session. With the probability --reset, a row continues at the next
paragraph with a zero state and BOS, as a new session does. Each epoch starts at another offset. The
exponential moving average of the weights, rounded to bf16, is written and measured.
"""

import json
import pathlib

from weights_tools import corpus, model_card
from weights_tools import safetensors_io as st
from weights_tools.families import xlstm


def add_arguments(parser):
    add = parser.add_argument
    add("--tokenizer", type=pathlib.Path, help="use this tokenizer.model instead of training one")
    add("--vocab-size", type=int, default=4096, help="pieces of the tokenizer")
    add("--threads", type=int, default=8, help="threads of tokenizer training")
    add("--hidden-size", type=int, default=256, help="width of the model")
    add("--blocks", type=int, default=8, help="blocks of the model")
    add("--heads", type=int, default=4, help="heads of a block")
    add("--ffn-factor", type=float, default=2.667, help="width of the feed-forward layer over --hidden-size")
    add("--chunk", type=int, default=64, help="chunk of the mLSTM's parallel form")
    add_training_arguments(parser)


def add_training_arguments(parser):
    """What is the same for every family."""
    add = parser.add_argument
    add("--data", required=True, type=pathlib.Path, help="folder with the books' text files")
    add("--out", required=True, type=pathlib.Path, help="checkpoint directory to write")
    add("--held-out", type=float, default=0.04, help="part of each book for validation, at its end, 0 to 1")
    add("--epochs", type=float, default=21, help="passes over the text")
    add("--max-minutes", type=float, help="end the schedule after this time, in minutes")
    add("--rows", type=int, default=64, help="rows of the batch")
    add("--segment", type=int, default=512, help="tokens of a segment")
    add("--reset", type=float, default=0.05, help="probability that a row starts again at the next paragraph")
    add("--learning-rate", type=float, default=3e-3, help="highest learning rate of AdamW")
    add("--warmup", type=int, default=150, help="warm-up steps")
    add("--weight-decay", type=float, default=2.0, help="weight decay of AdamW")
    add("--dropout", type=float, default=0.15, help="probability of dropout")
    add("--ema", type=float, default=0.996, help="decay of the moving average of the weights, a step")
    add("--clip", type=float, default=1.0, help="largest norm of the gradient")
    add("--evaluate-every", type=float, default=3, help="epochs between evaluations")
    add("--seed", type=int, default=1, help="seed of weights and batches")
    add("--device", default="cuda", help="device of PyTorch, e.g. cuda or cpu")
    add("--no-compile", action="store_true", help="do not try torch.compile")
    add("--limit", type=int, help="use only this many chapters of each book, for a test")


def main(options):
    import torch

    from weights_tools import tokenizer, trainer
    from weights_tools.families.xlstm_module import XLSTM

    torch.manual_seed(options.seed)
    books = corpus.load(options.data, options.held_out)
    for book in books if options.limit else ():
        book.documents, book.held_out = book.documents[: options.limit], book.held_out[:4]
    paragraphs = [p for book in books for document in book.documents for p in document]
    model_bytes = (
        options.tokenizer.read_bytes()
        if options.tokenizer
        else tokenizer.train(paragraphs, options.vocab_size, options.threads)
    )
    processor = tokenizer.load(model_bytes)
    config = xlstm.Config(
        hidden_size=options.hidden_size,
        num_blocks=options.blocks,
        num_heads=options.heads,
        vocab_size=processor.vocab_size(),
        ffn_proj_factor=options.ffn_factor,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.BOS,
        eos_token_id=tokenizer.BOS,
        pad_token_id=tokenizer.UNK,
    ).validate()
    print(f"{xlstm.parameters(config):,} parameters", flush=True)
    model = XLSTM(config, options.chunk, options.dropout)
    result = trainer.Trainer(options, model, processor, books).run()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tokenizer.model").write_bytes(model_bytes)
    hub = xlstm.hub_config(config, "bfloat16")
    (options.out / "config.json").write_text(json.dumps(hub, indent=2) + "\n")
    tensors = {n: st.tensor(p.numpy(), "BF16") for n, p in result.pop("weights").items()}
    st.write(options.out / st.SINGLE_NAME, tensors)
    result["recipe"] = recipe(options)
    (options.out / "training.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "README.md").write_text(model_card.text(config, books, result))
    print(f"held out: {result['held_out']['all']:.4f} bits per byte", flush=True)


def recipe(options):
    skip = ("run", "data", "out", "device", "tokenizer", "limit", "threads")
    return {k: v for k, v in sorted(vars(options).items()) if k not in skip}
