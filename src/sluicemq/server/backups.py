"""Files that a backup contains besides the journal: users and effective configuration."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from sluicemq.server.config import Config
from sluicemq.server.configuration_reference import render

USERS_NAME: Final = "users.json"
CONFIGURATION_NAME: Final = "configuration.toml"
MIGRATIONS_NAME: Final = "migrations.log"
"""Name of the log of completed migrations, which prevents `sluicemq migrate` from repeating one."""


class ServerBackups:
    """Paths and files of the server that the management service needs for backups."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def directory(self) -> Path | None:
        """Directory of the backups (`backup_dir`), or None if none is configured."""
        return self._config.broker.backup_dir

    @property
    def users_file(self) -> Path:
        """Path of the file with the users."""
        return self._config.users_file

    @property
    def configuration(self) -> str:
        """Effective configuration as TOML."""
        return render(self._config)

    def sources(self) -> dict[str, bytes]:
        """Return the contents of the files to back up, by name. Raises OSError."""
        return sources(self._config)


def sources(config: Config) -> dict[str, bytes]:
    """Return the contents of the files to back up, by name. Raises OSError.

    No file contains secrets: the configuration has only the paths of secret files, and the users
    file has only hashes of passwords.
    """
    found = {CONFIGURATION_NAME: render(config).encode()}
    migrations = config.broker.data_dir / MIGRATIONS_NAME
    for name, path in ((USERS_NAME, config.users_file), (MIGRATIONS_NAME, migrations)):
        with suppress(FileNotFoundError):
            found[name] = path.read_bytes()
    return found
