"""The contract between a protocol session and who knows the users.

Passwords are checked off the event loop, because that is slow on purpose: answers come by callback,
on the loop's thread, in a later turn. A session whose connection has gone meanwhile ignores them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from sluicemq.model.access import EVERYBODY, Identity, Operation, Permission
from sluicemq.model.errors import AccessDenied, AccessError

TOKEN_PREFIX: Final = "slq_"
"""Of every token: people, programs that look for leaked secrets, and who is given one as a password
know it by that."""


class Credentials(NamedTuple):
    """What a client has shown. Either user and password, or user and digest, or a token, or more
    than that: then the token counts. A token given as the password is a token, whatever the user
    name.

    digest  of user, password and `nonce` as JMS clients make it (JMQ, section 5.2)
    nonce   what the client was told to make it with: never the same twice
    """

    user: str = ""
    password: str = ""
    token: str = ""
    digest: str = ""
    nonce: str = ""


Admitted = Callable[[Identity | AccessError], None]
"""Called with the identity, or with why there is none."""

LoginHandle = Callable[[], Identity | None]
"""Whom a login stands for now, with the rights of the moment; None when it is over: the password
has been changed, the token removed, or it has expired."""

Done = Callable[[AccessError | None], None]
"""Called with None when it has been done, or with why not."""


class Account(NamedTuple):
    """What lists show of a user. `created` is in seconds since the epoch."""

    name: str
    superuser: bool
    created: int


class Users(Protocol):
    """The user database. Changes are on disk before `done` is called, and hold for logins from
    then on. All names of users are exact; AccessError says what is wrong, in a sentence."""

    def create(self, name: str, password: str, superuser: bool, done: Done) -> None:
        """UserExists; AccessError if name or password cannot be used."""

    def remove(self, name: str, done: Done) -> None:
        """UserNotFound; AccessDenied for the last superuser."""

    def set_password(self, name: str, password: str, done: Done) -> None:
        """UserNotFound."""

    def grant(self, name: str, permission: Permission, done: Done) -> None:
        """Replaces what the user had for exactly that pattern. UserNotFound."""

    def revoke(self, name: str, pattern: str, done: Done) -> None:
        """Succeeds if there was none. UserNotFound."""

    def accounts(self) -> list[Account]:
        """Sorted by name."""

    def permissions(self, name: str) -> list[Permission]:
        """Empty for an unknown user."""


class Access(Protocol):
    """What a session may ask about who is at the other end of its connection. Each has its own.

    guest   whom it acts as until it has logged in; None if it has to log in, which it has not in
            protocols without logins
    users   the user database, or None: this broker knows no users. Changes are written down as made
            by whom this connection has last logged in as; whether that user may make them is the
            session's to ask
    """

    guest: Identity | None
    users: Users | None

    def login(self, peer: str, credentials: Credentials, admitted: Admitted) -> None:
        """Authenticate the client. `peer` is `Transport.peer`, for the failure table and the audit
        log. One login at a time.

        AuthenticationFailed (wrong or unknown), TooManyFailures, LoginBusy, AuthenticationMissing.
        """

    def cancel_login(self) -> None:
        """Withdraw the login that waits for its check: the connection ends, or the client sends no
        more. It is answered with an error. Without a login that waits, nothing happens."""

    def login_handle(self, credentials: Credentials) -> LoginHandle:
        """For a session that outlives the connection: what has just been logged in with."""

    def renew(self) -> None:
        """`guest` may be another one by now: for protocols whose every request says who it is."""

    def denied(self, peer: str, identity: Identity, what: str) -> None:
        """Something was refused: one line in the audit log. `what` is like "produce orders"."""


class Open:
    """Access to a broker that knows no users: everybody may do everything."""

    __slots__ = ("guest", "users")

    def __init__(self, guest: Identity = EVERYBODY) -> None:
        self.guest: Identity | None = guest
        self.users: Users | None = None

    def login(self, peer: str, credentials: Credentials, admitted: Admitted) -> None:
        """Whatever the client shows is ignored; answers at once."""
        assert self.guest is not None
        admitted(self.guest)

    def cancel_login(self) -> None:
        """No login ever waits."""

    def login_handle(self, credentials: Credentials) -> LoginHandle:
        """Holds for ever."""
        return lambda: self.guest

    def renew(self) -> None:
        """Nothing changes."""

    def denied(self, peer: str, identity: Identity, what: str) -> None:
        """A configured guest with few rights may be refused things; there is no audit log."""


OPEN: Final = Open()
"""For sessions that are told nothing about users."""


def demand(
    access: Access, peer: str, identity: Identity, operation: Operation, destination: str
) -> None:
    """AccessDenied, and a line in the audit log, unless it may do that."""
    if not identity.may(operation, destination):
        access.denied(peer, identity, f"{operation} {destination}")
        raise AccessDenied(
            f"{identity.name or 'nobody in particular'} may not {operation} {destination!r}"
        )
