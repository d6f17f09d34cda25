"""Fixtures of brokers that require logins."""

from __future__ import annotations

from tests.server.conftest import authority, start

__all__ = ["authority", "start"]
