"""Sessions: named states in the server's memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from recurve import _answers as answers
from recurve import _rpcs as rpcs
from recurve._async.connection import Connection
from recurve._async.generates import Generates
from recurve._async.stream import AsyncStream
from recurve._calls_async import RepeatedCall
from recurve._errors import AlreadyExistsError, NotFoundError
from recurve._info import SessionInfo
from recurve._opening import Opening
from recurve._requests import Asked, durability_of
from recurve._retry import Attempts
from recurve._rpcs import Q, R, Rpc
from recurve._session_state import SessionState
from recurve.v1 import sessions_pb2 as sessions

# Of a state, in one message.
_CHUNK_BYTES = 1 << 20


class AsyncSession(Generates):
    """A named state that text goes through; `AsyncClient.session` and `fork` make them.

    It costs the same however long it is. Leaving an `async with` block ends its streams, and closes
    a session that was made without a name; one with a name stays. It serves one request at a time.

    Every method raises NotFoundError where the session is gone, FailedPreconditionError while it
    serves another request; and see the errors of `generate`. `timeout`: seconds for the whole call.
    """

    def __init__(self, connection: Connection, state: SessionState[AsyncStream]) -> None:
        self._connection = connection
        self._state = state

    def __repr__(self) -> str:
        return f"<recurve.{type(self).__name__} {self.name!r} of {self._connection.address}>"

    @property
    def name(self) -> str:
        """1 to 128 of the characters [A-Za-z0-9._-]; the client chooses one where none is given."""
        return self._state.name

    async def get(self, *, timeout: float | None = None) -> SessionInfo:
        """How the session stands."""
        return await self._info(rpcs.GET, sessions.GetSessionRequest(name=self.name), timeout)

    def fork(
        self, name: str | None = None, *, ttl: float | None = None, timeout: float | None = None
    ) -> Opening:
        """A new session with the same state; marks stay with this one.

        Await it, or enter it with `async with`.

        ttl: seconds of idleness after which it is closed, [0, 1e9]; 0: never. Default: that of the
            server.
        Raises AlreadyExistsError for a name in use, ResourceExhaustedError where memory is full.
        """

        async def opened() -> AsyncSession:
            state: SessionState[AsyncStream] = SessionState(name)
            request = sessions.ForkSessionRequest(
                name=self.name, new_name=state.name, ttl_seconds=ttl
            )
            state.is_as(await self._unary(rpcs.FORK, request, timeout))
            return AsyncSession(self._connection, state)

        return Opening(opened)

    async def mark(self, name: str, *, timeout: float | None = None) -> SessionInfo:
        """Remembers the state under a name; a mark of that name moves.

        Costs `state_bytes` of host memory. Raises ResourceExhaustedError where that is full.
        """
        request = sessions.MarkSessionRequest(name=self.name, mark=name)
        return await self._info(rpcs.MARK, request, timeout)

    async def unmark(self, name: str, *, timeout: float | None = None) -> SessionInfo:
        """Forgets a mark. Raises NotFoundError where there is none."""
        request = sessions.UnmarkSessionRequest(name=self.name, mark=name)
        return await self._info(rpcs.UNMARK, request, timeout)

    async def rewind(
        self,
        name: str | None = None,
        *,
        position: int | None = None,
        timeout: float | None = None,
    ) -> SessionInfo:
        """Goes back to a mark, which stays, or to where it had absorbed `position` tokens.

        For a position, the tokens after the last mark before it are absorbed again; they count as
        those of a prompt. The session must store them: see `rewind_tokens` of `AsyncClient.session`.
        Raises NotFoundError where there is no such mark, or the tokens are not stored.
        """
        if (name is None) == (position is None):
            raise ValueError("rewind takes either the name of a mark or a position")
        request = sessions.RewindSessionRequest(name=self.name, mark=name, position=position)
        return await self._info(rpcs.REWIND, request, timeout)

    async def export(self, *, timeout: float | None = None) -> bytes:
        """The state as bytes, from which `AsyncClient.import_session` opens a session that continues
        like this one, to the bit, on this or another server of the same model and weights.

        Raises FailedPreconditionError where it has absorbed nothing, or changes meanwhile;
        ResourceExhaustedError where host memory is full.
        """
        request = sessions.ExportRequest(name=self.name)
        attempts = Attempts(
            self._connection.retry, timeout, rpcs.EXPORT.repeatable, self._state.busy_until
        )
        begin = self._connection.unary_stream(rpcs.EXPORT, request, session=self.name)
        chunks = RepeatedCall(self._connection, begin, attempts, lambda _: True)
        return b"".join([chunk.data async for chunk in chunks])

    async def accept(self, *, timeout: float | None = None) -> SessionInfo:
        """Goes on with a session that is in doubt from the position that is still there: what was
        acknowledged behind it is given up."""
        request = sessions.AcceptSessionRequest(name=self.name)
        return await self._info(rpcs.ACCEPT, request, timeout)

    async def close(self, *, timeout: float | None = None) -> None:
        """Ends this object's streams, and forgets the session and its marks. One that is gone is no
        error."""
        self._end_streams()
        try:
            request = sessions.CloseSessionRequest(name=self.name)
            await self._unary(rpcs.CLOSE, request, timeout)
        except NotFoundError:
            pass

    def _end_streams(self) -> None:
        for stream in list(self._state.streams):
            stream.cancel()

    async def _info(
        self, rpc: Rpc[Q, sessions.Session], request: Q, timeout: float | None
    ) -> SessionInfo:
        return answers.session_info(await self._unary(rpc, request, timeout))

    async def _unary(self, rpc: Rpc[Q, R], request: Q, timeout: float | None) -> R:
        return await self._connection.unary(
            rpc,
            request,
            session=self.name,
            timeout=timeout,
            busy_until=self._state.busy_until,
        )

    def _begin(self, asked: Asked, streamed: bool) -> AsyncStream:
        # What was lost with a connection may have been absorbed, but for a durable session only once with its id.
        asked.request.request_id = asked.request.request_id or self._state.request_id()
        done_once = self._state.durable and asked.request.durability != sessions.DURABILITY_NONE
        attempts = Attempts(
            self._connection.retry, asked.timeout, done_once, self._state.busy_until, has_id=done_once
        )
        begin = self._connection.unary_stream(rpcs.GENERATE, asked.request, session=self.name)
        begun = answers.always_begins
        if done_once:
            begun = answers.begins if streamed else answers.never_begins
        call = RepeatedCall(self._connection, begin, attempts, begun)
        stream = AsyncStream(call, self._state.answer_cut_short, asked.on_progress)
        self._state.streams.add(stream)
        return stream

    @property
    def _session_name(self) -> str:
        return self.name

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state.named:
            self._end_streams()
        else:
            await self.close()


async def open_session(
    connection: Connection,
    name: str | None,
    ttl: float | None,
    durability: str,
    rewind_tokens: int,
    model: str,
    initial_state: str,
    adapter: str,
    create: bool,
    timeout: float | None,
) -> AsyncSession:
    state: SessionState[AsyncStream] = SessionState(name)
    session = AsyncSession(connection, state)
    if create:
        request = sessions.OpenSessionRequest(
            name=state.name,
            ttl_seconds=ttl,
            durability=durability_of(durability),
            rewind_tokens=rewind_tokens,
            model=model,
            initial_state=initial_state,
            adapter=adapter,
        )
        try:
            state.is_as(
                await connection.unary(rpcs.OPEN, request, session=state.name, timeout=timeout)
            )
            return session
        except AlreadyExistsError:
            pass
    state.is_as(
        await connection.unary(
            rpcs.GET, sessions.GetSessionRequest(name=state.name), session=state.name, timeout=timeout
        )
    )
    return session


async def import_session(
    connection: Connection,
    data: bytes,
    name: str | None,
    ttl: float | None,
    durability: str,
    rewind_tokens: int,
    model: str,
    timeout: float | None,
) -> AsyncSession:
    state: SessionState[AsyncStream] = SessionState(name)
    first = sessions.ImportRequest(
        name=state.name,
        ttl_seconds=ttl,
        durability=durability_of(durability),
        rewind_tokens=rewind_tokens,
        model=model,
    )

    def requests() -> Iterator[sessions.ImportRequest]:
        yield first
        for begin in range(0, len(data), _CHUNK_BYTES):
            yield sessions.ImportRequest(data=data[begin : begin + _CHUNK_BYTES])

    state.is_as(await connection.stream_unary(rpcs.IMPORT, requests, state.name, timeout))
    return AsyncSession(connection, state)
