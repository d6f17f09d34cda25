"""Contract between a protocol session and the user directory.

Password checks are slow on purpose and run off the event loop. Their result arrives by callback, on
the loop's thread, in a later iteration. A session whose connection has closed ignores it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import msgspec

from sluicemq.model.access import EVERYBODY, Identity, Operation
from sluicemq.model.errors import AccessDenied, AccessError, SluiceError
from sluicemq.model.setting import about
from sluicemq.model.url import Url
from sluicemq.security.records import Change, Database

# --- Configuration, listener and connection, as the authentication sees them ----------------------
#
# Settings of the authentication, and its interfaces to a listener and a connection.


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Users and logins."""

    users_file: Annotated[
        Path | None,
        about(
            "File of the user database, which `sluicemq users` and `sluicemq permissions` change. "
            "Without it: `users.json` in the data directory."
        ),
    ] = None
    required: Annotated[
        Literal["auto", "always", "never"],
        about(
            "Whether clients have to log in. `auto`: as soon as a user exists, if the protocol "
            "has logins. `always`: even without users; listeners of protocols without logins then "
            "need a `user`. `never`: no login is required."
        ),
    ] = "auto"
    admin_token_file: Annotated[
        Path | None,
        about(
            "File whose first line, at least 16 characters, is accepted as a token or password "
            "with superuser permissions, for example to create the first user."
        ),
    ] = None
    min_password_length: Annotated[
        int,
        about(
            "Minimum length of new passwords in characters; 0 = no minimum. Passwords with fewer "
            "than 12 characters are accepted with a warning.",
            le=1024,
        ),
    ] = 0
    max_login_failures: Annotated[
        int,
        about(
            "Consecutive failed logins of a user from one address (IPv6: from one /64) after "
            "which further logins of that user from that address are rejected for some time.",
            ge=1,
            le=1000,
        ),
    ] = 10
    login_backoff: Annotated[
        float,
        about(
            "Time for which they are rejected; it doubles with each further failure.",
            "s",
            le=86_400,
        ),
    ] = 1.0
    login_backoff_max: Annotated[
        float, about("Maximum time for which logins are rejected.", "s", le=86_400)
    ] = 60.0
    login_failure_window: Annotated[
        float,
        about("Time without a failure after which the count of failures is reset.", "s"),
    ] = 900.0
    max_login_failure_entries: Annotated[
        int,
        about(
            "Maximum number of entries (user and address) in the table of failed logins. If it is "
            "full, the entries of the address with the most entries become one for all of its "
            "users.",
            ge=1,
        ),
    ] = 10_000
    max_concurrent_password_checks: Annotated[
        int,
        about(
            "Passwords that are checked concurrently, each with 19 MiB of memory and one "
            "processor. This limits the rate of guesses.",
            ge=1,
            le=64,
        ),
    ] = 2
    max_queued_logins: Annotated[
        int,
        about(
            "Maximum number of logins that wait for their check; further logins fail and may be "
            "retried.",
            ge=1,
        ),
    ] = 1000
    password_cache_size: Annotated[
        int,
        about(
            "Maximum number of verified passwords, per user and address, that are cached (as "
            "keyed digests in memory) so that they need no check.",
            ge=1,
        ),
    ] = 10_000
    audit_log: Annotated[
        bool,
        about(
            "Log logins, denied requests and changes of users (logger `sluicemq.audit`), at any "
            "log level."
        ),
    ] = True

    def requires_login(self, has_users: bool) -> bool:
        """Return whether clients have to log in if their protocol has logins."""
        return self.required == "always" or (
            self.required == "auto" and (has_users or self.admin_token_file is not None)
        )


