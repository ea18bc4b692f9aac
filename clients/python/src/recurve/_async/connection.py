"""A channel to a server, and calls over it that are made again where they may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc
import grpc.aio

from recurve._channel import Metadata, Tls, channel_options, check_address, metadata_for
from recurve._errors import RecurveError, error_of
from recurve._retry import Attempts, Retry
from recurve._rpcs import Q, R, Rpc

M = TypeVar("M", covariant=True)


class Connection:
    def __init__(self, address: str, retry: Retry, metadata: Metadata, tls: Tls | None) -> None:
        self.address: str = check_address(address)
        self.retry = retry
        self._metadata = metadata
        tls = tls or Tls.from_environment()
        options = channel_options(address)
        self._channel = (
            grpc.aio.insecure_channel(address, options)
            if tls is None
            else grpc.aio.secure_channel(address, tls.credentials(), options)
        )

    async def close(self) -> None:
        await self._channel.close()

    async def unary(
        self,
        rpc: Rpc[Q, R],
        request: Q,
        *,
        session: str = "",
        timeout: float | None = None,
        busy_until: float = 0.0,
    ) -> R:
        call = self._channel.unary_unary(
            rpc.path, rpc.request.SerializeToString, _parser(rpc.response)
        )
        attempts = Attempts(self.retry, timeout, rpc.repeatable, busy_until)
        while True:
            try:
                return await call(
                    request, timeout=attempts.time_left(), metadata=self.metadata(session)
                )
            except grpc.aio.AioRpcError as failure:
                error = self.error_of(failure)
            await asyncio.sleep(attempts.wait_after(error))

    def unary_stream(
        self, rpc: Rpc[Q, R], request: Q, session: str = "", wait_for_ready: bool = False
    ) -> Callable[[float | None], Responses[R]]:
        """Begins the call, with a timeout in seconds."""
        call = self._channel.unary_stream(
            rpc.path, rpc.request.SerializeToString, _parser(rpc.response)
        )
        return lambda timeout: call(
            request,
            timeout=timeout,
            metadata=self.metadata(session),
            wait_for_ready=wait_for_ready,
        )

    def metadata(self, session: str) -> Metadata:
        return self._metadata + metadata_for(session)

    def error_of(self, failure: grpc.aio.AioRpcError) -> RecurveError:
        return error_of(failure, self.address)


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
        self._call = begin(attempts.time_left())

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()
        self._call.cancel()

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


def _parser(response: type[R]) -> Callable[[bytes], R]:
    return cast("Callable[[bytes], R]", cast(Any, response).FromString)
