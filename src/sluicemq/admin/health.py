"""Endpoints for health checks and the state of the broker. They require no login."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import msgspec

from sluicemq import __version__
from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.errors import RETRY_SECONDS, ApiError
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.server_interface import State

_READY: Final = "serving"


class StatusView(msgspec.Struct, frozen=True):
    """Identity of the broker: `broker_id` of its data directory, `pid` of its process."""

    version: str
    broker_id: str
    pid: int


class HealthView(msgspec.Struct, frozen=True):
    """State of the broker; `ready` while it serves clients."""

    state: State


class HealthEndpoints:
    """Handlers of `/health` and `/status`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def status(self, call: Call) -> StatusView:
        """GET /status"""
        return StatusView(__version__, self._context.broker.identity.hex(), os.getpid())

    async def live(self, call: Call) -> HealthView:
        """GET /health/live: the event loop runs."""
        return HealthView(self._context.vitals.state())

    async def ready(self, call: Call) -> HealthView:
        """GET /health/ready: 503 while clients would be rejected."""
        state = self._context.vitals.state()
        if state != _READY:
            raise ApiError(
                503,
                "not-ready",
                f"the broker is not serving: {state}",
                {"Retry-After": str(RETRY_SECONDS)},
                {"state": state},
            )
        return HealthView(state)


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /status and /health."""
    handlers = HealthEndpoints(context)
    live = Endpoint(
        "GET",
        "/health/live",
        "getLiveness",
        handlers.live,
        "Liveness check",
        Need.NOTHING,
        answer=HealthView,
    )
    ready = Endpoint(
        "GET",
        "/health/ready",
        "getReadiness",
        handlers.ready,
        "Readiness check",
        Need.NOTHING,
        answer=HealthView,
    )
    return [
        Endpoint(
            "GET",
            "/status",
            "getStatus",
            handlers.status,
            "Try a connection",
            Need.USER,
            answer=StatusView,
        ),
        live,
        ready,
        replace(live, prefix=""),
        replace(ready, prefix=""),
    ]
