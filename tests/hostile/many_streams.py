"""Streams without end at the highest priority, on one connection, where there are no keys. The honest client
comes from the same address."""

from endless_streams import attack, check  # noqa: F401

FLAGS = ["--slots", "16"]
SHORT = {"streams": 64, "seconds": 2}
FULL = {"streams": 64, "seconds": 30}
