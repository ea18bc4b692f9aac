"""The HTTP frontend with third-party programs: curl, nginx as a proxy with its default
settings, and h2load over HTTP/1.1. ctest runs this with RECURVE_BIN set to the folder of
recurve-server; by hand:

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/http_tools.py
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from ports import free_port  # noqa: E402

MODEL = ROOT / "weights_tools/demo/xlstm-books"
BIN = pathlib.Path(os.environ["RECURVE_BIN"])
BODY = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


def start(log, *flags, slots=8):
    with open(log, "w") as out:
        server = subprocess.Popen(
            [BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0", "--slots", str(slots),
             "--threads", "1", "--ttft-ms", "0", *flags], stderr=out)
    for _ in range(3000):
        ports = dict(re.findall(r"event=(serving_\w+).* port=(\d+)", log.read_text()))
        if "serving_http" in ports or server.poll() is not None:
            break
        time.sleep(0.02)
    assert "serving_http" in ports, log.read_text()
    return server, ports


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    server, ports = start(log, "--http", "127.0.0.1:0")
    yield ports["serving_http"]
    server.terminate()
    assert server.wait() == 0, log.read_text()


def curl(*arguments):
    return subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], check=True, text=True,
                          capture_output=True).stdout


def texts(events):
    """The text of a stream, which must end as the protocol specifies."""
    data = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return "".join(json.loads(one)["choices"][0]["text"] for one in data[:-1])


def test_curl(port):
    url = f"http://127.0.0.1:{port}"
    whole = json.loads(curl(f"{url}/v1/completions", "-d", json.dumps(BODY)))
    text = whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 12
    streamed = json.dumps(BODY | {"stream": True})
    for version in ("--http1.1", "--http1.0"):
        assert texts(curl("-N", version, f"{url}/v1/completions", "-d", streamed)) == text
    # A body of unknown size, and one after "100 Continue".
    assert texts(curl("-N", "-H", "Transfer-Encoding: chunked", f"{url}/v1/completions", "-d",
                      streamed)) == text
    assert texts(curl("-N", "-H", "Expect: 100-continue", f"{url}/v1/completions", "-d",
                      streamed)) == text
    heads = curl("-I", f"{url}/", f"{url}/health")
    assert heads.count("200 OK") == 2
    assert "recurve_generated_tokens_total" in curl(f"{url}/metrics")


def test_refusals_are_sentences_of_the_server(port, tmp_path):
    def refusal(path, body):
        answer = json.loads(curl(f"http://127.0.0.1:{port}{path}", "-H", "Content-Type: application/json", "-d", body))
        return answer["error"]["message"]

    assert refusal("/v1/completions", '{"prompt": }').endswith("must be valid JSON in UTF-8, the error is at byte 12")
    assert "json.exception" not in refusal("/v1/completions", '{"prompt": 1e999}')
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": 1,
                                                                             "multipleOf": 7}}}
    assert "ignoring" not in refusal("/v1/completions", json.dumps(BODY | {"response_format": schema}))
    for name in (".", ".."):
        said = refusal("/v1/sessions", json.dumps({"session": name}))
        assert f'must not be "{name}", which a URL cannot contain' in said
        assert f'must not be "{name}"' in refusal("/v1/completions", json.dumps(BODY | {"session": name}))


def test_a_tool_of_another_type_is_refused_by_its_type(tmp_path):
    template = tmp_path / "chat_template.jinja"
    template.write_text(  # Hermes' form of calls
        "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>\n"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
        "\n</tool_call>{% endfor %}{% endfor %}")
    server, ports = start(tmp_path / "log", "--http", "127.0.0.1:0", "--chat-template", str(template))
    try:
        body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "custom", "custom": {"name": "x"}}]}
        url = f"http://127.0.0.1:{ports['serving_http']}/v1/chat/completions"
        answer = json.loads(curl(url, "-d", json.dumps(body)))
    finally:
        server.terminate()
        assert server.wait() == 0
    assert answer["error"]["message"] == 'tools: the type of each must be "function", got "custom"'


def test_curl_and_a_session(port):
    url = f"http://127.0.0.1:{port}/v1/sessions"
    made = json.loads(curl(url, "--json", '{"session": "curl"}'))
    assert made["id"] == "curl" and made["object"] == "session"
    fork = json.loads(curl("-X", "POST", f"{url}/curl/fork"))
    assert fork["parent"] == "curl"
    assert json.loads(curl("-X", "DELETE", f"{url}/{fork['id']}"))["deleted"]


NGINX = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 128; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream recurve {{ server 127.0.0.1:{port}; }}
  server {{
    listen 127.0.0.1:{listen};
    location / {{ proxy_pass http://recurve; {more} }}
  }}
}}
"""


