"""A SentencePiece model for the books, and token streams made with it."""

import io

import numpy as np
import sentencepiece

from weights_tools import corpus

UNK, BOS, EOS = 0, 1, 2


def train(paragraphs, vocab_size, threads):
    """-> bytes of tokenizer.model: unigram, byte fallback, text taken as it is, "\\n" a piece."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for paragraph in paragraphs for line in paragraph.split("\n")),
        model_writer=out,
        model_type="unigram",
        vocab_size=vocab_size,
        byte_fallback=True,
        character_coverage=0.9999,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        split_by_whitespace=True,
        split_digits=True,
        user_defined_symbols="\n",
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=-1,
        max_sentence_length=100_000,
        num_threads=threads,
        minloglevel=2,
    )
    return out.getvalue()


def load(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def encode(processor, paragraphs):
    """Ids of the paragraphs with a blank line between."""
    newline = processor.piece_to_id("\n")
    out = []
    for ids in processor.encode(paragraphs):
        out += [newline, newline, *ids] if out else ids
    return out


def training_stream(processor, books):
    """All documents in order, BOS before each -> int32 [N]."""
    out = []
    for book in books:
        for document in book.documents:
            out.append([BOS, *encode(processor, document)])
    return np.concatenate([np.array(ids, dtype=np.int32) for ids in out])


def held_out_stream(processor, book):
    """-> ids beginning with BOS, and the UTF-8 bytes of the text that they encode."""
    ids = [BOS, *encode(processor, book.held_out)]
    return np.array(ids, dtype=np.int32), len(corpus.text_of(book.held_out).encode())
