"""Stores of others on loopback, for tests, and servers that use them."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import boto3
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))
from ports import free_ports  # noqa: E402

PROGRAM = pathlib.Path(os.environ["RECURVE_BIN"]) / "object_stores"
TOOLS = pathlib.Path(sys.executable).parent
MODEL = pathlib.Path(__file__).parents[3] / "weights_tools/demo/xlstm-books"
KEY, SECRET = "AKIAEXAMPLE", "a/secret+with=signs"
READER = "AKIAREADER"  # may not write


def started(command, url, log, **environment):
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return process
        except urllib.error.HTTPError:
            return process
        except OSError:
            assert process.poll() is None and time.monotonic() < end, f"{command[0]} does not serve {url}"
            time.sleep(0.05)


def runner(folder):
    """A generator of run(COMMAND, URL, **ENVIRONMENT), which starts a store that ends with the generator."""
    running = []
    with open(folder / "log", "wb") as log:
        def run(command, url, **environment):
            running.append(started([str(part) for part in command], url, log, **environment))
            return running[-1]
        yield run
        for process in running:
            process.kill()
            process.wait()


@pytest.fixture(name="run")
def _run(tmp_path):
    yield from runner(tmp_path)


KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def seaweedfs_at(run, folder, volumes=8):
    """The URL of one with the bucket "bucket", of 64 MB for each volume."""
    config = folder / "s3.json"
    identities = [{"name": key, "actions": actions, "credentials": [{"accessKey": key, "secretKey": SECRET}]}
                  for key, actions in ((KEY, ["Admin", "Read", "Write", "List"]), (READER, ["Read", "List"]))]
    config.write_text(json.dumps({"identities": identities}))
    master, volume, filer, s3 = free_ports(4, neighbour=10000)  # where it takes those for gRPC
    url = f"http://127.0.0.1:{s3}"
    (folder / "data").mkdir()
    run([TOOLS / "weed", "server", f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
         f"-master.port={master}", f"-volume.port={volume}", f"-volume.max={volumes}", "-master.volumeSizeLimitMB=64", "-filer",
         f"-filer.port={filer}", "-s3", f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}"], url)
    client = boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                          region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    return url


@pytest.fixture(name="seaweedfs", scope="module")
def _seaweedfs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seaweedfs")
    runs = runner(folder)
    yield seaweedfs_at(next(runs), folder)
    next(runs, None)


def server(*flags, **environment):
    """The exit code and standard error of recurve-server, which ends by itself or after it has drained."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.Popen(
        [PROGRAM.parent / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", "--threads", "1", *flags],
        stderr=subprocess.PIPE, text=True, env={**plain, **environment})
    said = ""
    for line in done.stderr:
        said += line
        if "event=serving " in line:
            done.send_signal(signal.SIGTERM)
    return done.wait(), said
