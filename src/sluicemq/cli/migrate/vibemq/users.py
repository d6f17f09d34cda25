"""auth.db: the users of VibeMQ and what they may do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec

from sluicemq.cli.migrate.plan import NewUser, Plan
from sluicemq.cli.migrate.sources import Damage
from sluicemq.cli.migrate.sqlite import columns, opened
from sluicemq.model.access import Operation, Permission, is_pattern, is_user_name
from sluicemq.protocols.vibemq.admin import OPERATIONS
from sluicemq.server.identity.records import UserRecord

_OPERATIONS: Final[dict[object, Operation]] = {
    spelling: operation
    for number, (name, operation) in enumerate(OPERATIONS.items())
    for spelling in (number, name.lower())
}
"""By number, as it is stored, and by name."""


def read_users(plan: Plan, file: Path) -> None:
    """Add the users to the plan. Raises SourceError."""
    now = int(time.time())
    with opened(file, plan.witness) as connection:
        if not {"username", "is_superuser"} <= columns(connection, "users"):
            raise Damage(
                f"{file}: there is no table `users`, so this is no user database of VibeMQ"
            )
        permissions: dict[str, list[Permission]] = {}
        for name, pattern, operations in connection.execute(
            "SELECT CAST(username AS BLOB), CAST(queue_pattern AS BLOB), CAST(operations AS BLOB)"
            " FROM permissions ORDER BY id"
        ):
            user, glob = _text(name), _text(pattern)
            permission = _permission(plan, file, user, glob, operations)
            if permission is not None:
                permissions.setdefault(user, []).append(permission)
        rows = connection.execute(
            "SELECT CAST(username AS BLOB), is_superuser FROM users ORDER BY 1"
        )
        for name, superuser in rows:
            user = _text(name)
            if not is_user_name(user):
                plan.leave("user", user, "a name has 1 to 64 letters, digits and - _ . @")
                continue
            record = UserRecord(
                superuser=bool(superuser),
                permissions=tuple(permissions.get(user, ())),
                created=now,
                updated=now,
            )
            plan.users.append(NewUser(user, record))
            plan.leave(
                "password",
                user,
                "VibeMQ keeps bcrypt hashes, which are not checked here: set it anew with "
                f"`sluicemq users passwd {user}`",
            )


def _permission(
    plan: Plan, file: Path, user: str, pattern: str, raw: bytes | None
) -> Permission | None:
    try:
        said: Any = msgspec.json.decode(raw or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Damage(f"{file}: permission of {user} on {pattern}: not JSON: {fault}") from None
    granted = set()
    for each in said if isinstance(said, list) else [said]:
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


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
