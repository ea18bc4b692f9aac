"""Traces: what a server sends, read by OpenTelemetry's own classes for OTLP in JSON, of calls whose
clients are traced by OpenTelemetry's own SDK."""

import contextlib
import http.server
import json
import os
import pathlib
import queue
import re
import subprocess
import threading

import pytest
from conftest import ROOT
from containers import run
from opentelemetry import propagate
from opentelemetry.proto_json.collector.trace.v1.trace_service import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider, sampling
from ports import free_port

BIN = pathlib.Path(os.environ["RECURVE_BIN"])
MODEL = ROOT / "weights_tools/demo/xlstm-books"
PARTS = ["queue", "prefill", "decode", "deliver"]


class Collector:
    """Takes spans, once it has given all its `refusals`, each a status."""

    def __init__(self, *refusals):
        taken, statuses = queue.Queue(), list(refusals)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/json"
                status = statuses.pop(0) if statuses else 200
                if status == 200:
                    taken.put(ExportTraceServiceRequest.from_dict(json.loads(body)))
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.taken = taken
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self, count):
        """That many, with who sent them."""
        found = []
        while len(found) < count:
            for of in self.taken.get(timeout=60).resource_spans:
                who = {a.key: a.value.string_value for a in of.resource.attributes}
                found += [(who, span) for scope in of.scope_spans for span in scope.spans]
        assert len(found) == count
        return found

    def close(self):
        self.server.shutdown()


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.close()


class Traced:
    """A server that sends its spans somewhere."""

    def __init__(self, url, *flags):
        self.grpc, self.http = free_port(), free_port()
        self.log = []
        self.process = subprocess.Popen(
            [BIN / "recurve-server", "--model", MODEL, "--threads", "1", "--name", "books",
             "--listen", f"127.0.0.1:{self.grpc}", "--http", f"127.0.0.1:{self.http}",
             "--log-format", "json", "--traces", url, *flags], stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()
        run(BIN / "recurve", "--server", f"127.0.0.1:{self.grpc}", "health", "--wait", "60")

    def complete(self, headers=(), **fields):
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8} | fields)
        return run("curl", "-sS", *(part for key, value in headers for part in ("-H", f"{key}: {value}")),
                   f"http://127.0.0.1:{self.http}/v1/completions", "-d", body)

    def call(self, rpc, message, protos, headers):
        """By gRPC, without any library of it."""
        service, method = rpc.split("/")
        package = service.rsplit(".", 1)[0]
        encoded = subprocess.run(
            ["protoc", f"--encode={package}.{method}Request", f"-I{ROOT / 'proto'}", *protos],
            input=message.encode(), capture_output=True, check=True).stdout
        framed = b"\0" + len(encoded).to_bytes(4, "big") + encoded
        subprocess.run(
            ["curl", "-sS", "--fail", "--http2-prior-knowledge", "--data-binary", "@-", "-o", os.devnull,
             "-H", "content-type: application/grpc", "-H", "te: trailers",
             *(part for key, value in headers for part in ("-H", f"{key}: {value}")),
             f"http://127.0.0.1:{self.grpc}/{rpc}"], input=framed, check=True)

    def metric(self, name):
        text = run("curl", "-sS", f"http://127.0.0.1:{self.http}/metrics")
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0
        self.reader.join()

    def events(self, name):
        return [one for one in map(json.loads, self.log) if one["event"] == name]


@contextlib.contextmanager
def serving(url, *flags):
    one = Traced(url, *flags)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.stop()


@contextlib.contextmanager
def caller(sampled=True):
    """A span of a client's own, and the headers that its SDK has a request carry."""
    decide = sampling.ALWAYS_ON if sampled else sampling.ALWAYS_OFF
    with TracerProvider(sampler=decide).get_tracer("test").start_as_current_span("asks") as span:
        headers = {}
        propagate.inject(headers)
        yield span.get_span_context(), list(headers.items())


