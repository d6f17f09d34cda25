"""Random tests are repeatable: the same code meets the same examples, on every machine.

FUZZ=1 looks for new examples, and for many more of them; a failure prints what reproduces it. The
campaign of tests/fuzz/test_listeners.py is long then.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent

settings.register_profile("steady", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "fuzz", derandomize=False, deadline=None, print_blob=True, max_examples=1000
)
settings.load_profile("fuzz" if os.environ.get("FUZZ") else "steady")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests run in as many processes as there are cores, each file in one of them; all of those
    that need Spark in the same one, which therefore starts one session."""
    for item in items:
        needs_spark = item.path.is_relative_to(ROOT / "pipeline")
        group = "spark" if needs_spark else str(item.path.relative_to(ROOT))
        item.add_marker(pytest.mark.xdist_group(group))
