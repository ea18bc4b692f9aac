"""Puts the repository root on the path, so that the tests run from any directory."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from weights_tools import golden_weights  # noqa: E402

golden_weights.draw(ROOT / "tests" / "golden")