CALLS = {
    "POST /v1/completions": lambda server, headers: server.complete(headers),
    "recurve.v1.Inference/Generate": lambda server, headers: server.call(
        "recurve.v1.Inference/Generate", 'text: "Once" stop { max_tokens: 8 }',
        ["recurve/v1/inference.proto"], headers),
    "inference.GRPCInferenceService/ModelInfer": lambda server, headers: server.call(
        "inference.GRPCInferenceService/ModelInfer",
        'model_name: "books" inputs { name: "text_input" datatype: "BYTES" shape: 1 '
        'contents { bytes_contents: "Once" } }', ["kserve/v2/inference.proto"], headers),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_a_part_of_its_clients_trace(collector, name):
    with serving(collector.url) as server:
        with caller() as (context, headers):
            CALLS[name](server, headers)
        spans = collector.spans(5)
        server.stop()
        call = spans[0][1]
        assert call.name == name and call.kind == call.SpanKind.SPAN_KIND_SERVER
        assert int.from_bytes(call.parent_span_id, "big") == context.span_id
        assert [span.name for _, span in spans[1:]] == PARTS
        for who, span in spans:
            assert who["service.name"] == "recurve" and who["service.version"]
            assert int.from_bytes(span.trace_id, "big") == context.trace_id
            assert span.start_time_unix_nano <= span.end_time_unix_nano
        # The parts follow each other and are all of it.
        assert all(span.parent_span_id == call.span_id for _, span in spans[1:])
        edges = [(s.start_time_unix_nano, s.end_time_unix_nano) for _, s in spans]
        assert edges[1][0] == edges[0][0] and edges[4][1] == edges[0][1]
        assert [end for _, end in edges[1:4]] == [begin for begin, _ in edges[2:]]
        facts = {a.key: a.value for a in call.attributes}
        assert 0 < facts["gen_ai.usage.output_tokens"].int_value
        # The trace id leads to the line of the log.
        (line,) = server.events("request_finished")
        assert line["trace_id"] == f"{context.trace_id:032x}"
        assert line["request_id"] == facts["recurve.request_id"].string_value


def test_its_client_decides_what_is_traced(collector):
    with serving(collector.url, "--trace-ratio", "0") as server:
        with caller(sampled=False) as (context, headers):
            server.complete(headers)  # named in the log, but not sent
        server.complete()
        server.complete([("traceparent", "00-" + "0" * 32 + "-00f067aa0ba902b7-01")])  # is none
        with caller() as (wanted, headers):
            server.complete(headers + [("tracestate", "rojo=1"), ("tracestate", "congo=2")])
        spans = collector.spans(5)
        assert {int.from_bytes(span.trace_id, "big") for _, span in spans} == {wanted.trace_id}
        assert {span.trace_state for _, span in spans} == {"rojo=1,congo=2"}
        server.stop()
        ids = [line["trace_id"] for line in server.events("request_finished")]
        assert ids == [f"{context.trace_id:032x}", "", "", f"{wanted.trace_id:032x}"]


def test_without_a_client_that_traces_one_begins_here(collector):
    with serving(collector.url) as server:
        server.complete()
        server.complete(temperature=-1)
        spans = [span for _, span in collector.spans(6)]
        refused = spans[5]
        assert refused.status.code == refused.status.StatusCode.STATUS_CODE_ERROR
        assert "temperature" in refused.status.message
        assert not spans[0].parent_span_id and not spans[0].status.code
        assert len({span.trace_id for span in spans}) == 2


def test_what_a_collector_does_not_take_is_sent_again():
    collector = Collector(503, 429)
    with serving(collector.url) as server:
        server.complete()
        assert collector.spans(5)
        server.stop()
        assert len(server.events("traces_not_sent")) == 1
        assert len(server.events("traces_sent_again")) == 1
    collector.close()


def test_one_that_refuses_for_good_is_not_asked_again():
    collector = Collector(400)
    with serving(collector.url) as server:
        server.complete()
        while server.metric('recurve_trace_spans_total{result="dropped"}') != 5:
            pass
        server.complete()
        assert len(collector.spans(5)) == 5
        assert server.metric('recurve_trace_spans_total{result="dropped"}') == 5
    collector.close()


def test_without_a_collector_it_serves_and_ends():
    with serving(f"http://127.0.0.1:{free_port()}") as server:
        for _ in range(3):
            assert json.loads(server.complete())["choices"]
        server.stop()
        assert server.events("traces_not_sent")


@pytest.mark.parametrize("url", ["https://collector:4318", "collector:4318", "http://", "http://[::1",
                                 "http://collector:port", "http://collector/a b"])
def test_what_is_no_url_is_refused(url):
    done = subprocess.run([BIN / "recurve-server", "--model", MODEL, "--listen", "127.0.0.1:0",
                           "--traces", url], text=True, capture_output=True)
    assert done.returncode == 1 and "http://HOST" in done.stderr
