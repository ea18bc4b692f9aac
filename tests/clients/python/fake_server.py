"""A server that says what it is told to, and counts what it is asked."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from recurve.v1 import inference_pb2 as inference
from recurve.v1 import sessions_pb2 as sessions


class Refusal(Exception):
    """A status, with trailers."""

    def __init__(self, code, message="no", **trailers):
        self.code = code
        self.message = message
        self.trailers = tuple((key.replace("_", "-"), value) for key, value in trailers.items())


def busy(milliseconds):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    return Refusal(code, "the queue is full", grpc_retry_pushback_ms=str(milliseconds))


def draining():
    return Refusal(grpc.StatusCode.UNAVAILABLE, "it goes down", recurve_state="draining")


def lost():
    """What gRPC says of a connection that was lost."""
    return Refusal(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def answer(*texts):
    """The messages of a whole answer."""
    yield inference.GenerateResponse(prompt={"request_id": "r", "prompt_tokens": 1})
    for text in texts:
        yield inference.GenerateResponse(chunk={"text": text, "ids": [7]})
    reason = inference.FINISH_REASON_LENGTH
    yield inference.GenerateResponse(final={"choices": [{"reason": reason}], "usage": {}})


class FakeServer(grpc.GenericRpcHandler):
    """Answers the call of a name with the next of its script: a Refusal, or messages; a Refusal may
    come after some of those. Session calls that have no script succeed. `asked` has every call's
    name, metadata and request."""

    def __init__(self, threads=4, **scripts):
        self._threads = threads
        self.scripts = {name: list(script) for name, script in scripts.items()}
        self.asked = []
        self._lock = threading.Lock()

    def calls(self, name):
        return sum(call[0] == name for call in self.asked)

    def service(self, details):
        service, name = details.method.rsplit("/", 1)
        module = sessions if service.endswith("Sessions") else inference
        request_type = {"Close": "CloseSessionRequest", "Open": "OpenSessionRequest"}
        request_type |= {"Get": "GetSessionRequest"}
        request_type |= {"Fork": "ForkSessionRequest", "Mark": "MarkSessionRequest"}
        request_type |= {"Rewind": "RewindSessionRequest", "List": "ListSessionsRequest"}
        request = getattr(module, request_type.get(name, name + "Request"), None)
        if request is None:
            return None
        handler = {
            "Generate": grpc.unary_stream_rpc_method_handler,
            "Score": grpc.stream_stream_rpc_method_handler,
        }.get(name, grpc.unary_unary_rpc_method_handler)
        streams = name in ("Generate", "Score")

        def serve(asked, context):
            with self._lock:
                self.asked.append((name, dict(context.invocation_metadata()), asked))
                script = self.scripts.get(name)
                said = script.pop(0) if script else [sessions.Session(name="s")]
            messages = self._messages(said, context)
            return messages if streams else next(messages)

        return handler(
            serve,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    @staticmethod
    def _messages(said, context):
        for message in [said] if isinstance(said, Refusal) else said:
            if isinstance(message, Refusal):
                context.set_trailing_metadata(message.trailers)
                context.abort(message.code, message.message)
            yield message

    def __enter__(self):
        self._server = grpc.server(ThreadPoolExecutor(self._threads), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *reason):
        self._server.stop(None).wait()
