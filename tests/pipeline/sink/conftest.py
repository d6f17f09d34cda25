"""The broker that the tests write to; each test has its own queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker

LISTEN = ("http://127.0.0.1:0",)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("broker"), LISTEN) as broker:
        yield broker


@pytest.fixture(scope="module")
def url(broker: LocalBroker) -> str:
    return f"http://127.0.0.1:{broker.port('http')}"


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test uses."""
    return str(request.node.name)


@pytest.fixture(scope="module")
def data(broker: LocalBroker) -> Path:
    return broker.directory
