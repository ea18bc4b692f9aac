"""Encryption of --state-dir with tenants' keys, from outside: a server with --state-keys, the commands for
the keys, and an independent implementation of the file formats (server/identity/state_keys.h, server/crypto/encrypted_file.h).

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/state_keys.py
"""

import hmac
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("grpc")
aead = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from keyed_server import BIN, MODEL, Server, new_key  # noqa: E402

BEGINS, TENANTS = 1 << 31, 1 << 30  # flags of pieces


def cipher(key, salt):
    return aead.AESGCM(hmac.digest(key, salt, "sha256"))


def nonce(number):
    return number.to_bytes(12, "little")


def unwrapped(folder, operator):
    """The folder's key, and those of tenants: {id: (tenant, key)}."""
    wrapped = (folder / "state-key").read_bytes()
    assert wrapped[:8] == b"RCRVCRPT"
    own = cipher(operator, wrapped[8:24]).decrypt(nonce(0), wrapped[24:], None)
    tenants = {}
    for path in folder.glob("tenant-key-*"):
        wrapped = path.read_bytes()
        assert wrapped[:8] == b"RCRVTKEY"
        assert wrapped[8:16] == hmac.digest(operator, b"recurve: id of an operator's key", "sha256")[:8]
        text = cipher(operator, wrapped[16:32]).decrypt(nonce(0), wrapped[32:], None)
        assert path.name == f"tenant-key-{text[32:40].hex()}"
        tenants[text[32:40].hex()] = (text[40:].decode(), text[:32])
    return own, tenants


def parts(data, own, tenants):
    """The texts of a file, each with its tenant; "": none."""
    assert data[:8] == b"RCRVCRP2"
    of_file, rest, number, found = cipher(own, data[8:24]), data[24:], 0, []
    while rest:
        flags = int.from_bytes(rest[:4], "little")
        size = flags & (TENANTS - 1)
        sealed, rest = rest[4:20 + size], rest[20 + size:]
        if flags & BEGINS:
            begin = of_file.decrypt(nonce(number), sealed, None)
            tenant, key = tenants[begin[16:32].decode()]
            assert begin[32:].decode() == tenant
            of_tenant, in_part, number = cipher(key, begin[:16]), 0, number + 1
            found.append((tenant, b""))
        elif flags & TENANTS:
            found[-1] = (tenant, found[-1][1] + of_tenant.decrypt(nonce(in_part), sealed, None))
            in_part += 1
        else:
            found.append(("", of_file.decrypt(nonce(number), sealed, None)))
            number += 1
    return found


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def keys_state(*arguments, check=True):
    return subprocess.run([BIN / "recurve", "keys", "state", *arguments], check=check, text=True, capture_output=True)


class Tenants:
    """Two tenants of servers with keys and a folder, each with a session that has answered."""

    def __init__(self, folder):
        self.folder = folder
        self.operators = folder / "operator" / "state.keys"
        self.operators.parent.mkdir()
        assert keys_state("new", "--file", self.operators).stdout == ""
        assert self.operators.stat().st_mode & 0o777 == 0o600
        access = folder / "access.json"
        self.keys = {name: new_key(access, name) for name in ("alice", "benjamin", "carol")}
        self.states = folder / "states"
        self.flags = ("--keys", access, "--state-keys", self.operators)
        server = self.serve()
        for name in ("alice", "benjamin"):
            self.open(server, name)
        server.stop()
        self.keep_no_key_in(server)

    def serve(self, states=None):
        return Server(self.folder, *self.flags, "--state-dir", states or self.states)

    def open(self, server, name, session="diary-to-be-kept"):
        server.recurve("session", "open", "--durability", "local", session, key=self.keys[name])
        return self.generate(server, name, f"Once {name}", session)

    def generate(self, server, name, prompt="", session="diary-to-be-kept", check=True):
        return server.recurve("generate", "--session", session, "--prompt", prompt, "--max-tokens", "8",
                              "--ignore-eos", "--temperature", "0", key=self.keys[name], check=check)

    def operator(self):
        return bytes.fromhex(self.operators.read_text().splitlines()[0])

    def keep_no_key_in(self, server):
        log = server.log.read_text()
        own, tenants = unwrapped(self.states, self.operator())
        for key in (self.operator(), own, *(key for _, key in tenants.values())):
            assert key.hex() not in log

    def file_of(self, tenant):
        _, keys = unwrapped(self.states, self.operator())
        return next(self.states / f"tenant-key-{id}" for id, (name, _) in keys.items() if name == tenant)

    def goes_on(self):
        """The next answers of each, from a copy of the folder."""
        copy = self.folder / "copy"
        shutil.copytree(self.states, copy)
        server = self.serve(copy)
        answers = {name: self.generate(server, name).stdout for name in ("alice", "benjamin")}
        server.stop()
        shutil.rmtree(copy)
        return answers


