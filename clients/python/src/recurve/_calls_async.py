"""Calls whose answers are streams, which are made again where they may be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import grpc.aio

from recurve._retry import Attempts
from recurve._rpcs import R

if TYPE_CHECKING:
    from recurve._async.connection import Connection

M = TypeVar("M", covariant=True)


class Responses(Protocol[M]):
    """The messages of a running call."""

    def __aiter__(self) -> AsyncIterator[M]: ...

    async def read(self) -> Any:
        """A message, or grpc.aio.EOF."""

    def cancel(self) -> object: ...


class RepeatedCall(Generic[R]):
    """The messages of a streamed call, which is begun again as long as nothing has come of it, or
    only messages for which `begins` is false. After `cancel` the iteration ends."""

    def __init__(
        self,
        connection: Connection,
        begin: Callable[[float | None], Responses[R]],
        attempts: Attempts,
        begins: Callable[[R], bool] = lambda _: True,
    ) -> None:
        self._connection = connection
        self._begin = begin
        self._attempts = attempts
        self._begins = begins
        self._begun = False
        self._cancelled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._call = begin(attempts.time_left())

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()
        self._call.cancel()

    def abandon(self) -> None:
        """As `cancel`, in whatever thread. The loop may be closed, and then the call has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.cancel)

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        while not self.cancelled:
            try:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    break
                self._begun = self._begun or self._begins(message)
                return cast(R, message)
            except grpc.aio.AioRpcError as failure:
                error = self._connection.error_of(failure)
            except asyncio.CancelledError:
                if self.cancelled:  # the call, and not the task that reads it
                    break
                raise
            if self.cancelled:
                break
            if self._begun:
                raise self._attempts.told(error)
            if not await self._cancelled_within(self._attempts.wait_after(error)):
                self._call = self._begin(self._attempts.time_left())
        raise StopAsyncIteration

    async def _cancelled_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._cancelled.wait(), seconds)
        except asyncio.TimeoutError:  # another than TimeoutError in Python 3.10
            return False
        return True
