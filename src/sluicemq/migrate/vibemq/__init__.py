"""VibeMQ: appsettings.json, vibemq.db and the users of auth.db.

| VibeMQ                               | here                                                     |
|--------------------------------------|----------------------------------------------------------|
| Port, Tls                            | vibemq listener                                          |
| MaxConnections, MaxMessageSize       | options of the listener                                  |
| CompressionThreshold, RateLimit      | the same                                                 |
| QueueDefaults.EnableAutoCreate       | broker.auto_create_queues                                |
| AuthToken (to 1.7)                   | a token of the superuser `vibemq`                        |
| users and permissions of auth.db     | the same, with their passwords (bcrypt)                  |
| queues                               | queues, and topics for the fan-out modes                 |
| messages                             | the same, with id, headers, priority, attempts; rows that|
|                                      | are no waiting messages go into a file (store.py)        |
| dead_letters                         | messages in the queue's dead-letter queue                |
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluicemq.migrate.configuration import SourceSettings
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import SourceError, is_database
from sluicemq.migrate.vibemq.settings import (
    SETTINGS,
    STORE,
    migrate_settings,
    read_layers,
    store_of,
    take_users,
)
from sluicemq.migrate.vibemq.store import read_store

_UNKNOWN: Final = (
    "no settings and no user database are here, so nothing says whether clients had to log in. If "
    "they had, name the database with --auth-db FILE, or the environment with --env FILE"
)


def inspect_source(
    source: Path,
    store: Path | None,
    *,
    settings: Path | None = None,
    environment: Path | None = None,
    users: Path | None = None,
    without_users: bool = False,
    strict: bool = False,
    fan_out_rows: bool = False,
) -> Plan:
    """Return what the source holds.

    `store` is the SQLite file if it is not where `source` says, `settings` the only settings file
    to read, `environment` a file with the variables that VibeMQ was started with, `users` the user
    database if it is not in a usual place; `strict` and `fan_out_rows` are as of `read_store`.
    Raises SourceError.
    """
    plan = Plan(kind="vibemq", place=source.resolve())
    directory = source if source.is_dir() else source.parent
    alone = settings is not None
    if is_database(source):
        store = store or source
    elif not source.is_dir():
        if settings is not None:
            raise SourceError(f"{source} and {settings}: name one settings file only")
        settings = source
    elif store is None and (source / STORE).exists():
        store = source / STORE
    if settings is None and (directory / SETTINGS).exists():
        settings = directory / SETTINGS
    values = read_layers(plan, directory, settings, environment, alone=alone)
    if values is None and store is None:
        raise SourceError(f"{source}: there is neither {SETTINGS} nor {STORE}")
    found = SourceSettings(plan, values or {})
    if values is not None:
        store = store_of(found, directory, store)
    nearby = [directory, *(file.parent for file in (store, settings) if file is not None)]
    take_users(plan, users, nearby, found.values, without_users)
    if values is not None:
        migrate_settings(found, directory)
    elif not plan.users and not without_users:
        plan.leave("users", "all, if there were any", _UNKNOWN)
    if store is None:
        plan.leave(
            "messages",
            "all",
            "nothing says where they are. If there is an SQLite file, name it with --store. "
            "Messages in memory or in Redis are not covered: send the publishers here first, and "
            "see the guide for what still waits there",
        )
    else:
        read_store(plan, store, strict=strict, fan_out_rows=fan_out_rows)
    return plan
