"""server/startup/version.cmake: the version and the commit that the programs name."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def found(source):
    """The version and the commit found for `source`, "9.9.9" being the version that CMake knows."""
    out = subprocess.run(
        ["cmake", f"-DSOURCE={source}", "-DFALLBACK=9.9.9", "-P", ROOT / "server/startup/version.cmake"],
        check=True, text=True, capture_output=True,
    ).stdout
    return re.fullmatch(r"-- (\S+) \((\w*)\)\n", out).groups()


def git(source, *arguments):
    return subprocess.run(
        ["git", "-C", source, "-c", "user.name=a", "-c", "user.email=a@b.example",
         "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false", *arguments],
        check=True, text=True, capture_output=True,
    ).stdout.strip()


def commit(source):
    """One more commit; its first twelve digits."""
    git(source, "commit", "--allow-empty", "-m", "one more")
    return git(source, "rev-parse", "HEAD")[:12]


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init")
    return tmp_path


def test_no_git(tmp_path):
    assert found(tmp_path) == ("9.9.9", "")


def test_no_tag(repository):
    head = commit(repository)
    assert found(repository) == ("9.9.9", head)


def test_at_a_tag_and_after_it(repository):
    tagged = commit(repository)
    git(repository, "tag", "v1.2.0-rc.1")
    assert found(repository) == ("1.2.0-rc.1", tagged)
    commit(repository)
    head = commit(repository)
    assert found(repository) == ("1.2.0-rc.1+2", head)
    git(repository, "tag", "-a", "v1.2.0", "-m", "with a message")
    assert found(repository)[0] == "1.2.0"
    git(repository, "tag", "nightly")
    assert found(repository)[0] == "1.2.0"


def test_somebody_elses_repository(repository):
    commit(repository)
    sources = repository / "third_party/recurve"
    sources.mkdir(parents=True)
    assert found(sources) == ("9.9.9", "")
