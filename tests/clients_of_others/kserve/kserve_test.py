"""What Triton's own client gets of the Open Inference Protocol here."""

import json
import queue
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf import descriptor_pool
from recurve import Client
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

FLAGS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens",
         "output_ids")


def tensor(name, value, datatype="BYTES"):
    made = triton.InferInput(name, [np.size(value)], datatype)
    dtype = {"BYTES": np.object_, "BOOL": bool, "INT32": np.int32}[datatype]
    if isinstance(value, str):
        value = value.encode()
    made.set_data_from_numpy(np.array(value, dtype=dtype).reshape(-1))
    return made


def inputs(text, sampling=None, stream=None, exclude=None, wanted=()):
    made = [tensor("text_input", text)]
    if sampling is not None:
        made.append(tensor("sampling_parameters", json.dumps(sampling)))
    if stream is not None:
        made.append(tensor("stream", stream, "BOOL"))
    if exclude is not None:
        made.append(tensor("exclude_input_in_output", exclude, "BOOL"))
    made.extend(tensor(f"return_{name}", True, "BOOL") for name in wanted)
    return made


def text_of(result, choice=0):
    return result.as_numpy("text_output")[choice].decode()


class Stream:
    """A ModelStreamInfer whose results are awaited."""

    def __init__(self, client):
        self._client = client
        self._results = queue.Queue()
        client.start_stream(lambda result, error: self._results.put((result, error)))

    def send(self, asked, **options):
        self._client.async_stream_infer("books", asked, **options)

    def next(self):
        return self._results.get(timeout=60)

    def answer(self):
        """The results up to a last one."""
        results = []
        while True:
            result, error = self.next()
            assert error is None, error
            results.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return results


@pytest.fixture
def stream(client):
    yield Stream(client)
    client.stop_stream()


GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def test_the_protocol_is_the_one_of_the_client(server):
    """Each message of ours has the numbers and types that the client's own has."""
    channel = grpc.insecure_channel(server.address)
    reflect = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda name: b"\x22" + bytes([len(name)]) + name.encode(),
        response_deserializer=lambda raw: raw,
    )
    raw = next(reflect(iter(["inference.GRPCInferenceService"])))
    file = descriptor_in(raw)
    ours = descriptor_pool.DescriptorPool().AddSerializedFile(file)
    theirs = {**service_pb2.DESCRIPTOR.message_types_by_name,
              **model_config_pb2.DESCRIPTOR.message_types_by_name}
    compared = 0

    def compare(mine, other):
        nonlocal compared
        for field in mine.fields:
            of = other.fields_by_name[field.name]
            assert (field.number, field.type, field.is_repeated) == (of.number, of.type, of.is_repeated), field.full_name
            compared += 1
        for nested in mine.nested_types:
            compare(nested, other.nested_types_by_name[nested.name])

    for name, message in ours.message_types_by_name.items():
        compare(message, theirs[name])
    assert compared > 60
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    for name, method in ours.services_by_name["GRPCInferenceService"].methods_by_name.items():
        other = methods[name]
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name
        assert (method.client_streaming, method.server_streaming) == (
            other.client_streaming, other.server_streaming)
    channel.close()


def descriptor_in(raw):
    """The first file of a reflection's answer: field 4, and in it field 1."""
    def field(message, number):
        at = 0
        while at < len(message):
            tag, at = varint(message, at)
            value, at = varint(message, at)
            if tag & 7 == 2:
                if tag >> 3 == number:
                    return message[at:at + value]
                at += value
        raise AssertionError(f"no field {number}")

    def varint(message, at):
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at

    return field(field(raw, 4), 1)


