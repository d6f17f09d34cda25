"""Fixture of the msglite sessions: a broker."""

from __future__ import annotations

import pytest

from tests.protocols.msglite.harness import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()
