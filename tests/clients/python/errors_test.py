"""An exception for each status, with the server's sentence; by both clients."""

import socket

import grpc
import pytest
import recurve
from conftest import ROOT
from fake_server import FakeServer, Refusal

from server import Server

ONCE = recurve.Retry(attempts=1)
ERRORS = {
    "CANCELLED": recurve.CancelledError,
    "UNKNOWN": recurve.RecurveError,
    "INVALID_ARGUMENT": recurve.InvalidArgumentError,
    "DEADLINE_EXCEEDED": recurve.DeadlineExceededError,
    "NOT_FOUND": recurve.NotFoundError,
    "ALREADY_EXISTS": recurve.AlreadyExistsError,
    "PERMISSION_DENIED": recurve.PermissionDeniedError,
    "RESOURCE_EXHAUSTED": recurve.ResourceExhaustedError,
    "FAILED_PRECONDITION": recurve.FailedPreconditionError,
    "ABORTED": recurve.AbortedError,
    "OUT_OF_RANGE": recurve.RecurveError,
    "UNIMPLEMENTED": recurve.UnimplementedError,
    "INTERNAL": recurve.InternalError,
    "UNAVAILABLE": recurve.UnreachableError,
    "DATA_LOSS": recurve.DataLossError,
    "UNAUTHENTICATED": recurve.UnauthenticatedError,
}


@pytest.mark.parametrize("code", ERRORS)
def test_every_status_has_its_class(connect, code):
    refusal = Refusal(grpc.StatusCode[code], "a sentence")
    with FakeServer(Tokenize=[refusal], Generate=[refusal]) as server:
        client = connect(server.address, retry=ONCE)
        for call in (client.tokenize, client.generate):
            with pytest.raises(recurve.RecurveError) as error:
                call("x")
            assert type(error.value) is ERRORS[code]
            assert error.value.code == code
            assert "a sentence" in error.value.message
            assert str(error.value) == f"{code}: {error.value.message}"


def test_errors_are_pythons_own_where_it_has_them():
    assert issubclass(recurve.DeadlineExceededError, TimeoutError)
    assert issubclass(recurve.UnreachableError, ConnectionError)
    assert issubclass(recurve.UnreachableError, recurve.UnavailableError)
    assert issubclass(recurve.InvalidArgumentError, ValueError)


def test_a_prompt_of_another_type_is_named(client):
    for wrong in (None, 7, b"x", {"role": "user"}):
        named = f", got {type(wrong).__name__}$"
        with pytest.raises(TypeError, match="a prompt must be a str or token ids" + named):
            client.generate(wrong)
        with pytest.raises(TypeError, match="messages must be a str or a list of dicts" + named):
            client.chat(wrong)
    with pytest.raises(TypeError, match="a text to score must be .*, got NoneType"):
        client.score(None)


def test_an_unknown_session_is_not_found(client):
    session = client.session("soon-gone")
    session.close()
    for call in (session.get, lambda: session.generate("x"), lambda: session.mark("m")):
        with pytest.raises(recurve.NotFoundError, match="soon-gone"):
            call()


def test_a_name_in_use_already_exists(client):
    with client.session() as session, session.fork() as fork:
        with pytest.raises(recurve.AlreadyExistsError, match=fork.name):
            session.fork(fork.name)
    with client.stream("x", max_tokens=100000, ignore_eos=True, request_id="taken") as stream:
        next(stream)
        with pytest.raises(recurve.AlreadyExistsError, match="taken"):
            client.generate("x", request_id="taken")


def test_a_name_that_is_none_is_invalid(client):
    with pytest.raises(recurve.InvalidArgumentError, match="name"):
        client.session("no blanks")
    with client.session() as session, pytest.raises(recurve.InvalidArgumentError, match="mark"):
        session.mark("no blanks")


def test_a_busy_session_says_so(client):
    with client.session() as session:
        stream = session.stream("x", max_tokens=100000, ignore_eos=True)
        next(stream)
        for call in (lambda: session.generate("x"), lambda: session.mark("m"), session.fork):
            with pytest.raises(recurve.FailedPreconditionError, match=session.name):
                call()


