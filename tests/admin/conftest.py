"""A broker with an HTTP listener, and a plain client of it."""

from __future__ import annotations

from tests.server.conftest import authority, start

__all__ = ["authority", "start"]