class ClientConnection(Protocol):
    """Connection of a client."""

    @property
    def peer(self) -> str:
        """Address of the client."""

    @property
    def peer_user(self) -> str:
        """User that the client's certificate names, "" = none."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        """Call `callback` in `delay` seconds, in an event loop iteration."""

    def disconnect(self, reason: str) -> None:
        """Close the connection with a reason for the client."""


def is_open(url: Url, user: str, required: str, insecure_public: bool) -> bool:
    """Return whether clients without a certificate may do everything at a listener of a protocol
    without logins, whether or not there are users.

    `user` is that of the listener, "" for none; the others are `auth.required` and
    `insecure_public`.
    """
    return not user and required != "always" and (insecure_public or not url.public)


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


LoginCallback = Callable[[Identity | AccessError], None]
"""Callback with the identity, or with the error for which the login failed."""

LoginHandle = Callable[[], Identity | None]
"""Returns the user of a login with its current permissions, or None once the login is no longer
valid: the password was changed, or the token was removed or has expired."""

ChangeCallback = Callable[[SluiceError | None], None]
"""Callback with None on success, else with an AccessError, or LowDiskSpace."""


class UserDirectory(Protocol):
    """User database of a broker."""

    @property
    def database(self) -> Database:
        """Current users and roles."""

    def hash(self, password: str) -> str:
        """Return the hash of a new password. Slow on purpose. Raises AccessError."""

    def now(self) -> int:
        """Return the time in seconds since the epoch."""

    async def apply(self, change: Change, by: str) -> None:
        """Apply a change and wait until it is on disk; `by` is its author for the audit log.
        Raises the errors of the change."""


class Access:
    """Authentication of one connection; every session has its own. This class is the access to a
    broker without users: every client may perform every operation. `authenticator` has the other.

    guest   identity before the login; None if the client must log in. Protocols without logins
            always act as the guest
    users   user directory; None if the broker has no users
    """

    __slots__ = ("guest", "users")

    def __init__(self, guest: Identity | None = EVERYBODY) -> None:
        self.guest = guest
        self.users: UserDirectory | None = None

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        """Authenticate the client. One login at a time.

        `peer` is `Transport.peer`, for the failure table and the audit log. `admitted` receives the
        identity, or AuthenticationFailed (unknown user or wrong credentials), TooManyFailures,
        LoginBusy or AuthenticationMissing. A guest is admitted whatever its credentials.
        """
        assert self.guest is not None
        admitted(self.guest)

    def cancel_login(self) -> None:
        """Cancel the pending login, because the connection closes or the client sends no more.

        The login is answered with an error. Without a pending login nothing happens.
        """

    def login_handle(self, credentials: Credentials) -> LoginHandle:
        """Return a handle for the latest login, for a session that outlives its connection."""
        return lambda: self.guest

    def renew(self) -> None:
        """Update `guest`, for protocols in which every request carries its credentials."""

    def log_denied(self, peer: str, identity: Identity, operation: str) -> None:
        """Log a denied operation in the audit log, if there is one. `operation` is like "produce
        orders"."""

    def change(self, change: Change, done: ChangeCallback) -> None:
        """Change `users`, which is not None, in the name of the user of the latest login.

        The session checks whether that user may make the change. It is on disk before `done` is
        called, and applies to later logins. The message of an error is a sentence.
        """


OPEN: Final = Access()
"""Access of sessions that are created without a user directory."""


def demand(
    access: Access, peer: str, identity: Identity, operation: Operation, destination: str
) -> None:
    """Raise AccessDenied and write to the audit log unless `identity` may perform `operation`."""
    if not identity.may(operation, destination):
        access.log_denied(peer, identity, f"{operation} {destination}")
        raise AccessDenied(
            f"{identity.name or 'an anonymous client'} may not {operation} {destination!r}"
        )


async def wait_for_callback(begin: Callable[..., object], *arguments: Any) -> Any:
    """Call `begin` with the arguments and a callback, and return what the callback is called with:
    one value, or nothing. Raises the errors of `begin`."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any = None) -> None:
        if not future.done():  # the request may be cancelled
            future.set_result(result)

    begin(*arguments, done)
    return await future
