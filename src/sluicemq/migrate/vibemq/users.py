"""auth.db: VibeMQ's users and permissions.

A broker whose clients had to log in is never migrated without its users unless the command line
requests it: anyone who reached the new broker could do everything.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from sluicemq.migrate.plan import NewUser, Plan
from sluicemq.migrate.source_files import Damage, SourceError
from sluicemq.migrate.sqlite import columns, opened, text
from sluicemq.migrate.vibemq.layers import Values, beside
from sluicemq.migrate.vibemq.settings import AUTHORIZATION
from sluicemq.model.access import Operation, Permission, is_pattern, is_user_name
from sluicemq.protocols.vibemq.commands import OPERATIONS
from sluicemq.security.passwords import COSTS, bcrypt_cost
from sluicemq.security.records import UserRecord

USERS: Final = "auth.db"
_COLUMNS: Final = frozenset({"username", "password_hash", "is_superuser", "created_at"})

_OPERATIONS: Final[dict[object, Operation]] = {
    spelling: operation
    for number, (name, operation) in enumerate(OPERATIONS.items())
    for spelling in (number, name.lower())
}
"""Permissions by number, as stored, and by name."""


class UsersSource(NamedTuple):
    """Command-line options for the users.

    database  the user database, if it is not in a default place
    none      migrate no users
    """

    database: Path | None = None
    none: bool = False


FOUND_BY_NAME: Final = UsersSource()


def take_users(plan: Plan, source: UsersSource, nearby: list[Path], values: Values) -> None:
    """Add the users to the plan. The database is looked for in the directories `nearby`, by the
    path and the name in the settings, else by its usual name.

    Raises SourceError if there were users and none can be added.
    """
    authorized = any(name.startswith(AUTHORIZATION) for name in values)
    configured = values.get(f"{AUTHORIZATION}databasepath")
    names = [str(configured.value)] if configured is not None and configured.value else []
    places = [beside(directory, name) for name in [*names, USERS] for directory in nearby]
    file = source.database or next((place for place in places if place.exists()), None)
    if source.none:
        if authorized or file is not None:
            plan.leave("users", "all", "--without-users was given; `sluicemq users add` adds some")
        return
    if file is None:
        if authorized:
            raise SourceError(
                f"{plan.place}: VibeMQ has users (its settings have a section Authorization), and "
                f"their database, {names[0] if names else USERS}, is not here. Name it with "
                "--auth-db FILE; in a container without a DatabasePath it is /app/auth.db (docker "
                "cp takes it and what is beside it out). --without-users moves in without them"
            )
        return
    found = _read_users(plan, file)
    if not plan.users and (found or authorized):
        reasons = [f"; {left.name!r}: {left.reason}" for left in plan.left if left.what == "user"]
        raise SourceError(
            f"{file}: none of its {found} users can be taken over{''.join(reasons[:3])}. Correct a "
            "copy of it and name that with --auth-db FILE; --without-users moves in without them"
        )
    if plan.users:
        plan.notes.append(f"the users are those of {file}")


def _read_users(plan: Plan, file: Path) -> int:
    """Add the users to the plan. Returns their number, including those that cannot be added."""
    now = int(time.time())
    found = 0
    with opened(file, plan.change_detector) as connection:
        if not columns(connection, "users") >= _COLUMNS:
            raise Damage(
                f"{file}: there is no table `users` as VibeMQ has it. A database that was copied "
                f"from a running broker is incomplete without {file.name}-wal beside it"
            )
        permissions: dict[str, list[Permission]] = {}
        for name, pattern, operations in connection.execute(
            "SELECT CAST(username AS BLOB), CAST(queue_pattern AS BLOB), CAST(operations AS BLOB)"
            " FROM permissions ORDER BY id"
        ):
            user, glob = text(name), text(pattern)
            permission = _permission(plan, file, user, glob, operations)
            if permission is not None:
                permissions.setdefault(user, []).append(permission)
        rows = connection.execute(
            "SELECT CAST(username AS BLOB), CAST(password_hash AS BLOB), is_superuser, created_at"
            " FROM users ORDER BY 1"
        )
        for name, stored, superuser, created in rows:
            found += 1
            user = text(name)
            if not is_user_name(user):
                plan.leave("user", user, "a name has 1 to 64 letters, digits and - _ . @")
                continue
            record = UserRecord(
                password=_password(plan, user, text(stored)),
                superuser=bool(superuser),
                permissions=tuple(permissions.get(user, ())),
                created=created if isinstance(created, int) and 0 <= created <= now else now,
                updated=now,
            )
            plan.users.append(NewUser(user, record))
    return found


def _password(plan: Plan, user: str, stored: str) -> str:
    """Return the hash to keep; "" if it can never be verified, which is reported."""
    if bcrypt_cost(stored):
        return stored
    plan.leave(
        "password",
        user,
        f"its hash is not bcrypt's with a cost of {COSTS[0]} to {COSTS[-1]}, the only ones that "
        f"are verified: set it anew with `sluicemq users passwd {user}`",
    )
    return ""


def _permission(
    plan: Plan, file: Path, user: str, pattern: str, raw: bytes | None
) -> Permission | None:
    try:
        operations: Any = msgspec.json.decode(raw or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Damage(f"{file}: permission of {user} on {pattern}: not JSON: {fault}") from None
    granted = set()
    for each in operations if isinstance(operations, list) else [operations]:
        spelling = each.lower() if isinstance(each, str) else each
        if isinstance(spelling, bool) or spelling not in _OPERATIONS:
            plan.leave(
                "permission", f"{each!r} of {user} on {pattern}", "no operation has that name"
            )
        else:
            granted.add(_OPERATIONS[spelling])
    if not is_pattern(pattern):
        plan.leave("permission", f"{user} on {pattern}", "a pattern has 1 to 256 characters")
        return None
    return Permission(pattern, frozenset(granted), ignore_case=True)
