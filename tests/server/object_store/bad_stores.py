"""Servers at stores that are full, read-only, of another service or another time: what they cannot do is refused by name, what is
in the store stays, and other sessions continue."""

import concurrent.futures
import os
import subprocess

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from replica import client, expected, objects, PROMPTS, Replica
from stores import _run, _seaweedfs, KEY, KEYS, PROGRAM, READER, SECRET, seaweedfs_at, server  # noqa: F401

CLOCK = PROGRAM.parent.parent / "tests/libshifted_clock.so"


def shifted(seconds):
    return {"LD_PRELOAD": str(CLOCK), "RECURVE_CLOCK_SHIFT": str(seconds)}


@pytest.mark.parametrize("environment, why", [
    ({"AWS_ACCESS_KEY_ID": READER}, "HTTP 403 AccessDenied: check the credentials and their rights"),
    ({"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, "HTTP 403 InvalidAccessKeyId: check the credentials and their rights"),
    ({"AWS_SECRET_ACCESS_KEY": "other"}, "HTTP 403 SignatureDoesNotMatch: the secret key is not that of the key id"),
    (shifted(3600), "HTTP 403 RequestTimeTooSkewed: set this machine's clock"),
    (shifted(-3600), "HTTP 403 RequestTimeTooSkewed: set this machine's clock"),
], ids=["read-only", "unknown key", "wrong secret", "clock ahead", "clock behind"])
def test_who_may_not_write_is_refused_by_name(run, seaweedfs, environment, why):
    code, said = server("--state-store", "s3://bucket/rights", "--state-endpoint", seaweedfs, **{**KEYS, **environment})
    assert code != 0 and "cannot create an object" in said and why in said and SECRET not in said, said

    # With --state-store-optional it serves everything else.
    texts = expected(run)
    owner = Replica(run, seaweedfs, "rights")
    assert owner.open("s").status == 201
    assert owner.turn("s", PROMPTS[0], "r").text == texts[0]
    before = objects(seaweedfs, "rights/")
    a = Replica(run, seaweedfs, "rights", ["--state-store-optional"], **environment)
    for refused in (a.open("t"), a.turn("s", PROMPTS[1]), a.get("s"), a.ask("DELETE", "/v1/sessions/s")):
        assert refused.status == 429 and "--state-store cannot be used now" in refused.message, refused.message
        assert why in refused.message or "try again later" in refused.message, refused.message
    assert a.open("alone", "none").status == 201 and a.turn("alone", PROMPTS[0]).text == texts[0]
    assert objects(seaweedfs, "rights/") == before
    assert owner.turn("s", PROMPTS[1]).text == texts[1]
    assert owner.ask("DELETE", "/v1/sessions/s").status == 200


def test_a_full_store_keeps_what_it_has(run, tmp_path):
    texts = expected(run)
    folder = tmp_path / "full"
    folder.mkdir()
    url = seaweedfs_at(run, folder, volumes=1)
    a, b = [Replica(run, url, "full") for _ in range(2)]
    for name in ("s", "t"):
        assert a.open(name).status == 201
        assert a.turn(name, PROMPTS[0], "r").text == texts[0]
    before = objects(url, "full/")
    once = boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1",
                        config=Config(retries={"max_attempts": 1}))
    with pytest.raises(ClientError):
        for number in range(200):
            once.put_object(Bucket="bucket", Key=f"others/{number}", Body=os.urandom(1 << 20))
    calls = [lambda: a.turn("s", PROMPTS[1], "r1"),  # of the owner
             lambda: b.turn("t", PROMPTS[1], "r1"),  # which is to take it
             lambda: a.open("u")]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for refused in pool.map(lambda call: call(), calls):
            assert refused.status == 429 and "HTTP 500 InternalError" in refused.message, refused.message
    assert objects(url, "full/") == before
    assert b.turn("s", PROMPTS[0], "r").text == texts[0]  # recorded
    assert a.open("alone", "none").status == 201 and a.turn("alone", PROMPTS[0]).text == texts[0]


def test_a_bucket_of_another_service_stays_as_it_is(run, seaweedfs, tmp_path):
    s3 = client(seaweedfs)
    others = {"blobs/t-default/README.md": b"of others", "blobs/\u00e4 b&c/<x>": b"x", "keys/t-default": b"a key of theirs",
              "sessions/t-default/s-taken/head": b'{"user": 7}', "sessions/t-default/s-taken/other": b"", "sessions/2026/1": b"log",
              "sessions/t-default/s-folder/head/x": b"y", "top": b"z"}
    for key, text in others.items():
        s3.put_object(Bucket="bucket", Key=f"foreign/{key}", Body=text)
    keys = tmp_path / "state-keys"
    subprocess.run([PROGRAM.parent / "recurve", "keys", "state", "new", "--file", keys], check=True, capture_output=True)
    texts = expected(run)
    a = Replica(run, seaweedfs, "foreign")
    sealed = Replica(run, seaweedfs, "foreign", ["--state-keys", str(keys)])
    for refused in (a.open("taken"), a.get("taken"), a.turn("taken", PROMPTS[0]), a.ask("DELETE", "/v1/sessions/taken"),
                    sealed.open("taken")):
        assert refused.status == 500, refused.message
        assert 'the head of session "taken" cannot be used: it is no head of a session' in refused.message, refused.message
    refused = sealed.open("other")
    assert refused.status == 409 and "keys/t-default in the store: it is no key" in refused.message, refused.message
    assert a.open("s").status == 201
    assert a.turn("s", PROMPTS[0]).text == texts[0]
    assert Replica(run, seaweedfs, "foreign").turn("s", PROMPTS[1]).text == texts[1]
    collected = subprocess.run([PROGRAM.parent / "recurve", "store", "collect", "--state-store", "s3://bucket/foreign",
                                "--state-endpoint", seaweedfs], capture_output=True, text=True, env={**os.environ, **KEYS})
    assert collected.returncode == 0 and collected.stdout == "", collected
    for key in ("blobs/t-default/README.md", "blobs/?? b&c/<x>", "sessions/t-default/s-taken/head", "sessions/2026/1"):
        assert f"recurve: {key}: " in collected.stderr, collected.stderr
    now = objects(seaweedfs, "foreign/")
    assert {key: now.get(key) for key in others} == others


def test_all_names_of_sessions_are_keys_of_their_own(run, seaweedfs):
    texts = expected(run)
    a, b = [Replica(run, seaweedfs, "odd") for _ in range(2)]
    names = ["...", "a..b", "-", "_", ".a", "a.", "head", "A", "a", "s-a", "2e", "x" * 128]
    for turns, name in enumerate(names):
        assert a.open(name).status == 201, name
        for prompt, text in zip(PROMPTS[:turns % 3], texts):
            assert a.turn(name, prompt).text == text
    for turns, name in enumerate(names):
        assert b.get(name).body["epoch"] == turns % 3, name
        assert b.turn(name, PROMPTS[turns % 3]).text == texts[turns % 3], name
    assert len(objects(seaweedfs, "odd/sessions/")) == len(names)
    for name in (".", "..", "a b", "a/b", "\u00e9", "x" * 129, "a\0", "../../keys/t-default"):
        refused = a.open(name)
        assert refused.status == 400 and "name must" in refused.message, (name, refused.message)
    assert len(objects(seaweedfs, "odd/sessions/")) == len(names)
