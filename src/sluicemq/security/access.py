"""Contract between a protocol session and the user directory.

Password checks are slow on purpose and run off the event loop. Their result arrives by callback, on
the loop's thread, in a later iteration. A session whose connection has closed ignores it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from sluicemq.model.access import EVERYBODY, Identity, Operation, Permission
from sluicemq.model.errors import AccessDenied, AccessError

# --- Configuration, listener and connection, as the authentication sees them ----------------------
#
# What the authentication needs to know of the configuration, of a listener and of a connection.


class AuthSettings(Protocol):
    """Settings of users and logins; the configuration reference describes them.

    Times in seconds.
    """

    @property
    def required(self) -> str: ...
    @property
    def admin_token_file(self) -> Path | None: ...
    @property
    def audit_log(self) -> bool: ...
    @property
    def min_password_length(self) -> int: ...
    @property
    def max_login_failures(self) -> int: ...
    @property
    def max_login_failure_entries(self) -> int: ...
    @property
    def login_failure_window(self) -> float: ...
    @property
    def login_backoff(self) -> float: ...
    @property
    def login_backoff_max(self) -> float: ...
    @property
    def max_concurrent_password_checks(self) -> int: ...
    @property
    def max_queued_logins(self) -> int: ...
    @property
    def password_cache_size(self) -> int: ...


class AuthConfig(Protocol):
    """Configuration of the authentication.

    insecure_public  True if public listeners are treated as the others
    """

    @property
    def auth(self) -> AuthSettings: ...
    @property
    def users_file(self) -> Path: ...
    @property
    def insecure_public(self) -> bool: ...


class ListenerUrl(Protocol):
    """URL of a listener. `public`: other machines can reach it."""

    @property
    def public(self) -> bool: ...


class ListenerOptions(Protocol):
    """Listener that a connection was accepted by. `user` is the user of its clients, "" = none."""

    @property
    def url(self) -> ListenerUrl: ...
    @property
    def user(self) -> str: ...


class ClientConnection(Protocol):
    """Connection of a client.

    peer       address of the client
    peer_user  user that the client's certificate names, "" = none
    """

    @property
    def peer(self) -> str: ...
    @property
    def peer_user(self) -> str: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        """Call `callback` in `delay` seconds, in an event loop iteration."""

    def disconnect(self, reason: str) -> None:
        """Close the connection with a reason for the client."""


def is_open(url: ListenerUrl, user: str, required: str, insecure_public: bool) -> bool:
    """Return whether clients without a certificate may do everything at a listener of a protocol
    without logins, whether or not there are users.

    `user` is that of the listener, "" for none; the others are `auth.required` and
    `insecure_public`.
    """
    return not user and required != "always" and (insecure_public or not url.public)


TOKEN_PREFIX: Final = "slq_"
"""Prefix of every token. Secret scanners recognise it, and so does a login that receives a token as
its password."""


class Credentials(NamedTuple):
    """Credentials of a login: user and password, user and digest, or a token.

    If several are given, the token counts. A password that is a token counts as the token, whatever
    the user name.

    digest  of user, password and `nonce` as JMS clients compute it (JMQ, section 5.2)
    nonce   sent to the client for its digest; never used twice
    """

    user: str = ""
    password: str = ""
    token: str = ""
    digest: str = ""
    nonce: str = ""


Admitted = Callable[[Identity | AccessError], None]
"""Callback with the identity, or with the error for which the login failed."""

LoginHandle = Callable[[], Identity | None]
"""Returns the user of a login with its current permissions, or None once the login is no longer
valid: the password was changed, or the token was removed or has expired."""

Done = Callable[[AccessError | None], None]
"""Callback with None on success, or with the error."""


class Account(NamedTuple):
    """User as listed. `created` is in seconds since the epoch."""

    name: str
    superuser: bool
    created: int


class Users(Protocol):
    """User directory.

    Changes are on disk before `done` is called, and apply to later logins. User names are compared
    exactly. The message of an AccessError is a sentence.
    """

    def create(self, name: str, password: str, superuser: bool, done: Done) -> None:
        """Create a user.

        `done` receives UserExists, or AccessError if the name or the password is invalid.
        """

    def remove(self, name: str, done: Done) -> None:
        """Delete a user. `done` receives UserNotFound, or AccessDenied for the last superuser."""

    def set_password(self, name: str, password: str, done: Done) -> None:
        """Change a user's password. `done` receives UserNotFound."""

    def grant(self, name: str, permission: Permission, done: Done) -> None:
        """Replace the user's permission for exactly this pattern. `done` receives UserNotFound."""

    def revoke(self, name: str, pattern: str, done: Done) -> None:
        """Remove the permission of this pattern, if there is one. `done` receives UserNotFound."""

    def accounts(self) -> list[Account]:
        """Return all users, sorted by name."""

    def permissions(self, name: str) -> list[Permission]:
        """Return the permissions of a user; an empty list for an unknown user."""


class Access(Protocol):
    """Authentication of one connection; every session has its own.

    guest   identity before the login; None if the client must log in. Protocols without logins
            always act as the guest
    users   user directory; None if the broker has no users. It records the user of the connection's
            last login as the author of a change. The session checks whether that user may make it
    """

    guest: Identity | None
    users: Users | None

    def login(self, peer: str, credentials: Credentials, admitted: Admitted) -> None:
        """Authenticate the client. One login at a time.

        `peer` is `Transport.peer`, for the failure table and the audit log. `admitted` receives the
        identity, or AuthenticationFailed (unknown user or wrong credentials), TooManyFailures,
        LoginBusy or AuthenticationMissing.
        """

    def cancel_login(self) -> None:
        """Cancel the pending login, because the connection closes or the client sends no more.

        The login is answered with an error. Without a pending login nothing happens.
        """

    def login_handle(self, credentials: Credentials) -> LoginHandle:
        """Return a handle for the latest login, for a session that outlives its connection."""

    def renew(self) -> None:
        """Update `guest`, for protocols in which every request carries its credentials."""

    def denied(self, peer: str, identity: Identity, what: str) -> None:
        """Log a denied operation in the audit log. `what` is like "produce orders"."""


class Open:
    """Access to a broker without users: every client may perform every operation."""

    __slots__ = ("guest", "users")

    def __init__(self, guest: Identity = EVERYBODY) -> None:
        self.guest: Identity | None = guest
        self.users: Users | None = None

    def login(self, peer: str, credentials: Credentials, admitted: Admitted) -> None:
        """Admit the client as the guest at once, whatever its credentials."""
        assert self.guest is not None
        admitted(self.guest)

    def cancel_login(self) -> None:
        """Do nothing: no login is ever pending."""

    def login_handle(self, credentials: Credentials) -> LoginHandle:
        """Return a handle that is always valid."""
        return lambda: self.guest

    def renew(self) -> None:
        """Do nothing: the guest never changes."""

    def denied(self, peer: str, identity: Identity, what: str) -> None:
        """Do nothing: there is no audit log. A configured guest may lack permissions."""


OPEN: Final = Open()
"""Access of sessions that are created without a user directory."""


def demand(
    access: Access, peer: str, identity: Identity, operation: Operation, destination: str
) -> None:
    """Raise AccessDenied and write to the audit log unless `identity` may perform `operation`."""
    if not identity.may(operation, destination):
        access.denied(peer, identity, f"{operation} {destination}")
        raise AccessDenied(
            f"{identity.name or 'an anonymous client'} may not {operation} {destination!r}"
        )
