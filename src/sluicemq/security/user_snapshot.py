"""The users at one moment, indexed for logins; replaced when the user database has changed."""

from __future__ import annotations

from sluicemq.model.access import ANONYMOUS, Identity
from sluicemq.security.access import Account
from sluicemq.security.passwords import UNKNOWN
from sluicemq.security.records import Database, TokenRecord


class UserSnapshot:
    """Snapshot of the user database. Identities are created on first use; connections share
    them."""

    __slots__ = ("_identities", "_tokens", "all_by_digest", "database", "highest_cost")

    def __init__(self, database: Database) -> None:
        self.database = database
        users = database.users.values()
        self.all_by_digest = bool(users) and all(
            user.digest and not user.tokens for user in users if user.password or user.tokens
        )
        """True if every user who can log in can do so with a digest."""
        self.highest_cost = database.highest_cost
        """The highest cost of a bcrypt hash; 0 if there is none."""
        self._identities: dict[str, Identity] = {}
        self._tokens: dict[str, tuple[str, TokenRecord]] = {
            token.sha256: (name, token)
            for name, user in database.users.items()
            for token in user.tokens
        }

    def identity(self, name: str) -> Identity:
        """Return the identity of a user, with its rights; ANONYMOUS if there is no such user."""
        known = self._identities.get(name)
        if known is None:
            user = self.database.users.get(name)
            if user is None:
                return ANONYMOUS
            known = Identity(name, self.database.rights(name), user.superuser)
            self._identities[name] = known
        return known

    def hash_of(self, name: str) -> str:
        """Return the password hash of a user; one that no password matches if there is none."""
        user = self.database.users.get(name)
        return (user.password if user is not None else "") or UNKNOWN

    def digest_of(self, name: str) -> str:
        """Return the digest form of a user; "" if there is none."""
        user = self.database.users.get(name)
        return user.digest if user is not None else ""

    def holder(self, fingerprint: str, now: float) -> str:
        """Return the user of a token; "" if unknown or expired (seconds since the epoch)."""
        name, token = self._tokens.get(fingerprint, ("", None))
        if token is None or (token.expires and now >= token.expires):
            return ""
        return name

    def accounts(self) -> list[Account]:
        """Sorted by name."""
        return [
            Account(name, user.superuser, user.created)
            for name, user in sorted(self.database.users.items())
        ]
