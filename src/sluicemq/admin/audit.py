"""Endpoint that lists the latest entries of the audit log."""

from __future__ import annotations

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.pagination import Page, PageQuery, page_of
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.security.audit import Audit, AuditEntry


class AuditEndpoints:
    """Handlers of `/audit`."""

    def __init__(self, log: Audit) -> None:
        self._log = log

    async def list(self, call: Call) -> Page[AuditEntry]:
        """GET /audit, latest first"""
        return page_of(self._log.recent(), call.query)


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /audit."""
    handlers = AuditEndpoints(context.audit)
    return [
        Endpoint(
            "GET",
            "/audit",
            "listAuditEntries",
            handlers.list,
            "Last lines of the audit log",
            Need.SUPERUSER,
            query=PageQuery,
            answer=Page[AuditEntry],
        ),
    ]
