"""A channel to a server, and calls over it that are made again where they may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc.aio

from recurve._calls_async import Responses
from recurve._channel import Metadata, Tls, channel_options, check_address, metadata_for
from recurve._errors import RecurveError, error_of
from recurve._retry import Attempts, Retry
from recurve._rpcs import Q, R, Rpc


class Connection:
    def __init__(self, address: str, retry: Retry, metadata: Metadata, tls: Tls | None) -> None:
        self.address: str = check_address(address)
        self.retry = retry
        self.own_metadata = metadata
        self.tls: Tls | None = tls or Tls.from_environment()
        options = channel_options(address)
        self.channel: grpc.aio.Channel = (
            grpc.aio.insecure_channel(address, options)
            if self.tls is None
            else grpc.aio.secure_channel(address, self.tls.credentials(), options)
        )

    async def close(self) -> None:
        await self.channel.close()

    async def unary(
        self,
        rpc: Rpc[Q, R],
        request: Q,
        *,
        session: str = "",
        timeout: float | None = None,
        busy_until: float = 0.0,
    ) -> R:
        call = self.channel.unary_unary(
            rpc.path, rpc.request.SerializeToString, parser(rpc.response)
        )
        metadata = self.metadata(session)
        attempts = Attempts(self.retry, timeout, rpc.repeatable, busy_until)
        answer: R = await self._repeated(
            lambda timeout: call(request, timeout=timeout, metadata=metadata), attempts
        )
        return answer

    async def stream_unary(
        self, rpc: Rpc[Q, R], requests: Callable[[], Iterator[Q]], session: str, timeout: float | None
    ) -> R:
        """requests: called for each attempt."""
        call = self.channel.stream_unary(
            rpc.path, rpc.request.SerializeToString, parser(rpc.response)
        )
        metadata = self.metadata(session)
        attempts = Attempts(self.retry, timeout, rpc.repeatable)
        answer: R = await self._repeated(
            lambda timeout: call(requests(), timeout=timeout, metadata=metadata), attempts
        )
        return answer

    async def _repeated(self, call: Callable[[float | None], Any], attempts: Attempts) -> Any:
        """call: begins an attempt, with a timeout in seconds."""
        while True:
            try:
                return await call(attempts.time_left())
            except grpc.aio.AioRpcError as failure:
                error = self.error_of(failure)
            await asyncio.sleep(attempts.wait_after(error))

    def unary_stream(
        self, rpc: Rpc[Q, R], request: Q, session: str = "", wait_for_ready: bool = False
    ) -> Callable[[float | None], Responses[R]]:
        """Begins the call, with a timeout in seconds."""
        call = self.channel.unary_stream(
            rpc.path, rpc.request.SerializeToString, parser(rpc.response)
        )
        return lambda timeout: call(
            request,
            timeout=timeout,
            metadata=self.metadata(session),
            wait_for_ready=wait_for_ready,
        )

    def metadata(self, session: str) -> Metadata:
        return self.own_metadata + metadata_for(session)

    def error_of(self, failure: grpc.aio.AioRpcError) -> RecurveError:
        return error_of(failure, self.address)


def parser(response: type[R]) -> Callable[[bytes], R]:
    return cast("Callable[[bytes], R]", cast(Any, response).FromString)
