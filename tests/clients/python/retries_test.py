"""What is asked again and what is not, by both clients, before a server that counts."""

import contextlib
import threading
import time

import grpc
import pytest
import recurve
from fake_server import FakeServer, Refusal, answer, busy, draining, lost
from recurve.v1 import inference_pb2 as inference
from recurve.v1 import sessions_pb2 as sessions

QUICK = recurve.Retry(attempts=4, backoff=0.001)
BUSY_SESSION = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "it serves another request")


@pytest.fixture
def serve():
    with contextlib.ExitStack() as running:
        yield lambda **scripts: running.enter_context(FakeServer(**scripts))


def test_a_full_server_is_asked_again_when_it_says(serve, connect):
    server = serve(Generate=[busy(50), busy(120), answer("a", "b")])
    began = time.monotonic()
    assert connect(server.address).generate("x").text == "ab"
    assert time.monotonic() - began >= 0.17
    assert server.calls("Generate") == 3


@pytest.mark.parametrize("refusal", [draining, lost])
def test_a_server_that_stops_is_asked_again(serve, connect, refusal):
    server = serve(Generate=[refusal(), refusal(), answer("a")])
    assert connect(server.address, retry=QUICK).generate("x").text == "a"
    assert server.calls("Generate") == 3


@pytest.mark.parametrize("refusal", [busy(0), draining(), lost()])
def test_it_is_not_asked_for_ever(serve, connect, refusal):
    server = serve(Generate=[refusal] * 9, Tokenize=[refusal] * 9)
    client = connect(server.address, retry=QUICK)
    for call, name in ((client.generate, "Generate"), (client.tokenize, "Tokenize")):
        with pytest.raises(recurve.RecurveError) as error:
            call("x")
        assert error.value.code == refusal.code.name
        assert server.calls(name) == 4
    single = connect(server.address, retry=recurve.Retry(attempts=1))
    with pytest.raises(recurve.RecurveError):
        single.tokenize("x")
    assert server.calls("Tokenize") == 5


def test_unary_calls_are_asked_again(serve, connect):
    server = serve(Tokenize=[busy(1), draining(), lost(), [inference.TokenizeResponse(ids=[4])]])
    assert connect(server.address, retry=QUICK).tokenize("x").ids == (4,)
    assert server.calls("Tokenize") == 4


def test_a_session_is_asked_again_only_where_the_server_refused(serve, connect):
    server = serve(Generate=[busy(1), draining(), answer("a"), lost(), answer("b")])
    session = connect(server.address, retry=QUICK).session("s")
    assert session.generate("x").text == "a"
    assert server.calls("Generate") == 3
    with pytest.raises(recurve.UnreachableError):
        session.generate("x")
    assert server.calls("Generate") == 4


@pytest.mark.parametrize("refusal", [busy(1), draining(), lost()])
def test_an_answer_that_has_begun_is_never_asked_for_again(serve, connect, refusal):
    begun = list(answer("a"))[:2]
    server = serve(Generate=[[*begun, refusal], answer("never"), answer("never")])
    client = connect(server.address, retry=QUICK)
    stream = client.stream("x")
    assert next(stream).text == "a"
    with pytest.raises(recurve.RecurveError) as error:
        next(stream)
    assert error.value.code == refusal.code.name
    assert server.calls("Generate") == 1


def test_what_waited_in_vain_is_asked_for_again_unless_a_session_had_it(serve, connect):
    understood = list(answer())[:1]
    server = serve(Generate=[[*understood, busy(1)], answer("a"), [*understood, busy(1)]])
    client = connect(server.address)
    assert client.generate("x").text == "a"
    assert server.calls("Generate") == 2
    with pytest.raises(recurve.ResourceExhaustedError):
        client.session("s").generate("x")
    assert server.calls("Generate") == 3


def aborted():
    return Refusal(grpc.StatusCode.ABORTED, "the session belongs to another server")


