"""Fixture of the PHPMQ sessions: a broker."""

from __future__ import annotations

import pytest

from tests.protocols.phpmq.harness import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()
