"""One interface to all frontends of a server: each takes the same request and gives the same answer.

A request is a dict with the parameters of the Python client, and `prompt`, a text or a list of ids.
LACKS names the parameters that a frontend does not have; it does not get such a request.
"""

import base64
import dataclasses
import http.client
import json
import queue

import numpy as np
import recurve
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = "books"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The parts of an answer that every frontend returns, per choice in order."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...]  # "length" or "stop"
    prompt_tokens: int
    generated_tokens: int
    logprobs: tuple[tuple[float, ...], ...] = ()  # of the tokens, if requested


@dataclasses.dataclass(frozen=True)
class Refusal:
    code: str  # of gRPC
    message: str


class OwnFrontend:
    """recurve.v1, by the Python client."""

    LACKS = ()
    name = "own"

    def __init__(self, address):
        self.client = recurve.Client(address, retry=recurve.Retry(attempts=1))
        self.ids = None  # of the last answer, per choice

    def close(self):
        self.client.close()

    def ask(self, prompt, session=None, **options):
        try:
            generate = self.client.generate
            if session is not None:
                generate = self.client.session(session, create=False).generate
            got = generate(prompt, **options)
        except recurve.RecurveError as error:
            return Refusal(error.code, error.message)
        self.ids = [choice.ids for choice in got.choices]
        return Answer(
            texts=tuple(choice.text for choice in got.choices),
            reasons=tuple("length" if c.finish_reason == "length" else "stop" for c in got.choices),
            prompt_tokens=got.prompt.session_position + got.usage.prompt_tokens,
            generated_tokens=got.usage.generated_tokens,
            logprobs=tuple(tuple(t.logprob for t in c.logprobs) for c in got.choices)
            if "logprobs" in options else (),
        )


    def embed(self, texts, **options):
        """Vectors and tokens."""
        try:
            got = self.client.embed(texts, **options)
        except recurve.RecurveError as error:
            return Refusal(error.code, error.message)
        return got.vectors, got.usage.prompt_tokens


class HttpFrontend:
    """/v1/completions, by a socket."""

    LACKS = ("prompt_logprobs", "parse_special")
    NAMES = {"include_stop": "include_stop_str_in_output"}
    CODES = {400: ("INVALID_ARGUMENT",), 404: ("NOT_FOUND",), 429: ("RESOURCE_EXHAUSTED",),
             409: ("ALREADY_EXISTS", "FAILED_PRECONDITION"), 503: ("UNAVAILABLE",)}

    def __init__(self, address, stream):
        self.name = "HTTP, streamed" if stream else "HTTP"
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._stream = stream

    def close(self):
        self._connection.close()

    def embed(self, texts, **options):
        """The stream asks for base64 instead."""
        body = {"model": MODEL, "input": texts, "encoding_format": "base64" if self._stream else "float", **options}
        status, text = self.post(body, "/v1/embeddings")
        if status != 200:
            return Refusal("|".join(self.CODES[status]), json.loads(text)["error"]["message"])
        answer = json.loads(text)
        found = [one["embedding"] for one in answer["data"]]
        if self._stream:
            found = [np.frombuffer(base64.b64decode(one), "<f4") for one in found]
        vectors = tuple(tuple(np.asarray(one, np.float32).tolist()) for one in found)
        return vectors, answer["usage"]["prompt_tokens"]

    def post(self, body, path="/v1/completions"):
        """The status and the body."""
        self._connection.request("POST", path, json.dumps(body),
                                 {"content-type": "application/json"})
        response = self._connection.getresponse()
        return response.status, response.read().decode()

    def ask(self, prompt, **options):
        body = {"model": MODEL, "prompt": prompt,
                **{self.NAMES.get(name, name): value for name, value in options.items()}}
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        status, text = self.post(body)
        if status != 200:
            return Refusal("|".join(self.CODES[status]), json.loads(text)["error"]["message"])
        if not self._stream:
            return self._answer([json.loads(text)])
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        return self._answer([json.loads(event) for event in events[:-1]])

    def _answer(self, objects):
        choices = {}
        for choice in (c for o in objects for c in o["choices"]):
            texts, reasons, logprobs = choices.setdefault(choice["index"], ([], [], []))
            texts.append(choice["text"])
            if choice["finish_reason"]:
                reasons.append(choice["finish_reason"])
            if choice["logprobs"]:
                logprobs.extend(choice["logprobs"]["token_logprobs"])
        usage = objects[-1]["usage"]
        ordered = [choices[index] for index in sorted(choices)]
        return Answer(
            texts=tuple("".join(texts) for texts, _, _ in ordered),
            reasons=tuple(reason for _, (reason,), _ in ordered),
            prompt_tokens=usage["prompt_tokens"],
            generated_tokens=usage["completion_tokens"],
            logprobs=tuple(tuple(of) for _, _, of in ordered) if any(of for _, _, of in ordered) else (),
        )


