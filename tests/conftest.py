"""Property-based tests are deterministic: the same code gets the same examples on every machine.

FUZZ=1 generates new and many more examples, and extends the campaign of
tests/fuzz/test_listeners.py. A failure prints how to reproduce it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "fuzz", derandomize=False, deadline=None, print_blob=True, max_examples=1000
)
settings.load_profile("fuzz" if os.environ.get("FUZZ") else "deterministic")

SLOW_TESTS = ("tests/pipeline/test_cluster.py", "tests/faults", "tests/interop")
"""Tests that take minutes. They start first, so that all workers are busy until the end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = [Path(config.rootpath, name) for name in SLOW_TESTS]
    items.sort(key=lambda item: not any(item.path.is_relative_to(path) for path in first))
