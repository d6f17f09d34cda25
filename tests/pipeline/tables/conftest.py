"""Each kind of table, new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluicemq.pipeline.tables import KINDS, Table, table


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def made(kind: str, tmp_path: Path) -> Callable[..., Table]:
    """Opens the test's table; each call gives an object of its own, as another process has it."""

    def make(name: str = "a table [1]", partitions: tuple[str, ...] = ()) -> Table:
        return table(kind, tmp_path / name, partitions=partitions, sort=("sequence",))

    return make
