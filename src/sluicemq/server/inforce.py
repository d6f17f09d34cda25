"""The settings in force, as the administration shows them."""

from __future__ import annotations

from collections.abc import Mapping

from sluicemq.admin.ports import SettingView
from sluicemq.server.config import Config


class InForce:
    """See `sluicemq.admin.ports.Configuration`."""

    def __init__(self, config: Config, origins: Mapping[str, str]) -> None:
        """`origins`: see `loading.Loaded`."""
        self._config = config
        self._origins = origins

    def settings(self) -> list[SettingView]:
        """See Configuration."""
        return []
