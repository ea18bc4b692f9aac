"""What both kinds of session know about themselves."""

from __future__ import annotations

import secrets
import time
import weakref
from typing import Generic, TypeVar

from recurve._retry import Attempts
from recurve.v1 import sessions_pb2 as sessions

S = TypeVar("S")


class SessionState(Generic[S]):
    """A session's name and its streams; S: the class of those.

    A name is chosen here where none is given: proxies send calls to the server that has the session
    by the name in their metadata, so it must be known before the session is.
    """

    def __init__(self, name: str | None) -> None:
        self.name: str = name or f"py-{secrets.token_hex(16)}"
        self.named: bool = bool(name)
        self.durable: bool = False  # the server does a request with the same request_id once
        self.busy_until: float = 0.0  # on the clock of time.monotonic: see Attempts
        self.streams: weakref.WeakSet[S] = weakref.WeakSet()

    def is_as(self, session: sessions.Session) -> None:
        """Takes what the server says of it."""
        self.durable = session.durability in (sessions.DURABILITY_LOCAL, sessions.DURABILITY_REMOTE)

    def request_id(self) -> str:
        """A new one, for a turn of a durable session; empty: the server chooses one."""
        return f"py-{secrets.token_hex(16)}" if self.durable else ""

    def answer_cut_short(self) -> None:
        self.busy_until = time.monotonic() + Attempts.BUSY_SECONDS
