"""Endpoint that lists the effective settings and their sources."""

from __future__ import annotations

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.pagination import Page, PageQuery, page_of
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.server_interface import Configuration, SettingView


class ConfigurationQuery(PageQuery, frozen=True, kw_only=True):
    """Only settings whose names contain `filter`."""

    filter: str = ""


class ConfigurationEndpoints:
    """Handlers of `/configuration`."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    async def list(self, call: Call) -> Page[SettingView]:
        """GET /configuration, in the order of the documentation"""
        substring = call.query.filter
        found = [each for each in self._configuration.settings() if substring in each.name]
        return page_of(found, call.query)


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /configuration."""
    handlers = ConfigurationEndpoints(context.configuration)
    return [
        Endpoint(
            "GET",
            "/configuration",
            "listSettings",
            handlers.list,
            "List the effective settings and their sources, except those of destinations",
            Need.SUPERUSER,
            query=ConfigurationQuery,
            answer=Page[SettingView],
        ),
    ]
