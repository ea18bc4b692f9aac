"""The client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import grpc.aio
from google.protobuf.wrappers_pb2 import StringValue

from recurve import _answers as answers
from recurve import _rpcs as rpcs
from recurve._answers import begins, never_begins
from recurve._async.connection import Connection
from recurve._async.controls import Controls
from recurve._async.generates import Generates
from recurve._async.session import AsyncSession, import_session, open_session
from recurve._async.stream import AsyncStream
from recurve._calls_async import RepeatedCall
from recurve._channel import Tls, with_key
from recurve._errors import MAY_COME, UnavailableError, UnreachableError
from recurve._info import SessionInfo
from recurve._opening import Opening
from recurve._requests import Asked, embed_request, tokenize_request
from recurve._retry import Attempts, Retry
from recurve._scoring_async import Scorer, Text
from recurve._types import (
    Embeddings,
    EmbedOptions,
    Health,
    Messages,
    Prompt,
    Score,
    ScoreOptions,
    Tokens,
)
from recurve.v1 import inference_pb2 as v1
from recurve.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient(Generates, Controls):
    """A connection to a Recurve server, made with the first call and again whenever it was lost.

    address: HOST:PORT, or another name that gRPC resolves; ValueError where it is neither.
    retry: when calls are made again that have changed nothing; Retry(attempts=1): never.
    tls: use TLS with these files. Default: Tls.from_environment(), or no TLS.
    key: the key that the server wants. Default: RECURVE_KEY's, or that in the file RECURVE_KEY_FILE
        names, else none.
    metadata: sent with every call.

    To be made and used within one event loop, by any number of its tasks. Calls that fail raise a
    RecurveError; `timeout` is in seconds for the whole call, retries included; None: no limit.
    """

    def __init__(
        self,
        address: str,
        *,
        retry: Retry = Retry(),
        metadata: Sequence[tuple[str, str]] = (),
        tls: Tls | None = None,
        key: str | None = None,
    ) -> None:
        shown = with_key(tuple(metadata), key)
        self._connection = Connection(address, retry, shown, tls)
        self._scorer = Scorer(self._connection)

    def __repr__(self) -> str:
        tls = " with TLS" if self._connection.tls else ""
        return f"<recurve.{type(self).__name__} of {self.address}{tls}>"

    @property
    def address(self) -> str:
        return self._connection.address

    async def close(self) -> None:
        """Closes the connection and ends its running calls."""
        self._scorer.close()
        await self._connection.close()

    def session(
        self,
        name: str | None = None,
        *,
        ttl: float | None = None,
        durability: str = "none",
        rewind_tokens: int = 0,
        model: str = "",
        initial_state: str = "",
        adapter: str = "",
        create: bool = True,
        timeout: float | None = None,
    ) -> Opening:
        """Opens or continues the session of that name.

        Await it, or enter it with `async with`.

        name: 1 to 128 of the characters [A-Za-z0-9._-]. None: a new session under a name that the
            client makes up; leaving an `async with` block closes it.
        ttl: seconds of idleness after which a new session is closed, [0, 1e9]; 0: never. Default:
            the server's, and of a durable session never.
        durability: of a new session; "local": its answers end once they are on the server's disk,
            and are there after it has ended, however it ends. It takes a server with --state-dir.
            "remote": once they are in the store of several servers, each of which continues it. It
            takes servers with --state-store.
        rewind_tokens: of a new session; the ids of so many last tokens are stored, [0, 262144], so
            that it can be rewound to each of them.
        model: of a new session, by its name. Default: the server's first.
        initial_state: of a new session; the name of one of ModelInfo.initial_states, from which it
            starts. Default: none, it is empty.
        adapter: of a new session; the name of one of ModelInfo.adapters, with which all its tokens
            are computed. Default: none.
        create: False: NotFoundError where it is not open.

        Raises ResourceExhaustedError where slots and host memory are full.
        """

        async def opened() -> AsyncSession:
            return await open_session(
                self._connection,
                name,
                ttl,
                durability,
                rewind_tokens,
                model,
                initial_state,
                adapter,
                create,
                timeout,
            )

        return Opening(opened)

    def import_session(
        self,
        data: bytes,
        name: str | None = None,
        *,
        ttl: float | None = None,
        durability: str = "none",
        rewind_tokens: int = 0,
        model: str = "",
        timeout: float | None = None,
    ) -> Opening:
        """Opens a session with a state that `AsyncSession.export` returned, here or elsewhere.

        Await it, or enter it with `async with`.

        name, ttl, durability, rewind_tokens, model: as in `session`.

        Raises AlreadyExistsError for a name in use, FailedPreconditionError for a state of another
        model, weights or types, InvalidArgumentError for data that is no state or is damaged,
        PermissionDeniedError where the key may not import states.
        """

        async def opened() -> AsyncSession:
            return await import_session(
                self._connection, data, name, ttl, durability, rewind_tokens, model, timeout
            )

        return Opening(opened)

    async def list_sessions(
        self, prefix: str = "", *, timeout: float | None = None
    ) -> list[SessionInfo]:
        """All sessions whose names begin with `prefix`, by name. The timeout is that of a page
        of 1000."""
        request = sessions.ListSessionsRequest(prefix=prefix, page_size=1000)
        found: list[SessionInfo] = []
        while True:
            page = await self._connection.unary(rpcs.LIST, request, timeout=timeout)
            found.extend(answers.session_info(session) for session in page.sessions)
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    async def score(self, text: Text, **options: Unpack[ScoreOptions]) -> Score:
        """How likely the model finds a text of any length, or token ids.

        A text may come from an iterator, as it is read from a file: then it is never repeated.

        Await it: such an iterator is read in a thread, and an asynchronous one in the event loop.

        Bytes are UTF-8. The sum does not depend on the division of the text. ScoreOptions lists what
        else may be given. Raises what `generate` raises, and what the iterator raises.
        """
        return await self._scorer.score(text, options)

    async def embed(
        self, texts: Prompt | Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """Embeddings of texts or of lists of token ids, at most 2048, from the model's last hidden state.

        A vector does not depend on the other texts. EmbedOptions lists what else may be given. Raises
        what `generate` raises.
        """
        request, timeout = embed_request(texts, options)
        attempts = Attempts(self._connection.retry, timeout, rpcs.EMBED.repeatable)
        begin = self._connection.unary_stream(rpcs.EMBED, request)
        call = RepeatedCall(self._connection, begin, attempts, lambda _: False)
        found: dict[int, v1.EmbedResponse] = {}
        async for message in call:
            found[message.embedding.input if message.HasField("embedding") else -1] = message
        return answers.embeddings(list(found.values()))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        add_special_tokens: bool = True,
        parse_special: bool = False,
        with_bytes: bool = False,
        continued: bool = False,
        timeout: float | None = None,
    ) -> Tokens:
        """Token ids of a text or of messages, as `generate` or `chat` would read them.

        with_bytes: each id's bytes too. continued: of messages, as a session reads them that has
        absorbed something.
        """
        request = tokenize_request(
            text, messages, add_special_tokens, parse_special, with_bytes, continued
        )
        return answers.tokens(await self._connection.unary(rpcs.TOKENIZE, request, timeout=timeout))

    async def detokenize(
        self, ids: Sequence[int], *, continued: bool = False, timeout: float | None = None
    ) -> str:
        """The text of token ids; bytes that are not UTF-8 are U+FFFD, control tokens have none.

        continued: the ids continue other text, so a leading space is part of the result.
        """
        request = v1.DetokenizeRequest(ids=ids, continued=continued)
        return (await self._connection.unary(rpcs.DETOKENIZE, request, timeout=timeout)).text

    async def abort(self, request_id: str, *, timeout: float | None = None) -> None:
        """Ends a running request, from any client of the tenant: it fails with CancelledError. NotFoundError
        where there is none of that name; it may just have ended."""
        await self._connection.unary(
            rpcs.ABORT, v1.AbortRequest(request_id=request_id), timeout=timeout
        )

    async def health(self, *, timeout: float | None = None) -> Health:
        """The state of the server in the standard health service."""
        answer = await self._connection.unary(rpcs.HEALTH, StringValue(), timeout=timeout)
        return answers.health(answer.value)

    async def wait_until_serving(self, timeout: float) -> None:
        """Returns once the server serves; it may be started after this call.

        At the timeout, in seconds, raises UnreachableError where nothing answers, UnavailableError
        where the server does not serve.
        """
        deadline = time.monotonic() + timeout
        found: UnavailableError = UnreachableError(f"nothing answers at {self.address}")
        watch = self._connection.unary_stream(rpcs.WATCH_HEALTH, StringValue(), wait_for_ready=True)
        while (remaining := deadline - time.monotonic()) > 0:
            states = watch(remaining)
            try:
                async for state in states:
                    if answers.health(state.value) == "serving":
                        states.cancel()
                        return
                    found = UnavailableError(f"the server at {self.address} does not serve")
            except grpc.aio.AioRpcError as failure:
                error = self._connection.error_of(failure)
                if error.code not in MAY_COME:
                    raise error from None
        raise found

    def _begin(self, asked: Asked, streamed: bool) -> AsyncStream:
        attempts = Attempts(self._connection.retry, asked.timeout, rpcs.GENERATE.repeatable)
        begin = self._connection.unary_stream(rpcs.GENERATE, asked.request)
        call = RepeatedCall(self._connection, begin, attempts, begins if streamed else never_begins)
        return AsyncStream(call, lambda: None, asked.on_progress)

    @property
    def _session_name(self) -> str:
        return ""

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
