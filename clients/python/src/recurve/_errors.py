"""Why a call failed: one class of exception for each status."""

from __future__ import annotations

from typing import Any

import grpc


class RecurveError(Exception):
    """A call failed.

    code: the status as the gRPC specification spells it, e.g. "NOT_FOUND".
    message: one sentence, the server's own where it has one.
    retry_after: seconds after which to retry; None where the server says
        nothing of that.
    """

    code: str = "UNKNOWN"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after: float | None = None
    ) -> None:
        self.code = code or type(self).code
        super().__init__(f"{self.code}: {message}")
        self.message = message
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[RecurveError], tuple[str], dict[str, Any]]:
        return type(self), (self.message,), self.__dict__


class CancelledError(RecurveError):
    """This side cancelled the call, or an abort ended it."""

    code: str = "CANCELLED"


class InvalidArgumentError(RecurveError, ValueError):
    """The request cannot be served; the message names the field, what is allowed and what came."""

    code: str = "INVALID_ARGUMENT"


class DeadlineExceededError(RecurveError, TimeoutError):
    """The call's timeout has passed, or the server waited for this side for too long."""

    code: str = "DEADLINE_EXCEEDED"


class NotFoundError(RecurveError):
    """There is no session, mark or request of that name."""

    code: str = "NOT_FOUND"


class AlreadyExistsError(RecurveError):
    """The name of a session or of a running request is in use."""

    code: str = "ALREADY_EXISTS"


class PermissionDeniedError(RecurveError):
    """Who asks may not do this."""

    code: str = "PERMISSION_DENIED"


class UnauthenticatedError(RecurveError):
    """The server requires credentials, or does not accept these."""

    code: str = "UNAUTHENTICATED"


class ResourceExhaustedError(RecurveError):
    """The server has no room now: see `retry_after`."""

    code: str = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(RecurveError):
    """The session serves another request."""

    code: str = "FAILED_PRECONDITION"


class UnimplementedError(RecurveError):
    """The server does not know this call: it is another one, or of another version."""

    code: str = "UNIMPLEMENTED"


class InternalError(RecurveError):
    """The server has failed."""

    code: str = "INTERNAL"


class AbortedError(RecurveError):
    """Another server has continued the session: repeat the request."""

    code: str = "ABORTED"


class DataLossError(RecurveError):
    """Something stored is damaged."""

    code: str = "DATA_LOSS"


class UnavailableError(RecurveError):
    """The server answers, but loads its model or stops."""

    code: str = "UNAVAILABLE"


class UnreachableError(UnavailableError, ConnectionError):
    """Nothing answers at the address, or the connection was lost."""


_BY_CODE: dict[str, type[RecurveError]] = {
    kind.code: kind for kind in RecurveError.__subclasses__()
}

# What a server that is going to serve may answer before it does.
MAY_COME = ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED")

# What ends a call on this side, maybe before the server knows.
SERVER_UNTOLD = (DeadlineExceededError, UnreachableError)


def error_of(failure: Any, address: str) -> RecurveError:
    """The exception for a grpc.RpcError of a call to `address`."""
    code: grpc.StatusCode = failure.code()
    message: str = failure.details() or "the server gives no reason"
    trailers = {key: value for key, value in failure.trailing_metadata() or ()}
    # gRPC uses UNAVAILABLE for lost connections too; a Recurve server marks its answers.
    if code is grpc.StatusCode.UNAVAILABLE and "recurve-state" not in trailers:
        cause = message.rpartition(": ")[2]  # gRPC tells the whole way to it
        if any(word in message for word in ("reset", "Socket closed", "Broken pipe")):
            return UnreachableError(f"the connection to {address} was lost ({cause})")
        return UnreachableError(f"no server can be reached at {address} ({cause})")
    if code is grpc.StatusCode.INTERNAL and "RST_STREAM" in message:  # by a proxy that has lost the server
        return UnreachableError(f"the connection to the server behind {address} was lost")
    if code is grpc.StatusCode.CANCELLED and message == code.name:  # gRPC's own, of a server that ends
        return UnreachableError(f"the server at {address} ended before it began with the call")
    kind = _BY_CODE.get(code.name, RecurveError)
    return kind(message, code=code.name, retry_after=_pushback(trailers))


def _pushback(trailers: dict[str, Any]) -> float | None:
    """Seconds, from the trailer of gRPC's retry design; None if it says not to retry."""
    value = trailers.get("grpc-retry-pushback-ms", "")
    return int(value) / 1000 if isinstance(value, str) and value.isdecimal() else None
