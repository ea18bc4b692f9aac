"""Sessions to be, which only the asynchronous client has."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurve._async.session import AsyncSession


class Opening:
    """A session to be: awaited it is opened, and with `async with` left as sessions are."""

    def __init__(self, open: Callable[[], Coroutine[Any, Any, AsyncSession]]) -> None:
        self._open = open

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._open()
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.__aexit__(kind, error, trace)
