"""Fixture of the VibeMQ sessions: a broker."""

from __future__ import annotations

import pytest

from tests.protocols.vibemq.harness import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()
