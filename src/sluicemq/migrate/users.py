"""Add users to the user database of the data directory; existing users are never changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sluicemq.migrate.plan import NewUser
from sluicemq.security.changes import add_user
from sluicemq.security.records import Database
from sluicemq.security.store import UserStore

FILE: Final = "users.json"
BY: Final = "sluicemq migrate"
"""Actor in the audit log."""


def add_users(users: list[NewUser], data_dir: Path) -> tuple[list[str], list[str]]:
    """Add users. Returns the names of those added and of those that existed already. Raises
    AccessError, ConfigurationError, OSError."""
    if not users:
        return [], []
    store = UserStore(data_dir / FILE)
    before = store.read().users
    known = [user.name for user in users if user.name in before]

    def add(database: Database) -> Database:
        for user in users:
            if user.name not in database.users:
                database = add_user(database, user.name, user.record)
        return database

    if len(known) < len(users):
        store.change(add, BY)
    return [user.name for user in users if user.name not in before], known
