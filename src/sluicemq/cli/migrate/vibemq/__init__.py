"""VibeMQ: appsettings.json, vibemq.db and the users of auth.db.

| VibeMQ                               | here                                                     |
|--------------------------------------|----------------------------------------------------------|
| Port, Tls                            | vibemq listener                                          |
| MaxConnections, MaxMessageSize       | options of the listener                                  |
| CompressionThreshold, RateLimit      | the same                                                 |
| QueueDefaults.EnableAutoCreate       | broker.auto_create_queues                                |
| AuthToken (to 1.7)                   | a token of the superuser `vibemq`                        |
| users and permissions of auth.db     | the same; bcrypt is not carried over, so each user needs |
|                                      | a new password                                           |
| queues                               | queues, and topics for the fan-out modes                 |
| messages                             | the same, with id, headers, priority, attempts           |
| dead_letters                         | messages in the queue's dead-letter queue                |
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluicemq.cli.migrate.plan import Plan
from sluicemq.cli.migrate.sources import SourceError
from sluicemq.cli.migrate.sqlite import is_database
from sluicemq.cli.migrate.vibemq.settings import read_settings_file
from sluicemq.cli.migrate.vibemq.store import read_store
from sluicemq.cli.migrate.vibemq.users import read_users

SETTINGS: Final = "appsettings.json"
STORE: Final = "vibemq.db"


def survey(source: Path, store: Path | None) -> Plan:
    """What the source holds. Raises SourceError."""
    plan = Plan(kind="vibemq", place=source.resolve())
    settings: Path | None = source
    if source.is_dir():
        settings = source / SETTINGS
        if not settings.exists():
            settings = None
        if store is None and (source / STORE).exists():
            store = source / STORE
        if settings is None and store is None:
            raise SourceError(f"{source}: there is neither {SETTINGS} nor {STORE}")
    elif is_database(source):
        settings, store = None, store or source
    if settings is not None:
        found = read_settings_file(plan, settings)
        store = store or found.store
        if found.users is not None:
            read_users(plan, found.users)
    if store is None:
        plan.leave(
            "messages",
            "all",
            "nothing says where they are: a broker without SQLite storage keeps them in memory or "
            "in Redis. If there is a file, name it with --store; else have consumers empty the "
            "queues before you move",
        )
    else:
        read_store(plan, store)
    return plan