class KserveFrontend:
    """The Open Inference Protocol, by Triton's client."""

    # Its priorities have the opposite order and other bounds.
    LACKS = ("prompt_logprobs", "parse_special", "priority")
    NAMES = {"include_stop": "include_stop_str_in_output", "json_schema": "guided_json"}
    WANTED = ("finish_reason", "logprobs", "num_input_tokens", "num_output_tokens", "output_ids")

    def __init__(self, address, stream, positions):
        self.name = "KServe, streamed" if stream else "KServe"
        self._positions = positions  # by the name of an initial state, whose tokens are not counted as input
        self._client = triton.InferenceServerClient(address)
        self._results = queue.Queue()
        self._stream = stream
        self.ids = None
        if stream:
            self._client.start_stream(lambda result, error: self._results.put((result, error)))

    def close(self):
        self._client.close()

    def ask(self, prompt, session=None, request_id="", **options):
        sampling = {self.NAMES.get(name, name): value for name, value in options.items()}
        return self.infer(prompt, sampling, session)

    def infer(self, prompt, sampling, session=None):
        wanted = [w for w in self.WANTED if w != "output_ids" or sampling.get("n", 1) == 1]
        flags = {f"return_{name}": True for name in wanted}
        flags |= {"exclude_input_in_output": True, "stream": self._stream}
        inputs = [_bytes("sampling_parameters", json.dumps(sampling))]
        inputs += [_tensor(name, [value], bool, "BOOL") for name, value in flags.items()]
        if isinstance(prompt, str):
            inputs.append(_bytes("text_input", prompt))
        else:
            inputs.append(_tensor("input_ids", prompt, np.int32, "INT32"))
        # An empty sequence id means none, in the client and in the server.
        asked = {"inputs": inputs, "sequence_id": session or 0}
        try:
            results = self._streamed(asked) if self._stream else [self._client.infer(MODEL, **asked)]
        except InferenceServerException as error:
            status = error.status()
            # In a stream there is only a message.
            return Refusal(status.removeprefix("StatusCode.") if status else "", error.message())
        return self._answer(results, position=self._positions.get(sampling.get("initial_state"), 0))

    def _streamed(self, asked):
        self._client.async_stream_infer(MODEL, **asked)
        results = []
        while True:
            result, error = self._results.get(timeout=60)
            if error is not None:
                raise error
            results.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return results

    def _answer(self, results, position):
        choices = range(len(results[0].as_numpy("text_output")))
        logprobs = [[p for r in results for p in _chosen(r.as_numpy("logprobs")[c])] for c in choices]
        if results[0].as_numpy("output_ids") is not None:
            self.ids = [tuple(int(i) for r in results for i in r.as_numpy("output_ids"))]
        return Answer(
            texts=tuple("".join(r.as_numpy("text_output")[c].decode() for r in results) for c in choices),
            reasons=tuple(results[-1].as_numpy("finish_reason")[c].decode() for c in choices),
            prompt_tokens=position + int(results[-1].as_numpy("num_input_tokens")[0]),
            generated_tokens=sum(int(n) for r in results for n in r.as_numpy("num_output_tokens")),
            logprobs=tuple(map(tuple, logprobs)) if any(logprobs) else (),
        )


def _tensor(name, values, dtype, datatype):
    tensor = triton.InferInput(name, [len(values)], datatype)
    tensor.set_data_from_numpy(np.array(values, dtype=dtype))
    return tensor


def _bytes(name, text):
    return _tensor(name, [text.encode()], np.object_, "BYTES")


def _chosen(logprobs):
    """The log-probability of each sampled token, which is the first entry."""
    return [next(iter(token.values()))["logprob"] for token in json.loads(logprobs) or ()]


def every_frontend(address, http_address):
    own = OwnFrontend(address)
    positions = {state.name: state.position for state in own.client.model_info().initial_states}
    return [
        own,
        HttpFrontend(http_address, stream=False),
        HttpFrontend(http_address, stream=True),
        KserveFrontend(address, False, positions),
        KserveFrontend(address, True, positions),
    ]
