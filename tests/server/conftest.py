"""Broker processes on free loopback ports, which are stopped at the end of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluicemq.cli.local import LISTEN, LocalBroker
from tests.server.authority import Authority

Start = Callable[..., LocalBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a broker: `start(*urls, options=[…], environment={…})`."""
    with ExitStack() as stack:

        def call(
            *urls: str,
            options: tuple[str, ...] = (),
            environment: dict[str, str] | None = None,
        ) -> LocalBroker:
            broker = LocalBroker(tmp_path / "broker", urls or LISTEN, options, environment)
            stack.callback(broker.stop)
            return broker.start()

        yield call


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return a certificate authority with an empty directory."""
    directory = tmp_path / "pki"
    directory.mkdir()
    return Authority(directory)
