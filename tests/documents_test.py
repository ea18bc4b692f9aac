"""What the documents point to is there, and README.md stays a few screens long."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
MOST_LINES_OF_README = 160
LEFT_OUT = {"build", "node_modules"}
DOCUMENTS = sorted(path for path in ROOT.rglob("*.md") if not LEFT_OUT & set(path.relative_to(ROOT).parts))
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
# A file in code font, as CONTRIBUTING.md's table names them: of the whole tree or of server/.
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:h|cc|cu|py|sh|md|proto))`")
TO_BE_MADE = re.compile(r"(?:^|/)(?:x|y|z|x_test|y_test|z_test|x_golden_test)\.\w+$")


# Tests, in code font behind the file that has them, as deploy/SECURITY.md names them.
TESTS_OF = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:cc|py))`:((?:,? `[\w.]+`)+)")


def prose(text):
    """Without blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path):
    """Of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_a_few_screens_long():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_README


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    document = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), f"{name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name} links to {link}, which has {sorted(anchors(target))}"


@pytest.mark.parametrize("name", ["README.md", ".github/CONTRIBUTING.md"])
def test_named_files_are_there(name):
    for file in NAMED.findall((ROOT / name).read_text()):
        if TO_BE_MADE.search(file):
            continue
        assert (ROOT / file).exists() or (ROOT / "server" / file).exists(), f"{name} names {file}"


@pytest.mark.parametrize("name", NAMES)
def test_named_tests_are_there(name):
    for file, tests in TESTS_OF.findall((ROOT / name).read_text()):
        text = (ROOT / file).read_text()
        for test in re.findall(r"`([\w.]+)`", tests):
            assert f"def {test}(" in text or f"({test.replace('.', ', ')})" in text, f"{name}: {file} has no {test}"