@pytest.mark.parametrize("durability", ["local", "remote"])
def test_a_turn_of_a_durable_session_is_asked_again_with_its_id(serve, connect, durability):
    exists = Refusal(grpc.StatusCode.ALREADY_EXISTS, "a running request has that id")
    begun = list(answer("a", "b"))[:2]
    opened = sessions.Session(name="s", durability=sessions.Durability.Value(f"DURABILITY_{durability.upper()}"))
    server = serve(
        Open=[[opened]],
        Generate=[lost(), exists, BUSY_SESSION, aborted(), [*begun, lost()], answer("a", "b"), answer("c"), [*begun, lost()]],
    )
    session = connect(server.address, retry=QUICK).session("s", durability=durability)
    assert session.generate("x").text == "ab"
    ids = [request.request_id for name, _, request in server.asked if name == "Generate"]
    assert len(ids) == 6 and len(set(ids)) == 1 and ids[0]
    assert session.generate("x", request_id="mine").text == "c"
    assert server.asked[-1][2].request_id == "mine"
    stream = session.stream("x")
    assert next(stream).text == "a"
    with pytest.raises(recurve.UnreachableError):
        next(stream)
    assert server.calls("Generate") == 8 and server.asked[-1][2].request_id not in ("mine", ids[0])


def test_a_turn_that_may_be_done_twice_is_not_asked_again(serve, connect):
    opened = sessions.Session(name="s", durability=sessions.DURABILITY_LOCAL)
    server = serve(Open=[[opened]], Generate=[lost(), aborted()])
    client = connect(server.address, retry=QUICK)
    with pytest.raises(recurve.UnreachableError):
        client.session("s", durability="local").generate("x", durability="none")
    with pytest.raises(recurve.AbortedError):
        client.session("t").generate("x")
    assert server.calls("Generate") == 2


def test_an_id_with_other_contents_is_no_request_that_still_runs(serve, connect):
    exists = Refusal(grpc.StatusCode.ALREADY_EXISTS, "it has other contents")
    opened = sessions.Session(name="s", durability=sessions.DURABILITY_LOCAL)
    server = serve(Open=[[opened]], Generate=[exists])
    with pytest.raises(recurve.AlreadyExistsError):
        connect(server.address, retry=QUICK).session("s", durability="local").generate("x")


def test_a_whole_answer_is_asked_for_again_though_it_had_begun(serve, connect):
    begun = list(answer("a", "b"))[:2]
    reset = Refusal(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2")  # Envoy's, of a server that died
    ended = Refusal(grpc.StatusCode.CANCELLED, "CANCELLED")  # gRPC's, of a server that ends
    server = serve(Generate=[[*begun, lost()], [*begun, reset], ended, answer("a", "b")])
    assert connect(server.address, retry=QUICK).generate("x").text == "ab"
    assert server.calls("Generate") == 4


@pytest.mark.parametrize("name", ["Fork", "Mark", "Rewind"])
def test_what_changes_a_session_is_not_repeated_where_it_was_lost(serve, connect, name):
    server = serve(**{name: [busy(1), lost(), draining()]})
    session = connect(server.address, retry=QUICK).session("s")
    call = {"Fork": session.fork, "Mark": session.mark, "Rewind": session.rewind}[name]
    with pytest.raises(recurve.UnreachableError):
        call("here")
    assert server.calls(name) == 2


def test_opening_and_closing_may_be_repeated(serve, connect):
    exists = Refusal(grpc.StatusCode.ALREADY_EXISTS, "it is open")
    gone = Refusal(grpc.StatusCode.NOT_FOUND, "there is none")
    server = serve(Open=[lost(), exists], Close=[lost(), gone])
    server.scripts["Get"] = [[sessions.Session(name="s")]]
    session = connect(server.address, retry=QUICK).session("s")
    session.close()
    assert server.calls("Open") == server.calls("Close") == 2


def test_a_text_that_cannot_be_read_again_is_not_repeated(serve, connect):
    final = inference.ScoreResponse(final={"scored_tokens": 3, "sum_logprob": -1.0})
    server = serve(Score=[busy(1), [final], busy(1), [final]])
    client = connect(server.address, retry=QUICK)
    assert client.score("It was").scored_tokens == 3
    assert server.calls("Score") == 2
    with pytest.raises(recurve.ResourceExhaustedError):
        client.score(iter(["It was"]))
    assert server.calls("Score") == 3


@pytest.mark.parametrize("trailer", ["-1", "soon", "1.5"])
def test_a_server_may_ask_for_no_further_attempt(serve, connect, trailer):
    full = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", grpc_retry_pushback_ms=trailer)
    server = serve(Generate=[full, answer("never")])
    with pytest.raises(recurve.ResourceExhaustedError) as error:
        connect(server.address).generate("x")
    assert error.value.retry_after is None
    assert server.calls("Generate") == 1


def test_a_wait_that_the_caller_has_no_time_for_is_not_begun(serve, connect):
    server = serve(Generate=[busy(60_000)] * 2)
    client = connect(server.address)
    began = time.monotonic()
    with pytest.raises(recurve.ResourceExhaustedError, match="the queue is full") as error:
        client.generate("x", timeout=30)
    assert error.value.retry_after == 60
    with pytest.raises(recurve.ResourceExhaustedError):
        connect(server.address, retry=recurve.Retry(max_wait=59)).generate("x")
    assert time.monotonic() - began < 20
    assert server.calls("Generate") == 2


def test_a_busy_session_is_an_error_unless_its_own_answer_was_cut(serve, connect):
    endless = list(answer("a"))[:2]
    server = serve(Generate=[BUSY_SESSION])
    with connect(server.address).session("s") as session:
        with pytest.raises(recurve.FailedPreconditionError):
            session.generate("x")
        server.scripts["Generate"] = [endless, BUSY_SESSION, BUSY_SESSION, answer("b")]
        stream = session.stream("x")
        next(stream)
        stream.cancel()
        assert session.generate("x").text == "b"
    assert server.calls("Generate") == 5


@pytest.mark.parametrize("words", ["Deadline Exceeded", "Stream removed (Deadline Exceeded)"])
def test_what_grpc_says_of_a_timeout_becomes_a_sentence(serve, connect, words):
    server = serve(Tokenize=[Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, words)])
    with pytest.raises(recurve.DeadlineExceededError, match="the call's timeout of 30 s has passed"):
        connect(server.address).tokenize("x", timeout=30)


