"""Scores of texts, which go out as they are scored.

They run in threads. A server that refuses a text does not read the rest of it, and grpc.aio gives
a call whose writing is cut short a status that says nothing (seen with grpcio 1.85).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Union

from recurve._async import connection as asynchronous
from recurve._requests import ScorePieces, ScoreText
from recurve._scoring_sync import Scoring
from recurve._sync.connection import Connection
from recurve._types import Score, ScoreOptions

_THREADS = 64

Part = Union[str, bytes]
Text = Union[ScoreText, AsyncIterator[Part]]


class Scorer:
    """Scores over a separate connection, which the first score opens."""

    def __init__(self, client: asynchronous.Connection) -> None:
        self._connection = Connection(client.address, client.retry, client.own_metadata, client.tls)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="recurve-score")

    async def score(self, text: Text, options: ScoreOptions) -> Score:
        if isinstance(text, AsyncIterator):
            with contextlib.closing(_Parts(text)) as parts:
                return await self.score(parts, options)
        scoring = Scoring(self._connection, ScorePieces(text, options))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, scoring.result)
        finally:
            scoring.cancel()

    def close(self) -> None:
        self._connection.close()
        self._threads.shutdown(wait=False)


class _Parts(Iterator[Part]):
    """What an asynchronous iterator of the event loop gives, to be taken in another thread."""

    def __init__(self, parts: AsyncIterator[Part]) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._next: Future[Part | None] | None = None
        self._closed = False

    def __next__(self) -> Part:
        self._next = asyncio.run_coroutine_threadsafe(self._take(), self._loop)
        part = self._next.result()
        if part is None:
            raise StopIteration
        return part

    async def _take(self) -> Part | None:
        if self._closed:
            return None
        try:
            return await self._parts.__anext__()
        except StopAsyncIteration:
            return None

    def close(self) -> None:
        """In the event loop: tells the reader that waits for a part that there is none."""
        self._closed = True
        if self._next is not None:
            self._next.cancel()