@pytest.fixture
def tenants(tmp_path):
    return Tenants(tmp_path)


def sealed_refusal(done, *words):
    assert done.returncode == 1, done.stdout
    assert "FAILED_PRECONDITION" in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_each_tenants_states_are_sealed_with_its_key(tenants):
    own, keys = unwrapped(tenants.states, tenants.operator())
    assert sorted(tenant for tenant, _ in keys.values()) == ["alice", "benjamin"]
    found = {}
    for name, data in files_of(tenants.states).items():
        for word in (b"diary-to-be-kept", b"RCRVSTAT", b"alice", b"benjamin"):
            assert word not in data, name
        if not name.startswith(("state-key", "tenant-key-")):
            for tenant, text in parts(data, own, keys):
                found[tenant] = found.get(tenant, b"") + text
    assert b"RCRVSTAT" in found["alice"] and b"RCRVSTAT" in found["benjamin"]
    assert b"RCRVSTAT" not in found[""] and b"diary-to-be-kept" in found[""]


def test_keys_are_replaced_while_the_server_runs(tenants):
    wanted = tenants.goes_on()
    server = tenants.serve()
    before, old = files_of(tenants.states), tenants.operators.read_text()
    done = keys_state("rotate", "--file", tenants.operators, "--state-dir", tenants.states, "--drop-old")
    assert done.stdout == "3 keys wrapped anew\n"
    for name, data in files_of(tenants.states).items():
        assert (data != before[name]) == name.startswith(("state-key", "tenant-key-")), name
    assert old.strip() not in tenants.operators.read_text()
    tenants.open(server, "carol")  # whose key is wrapped with the new one
    assert tenants.generate(server, "benjamin").stdout == wanted["benjamin"]
    server.stop()
    tenants.keep_no_key_in(server)
    listed = keys_state("list", "--file", tenants.operators, "--state-dir", tenants.states).stdout
    assert listed.count("tenant ") == 3 and "cannot be used" not in listed
    server = tenants.serve()
    assert tenants.generate(server, "alice").stdout == wanted["alice"]
    assert tenants.generate(server, "carol").stdout
    server.stop()
    # The previous key opens nothing any more.
    tenants.operators.write_text(old)
    done = subprocess.run([BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", *tenants.flags,
                           "--state-dir", tenants.states], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--state-keys" in done.stderr and old.strip() not in done.stderr


def test_a_new_first_key_is_used_after_a_restart(tenants):
    wanted, old = tenants.goes_on(), tenants.operators.read_text()
    tenants.operators.write_text(bytes(range(32)).hex() + "\n" + old)
    tenants.serve().stop()
    tenants.operators.write_text(bytes(range(32)).hex() + "\n")
    server = tenants.serve()
    assert {name: tenants.generate(server, name).stdout for name in wanted} == wanted
    server.stop()


def test_data_sealed_with_a_missing_key_waits_for_it(tenants, tmp_path):
    wanted = tenants.goes_on()
    file = tenants.file_of("alice")
    kept = shutil.move(file, tmp_path / file.name)
    server = tenants.serve()
    for _ in range(2):  # a failed request does not lose it
        sealed_refusal(tenants.generate(server, "alice", check=False), "alice", file.name)
        sealed_refusal(server.recurve("session", "export", "diary-to-be-kept", tmp_path / "exported",
                                      key=tenants.keys["alice"], check=False), "alice", file.name)
    server.recurve("session", "get", "diary-to-be-kept", key=tenants.keys["alice"])
    assert tenants.generate(server, "benjamin").stdout == wanted["benjamin"]
    tenants.open(server, "alice", "another")  # with a new key
    server.stop()
    assert not list(tenants.states.glob("set-aside-*"))
    server = tenants.serve()
    sealed_refusal(tenants.generate(server, "alice", check=False), "alice", file.name)
    shutil.move(kept, file)
    assert tenants.generate(server, "alice").stdout == wanted["alice"]
    assert tenants.generate(server, "alice", session="another").stdout
    server.stop()


def test_only_one_tenant_is_dropped(tenants):
    wanted = tenants.goes_on()
    file, server = tenants.file_of("alice"), tenants.serve()
    drop = ("drop", "--file", tenants.operators, "--state-dir", tenants.states, "--tenant", "alice")
    assert keys_state(*drop).stdout == file.name + "\n"
    again = keys_state(*drop, check=False)
    assert again.returncode == 1 and "alice" in again.stderr
    sealed_refusal(tenants.generate(server, "alice", check=False), "alice", file.name)
    server.recurve("session", "close", "diary-to-be-kept", key=tenants.keys["alice"])
    assert tenants.open(server, "alice").stdout
    assert tenants.generate(server, "benjamin").stdout == wanted["benjamin"]
    server.stop()


def test_modified_or_exchanged_keys_are_named(tenants):
    wanted, files = tenants.goes_on(), {name: tenants.file_of(name) for name in ("alice", "benjamin")}
    alice, benjamin = (files[name].read_bytes() for name in ("alice", "benjamin"))
    files["alice"].write_bytes(benjamin)
    files["benjamin"].write_bytes(benjamin[:-1] + bytes([benjamin[-1] ^ 1]))
    server = tenants.serve()
    server.wait_for("event=state_key_unusable")
    sealed_refusal(tenants.generate(server, "alice", check=False), files["alice"].name, files["benjamin"].name)
    sealed_refusal(tenants.generate(server, "benjamin", check=False), files["benjamin"].name, "modified")
    refused = keys_state("rotate", "--file", tenants.operators, "--state-dir", tenants.states, check=False)
    assert refused.returncode == 1 and "tenant-key-" in refused.stderr
    server.stop()
    files["alice"].write_bytes(alice)
    files["benjamin"].write_bytes(benjamin)
    server = tenants.serve()
    assert {name: tenants.generate(server, name).stdout for name in wanted} == wanted
    server.stop()


def test_a_folder_of_the_previous_version_is_read(tenants):
    """One key for all tenants, as earlier servers wrote it."""
    wanted = tenants.goes_on()
    own, keys = unwrapped(tenants.states, tenants.operator())
    for name, data in files_of(tenants.states).items():
        if name.startswith("tenant-key-"):
            (tenants.states / name).unlink()
        elif name != "state-key":
            salt, written = bytes(range(16)), b""
            text = b"".join(part for _, part in parts(data, own, keys))
            pieces = [text[at:at + 65536] for at in range(0, len(text), 65536)]
            for number, piece in enumerate(pieces):
                written += len(piece).to_bytes(4, "little") + cipher(own, salt).encrypt(nonce(number), piece, None)
            (tenants.states / name).write_bytes(b"RCRVCRPT" + salt + written)
    for _ in range(2):
        server = tenants.serve()
        assert {name: tenants.generate(server, name).stdout for name in wanted} == wanted
        server.stop()
        wanted = tenants.goes_on()
    # Data written since is sealed with each tenant's key.
    assert len(unwrapped(tenants.states, tenants.operator())[1]) == 2


def test_a_folder_with_keys_is_not_used_without(tenants):
    done = subprocess.run([BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", "--state-dir",
                           tenants.states], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--state-keys" in done.stderr
    for command in ("new", "list", "rotate", "drop"):
        assert command in keys_state("--help").stdout
