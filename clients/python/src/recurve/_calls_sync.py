"""Calls whose answers are streams, which are made again where they may be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc

from recurve._retry import Attempts
from recurve._rpcs import R

if TYPE_CHECKING:
    from recurve._sync.connection import Connection

M = TypeVar("M", covariant=True)


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

    def abandon(self) -> None:
        self.cancel()

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