def test_the_server_says_what_it_is(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("books")
    assert client.is_model_ready("books", "1")
    assert not client.is_model_ready("books", "2")
    assert not client.is_model_ready("other")
    metadata = client.get_server_metadata()
    assert metadata.name == "recurve"
    assert "sequence" in metadata.extensions
    model = client.get_model_metadata("books")
    assert (model.name, list(model.versions)) == ("books", ["1"])
    assert {"text_input", "stream", "sampling_parameters"} <= {i.name for i in model.inputs}
    assert {"text_output", "finish_reason"} <= {o.name for o in model.outputs}
    config = client.get_model_config("books").config
    assert config.max_batch_size == 0
    assert config.model_transaction_policy.decoupled
    for ask in (client.get_model_metadata, client.get_model_config):
        with pytest.raises(InferenceServerException) as error:
            ask("other")
        assert error.value.status() == "StatusCode.NOT_FOUND"
        assert '"books"' in error.value.message()
    with pytest.raises(InferenceServerException) as error:
        client.get_inference_statistics()
    assert error.value.status() == "StatusCode.UNIMPLEMENTED"


def test_an_answer_is_that_of_our_own_protocol(client, server):
    result = client.infer("books", inputs("It was", GREEDY, exclude=True, wanted=FLAGS), request_id="any id")
    with Client(server.address) as ours:
        wanted = ours.generate("It was", max_tokens=12, temperature=0, ignore_eos=True, logprobs=0)
    assert text_of(result) == wanted.text
    assert list(result.as_numpy("output_ids")) == list(wanted.ids)
    assert result.as_numpy("finish_reason")[0] == b"length"
    assert list(result.as_numpy("num_output_tokens")) == [12]
    assert list(result.as_numpy("num_input_tokens")) == [wanted.usage.prompt_tokens]
    summed = sum(token.logprob for token in wanted.choices[0].logprobs)
    assert result.as_numpy("cumulative_logprob")[0] == pytest.approx(summed, rel=1e-6)
    assert result.get_response().id == "any id"
    assert result.get_response().model_name == "books"


def test_the_input_stands_in_front_unless_it_is_excluded(client):
    whole = text_of(client.infer("books", inputs("It was", GREEDY)))
    assert whole == "It was" + text_of(client.infer("books", inputs("It was", GREEDY, exclude=True)))


def test_numbers_may_be_texts_and_parameters_of_the_request(client):
    wanted = text_of(client.infer("books", inputs("It was", GREEDY)))
    texts = {"temperature": "0", "max_tokens": "12", "ignore_eos": "true"}
    assert text_of(client.infer("books", inputs("It was", texts))) == wanted
    assert text_of(client.infer("books", inputs("It was"), parameters=GREEDY)) == wanted


def test_answers_are_kept_to_what_they_must_be(client):
    def ask(**sampling):
        return text_of(client.infer("books", inputs("Call me", {"max_tokens": 200, "seed": 1} | sampling,
                                                    exclude=True)))

    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["age"]}
    for said in (schema, json.dumps(schema)):
        assert 0 <= json.loads(ask(guided_json=said))["age"] <= 99
    assert ask(guided_choice=["yes", "no"]) in ("yes", "no")
    assert ask(guided_regex="[ab]{3}").strip("ab") == ""
    assert ask(guided_grammar='root ::= "x" "y"') == "xy"
    with pytest.raises(InferenceServerException, match="any_whitespace must be left out without a constraint"):
        ask(any_whitespace=True)
    for wrong in ({"guided_regex": "("}, {"guided_regex": "a", "guided_json": "{}"}, {"guided_regex": 3}):
        with pytest.raises(InferenceServerException, match="guided|regular expression"):
            ask(**wrong)


def test_ids_may_be_sent_and_asked_for(client):
    first = client.infer("books", [tensor("input_ids", [5, 6, 7], "INT32"),
                                   tensor("sampling_parameters", json.dumps(GREEDY))],
                         outputs=[triton.InferRequestedOutput("output_ids")])
    assert [o.name for o in first.get_response().outputs] == ["output_ids"]
    assert len(first.as_numpy("output_ids")) == 12


def test_choices_are_elements(client):
    sampling = {**GREEDY, "temperature": 1, "seed": 7, "n": 3}
    result = client.infer("books", inputs("It was", sampling, exclude=True, wanted=["finish_reason"]))
    assert list(result.as_numpy("finish_reason")) == [b"length"] * 3
    one = client.infer("books", inputs("It was", {**sampling, "n": 1, "seed": 9}, exclude=True))
    assert text_of(result, 2) == text_of(one)


def test_tensors_without_raw_contents(server):
    """As clients of other makes send them."""
    request = service_pb2.ModelInferRequest(model_name="books")
    text = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(b"It was")
    for name in ("exclude_input_in_output", "return_output_ids", "return_finish_reason"):
        flag = request.inputs.add(name=name, datatype="BOOL", shape=[1])
        flag.contents.bool_contents.append(True)
    for name, value in GREEDY.items():
        field = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], field, value)
    with grpc.insecure_channel(server.address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                    service_pb2.ModelInferRequest.SerializeToString,
                                    service_pb2.ModelInferResponse.FromString)
        response = infer(request)
    with triton.InferenceServerClient(server.address) as client:
        wanted = client.infer("books", inputs("It was", GREEDY, exclude=True, wanted=FLAGS))
    outputs = {o.name: o for o in response.outputs}
    assert not response.raw_output_contents
    assert outputs["text_output"].contents.bytes_contents[0].decode() == text_of(wanted)
    assert list(outputs["output_ids"].contents.int_contents) == list(wanted.as_numpy("output_ids"))