def test_cancel_ends_a_wait_between_attempts(serve, connect):
    server = serve(Generate=[busy(50_000)])
    stream = connect(server.address).stream("x")
    if isinstance(stream, recurve.Stream):
        reader = threading.Thread(target=lambda: ended.extend([list(stream)]))
        ended = []
        reader.start()
        while not server.calls("Generate"):
            pass
        stream.cancel()
        reader.join(20)
        assert ended == [[]]
    else:
        stream.cancel()
        assert list(stream) == []


def test_session_calls_carry_its_name_for_proxies(serve, connect):
    server = serve(Generate=[answer("a"), answer("b")])
    client = connect(server.address, metadata=[("authorization", "Bearer key")])
    client.generate("x")
    with client.session() as session:
        session.generate("x")
        session.mark("here")
        session.fork("other")
    carried = {name: metadata.get("x-recurve-session") for name, metadata, _ in server.asked}
    assert carried.pop("Generate") == session.name
    assert set(carried.values()) == {session.name}
    assert server.asked[0][1].get("x-recurve-session") is None
    assert all(metadata["authorization"] == "Bearer key" for _, metadata, _ in server.asked)
    opened = [request for name, _, request in server.asked if name == "Open"]
    assert [request.name for request in opened] == [session.name]


def test_all_pages_of_sessions_are_read(serve, connect):
    page = sessions.ListSessionsResponse
    server = serve(
        List=[
            [page(sessions=[{"name": "a"}, {"name": "b"}], next_page_token="b")],
            [page(sessions=[{"name": "c"}])],
        ]
    )
    found = connect(server.address).list_sessions("x")
    assert [session.name for session in found] == ["a", "b", "c"]
    assert [(call[2].prefix, call[2].page_token) for call in server.asked] == [
        ("x", ""),
        ("x", "b"),
    ]


def test_an_answer_without_its_last_message_is_an_error(serve, connect):
    server = serve(Generate=[list(answer("a"))[:2]], Score=[[]])
    client = connect(server.address)
    with pytest.raises(recurve.InternalError, match="last message"):
        client.generate("x")
    with pytest.raises(recurve.InternalError, match="last message"):
        client.score("x")
