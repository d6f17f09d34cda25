"""Access control: operations, permissions by pattern, and the identity of a connection.

A permission grants a user some operations on all destinations whose names match a pattern. In a
pattern `*` matches any run of characters, including dots and the empty run; every other character
matches itself. A user has the union of all matching permissions; a superuser may do everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

MAX_PATTERN: Final = 256
"""Longest pattern, in characters."""
MAX_USER: Final = 64
"""Longest user name that is not the subject of a certificate, in characters."""

_USER: Final = re.compile(r"(?!\.{1,2}\Z)[\w.@-]{1,64}\Z")
"""Not `.` or `..`, which browsers and HTTP clients remove from paths."""
_SUBJECT: Final = re.compile(r"[A-Za-z0-9.-]{1,64}=[^\0-\x1f\x7f:\ud800-\udfff]{1,191}\Z")
_MAX_CACHED: Final = 1024


class Operation(StrEnum):
    """Operation on a destination that a permission can grant.

    PRODUCE  publish to it; this creates it where destinations are created by use
    CONSUME  receive, acknowledge and requeue messages; this may create it, too
    BROWSE   read its statistics and settings, and its messages without receiving them
    CREATE   declare it, with settings
    DELETE   delete it
    MANAGE   change its settings, pause and resume it, purge it, delete its subscriptions, and
             delete and requeue its unacked messages
    LIST     see it in lists; every other operation includes it
    """

    PRODUCE = "produce"
    CONSUME = "consume"
    BROWSE = "browse"
    CREATE = "create"
    DELETE = "delete"
    MANAGE = "manage"
    LIST = "list"


class Permission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations on the destinations whose names match `pattern`.

    ignore_case  letter case does not matter there, as in VibeMQ: set if a VibeMQ client
                 granted the permission, or it was imported from a VibeMQ server
    """

    pattern: str
    operations: frozenset[Operation]
    ignore_case: bool = False


def matcher(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    """Return the compiled pattern, to be used with `match`; case-sensitive unless `ignore_case`.

    The text between two asterisks matches at its first occurrence only (the groups are atomic):
    with backtracking, many asterisks and a long name would take unbounded time.
    """
    flags = re.DOTALL | re.IGNORECASE if ignore_case else re.DOTALL
    first, *later_parts = (re.escape(part) for part in pattern.split("*"))
    if not later_parts:
        return re.compile(first + r"\Z", flags)
    *inner_parts, last = later_parts
    inner_pattern = "".join(f"(?>.*?{part})" for part in inner_parts if part)
    return re.compile(rf"{first}{inner_pattern}.*{last}\Z", flags)


def is_role_name(name: str) -> bool:
    """Return whether the name has 1 to 64 letters, digits, `-`, `_`, `.` and `@`."""
    return _USER.match(name) is not None


def is_user_name(name: str) -> bool:
    """Return whether a user can have the name: one that a role can have, or the subject of a client
    certificate (RFC 4514) without colons, which cannot be sent as a login (RFC 7617)."""
    return is_role_name(name) or _SUBJECT.match(name) is not None


def is_pattern(pattern: str) -> bool:
    """Return whether the pattern has 1 to 256 characters."""
    return 0 < len(pattern) <= MAX_PATTERN


class Identity:
    """User of a connection, with the permissions at the time of its login.

    name     name of the user; "" on a broker without users
    creator  user whose quotas the destinations and subscriptions that it creates count against: all
             anonymous users share one quota; None = no quota, for superusers
    """

    __slots__ = ("_known", "_rules", "creator", "name", "superuser")

    def __init__(
        self, name: str, permissions: Iterable[Permission] = (), superuser: bool = False
    ) -> None:
        self.name = name
        self.superuser = superuser
        self.creator = None if superuser and name else name
        self._rules = [(matcher(p.pattern, p.ignore_case), p.operations) for p in permissions]
        self._known: dict[tuple[Operation, str], bool] = {}

    def may(self, operation: Operation, destination: str) -> bool:
        """Return whether the identity may perform the operation on the destination of this name."""
        if self.superuser:
            return True
        key = (operation, destination)
        verdict = self._known.get(key)
        if verdict is None:
            verdict = any(
                operation in operations and pattern.match(destination)
                for pattern, operations in self._rules
            )
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            self._known[key] = verdict
        return verdict

    def may_anywhere(self, operation: Operation) -> bool:
        """Return whether the identity may perform the operation on at least one name."""
        return self.superuser or any(operation in operations for _, operations in self._rules)

    def sees(self, destination: str) -> bool:
        """Return whether the identity has any permission there, so that lists include the
        destination.
        """
        return self.superuser or any(pattern.match(destination) for pattern, _ in self._rules)


EVERYBODY: Final = Identity("", superuser=True)
"""Identity of every connection to a broker without users."""

ANONYMOUS: Final = Identity("")
"""Identity of unauthenticated connections to a broker with users: no permissions."""
