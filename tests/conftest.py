"""Property-based tests are deterministic: the same code gets the same examples on every machine.

FUZZ=1 generates new and many more examples, and extends the campaign of
tests/fuzz/test_listeners.py. A failure prints how to reproduce it, and the ends of the logs of the
brokers in the test's directory.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import fork_server

fork_server.install()
settings.register_profile("deterministic", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "fuzz", derandomize=False, deadline=None, print_blob=True, max_examples=1000
)
settings.load_profile("fuzz" if os.environ.get("FUZZ") else "deterministic")

SLOW_TESTS = (
    ("tests/pipeline/test_cluster.py", "tests/faults", "tests/interop"),
    (
        *("tests/pipeline/jobs", "tests/pipeline/typed", "tests/pipeline/test_examples.py"),
        *("tests/pipeline/test_tutorial.py", "tests/broker/test_recovery.py"),
    ),
)
"""Tests that take minutes, those that take longest first. They start before all others, so that all
workers are busy until the end."""

LOG_TAIL_BYTES = 4000
"""Number of bytes of a broker's log in the report of a failed test."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without garbage collections, and exclude their objects from later ones.

    Some tests collect garbage to count the objects that remain; the tests and modules of this
    process are many more objects than those.
    """
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    paths = [[Path(config.rootpath, name) for name in names] for names in SLOW_TESTS]

    @cache
    def rank(path: Path) -> int:
        matches = (any(map(path.is_relative_to, group)) for group in paths)
        return next((number for number, matched in enumerate(matches) if matched), len(paths))

    items.sort(key=lambda item: rank(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    directory = item.funcargs.get("tmp_path")
    if report.failed and isinstance(directory, Path):
        for log in sorted(directory.rglob("broker.log")):
            tail = log.read_bytes()[-LOG_TAIL_BYTES:]
            report.sections.append((f"End of {log}", tail.decode(errors="replace")))
    return report
