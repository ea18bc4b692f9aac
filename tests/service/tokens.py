"""Tokens of a login service in place of keys: JSON Web Tokens that PyJWT makes. ctest runs this with
RECURVE_BIN set to the folder of recurve-server."""

import base64
import hashlib
import hmac
import json
import pathlib
import subprocess
import sys
import time

import pytest

grpc = pytest.importorskip("grpc")
jwt = pytest.importorskip("jwt")
from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from keyed_server import BIN, MODEL, Server, new_key  # noqa: E402

ISSUER, AUDIENCE = "https://login.example", "recurve"
CURVES = {"ES256": ("P-256", ec.SECP256R1()), "ES384": ("P-384", ec.SECP384R1()), "ES512": ("P-521", ec.SECP521R1())}
LIST = "/recurve.v1.Sessions/List"


def number(value, size=None):
    return base64.urlsafe_b64encode(value.to_bytes(size or (value.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()


class Signer:
    """A signing key, and its public key in a JWKS."""

    def __init__(self, name, algorithm="RS256", bits=2048):
        self.name, self.algorithm = name, algorithm
        if algorithm in CURVES:
            curve, kind = CURVES[algorithm]
            self.key = ec.generate_private_key(kind)
            at, size = self.key.public_key().public_numbers(), (kind.key_size + 7) // 8
            self.public = {"kty": "EC", "crv": curve, "x": number(at.x, size), "y": number(at.y, size)}
        else:
            self.key = rsa.generate_private_key(65537, bits)
            numbers = self.key.public_key().public_numbers()
            self.public = {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
        self.public |= {"kid": name, "use": "sig"}

    def sign(self, algorithm=None, headers=None, **claims):
        """A token of alice, valid for an hour, with these claims replaced; None: removed."""
        all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 3600, **claims}
        return jwt.encode({name: value for name, value in all_claims.items() if value is not None}, self.key,
                          algorithm or self.algorithm, {"kid": self.name, **(headers or {})})


def write_keys(folder, *public, **issuer):
    """The keys file with an issuer, and its JWKS."""
    (folder / "login.json").write_text(json.dumps({"keys": public}))
    file = folder / "keys.json"
    content = json.loads(file.read_text()) if file.exists() else {}
    content["issuers"] = [{"issuer": ISSUER, "audience": AUDIENCE, "jwks": "login.json",
                           **(issuer or {"tenant_claim": "sub"})}]
    file.write_text(json.dumps(content))
    return file


@pytest.fixture(scope="module")
def signers():
    made = [Signer(f"key of {algorithm}", algorithm) for algorithm in ("RS256", *CURVES)]
    made.append(Signer("key of PS256 alone"))
    made[-1].public["alg"] = "PS256"
    made.append(Signer("key for encryption"))
    made[-1].public["use"] = "enc"
    return {signer.name: signer for signer in made}


@pytest.fixture(scope="module")
def served(tmp_path_factory, signers):
    folder = tmp_path_factory.mktemp("tokens")
    unknown = {"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "key of another kind"}
    file = write_keys(folder, unknown, *(signer.public for signer in signers.values()))
    key = new_key(file, "alice")
    server = Server(folder, "--keys", file)
    shown = []
    yield server, key, shown
    server.stop()
    log = server.log.read_text()
    assert shown and not any(token.split(".")[2] in log for token in shown if token.split(".")[2])


def taken(server, token):
    """Over both frontends, which agree."""
    code = server.call(LIST, token)
    status, _ = server.curl("GET", "/v1/sessions", token)
    assert (code, status) in ((grpc.StatusCode.OK, 200), (grpc.StatusCode.UNAUTHENTICATED, 401)), (code, status)
    return status == 200


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", *CURVES])
def test_tokens_of_every_algorithm_are_accepted(served, signers, algorithm):
    server, _, shown = served
    signer = signers[f"key of {algorithm if algorithm in CURVES else 'RS256'}"]
    shown.append(signer.sign(algorithm))
    assert taken(server, shown[-1])
    nameless = jwt.encode({"iss": ISSUER, "aud": ["other", AUDIENCE], "sub": "alice", "exp": time.time() + 60},
                          signer.key, algorithm)
    assert taken(server, nameless), "a token without a key id, for several audiences"


def test_a_token_has_its_tenant_and_the_role_of_its_issuer(served, signers):
    server, key, shown = served
    alice, bob = signers["key of ES256"].sign(), signers["key of RS256"].sign(sub="bob")
    shown += [alice, bob]
    server.recurve("session", "open", "diary", key=alice)
    assert "diary" in server.recurve("--json", "session", "list", key=key).stdout, "alice's key and token belong to one tenant"
    foreign = server.recurve("session", "get", "diary", key=bob, check=False)
    assert foreign.returncode == 1 and "NOT_FOUND" in foreign.stderr
    assert server.call("/recurve.v1.Control/GetLoad", alice) == grpc.StatusCode.PERMISSION_DENIED
    server.wait_for("event=audit what=session_open tenant=alice key_id=token peer=127.0.0.1 result=OK")


def encode(part):
    return base64.urlsafe_b64encode(part if isinstance(part, bytes) else json.dumps(part).encode()).rstrip(b"=").decode()


def test_other_tokens_are_refused(served, signers):
    server, _, shown = served
    good = signers["key of RS256"]
    stranger = Signer("key of RS256")
    head, body, signature = good.sign().split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    pem = good.key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def by_password(password):
        text = f"{encode({'alg': 'HS256', 'kid': good.name})}.{body}"
        return f"{text}.{encode(hmac.new(password, text.encode(), hashlib.sha256).digest())}"

    wrong = {
        "another's key of the same name": stranger.sign(),
        "none": f"{encode({'alg': 'none', 'kid': good.name})}.{body}.AA",
        "the public key as a password": by_password(pem),
        "the modulus as a password": by_password(good.public["n"].encode()),
        "an empty password": by_password(b""),
        "other claims": f"{head}.{encode({**claims, 'sub': 'bob'})}.{signature}",
        "another head": f"{encode({'alg': 'RS512', 'kid': good.name})}.{body}.{signature}",
        "a cut signature": f"{head}.{body}.{signature[:-8]}",
        "a key for another algorithm": signers["key of PS256 alone"].sign("RS256"),
        "a key for encryption": signers["key for encryption"].sign(),
        "a critical header": good.sign(headers={"crit": ["b64"], "b64": True}),
        "another audience": good.sign(aud="other"),
        "other audiences": good.sign(aud=["other", "recurve2"]),
        "no audience": good.sign(aud=None),
        "no end": good.sign(exp=None),
        "an end that is no number": f"{head}.{encode({**claims, 'exp': 'never'})}.{signature}",
        "of use tomorrow": good.sign(nbf=time.time() + 86400),
        "no tenant": good.sign(sub=None),
        "a tenant of no name": good.sign(sub="alice bob"),
    }
    for what, token in wrong.items():
        shown.append(token)
        assert not taken(server, token), what
    server.wait_for(f"(?s)(what=authentication tenant=none .*? result=wrong_token.*?){{{2 * len(wrong)}}}")
    assert not taken(server, good.sign(exp=time.time() - 60))
    server.wait_for("what=authentication .* result=expired_token")
    assert not taken(server, good.sign(iss="https://login.example.org")) and not taken(server, good.sign(iss=None))
    server.wait_for("what=authentication .* result=unknown_issuer")
    for text in ("a.b.c", f"{head}.{body}", f"{head}.{body}.AAAAA", f"{head}.{encode(b'[1]')}.{signature}", f"{head}.{body}.{'A' * 9000}"):
        assert not taken(server, text)
    server.wait_for("what=authentication .* result=not_a_key")
    assert taken(server, good.sign()), "the server still answers"


def test_after_too_many_wrong_tokens_no_new_ones_are_verified(tmp_path):
    first, others = Signer("first", "ES512"), [Signer(f"other {i}", "ES512") for i in range(5)]
    server = Server(tmp_path, "--keys", write_keys(tmp_path, first.public, *(one.public for one in others)))

    def call(token):
        return server.call(LIST, token) == grpc.StatusCode.OK

    try:
        known, stranger = first.sign(), Signer("first", "ES512")
        assert call(known)
        nameless = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 60},
                              others[-1].key, "ES512")
        assert not call(nameless), "the sixth key, and four are tried"
        assert call(others[-1].sign()), "with a key id"
        for number in range(1, 1000):
            assert not call(stranger.sign(jti=str(number)))
            if number % 10 == 0 and not call(first.sign(jti=f"new {number}")):
                break
        assert 100 <= number <= 300, "a hundred at once, and ten per second"
        assert call(known), "verified before"
        for _ in range(100):  # later, others are verified again
            if call(first.sign(jti="newer")):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("new tokens are not verified any more")
    finally:
        server.stop()


def becomes(server, token, status):
    for _ in range(300):
        if server.curl("GET", "/v1/models", token)[0] == status:
            return True
        time.sleep(0.02)
    return False


def test_an_issuers_keys_are_replaced_while_it_runs(tmp_path):
    first, second = Signer("first", "ES256"), Signer("second", "ES384")
    file = write_keys(tmp_path, first.public, tenant="carol", role="observer")
    server = Server(tmp_path, "--keys", file)
    try:
        assert server.call("/recurve.v1.Control/GetLoad", first.sign(sub=None)) == grpc.StatusCode.OK, "an observer's"
        assert not taken(server, second.sign())
        new_key(file, "carol")  # does not change the issuer
        write_keys(tmp_path, second.public, tenant="carol", role="observer")
        assert becomes(server, second.sign(), 200) and becomes(server, first.sign(), 401)
        (tmp_path / "login.json").write_text(json.dumps({"keys": []}))
        assert becomes(server, second.sign(), 200)
        for _ in range(300):
            if "event=keys_not_reloaded" in server.log.read_text():
                break
            assert taken(server, second.sign())
        server.wait_for('event=keys_not_reloaded what=.*issuer .*login.json: it has 0 signing keys')
        assert taken(server, second.sign()), "the previous keys remain valid"
    finally:
        server.stop()


def test_an_invalid_issuer_is_refused_at_the_start(tmp_path):
    def refused(file):
        done = subprocess.run([BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", "--keys", file],
                              text=True, capture_output=True, timeout=60)
        assert done.returncode == 1
        return done.stderr

    signer = Signer("one")
    private = {**signer.public, "d": "AA"}
    assert 'key "one" is private' in refused(write_keys(tmp_path, private))
    assert "has 1024 bits, expected at least 2048" in refused(write_keys(tmp_path, Signer("short", bits=1024).public))
    assert 'key "one" cannot be read' in refused(write_keys(tmp_path, {**signer.public, "n": "!"}))
    assert 'either "tenant" or "tenant_claim"' in refused(write_keys(tmp_path, signer.public, role="user"))
    assert 'must be the name of a file' in refused(write_keys(tmp_path, signer.public, tenant="a", jwks="/etc/x.json"))
    file = write_keys(tmp_path, signer.public)
    (tmp_path / "login.json").unlink()
    assert "login.json" in refused(file)
