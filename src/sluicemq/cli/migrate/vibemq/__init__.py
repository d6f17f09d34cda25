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
| messages                             | the same, with id, headers, priority, attempts; rows that|
|                                      | are no waiting messages go into a file (store.py)        |
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


def survey(
    source: Path, store: Path | None, *, strict: bool = False, fan_out_rows: bool = False
) -> Plan:
    """What the source holds; `strict` and `fan_out_rows` are as of `read_store`. Raises
    SourceError."""
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
            "nothing says where they are. If there is an SQLite file, name it with --store. "
            "Messages in memory or in Redis are not covered: send the publishers here first, and "
            "see the guide for what still waits there",
        )
    else:
        read_store(plan, store, strict=strict, fan_out_rows=fan_out_rows)
    return plan