def test_a_stream_comes_in_pieces(client, stream):
    whole = client.infer("books", inputs("It was", {**GREEDY, "max_tokens": 200}, exclude=True, wanted=FLAGS))
    stream.send(inputs("It was", {**GREEDY, "max_tokens": 200}, stream=True, wanted=FLAGS), request_id="s")
    results = stream.answer()
    assert len(results) > 10
    assert "".join(map(text_of, results)) == text_of(whole)
    ids = [i for r in results for i in r.as_numpy("output_ids")]
    assert ids == list(whole.as_numpy("output_ids"))
    assert sum(r.as_numpy("num_output_tokens")[0] for r in results) == 200
    assert [r.as_numpy("finish_reason")[0] for r in results[:-1]] == [b"None"] * (len(results) - 1)
    assert results[-1].as_numpy("finish_reason")[0] == b"length"
    assert results[-1].as_numpy("cumulative_logprob")[0] == whole.as_numpy("cumulative_logprob")[0]
    assert {r.get_response().id for r in results} == {"s"}


def test_many_requests_share_a_stream(client, stream):
    texts = [f"Chapter {i}. It was" for i in range(40)]
    wanted = [text_of(client.infer("books", inputs(t, GREEDY, exclude=True))) for t in texts]
    for i, text in enumerate(texts):
        stream.send(inputs(text, GREEDY, stream=i % 2 == 0, exclude=True), request_id=str(i))
    got = [""] * len(texts)
    left = len(texts)
    while left:
        result, error = stream.next()
        assert error is None, error
        response = result.get_response()
        got[int(response.id)] += text_of(result)
        left -= response.parameters["triton_final_response"].bool_param
    assert got == wanted


def test_errors_come_where_the_client_looks(client, stream):
    with pytest.raises(InferenceServerException) as error:
        client.infer("books", inputs("It was", {"temperature": -1}))
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "temperature" in error.value.message()
    stream.send(inputs("It was", {"temperature": -1}))
    result, error = stream.next()
    assert result is None
    assert "temperature" in error.message()
    stream.send(inputs("It was", GREEDY))  # and the stream goes on
    assert len(stream.answer()) == 1


def refused(client, asked, model="books", **options):
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, asked, **options)
    return error.value.status().removeprefix("StatusCode."), error.value.message()


def test_what_cannot_be_read_is_refused_by_name(client):
    ask = inputs("It was", GREEDY)
    assert refused(client, ask, "other")[0] == "NOT_FOUND"
    assert refused(client, ask, model_version="2")[0] == "NOT_FOUND"

    def sentence(asked, **options):
        code, message = refused(client, asked, **options)
        assert code == "INVALID_ARGUMENT", message
        return message

    assert "text_input" in sentence([])
    assert "text_input" in sentence([*ask, tensor("text_input", "twice")])
    assert "text_input must have one element, got 2" in sentence([tensor("text_input", [b"a", b"b"])])
    assert "text_input must be BYTES, got INT32" in sentence([tensor("text_input", [1], "INT32")])
    assert 'unknown input "image"' in sentence([*ask, tensor("image", "x")])
    assert "UTF-8" in sentence([tensor("text_input", [b"\xff"])])
    assert "sampling_parameters" in sentence([ask[0], tensor("sampling_parameters", "[1]")])
    assert "sampling_parameters" in sentence([ask[0], tensor("sampling_parameters", "[" * 100_000)])
    for name, value in {"best_of": 2, "regex": "a", "ebnf": "root ::= \"a\"", "json_schema": "{}", "response_format": {"type": "text"},
                        "structured_outputs": {}, "extra_args": {"a": 1}, "logprob_token_ids": [1], "mirostat": 2,
                        "dry_multiplier": 0.8, "xtc_probability": 0.5, "repetition_detection": {}, "max_new_tokens": 5}.items():
        assert f"{name} is not supported" in sentence(inputs("x", {name: value}))
    assert "allowed_token_ids must be a list with an id" in sentence(inputs("x", {"allowed_token_ids": []}))
    assert "stop must be" in sentence(inputs("x", {"stop": {}}))
    assert "choice" in sentence(inputs("x", {"guided_choice": []}))
    assert "temperature must be a number" in sentence(inputs("x", {"temperature": "hot"}))
    assert "max_tokens" in sentence(inputs("x", {"max_tokens": 2**40}))
    assert "stream" in sentence(inputs("x", GREEDY, stream=True))
    assert 'unknown output "other"' in sentence(ask, outputs=[triton.InferRequestedOutput("other")])
    assert "classification" in sentence(
        ask, outputs=[triton.InferRequestedOutput("text_output", class_count=3)])
    assert "exclude_input_in_output" in sentence(
        [tensor("input_ids", [5], "INT32"), tensor("exclude_input_in_output", False, "BOOL")])
    assert "priority" in sentence(ask, priority=22)
    assert "sequence_id" in sentence(ask, sequence_id="no name")
    memory = triton.InferInput("text_input", [1], "BYTES")
    memory.set_shared_memory("region", 100)
    assert "text_input" in sentence([memory])


