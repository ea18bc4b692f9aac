"""Starts stores of others on loopback and runs `object_stores` with each."""

import json
import os
import random
import signal
import socket
import ssl
import subprocess
import threading
import time

import boto3
from stores import _run, _seaweedfs, free_ports, KEY, KEYS, PROGRAM, SECRET, server, TOOLS  # noqa: F401


def run_tests(filters, url, **environment):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run([PROGRAM, f"--gtest_filter={filters}"], capture_output=True, text=True,
                          env={**plain, "S3_URL": "s3://bucket/a/prefix", "S3_ENDPOINT": url, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 tests" not in done.stdout, done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_seaweedfs(seaweedfs):
    run_tests("Stores.*", seaweedfs, **KEYS)


class Server:
    """A process that commits as long as it owns the session."""

    def __init__(self, url, owner, committed):
        self.committed = committed
        self.process = subprocess.Popen(
            [PROGRAM, "--gtest_filter=Server.*"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **KEYS, "S3_URL": "s3://bucket/servers", "S3_ENDPOINT": url, "OWNER": owner,
                 "COMMITTED": str(committed)})

    def begin_commit(self):
        self.process.stdin.write("x")
        self.process.stdin.flush()

    def commit(self):
        self.begin_commit()
        said = self.read()
        assert said.startswith("commit "), said

    def read(self):
        """Until it has committed, or ended."""
        others = ""
        for line in self.process.stdout:
            if line.startswith("commit "):
                assert int(line.split()[1]) in (self.committed + 1, self.committed + 2)
                self.committed = int(line.split()[1])
                return line
            others += line
        return others

    def kill(self):
        self.process.kill()
        self.read()
        self.process.wait()


def test_commits_survive_kill_9(seaweedfs):
    chance = random.Random(5)
    committed = 0
    for number in range(20):
        server = Server(seaweedfs, f"server {number}", committed)
        server.commit()
        server.begin_commit()
        time.sleep(chance.random() * 0.02)  # to be killed at any step of the commit
        server.kill()
        committed = server.committed


def test_an_owner_that_was_stopped_cannot_commit_any_more(seaweedfs):
    boto3.client("s3", endpoint_url=seaweedfs, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                 region_name="us-east-1").delete_object(Bucket="bucket", Key="servers/sessions/t-t/s-killed/head")
    paused = Server(seaweedfs, "paused", 0)
    paused.commit()
    paused.process.send_signal(signal.SIGSTOP)
    paused.begin_commit()
    other = Server(seaweedfs, "other", paused.committed)
    try:
        other.commit()
        paused.process.send_signal(signal.SIGCONT)
        assert 'session "killed" belongs to other since epoch 3; this server had epoch 2' in paused.read()
        assert paused.process.wait() == 0
        other.commit()
    finally:
        paused.kill()
        other.kill()


def moto(run, requests):
    """A moto that checks signatures and rights after so many requests."""
    port, = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    run([TOOLS / "moto_server", "-H", "127.0.0.1", "-p", port], url + "/moto-api/data.json",
        INITIAL_NO_AUTH_ACTION_COUNT=str(requests))
    return url, lambda service: boto3.client(service, endpoint_url=url, aws_access_key_id="any", aws_secret_access_key="any",
                                             region_name="us-east-1")


ALL_OF_S3 = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]})


def test_moto_and_its_signatures(run):
    url, client = moto(run, 4)
    client("s3").create_bucket(Bucket="bucket")
    iam = client("iam")
    iam.create_user(UserName="recurve")
    iam.put_user_policy(UserName="recurve", PolicyName="all", PolicyDocument=ALL_OF_S3)
    key = iam.create_access_key(UserName="recurve")["AccessKey"]
    run_tests("Stores.*", url, AWS_ACCESS_KEY_ID=key["AccessKeyId"], AWS_SECRET_ACCESS_KEY=key["SecretAccessKey"])


def test_a_web_identity(run, tmp_path):
    url, client = moto(run, 4)
    client("s3").create_bucket(Bucket="bucket")
    iam = client("iam")
    role = iam.create_role(RoleName="recurve", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    iam.put_role_policy(RoleName="recurve", PolicyName="all", PolicyDocument=ALL_OF_S3)
    token = tmp_path / "token"
    token.write_text("a.web.identity")
    run_tests("WebIdentity.*", url, AWS_WEB_IDENTITY_TOKEN_FILE=str(token), AWS_ROLE_ARN=role, STS_ENDPOINT=url)


def test_a_profile(seaweedfs, tmp_path):
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = x\n[work]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    run_tests("Stores.AreChecked", seaweedfs, AWS_SHARED_CREDENTIALS_FILE=str(file), AWS_PROFILE="work")


def test_a_store_that_ignores_conditions_is_refused(run, tmp_path):
    port, = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "data" / "bucket").mkdir(parents=True)
    run([TOOLS / "rclone", "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", tmp_path / "data"], url)
    run_tests("LyingStore.*", url, **KEYS)


def test_certificates_are_verified(seaweedfs, tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key", "-out",
                    tmp_path / "cert"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    proxied = seaweedfs.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=forward, args=(listener, context, int(proxied)), daemon=True).start()
        port = listener.getsockname()[1]
        run_tests("Certificate.*", f"https://localhost:{port}", **KEYS)
        run_tests("Certificate.*", f"https://127.0.0.1:{port}", AWS_CA_BUNDLE=str(tmp_path / "cert"), **KEYS)
        run_tests("Stores.AreChecked", f"https://localhost:{port}", AWS_CA_BUNDLE=str(tmp_path / "cert"), **KEYS)
        listener.shutdown(socket.SHUT_RDWR)


def forward(listener, context, port):
    """Connections within TLS to a port without it."""
    def copy(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        try:
            secure = context.wrap_socket(connection, server_side=True)
        except OSError:
            continue
        plain = socket.create_connection(("127.0.0.1", port))
        for pair in ((secure, plain), (plain, secure)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


def test_a_server_uses_its_store_within_the_sandbox(seaweedfs, tmp_path):
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    code, said = server("--state-store", "s3://bucket/prefix", "--state-endpoint", seaweedfs,
                        AWS_SHARED_CREDENTIALS_FILE=str(file))
    assert code == 0 and f"event=state_store store=s3://bucket/prefix endpoint={seaweedfs}" in said, said
    assert SECRET not in said


def test_a_server_says_why_a_store_cannot_be_used(seaweedfs):
    store = ("--state-store", "s3://bucket/prefix")
    port, = free_ports(1)
    nothing = f"http://127.0.0.1:{port}"
    wrong = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": "other"}
    for flags, environment, why in [
        ((*store, "--state-endpoint", seaweedfs), wrong, "SignatureDoesNotMatch"),
        ((*store, "--state-endpoint", nothing), KEYS, "give --state-store-optional"),
        ((*store, "--state-endpoint", "host"), KEYS, '--state-endpoint: "host" is no endpoint'),
        (("--state-store", "bucket"), KEYS, '"bucket" is no s3://BUCKET/PREFIX'),
        ((*store, "--state-endpoint", "http://192.0.2.1:1"), KEYS, "is on another machine and has no TLS"),
        (("--state-endpoint", nothing), KEYS, "--state-endpoint requires --state-store"),
    ]:
        code, said = server(*flags, **environment)
        assert code != 0 and why in said, said
    code, said = server(*store, "--state-endpoint", nothing, "--state-store-optional", **KEYS)
    assert code == 0 and "event=state_store_unusable" in said, said
