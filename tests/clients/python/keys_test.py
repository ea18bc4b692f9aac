"""A server that wants keys."""

import subprocess

import pytest
import recurve

from server import BIN, Server


@pytest.fixture(scope="module")
def locked(chat_model, tmp_path_factory):
    """Such a server's address, and a key for it."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    key = subprocess.run([BIN / "recurve", "keys", "new", "--file", file, "--tenant", "alice"],
                         check=True, text=True, capture_output=True).stdout.strip()
    with Server(chat_model, "--keys", file) as running:
        yield running.address, key


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("RECURVE_KEY", "RECURVE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_key_one_is_asked_for(connect, locked):
    address, _ = locked
    with pytest.raises(recurve.UnauthenticatedError, match="the key is missing, unknown or expired"):
        connect(address).tokenize("Once")


def test_a_key_is_given_in_four_ways(connect, locked, monkeypatch, tmp_path):
    address, key = locked
    assert connect(address, key=key).tokenize("Once")
    assert connect(address, metadata=(("authorization", f"Bearer {key}"),)).tokenize("Once")
    monkeypatch.setenv("RECURVE_KEY", key)
    assert connect(address).tokenize("Once")
    monkeypatch.delenv("RECURVE_KEY")
    file = tmp_path / "key"
    file.write_text(key + "\n")
    monkeypatch.setenv("RECURVE_KEY_FILE", str(file))
    assert connect(address).tokenize("Once")


def test_what_is_no_key_is_not_sent(connect, locked):
    address, _ = locked
    with pytest.raises(ValueError, match="one word of ASCII") as refused:
        connect(address, key="two words")
    assert "two words" not in str(refused.value)
