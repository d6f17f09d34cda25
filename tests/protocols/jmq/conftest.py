"""Fixtures of the JMQ sessions: a broker, and a client that is logged in."""

from __future__ import annotations

import pytest

from tests.protocols.jmq.harness import Harness, Peer


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def peer(harness: Harness) -> Peer:
    return harness.connect()
