"""Endpoint that lists the latest entries of the audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.security.audit import Audit, AuditEntry


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum number of lines."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class AuditEntryList(msgspec.Struct, frozen=True):
    """Lines of the audit log, latest first."""

    items: list[AuditEntry]


class AuditEndpoints:
    """Handlers of `/audit`."""

    def __init__(self, log: Audit) -> None:
        self._log = log

    async def list(self, call: Call) -> AuditEntryList:
        """GET /audit"""
        return AuditEntryList(self._log.recent(call.query.limit))


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /audit."""
    handlers = AuditEndpoints(context.audit)
    return [
        Endpoint(
            "GET",
            "/audit",
            handlers.list,
            "Last lines of the audit log",
            Need.SUPERUSER,
            query=AuditQuery,
            answer=AuditEntryList,
        ),
    ]