def test_an_abort_cancels(client):
    stream = client.stream("x", max_tokens=100000, ignore_eos=True, request_id="to-abort")
    next(stream)
    client.abort("to-abort")
    with pytest.raises(recurve.CancelledError):
        list(stream)
    with pytest.raises(recurve.NotFoundError, match="to-abort"):
        client.abort("to-abort")


def test_a_timeout_is_told(client):
    with pytest.raises(
        recurve.DeadlineExceededError, match=r"timeout of 0\.2 s|deadline has passed"
    ):
        client.generate("x", max_tokens=100000, ignore_eos=True, timeout=0.2)


def test_a_message_too_large_exhausts_the_server(client):
    with pytest.raises(recurve.ResourceExhaustedError):
        client.generate("x" * (17 << 20))


def test_a_text_that_is_refused_while_it_is_sent_is_refused_by_name(client):
    for _ in range(4):
        with pytest.raises(recurve.InvalidArgumentError, match="top must be in"):
            client.score("x" * (20 << 20), top=101)


def test_a_model_without_template_refuses_a_chat(connect):
    with Server(ROOT / "weights_tools/demo/parity-elman") as server:
        client = connect(server.address)
        assert not client.model_info().has_chat_template
        with pytest.raises(recurve.InvalidArgumentError, match="has no chat template"):
            client.chat("Who?")


def test_a_server_without_memory_for_sessions_says_when_to_come_again(connect, chat_model):
    with Server(chat_model, "--session-memory", "1MB") as server:
        client = connect(server.address, retry=ONCE)
        sessions = []
        with pytest.raises(recurve.ResourceExhaustedError) as error:
            for _ in range(1000):
                sessions.append(client.session())
        assert sessions
        assert error.value.retry_after > 0


def test_a_server_that_drains_is_unavailable(connect, chat_model):
    with Server(chat_model) as server:
        client = connect(server.address, retry=ONCE)
        stream = client.stream("x", max_tokens=100000, ignore_eos=True)
        next(stream)
        assert client.drain(60) == 1
        while client.server_info().state != "draining":  # drain answers at once
            pass
        with pytest.raises(recurve.UnavailableError) as error:
            client.generate("x")
        assert type(error.value) is recurve.UnavailableError
        assert client.health() == "not_serving"
        with pytest.raises(recurve.UnavailableError, match="does not serve") as error:
            client.wait_until_serving(0.3)
        assert type(error.value) is recurve.UnavailableError
        stream.cancel()
        assert server.process.wait() == 0


def test_a_server_that_is_gone_is_unreachable(connect, chat_model):
    with Server(chat_model) as server:
        client = connect(server.address)
        session = client.session()
        stream = session.stream("x", max_tokens=100000, ignore_eos=True)
        next(stream)
        server.kill()
        for call in (lambda: list(stream), session.get, lambda: client.generate("x")):
            with pytest.raises(recurve.UnreachableError, match=server.address):
                call()


def test_nothing_at_an_address_is_unreachable(connect):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        client = connect(address, retry=ONCE)
        for call in (lambda: client.generate("x"), client.load, client.session):
            with pytest.raises(recurve.UnreachableError, match=address):
                call()
        with pytest.raises(recurve.UnreachableError, match=address):
            client.wait_until_serving(0.3)


def test_a_server_may_start_later(connect, chat_model):
    with Server(chat_model) as first:
        client = connect(first.address)
        client.wait_until_serving(30)
    port = first.address.rpartition(":")[2]
    with pytest.raises(recurve.UnreachableError):
        connect(first.address, retry=ONCE).generate("x")
    with Server(chat_model, "--listen", f"127.0.0.1:{port}"):
        client.wait_until_serving(30)
        assert client.generate("x", max_tokens=1).ids


@pytest.mark.parametrize("address", ["localhost", "http://localhost:50051", "x:0", "x:70000", ""])
def test_an_address_is_a_host_and_a_port(connect, address):
    with pytest.raises(ValueError, match="HOST:PORT"):
        connect(address)
