"""Endpoint that lists the effective settings and their sources."""

from __future__ import annotations

import msgspec

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.server_interface import Configuration, SettingView


class ConfigurationQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Only settings that have that in their name."""

    filter: str = ""


class SettingList(msgspec.Struct, frozen=True):
    """In the order of the documentation."""

    items: list[SettingView]


class ConfigurationEndpoints:
    """Handlers of `/configuration`."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    async def list(self, call: Call) -> SettingList:
        """GET /configuration"""
        wanted = call.query.filter
        return SettingList([each for each in self._configuration.settings() if wanted in each.name])


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /configuration."""
    handlers = ConfigurationEndpoints(context.configuration)
    return [
        Endpoint(
            "GET",
            "/configuration",
            handlers.list,
            "The settings in force, and where they come from; not those of destinations",
            Need.SUPERUSER,
            query=ConfigurationQuery,
            answer=SettingList,
        ),
    ]
