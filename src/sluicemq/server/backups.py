"""What a backup holds beside the journal: the users, and the configuration in force."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from sluicemq.server.config import Config
from sluicemq.server.configuration_reference import render

USERS_NAME: Final = "users.json"
CONFIGURATION_NAME: Final = "configuration.toml"
MIGRATIONS_NAME: Final = "migrations.log"
"""What `sluicemq migrate` has brought here, so that it brings it only once."""


class Backups:
    """See `sluicemq.admin.server_interface.Backups`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def directory(self) -> Path | None:
        """See Backups."""
        return self._config.broker.backup_dir

    @property
    def users_file(self) -> Path:
        """See Backups."""
        return self._config.users_file

    @property
    def configuration(self) -> str:
        """See Backups."""
        return render(self._config)

    def sources(self) -> dict[str, bytes]:
        """See Backups."""
        return sources(self._config)


def sources(config: Config) -> dict[str, bytes]:
    """Files by name. Secrets are in none of them: the configuration only names their files, and of
    passwords there are hashes. Raises OSError."""
    found = {CONFIGURATION_NAME: render(config).encode()}
    migrations = config.broker.data_dir / MIGRATIONS_NAME
    for name, path in ((USERS_NAME, config.users_file), (MIGRATIONS_NAME, migrations)):
        with suppress(FileNotFoundError):
            found[name] = path.read_bytes()
    return found
