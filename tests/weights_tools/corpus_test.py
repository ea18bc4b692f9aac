import os
import pathlib

import pytest

from conftest import ROOT
from weights_tools import corpus

BODY = "It was a long sentence that fills the chapter. " * 30


def test_header_and_licence_are_cut_and_lines_unwrapped():
    raw = (
        "The Project Gutenberg EBook of X\r\n\r\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\r\n\r\n"
        "Produced by Nobody\r\n\r\nCHAPTER I\r\n\r\n“Oh,” said  he—_very_\r\nloudly. [12]\r\n\r\n"
        + BODY
        + "\r\n\r\n  a verse,\r\n  and another\r\n\r\n[12] See p. 3.\r\n\r\n"
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***\r\n\r\nlicence"
    )
    assert corpus.clean(raw) == [
        ["CHAPTER I", '"Oh," said he--very loudly.', BODY.strip(), "a verse, and another"]
    ]


def test_contents_index_and_tables_are_dropped():
    raw = "\n\n".join(
        ["CHAPTER I. The Start", "CHAPTER II. The End", "CHAPTER I. The Start", BODY]
        + ["Year    Ships    Men\n1850    12    300", "1, 2, 3, 44, 55, 66, 77: pages", "INDEX."]
        + ["Feathers, modified, in birds.", "THE END.", BODY]
    )
    assert corpus.clean(raw) == [["CHAPTER I. The Start", BODY.strip(), BODY.strip()]]


def test_split_holds_out_the_end_and_loses_nothing():
    documents = [["CHAPTER I", "a" * 50, "b" * 50], ["CHAPTER II", "c" * 50, "d" * 50]]
    kept, held_out = corpus.split(documents, 0.2)
    assert held_out == ["d" * 50]
    assert kept == [documents[0], ["CHAPTER II", "c" * 50]]
    kept, held_out = corpus.split(documents, 0.6)
    assert kept + [held_out] == [["CHAPTER I", "a" * 50], ["b" * 50] + documents[1]]


def test_the_books():
    data = pathlib.Path(os.environ.get("RECURVE_DATA", ROOT.parent / "shared" / "data"))
    if not (data / "corpora").exists():
        pytest.skip("the books are not here: set RECURVE_DATA to the folder that has corpora/")
    books = corpus.load(data / "corpora", 0.04)
    text = "\n\n".join(corpus.text_of(d) for book in books for d in book.documents)
    assert 13_000_000 < len(text.encode()) < 14_500_000
    for unwanted in ("Gutenberg", "Transcriber", "\r", "\t", "  ", "“", "”", "_", "\ufeff"):
        assert unwanted not in text, unwanted
    for book in books:
        share = len(corpus.text_of(book.held_out))
        total = share + sum(len(corpus.text_of(d)) for d in book.documents)
        assert 0.039 < share / total < 0.045
