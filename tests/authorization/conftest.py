"""Settings of the authorization tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.journal.support import skipped_syncs


@pytest.fixture(scope="package", autouse=True)
def syncs() -> Iterator[None]:
    """Skip the syncs of the user file, of which the tests request hundreds."""
    with skipped_syncs():
        yield