def test_raw_contents_that_do_not_fit_are_refused(server):
    def ask(**fields):
        request = service_pb2.ModelInferRequest(model_name="books", **fields)
        with grpc.insecure_channel(server.address) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                        service_pb2.ModelInferRequest.SerializeToString,
                                        service_pb2.ModelInferResponse.FromString)
            with pytest.raises(grpc.RpcError) as error:
                infer(request)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        return error.value.details()

    text = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    assert "raw_input_contents" in ask(inputs=[text], raw_input_contents=[b"", b""])
    for raw in (b"", b"\1\0\0", b"\5\0\0\0abc", b"\1\0\0\0abc", b"\xff\xff\xff\xff"):
        assert "text_input" in ask(inputs=[text], raw_input_contents=[raw]), raw
    for shape in ([-1], [2**40], [2**31, 2**31], [2], [0]):
        assert "text_input" in ask(inputs=[{**text, "shape": shape}], raw_input_contents=[b"\1\0\0\0a"])
    ids = {"name": "input_ids", "datatype": "INT32", "shape": [2**31]}
    assert "input_ids" in ask(inputs=[ids], raw_input_contents=[b"\1\0\0\0"])
    assert "text_input" in ask(inputs=[text])


def test_a_sequence_is_a_session(client, server):
    def step(text, **options):
        return text_of(client.infer("books", inputs(text, GREEDY, exclude=True), sequence_id=42, **options))

    with Client(server.address) as ours:
        session = ours.session()
        wanted = [session.generate(t, max_tokens=12, temperature=0, ignore_eos=True).text
                  for t in ("It was", " And then", "")]
        got = [step("It was", sequence_start=True), step(" And then")]
        got.append(step("", sequence_end=True))
        assert got == wanted
        session.close()
    code, message = refused(client, inputs("more", GREEDY), sequence_id=42)
    assert code == "NOT_FOUND", message


def test_a_sequence_starts_once(client):
    assert text_of(client.infer("books", inputs("It was", GREEDY), sequence_id="s", sequence_start=True))
    code, message = refused(client, inputs("It was", GREEDY), sequence_id="s", sequence_start=True)
    assert code == "ALREADY_EXISTS"
    client.infer("books", inputs("", GREEDY), sequence_id="s", sequence_end=True)
    # What was refused has opened nothing, so it can be sent again.
    code, _ = refused(client, inputs("It was", {"top_p": 7}), sequence_id="s", sequence_start=True)
    assert code == "INVALID_ARGUMENT"
    client.infer("books", inputs("It was", GREEDY), sequence_id="s", sequence_start=True, sequence_end=True)


def test_requests_of_a_sequence_keep_their_order_in_a_stream(client, stream):
    steps = [f" Number {i} was" for i in range(12)]

    def options(i):
        return {"sequence_start": i == 0, "sequence_end": i == len(steps) - 1}

    wanted = [text_of(client.infer("books", inputs(text, GREEDY, exclude=True), sequence_id="one", **options(i)))
              for i, text in enumerate(steps)]
    for i, text in enumerate(steps):  # without waiting for any
        for sequence in ("a", "b"):
            stream.send(inputs(text, GREEDY, stream=i % 2 == 0, exclude=True), sequence_id=sequence,
                        request_id=f"{sequence}{i}", **options(i))
    got = {f"{s}{i}": "" for s in "ab" for i in range(len(steps))}
    left = len(got)
    while left:
        result, error = stream.next()
        assert error is None, error
        response = result.get_response()
        got[response.id] += text_of(result)
        left -= response.parameters["triton_final_response"].bool_param
    for sequence in "ab":
        assert [got[f"{sequence}{i}"] for i in range(len(steps))] == wanted


LONG = {"max_tokens": 100_000, "ignore_eos": True}


def wait_until_idle(server):
    with Client(server.address) as ours:
        while (load := ours.load()).requests_running or load.requests_waiting:
            pass


def test_a_client_that_cancels_ends_its_requests(client, server):
    done = threading.Event()
    call = client.async_infer("books", inputs("It was", LONG), lambda result, error: done.set())
    call.cancel()
    assert done.wait(60)
    running = Stream(client)
    for i in range(3):
        running.send(inputs("It was", LONG, stream=True), request_id=str(i))
    for _ in range(10):
        running.next()
    client.stop_stream(cancel_requests=True)
    wait_until_idle(server)


def test_a_timeout_ends_a_request(client):
    code, message = refused(client, inputs("It was", LONG), timeout=200_000)
    assert code == "DEADLINE_EXCEEDED"
    code, message = refused(client, inputs("It was", LONG), client_timeout=0.2)
    assert code == "DEADLINE_EXCEEDED"
