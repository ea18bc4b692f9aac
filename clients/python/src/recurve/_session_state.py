"""What both kinds of session know about themselves."""

from __future__ import annotations

import secrets
import time
import weakref
from typing import Generic, TypeVar

S = TypeVar("S")


class SessionState(Generic[S]):
    """A session's name and its streams; S: the class of those.

    A name is chosen here where none is given: proxies send calls to the server that has the session
    by the name in their metadata, so it must be known before the session is.
    """

    # The server learns within milliseconds that an answer is not wanted any more.
    _BUSY_SECONDS = 5.0

    def __init__(self, name: str | None) -> None:
        self.name: str = name or f"py-{secrets.token_hex(16)}"
        self.named: bool = bool(name)
        self.busy_until: float = 0.0  # on the clock of time.monotonic: see Attempts
        self.streams: weakref.WeakSet[S] = weakref.WeakSet()

    def answer_cut_short(self) -> None:
        self.busy_until = time.monotonic() + self._BUSY_SECONDS
