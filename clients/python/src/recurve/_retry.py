"""When a failed call is made again: pure decisions, shared by both clients."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from recurve._errors import (
    AbortedError,
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    RecurveError,
    ResourceExhaustedError,
    UnavailableError,
    UnreachableError,
)


@dataclass(frozen=True)
class Retry:
    """How often and how soon a call is made again that has changed nothing.

    What the server refuses with a time after which to try again is tried again after that time.
    What it refuses because it loads or stops, and what was lost with a connection, is tried again
    after `backoff` seconds, then twice that and so on, each shortened at random by up to half. A
    request that a session may have absorbed is sent again only where the server does it once: for a
    durable session, with the same request_id. A streamed answer that has begun is not asked for
    again. No wait goes beyond a call's timeout: its error is raised at once instead.
    """

    attempts: int = 5  #: calls in all, at least 1; 1: no retries
    backoff: float = 0.1  #: seconds before the second attempt
    max_backoff: float = 5.0  #: seconds; the most that backoff grows to
    max_wait: float = 60.0  #: seconds waited in all; a server that asks for more is not asked again


class Attempts:
    """The attempts at one call. `repeatable`: making it twice does what making it once does.

    `busy_until`: until then, on the clock of time.monotonic, a busy session is asked again: it is
    about to be done with an earlier call that this client has cancelled. `has_id`: while an attempt
    that was lost still runs at the server, another one finds its id in use.
    """

    _BUSY_BACKOFF = 0.005
    # A server learns within milliseconds that a connection was lost, and ends its requests.
    BUSY_SECONDS = 5.0

    def __init__(
        self,
        policy: Retry,
        timeout: float | None,
        repeatable: bool,
        busy_until: float = 0.0,
        has_id: bool = False,
    ) -> None:
        self._policy = policy
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._repeatable = repeatable
        self._busy_until = busy_until
        self._has_id = has_id
        self._busy_backoff = self._BUSY_BACKOFF
        self._failed = 0
        self._waited = 0.0
        self._lost = False  # an attempt, with a request that the server may still have

    def time_left(self) -> float | None:
        """Seconds until the call's timeout; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def wait_after(self, error: RecurveError) -> float:
        """Seconds to wait before the next attempt; raises `error` where there shall be none."""
        runs = isinstance(error, AlreadyExistsError) and self._lost and self._has_id
        busy = runs or isinstance(error, FailedPreconditionError)
        if busy and time.monotonic() < self._busy_until:
            wait = self._busy_backoff
            self._busy_backoff = min(2 * wait, 0.1)
            return wait
        self._failed += 1
        wait = self._wanted_wait(error)
        self._waited += wait
        remaining = self.time_left()
        over = self._failed >= self._policy.attempts or self._waited > self._policy.max_wait
        if over or (remaining is not None and wait >= remaining):
            raise self.told(error)
        return wait

    def _wanted_wait(self, error: RecurveError) -> float:
        if isinstance(error, ResourceExhaustedError) and error.retry_after is not None:
            return error.retry_after
        lost = isinstance(error, UnreachableError)
        if lost:
            self._lost = True
            self._busy_until = time.monotonic() + self.BUSY_SECONDS
        if isinstance(error, AbortedError) and self._repeatable:
            return 0.0
        if not isinstance(error, UnavailableError) or (lost and not self._repeatable):
            raise self.told(error)
        if error.retry_after is not None:
            return error.retry_after
        growing = self._policy.backoff * 2.0 ** (self._failed - 1)
        return min(growing, self._policy.max_backoff) * random.uniform(0.5, 1.0)

    def told(self, error: RecurveError) -> RecurveError:
        """The error as the caller gets it: gRPC's message for a timeout has no details."""
        if isinstance(error, DeadlineExceededError) and "Deadline Exceeded" in error.message:
            return DeadlineExceededError(f"the call's timeout of {self._timeout} s has passed")
        return error
