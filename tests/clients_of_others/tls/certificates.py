"""Certificates for a test, made by the openssl command."""

import dataclasses
import itertools
import pathlib
import subprocess


@dataclasses.dataclass(frozen=True)
class Certificate:
    cert: pathlib.Path
    key: pathlib.Path

    @property
    def flags(self):
        """Of recurve-server."""
        return "--tls-cert", str(self.cert), "--tls-key", str(self.key)


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A root, and what it signs."""

    def __init__(self, folder):
        self._folder = folder
        self._numbers = itertools.count(1)
        self.ca = folder / "ca.pem"
        self._key = folder / "ca.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", "/CN=an authority", "-keyout", self._key, "-out", self.ca)

    def sign(self, subject="localhost", names="DNS:localhost,IP:127.0.0.1", key=None, expired=False):
        """key: arguments of `openssl req -newkey`; else an elliptic one."""
        stem = self._folder / f"{next(self._numbers)}"
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={names}\n")
        openssl("req", "-newkey", *(key or ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")), "-nodes",
                "-subj", f"/CN={subject}", "-keyout", made.key, "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial",
                "-days", -1 if expired else 2, "-extfile", extensions, "-out", made.cert)
        return made
