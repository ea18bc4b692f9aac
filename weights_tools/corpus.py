"""Public-domain books as clean prose: paragraphs on one line each, chapters as documents.

What is dropped: Project Gutenberg's header, footer and licence, contents, tables, indexes,
footnotes and their marks, notes of illustrators and transcribers. What is changed: hard line ends
inside a paragraph become spaces (those of verse too), curly quotes and long dashes become ASCII,
`_emphasis_` loses its underscores, runs of spaces become one.
"""

import dataclasses
import pathlib
import re
import unicodedata

# tinyshakespeare is verse with speakers' names, the wikitext files are for evaluation only.
BOOKS = {
    "bronte.txt": "Charlotte Brontë: Jane Eyre, Shirley, The Professor, Villette",
    "darwin.txt": "Charles Darwin: On the Origin of Species and other works",
    "dubois.txt": "W. E. B. Du Bois: Darkwater and other works",
    "gutenberg-1342-pride-and-prejudice.txt": "Jane Austen: Pride and Prejudice",
    "gutenberg-2600-war-and-peace.txt": "Leo Tolstoy: War and Peace, translated by L. and A. Maude",
    "gutenberg-2701-moby-dick.txt": "Herman Melville: Moby-Dick",
}
ASCII_MARKS = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "\u00a0": " "})
CHAPTER = re.compile(
    r"((CHAPTER|Chapter|BOOK|VOLUME|PART|LETTER|EPILOGUE|FIRST EPILOGUE|SECOND EPILOGUE)\b.{0,120}"
    r"|[IVXL]{1,5}\.?|\d{1,2}\. [A-Z][A-Z ,:\-]+\.?)$"
)
BACK_MATTER = re.compile(r"(INDEX|Index|BIBLIOGRAPHY|APPENDIX [A-Z])\.?$")
BACK_MATTER_END = re.compile(r"(THE END|CONTENTS|Contents)\.?$")
MIN_CHAPTER = 1000  # characters; a shorter "chapter" is an entry of a table of contents
START = re.compile(r"\*\*\* ?START OF TH.*?\*\*\*", re.S)
END = re.compile(r"\*\*\* ?END OF TH|End of (the )?Project Gutenberg", re.S)


@dataclasses.dataclass
class Book:
    """documents: chapters, each a list of paragraphs; held_out: the book's last paragraphs."""

    name: str
    title: str
    documents: list
    held_out: list


def text_of(paragraphs):
    return "\n\n".join(paragraphs)


def load(directory, held_out_share):
    books = []
    for name, title in BOOKS.items():
        raw = (pathlib.Path(directory) / name).read_text(encoding="utf-8-sig")
        documents, held_out = split(clean(raw), held_out_share)
        books.append(Book(pathlib.Path(name).stem, title, documents, held_out))
    return books


def clean(raw):
    """-> documents in order."""
    text = unicodedata.normalize("NFC", raw.replace("\r\n", "\n")).translate(ASCII_MARKS)
    start, end = START.search(text), END.search(text)
    text = text[start.end() if start else 0 : end.start() if end else len(text)]
    paragraphs = [unwrap(p) for p in re.split(r"\n[ \t]*(?:\n[ \t]*)+", text) if keep(p)]
    return chapters(drop_back_matter([p for p in paragraphs if p]))


def keep(paragraph):
    """False for tables, indexes, footnotes, rules of asterisks and producers' credits."""
    body = paragraph.strip()
    digits = sum(c.isdigit() for c in body)
    letters = sum(c.isalpha() for c in body)
    chapter = CHAPTER.match(body)
    table = len(re.findall(r"\S(?: {3,}|\t| ?\. ?\. ?\.[ .]*)\S", body)) >= 2 or "|" in body
    note = re.match(r"(\[\w{1,4}\]|\{\d+\}|\(\*|\*[^*]|Footnote|FOOTNOTE|\[Illustration)", body)
    credit = re.search(r"^Produced by|^An Anonymous Volunteer|Transcriber|Gutenberg", body)
    numeric = digits > 0.06 * len(body) and not chapter
    return letters >= 0.5 * len(body) and not (table or note or credit or numeric)


def unwrap(paragraph):
    joined = re.sub(r"\s?(\[\d{1,4}\]|\{\d{1,4}\})", "", " ".join(paragraph.split("\n")))
    return re.sub(r"[ \t]+", " ", joined.replace("_", "")).strip()


def drop_back_matter(paragraphs):
    out, inside = [], False
    for paragraph in paragraphs:
        if BACK_MATTER.match(paragraph):
            inside = True
        elif BACK_MATTER_END.match(paragraph) or CHAPTER.match(paragraph):
            inside = False
        if not inside and not BACK_MATTER_END.match(paragraph):
            out.append(paragraph)
    return out


def chapters(paragraphs):
    """-> documents of more than MIN_CHAPTER characters, each beginning with its heading."""
    documents = []
    for paragraph in paragraphs:
        if not documents or CHAPTER.match(paragraph):
            documents.append([])
        documents[-1].append(paragraph)
    return [d for d in documents if len(text_of(d)) >= MIN_CHAPTER]


def split(documents, held_out_share):
    """-> documents to train on, and the paragraphs of the last held_out_share of the text."""
    documents = [list(document) for document in documents]
    held_out, size = [], 0
    wanted = held_out_share * sum(len(text_of(d)) for d in documents)
    while size < wanted:
        if not documents[-1]:
            documents.pop()
        held_out.insert(0, documents[-1].pop())
        size += len(held_out[0]) + 2
    return [d for d in documents if d], held_out
