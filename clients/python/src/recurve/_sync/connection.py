"""A channel to a server, and calls over it that are made again where they may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, cast

import grpc

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
            grpc.insecure_channel(address, options)
            if tls is None
            else grpc.secure_channel(address, tls.credentials(), options)
        )

    def close(self) -> None:
        self._channel.close()

    def unary(
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
                return call(request, timeout=attempts.time_left(), metadata=self.metadata(session))
            except grpc.RpcError as failure:
                error = self.error_of(failure)
            time.sleep(attempts.wait_after(error))

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

    def stream_stream(
        self, rpc: Rpc[Q, R], requests: Callable[[], Iterator[Q]]
    ) -> Callable[[float | None], Responses[R]]:
        call = self._channel.stream_stream(
            rpc.path, rpc.request.SerializeToString, _parser(rpc.response)
        )
        return lambda timeout: call(requests(), timeout=timeout, metadata=self.metadata(""))

    def metadata(self, session: str) -> Metadata:
        return self._metadata + metadata_for(session)

    def error_of(self, failure: grpc.RpcError) -> RecurveError:
        return error_of(failure, self.address)


class Responses(Protocol[M]):
    """The messages of a running call."""

    def __iter__(self) -> Iterator[M]: ...

    def __next__(self) -> M: ...

    def cancel(self) -> object: ...


class RepeatedCall(Iterator[R]):
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
        self._cancelled = threading.Event()
        self._call = begin(attempts.time_left())

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()
        self._call.cancel()

    def __next__(self) -> R:
        while not self.cancelled:
            try:
                message = next(self._call)
                self._begun = self._begun or self._begins(message)
                return message
            except grpc.RpcError as failure:
                error = self._connection.error_of(failure)
            if self.cancelled:
                break
            if self._begun:
                raise self._attempts.told(error)
            if not self._cancelled.wait(self._attempts.wait_after(error)):
                self._call = self._begin(self._attempts.time_left())
                if self.cancelled:  # while it began, by another thread
                    self._call.cancel()
        raise StopIteration


def _parser(response: type[R]) -> Callable[[bytes], R]:
    return cast("Callable[[bytes], R]", cast(Any, response).FromString)
