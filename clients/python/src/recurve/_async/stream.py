"""Answers as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType

from recurve._answers import Answer
from recurve._calls_async import RepeatedCall
from recurve._errors import SERVER_UNTOLD, CancelledError, RecurveError
from recurve._types import Chunk, Generation, OnProgress, PromptInfo
from recurve.v1 import inference_pb2 as v1


class AsyncStream(AsyncIterator[Chunk]):
    """An answer as it comes: iterate over it with `async for`, once.

    The request is on its way when this is made. It ends with the answer, with `cancel`, with the
    end of an `async with` block, or when this object goes, as after a `break`. Raises what
    `generate` raises, after the chunks that came before.

    Awaited, it ends too when the task that reads it is cancelled.
    """

    def __init__(
        self,
        call: RepeatedCall[v1.GenerateResponse],
        cut_short: Callable[[], None],
        on_progress: OnProgress | None,
    ) -> None:
        self._call = call
        self._cut_short = cut_short  # called once if the server may not know yet that this ended
        self._answer = Answer(on_progress)
        self._ended = False

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running"
        request = f" request {self.prompt.request_id!r}" if self.prompt else ""
        return f"<recurve.{type(self).__name__}{request} {state}>"

    async def __anext__(self) -> Chunk:
        while not self._ended:
            try:
                message = await self._call.__anext__()
            except StopAsyncIteration:
                self._ended = True
                break
            except RecurveError as error:
                self._ended = True
                if isinstance(error, SERVER_UNTOLD):
                    self._cut_short()
                raise
            except BaseException:
                self.cancel()
                raise
            chunk = self._answer.take(message)
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    @property
    def prompt(self) -> PromptInfo | None:
        """What the server understood; None before the first chunk."""
        return self._answer.prompt

    async def result(self) -> Generation:
        """Reads the rest, and returns the whole answer. CancelledError after `cancel`."""
        async for _ in self:
            pass
        if self._call.cancelled:
            raise CancelledError("this side cancelled the call")
        return self._answer.generation()

    def cancel(self) -> None:
        """Ends the request; the iteration just ends. Does nothing where it has ended."""
        if not self._ended:
            self._ended = True
            self._call.cancel()
            self._cut_short()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_ended") and not self._ended:
            self._cut_short()
            self._call.abandon()
