"""A broker whose listeners ask for logins."""

from __future__ import annotations

from tests.server.conftest import authority, start

__all__ = ["authority", "start"]
