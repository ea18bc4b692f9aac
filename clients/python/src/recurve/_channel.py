"""How both clients connect."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

import grpc

Metadata = tuple[tuple[str, str], ...]

_NAMED = ("unix:", "dns:", "ipv4:", "ipv6:")
_THIS_MACHINE = ("127.", "localhost:", "[::1]:", "unix:")


@dataclasses.dataclass(frozen=True)
class Tls:
    """How TLS is spoken with a server: files of PEM.

    ca: certificates of which one has signed the server's; None: whom grpcio trusts by itself.
    cert, key: the client's own certificate, with those between it and a root, and its key; None:
        it shows none.

    ValueError where only one of cert and key is given, OSError where a file cannot be read.
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate and its key must be given together")

    @staticmethod
    def from_environment() -> Tls | None:
        """As RECURVE_TLS_CA, RECURVE_TLS_CERT and RECURVE_TLS_KEY say, which the command line reads
        too; None where none of them is set. RECURVE_TLS_CA=system: whom grpcio trusts."""
        ca, cert, key = (os.environ.get(f"RECURVE_TLS_{name}") for name in ("CA", "CERT", "KEY"))
        if not (ca or cert or key):
            return None
        return Tls(ca=None if ca == "system" else ca or None, cert=cert or None, key=key or None)

    def credentials(self) -> grpc.ChannelCredentials:
        ca, key, cert = (
            None if path is None else pathlib.Path(path).read_bytes()
            for path in (self.ca, self.key, self.cert)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)


def with_key(metadata: Metadata, key: str | None) -> Metadata:
    """The metadata, with the header that shows the key: the one given, or that of RECURVE_KEY, or of
    the file RECURVE_KEY_FILE names; as it is where there is none, or it has the header already.

    ValueError for what is no key, OSError for a file that cannot be read."""
    if any(name.lower() == "authorization" for name, _ in metadata):
        return metadata
    file = os.environ.get("RECURVE_KEY_FILE")
    if key is None and file:
        key = pathlib.Path(file).read_text().strip()
    elif key is None:
        key = os.environ.get("RECURVE_KEY")
    if not key:
        return metadata
    if not re.fullmatch("[!-~]+", key):
        raise ValueError("the key must be one word of ASCII, as `recurve keys new` prints it")
    return (*metadata, ("authorization", f"Bearer {key}"))


def check_address(address: str) -> str:
    """The address. ValueError for one without a port: gRPC takes it for one with port 443, and what
    goes wrong then says nothing."""
    port = re.fullmatch(r"[^/]+:(\d{1,5})", address)
    if not address.startswith(_NAMED) and not (port and 0 < int(port[1]) < 65536):
        raise ValueError(f"the server's address must be HOST:PORT, e.g. 127.0.0.1:50051, got '{address}'")
    return address


def channel_options(address: str) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", -1),  # log-probabilities of a long prompt come in one
        # gRPC would share one socket among all channels of the process to the same address.
        ("grpc.use_local_subchannel_pool", 1),
        # Quick to find a server that has just started; the lower bound is the time a connection
        # may take.
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 5000),
    ]
    if address.startswith(_THIS_MACHINE):
        # gRPC would ask the proxy of the environment for this very machine.
        options.append(("grpc.enable_http_proxy", 0))
    return options


def metadata_for(session: str) -> Metadata:
    """The header by which proxies send a session's calls to the server that has it."""
    return (("x-recurve-session", session),) if session else ()
