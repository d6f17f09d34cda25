"""Fixtures of the engine tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.disk_broker import DiskBroker


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskBroker]:
    disk = DiskBroker(tmp_path)
    yield disk
    disk.journal.close()
