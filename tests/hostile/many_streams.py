"""Endless streams at the highest priority on one connection, on a server without keys. The honest client
has the same address."""

from endless_streams import attack, check  # noqa: F401

FLAGS = ["--slots", "16"]
SHORT = {"streams": 64, "seconds": 2}
FULL = {"streams": 64, "seconds": 30}
