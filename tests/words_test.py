"""Product text has none of the words that this project used in a private sense: comments, names, help, errors, documents.

Each word has a plain replacement; only words whose every use is wrong are listed. Public names that contain one stay: PUBLIC.
"""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
WORDS = {  # pattern, whole words, any case: what to write instead
    r"doors?": "frontend, endpoint, port or listener",
    r"beside": "concurrent with, next to, with, in addition to, compared to",
    r"likewise": "the same, also; or name the thing",
    r"(?:and )?the like": "name the thing",
    r"whoever": "the thread, the request, the client, the tenant",
    r"nobody": "no thread, no client, not",
    r"obey(?:s|ed)?": "apply",
    r"wishes": "client signals, or name the setting",
    r"newcomers?": "new request, new tenant",
    r"of (?:its|their|his|her|our) own(?=$|[^\w\s]|\s+(?:and|or|which|that|where|for|in)\b)": "separate, its own NAME; or delete it",
    r"writ(?:e|es|ten|ing) down": "log, record, serialize",
    r"what of it (?:is|there)": "say what it is",
    r"(?:of )?what is only more of the same": "repetitive cases",
    r"asks? for little": "light tenant",
}
PATTERN = re.compile(r"(?<![A-Za-z_-])(?:" + "|".join(WORDS) + r")(?![A-Za-z_])", re.IGNORECASE)
CHECKED = ["*.md", "*.sh", "*.cmake", "*CMakeLists.txt", ".github", "kernels", "model", "proto", "clients", "weights_tools", "deploy", "server",
           "tests"]
SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".py", ".proto", ".sh", ".md", ".yaml", ".yml", ".env", ".cmake", ".tpl", ".txt"}
PUBLIC = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)|--door\b|\"door\"")
# Texts by or for a model.
NOT_OURS = re.compile(r"^> |OPENINGS = |Produced by Nobody|^    \"It was late when they reached the harbour")


def found(lines):
    """(number of the line, word, what to write instead) of each wrong word."""
    for number, line in enumerate(lines, 1):
        if NOT_OURS.search(line):
            continue
        for match in PATTERN.finditer(PUBLIC.sub("", line)):
            word = match[0]
            yield number, word, next(hint for of, hint in WORDS.items() if re.match(of, word, re.IGNORECASE))


def checked_files():
    listed = subprocess.run(["git", "ls-files", "-z", *CHECKED], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("no repository, whose files are checked")
    names = [name for name in listed.stdout.split("\0") if pathlib.PurePath(name).suffix in SUFFIXES]
    return [name for name in names if not name.startswith(("tests/golden/", "tests/fuzz/")) and name != "tests/words_test.py"]


def test_product_text_has_plain_words():
    wrong = [f"{name}:{number}: {word}: write {hint}" for name in checked_files() if (ROOT / name).is_file()
             for number, word, hint in found((ROOT / name).read_text(errors="replace").splitlines())]
    assert not wrong, "\n".join(["", *wrong])


def test_many_files_are_checked():
    assert len(checked_files()) > 500


@pytest.mark.parametrize("line, word", [
    ("// The door's side.", "door"), ("Nobody waits.", "Nobody"), ("  const bool beside = true;", "beside"),
    ("a thread of its own", "of its own"), ("arrays and the like.", "and the like"), ("files that were written down", "written down"),
])
def test_a_wrong_word_is_found(line, word):
    assert [(number, found_word) for number, found_word, _ in found(["", line])] == [(2, word)]


@pytest.mark.parametrize("line", [
    "its own rows", "indoors", "`--door grpc` measures a frontend", "[text](doors/table.md)", "> Nobody came, he wrote.",
    "besides", "write it down the line",
])
def test_other_text_is_not(line):
    assert list(found([line])) == []