def wait_for(listen, nginx, log):
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", listen)) == 0:
                return
        assert nginx.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def test_nginx_with_its_defaults(port, tmp_path):
    """HTTP/1.0, a Host with the upstream's name, buffered answers."""
    listen = free_port()
    (tmp_path / "conf").write_text(NGINX.format(folder=tmp_path, port=port, listen=listen, more=""))
    nginx = subprocess.Popen(["/usr/sbin/nginx", "-c", tmp_path / "conf", "-p", tmp_path],
                             stderr=subprocess.DEVNULL)
    try:
        wait_for(listen, nginx, tmp_path / "error.log")
        url = f"http://127.0.0.1:{listen}/v1/completions"
        direct = json.loads(curl(f"http://127.0.0.1:{port}/v1/completions", "-d", json.dumps(BODY)))
        text = direct["choices"][0]["text"]
        assert json.loads(curl(url, "-d", json.dumps(BODY)))["choices"][0]["text"] == text
        assert texts(curl("-N", url, "-d", json.dumps(BODY | {"stream": True}))) == text
        # Events arrive one by one: the first ones of an endless stream arrive at once.
        endless = subprocess.Popen(
            ["curl", "-sSN", url, "-d", json.dumps(BODY | {"stream": True, "max_tokens": 200000})],
            stdout=subprocess.PIPE, text=True)
        assert endless.stdout.readline().startswith("data: {")
        endless.terminate()
        endless.wait()
        endless.stdout.close()
        for _ in range(1000):  # nginx disconnects with its client
            load = json.loads(curl(f"http://127.0.0.1:{port}/v1/load"))
            if load["requests_running"] == 0:
                break
            time.sleep(0.02)
        assert load["requests_running"] == 0
    finally:
        nginx.terminate()
        nginx.wait()


def test_a_silent_stream_is_not_cut(tmp_path):
    """nginx times out after a silent second; another stream uses the only slot for longer."""
    server, ports = start(tmp_path / "log", "--http", "127.0.0.1:0", "--http-comment-ms", "200", slots=1)
    listen = free_port()
    (tmp_path / "conf").write_text(NGINX.format(folder=tmp_path, port=ports["serving_http"], listen=listen,
                                                more="proxy_read_timeout 1s;"))
    nginx = subprocess.Popen(["/usr/sbin/nginx", "-c", tmp_path / "conf", "-p", tmp_path],
                             stderr=subprocess.DEVNULL)

    def stream(port, **body):
        return subprocess.Popen(["curl", "-sSN", f"http://127.0.0.1:{port}/v1/completions", "-d",
                                 json.dumps(BODY | {"stream": True} | body)], stdout=subprocess.PIPE, text=True)

    try:
        wait_for(listen, nginx, tmp_path / "error.log")
        endless = stream(ports["serving_http"], max_tokens=1_000_000, ignore_eos=True)
        assert endless.stdout.readline().startswith("data: {")
        waiting = stream(listen)
        for _ in range(12):  # comments, each of two lines: more than two seconds
            assert waiting.stdout.readline().startswith(":")
            assert waiting.stdout.readline() == "\n"
        endless.terminate()
        endless.wait()
        endless.stdout.close()
        assert len(texts(waiting.communicate(timeout=60)[0])) > 0
    finally:
        nginx.terminate()
        nginx.wait()
        server.terminate()
        server.wait()


def fingerprint(folder, name, *flags):
    """Of two answers, in one object and as a stream: it is the same."""
    server, ports = start(folder / name, "--http", "127.0.0.1:0", *flags)
    try:
        url = f"http://127.0.0.1:{ports['serving_http']}/v1/completions"
        whole = json.loads(curl(url, "-d", json.dumps(BODY)))
        first = curl(url, "-d", json.dumps(BODY | {"stream": True})).splitlines()[0]
        assert json.loads(first.removeprefix("data: "))["system_fingerprint"] == whole["system_fingerprint"]
        return whole["system_fingerprint"]
    finally:
        server.terminate()
        assert server.wait() == 0


def test_the_system_fingerprint_changes_with_what_decides_over_bits(tmp_path):
    first = fingerprint(tmp_path, "first")
    assert re.fullmatch("fp_[0-9a-f]{16}", first)
    same = fingerprint(tmp_path, "same", "--name", "other", "--max-queue", "7")
    assert same == first
    others = [("--weights", "bf16"), ("--state", "bf16"), ("--activations", "int8"), ("--device", "reference")]
    found = [fingerprint(tmp_path, f"other{number}", *flags) for number, flags in enumerate(others)]
    assert len({first, *found}) == 1 + len(others), found


@pytest.mark.parametrize("stream", [False, True])
def test_load_over_http_1_1(port, tmp_path, stream):
    body = tmp_path / "body.json"
    body.write_text(json.dumps(BODY | {"stream": stream}))
    out = subprocess.run(
        ["h2load", "--h1", "-n", "200", "-c", "16", "-d", body, "-H",
         "Content-Type: application/json", f"http://127.0.0.1:{port}/v1/completions"],
        check=True, text=True, capture_output=True, timeout=120).stdout
    assert "200 succeeded, 0 failed, 0 errored" in out, out
    print(re.search(r"finished in.*", out)[0])


def test_the_metrics_have_a_separate_port(tmp_path):
    server, ports = start(tmp_path / "log", "--http", "127.0.0.1:0", "--http-page", "off",
                          "--metrics", "127.0.0.1:0")
    try:
        for _ in range(500):
            ports = dict(re.findall(r"event=(serving_\w+).* port=(\d+)",
                                    (tmp_path / "log").read_text()))
            if "serving_metrics" in ports:
                break
            time.sleep(0.02)
        url = f"http://127.0.0.1:{ports['serving_metrics']}"
        assert "recurve_requests_total 0" in curl(f"{url}/metrics")
        assert json.loads(curl(f"{url}/health")) == {"status": "ok"}
        for path in ("/v1/models", "/"):
            assert "404" in curl("-i", url + path).splitlines()[0]
        page = curl("-i", f"http://127.0.0.1:{ports['serving_http']}/")
        assert "404" in page.splitlines()[0]
    finally:
        server.terminate()
        assert server.wait() == 0
