"""Authentication of connections.

    connection          protocol with logins             protocol without logins
    certificate         the user that it names; EVERYBODY while the broker has no users
    user=NAME           (no effect)                      that user
    public address      must log in                      ANONYMOUS, without permissions
    other               must log in, or EVERYBODY if     EVERYBODY, or ANONYMOUS if
                        logins are not required          required = always

With `insecure_public`, public listeners are treated like others. Logins are required as soon as the
broker has a user (required = auto), and from then on until it stops: a database that is emptied or
damaged meanwhile does not disable authentication.

When logins become required, connections that act as EVERYBODY only because there were no users are
disconnected. Listeners of protocols without logins stay open, see `access.is_open`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakSet

import structlog

from sluicemq.journal.space import NO_SPACE
from sluicemq.model.access import ANONYMOUS, EVERYBODY, Identity
from sluicemq.model.errors import (
    AccessError,
    ConfigurationError,
    LowDiskSpace,
    SluiceError,
)
from sluicemq.model.url import Url
from sluicemq.security.access import (
    Access,
    AuthSettings,
    ChangeCallback,
    ClientConnection,
    Credentials,
    LoginCallback,
    LoginHandle,
    is_open,
    wait_for_callback,
)
from sluicemq.security.audit import ANONYMOUS_USER, Audit
from sluicemq.security.files import read_secret_file
from sluicemq.security.logins import (
    ADMIN,
    CallSoon,
    FailureCallback,
    LoginCheck,
    Logins,
    PasswordUpgrades,
    Verify,
)
from sluicemq.security.passwords import (
    TOKEN_PREFIX,
    hash_password,
    verify,
)
from sluicemq.security.records import (
    NO_DATABASE,
    Change,
    Database,
    UserSnapshot,
    UserStore,
    fingerprint,
)

LOCAL: Final = Identity("(local)", superuser=True)
"""Identity of clients of the admin socket: only the owner of the data can open it."""
MAX_CHANGES: Final = 64
"""Maximum number of pending changes of users."""
MAX_OWN_CHANGES: Final = 4
"""Maximum number of pending changes of the own password by a user who is not a superuser."""

log = structlog.get_logger("sluicemq.identity")


class Authenticator:
    """Authenticator of one broker. Its methods are called on the event loop's thread."""

    def __init__(
        self,
        settings: AuthSettings,
        users_file: Path,
        call_soon: CallSoon,
        *,
        insecure_public: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        verify: Verify = verify,
    ) -> None:
        """Read the user database and the token file. Raises ConfigurationError."""
        self._settings = settings
        self._insecure_public = insecure_public
        self._call_soon = call_soon
        self._wall = wall
        self.audit = Audit(settings.audit_log, clock)
        self._changes = ThreadPoolExecutor(1, "users")
        self._pending_changes: Counter[str] = Counter()
        """Pending changes by the user who has made them, "" for those without a limit of their
        own."""
        self._anonymous: WeakSet[ConnectionAccess] = WeakSet()
        """Connections that act as EVERYBODY; empty once logins are required."""
        admin = ""
        if settings.admin_token_file is not None:
            admin = fingerprint(read_secret_file(settings.admin_token_file))
        self._damage = ""
        self._store = UserStore(users_file)
        self.user_snapshot = UserSnapshot(self._store.read())
        """Current users."""
        self._upgrades = PasswordUpgrades(self._submit, self.refresh)
        self.logins = Logins(
            settings,
            call_soon,
            self.audit,
            lambda: self.user_snapshot,
            self._upgrades,
            admin=admin,
            clock=clock,
            wall=wall,
            verify=verify,
        )
        self._had_users = False
        """True once there has been a user; a certificate names one from then on."""
        self.required = False
        """True if clients of protocols with logins have to log in."""
        self._update_required()

    def open(
        self, transport: ClientConnection, url: Url, user: str, *, logs_in: bool
    ) -> ConnectionAccess:
        """Return the access of a new connection to the listener with that URL; `logs_in` states
        that its protocol has logins, `user` is that of its clients if not, "" for none."""
        return ConnectionAccess(
            self, transport, lambda: self._guest(url, user, transport.peer_user, logs_in)
        )

    def open_local(self, transport: ClientConnection) -> ConnectionAccess:
        """Return the access of a new connection to the admin socket."""
        return ConnectionAccess(self, transport, lambda: LOCAL)

    def refresh(self) -> None:
        """Apply a changed database. Takes one system call if it has not changed."""
        damage = ""
        before = database = self.user_snapshot.database
        try:
            database = self._store.read()
        except ConfigurationError as error:
            damage = str(error)
        if database is NO_DATABASE and before.users:
            damage = f"{self._store.path} is gone"
        if damage and damage != self._damage:
            log.error("the users stay as they were", error=damage)
        self._damage = damage
        if damage or database is before:
            return
        self.user_snapshot = UserSnapshot(database)
        self._upgrades.resume()
        self.audit.log_differences(before, database)
        self._update_required()

    @property
    def database(self) -> Database:
        """Current users and roles, as the file has them."""
        self.refresh()
        return self.user_snapshot.database

    @property
    def all_by_digest(self) -> bool:
        """True if clients that support one kind of login only should use a digest."""
        return self._settings.admin_token_file is None and self.user_snapshot.all_by_digest

    def close(self) -> None:
        """Stop checks and changes after those in progress."""
        self.logins.queue.close()
        self._upgrades.close()
        self._changes.shutdown()

    def _update_required(self) -> None:
        before = self._knows_users
        self._had_users = self._had_users or bool(self.user_snapshot.database.users)
        self.required = self._settings.requires_login(self._had_users)
        if self._knows_users and not before and self._anonymous:
            # later, because one of these connections may be the one that is being served
            self._call_soon(self._disconnect_anonymous)

    @property
    def _knows_users(self) -> bool:
        """True if certificates name users."""
        return self.required or self._had_users

    def register_anonymous(self, access: ConnectionAccess) -> None:
        """Register a connection that acts as EVERYBODY, to disconnect it when logins become
        required."""
        if not self.required:
            self._anonymous.add(access)

    def _disconnect_anonymous(self) -> None:
        """Disconnect the clients that have all permissions only because there were no users.

        Clients of protocols without logins stay connected, unless a certificate names a user.
        """
        anonymous, self._anonymous = list(self._anonymous), WeakSet()
        count = sum(access.disconnect_anonymous() for access in anonymous)
        if count:
            log.info("anonymous clients are disconnected", connections=count)

    def _guest(self, url: Url, user: str, certified: str, logs_in: bool) -> Identity | None:
        if certified:
            if not self._knows_users:
                return EVERYBODY
            identity = self.user_snapshot.identity(certified)
            return None if logs_in and identity is ANONYMOUS else identity
        if not logs_in:
            if user:
                return self.user_snapshot.identity(user)
            required, insecure = self._settings.required, self._insecure_public
            return EVERYBODY if is_open(url, "", required, insecure) else ANONYMOUS
        if self.required or (url.public and not self._insecure_public):
            return None
        return EVERYBODY

    # --- logins ------------------------------------------------------------------------------

    def login_handle(self, credentials: Credentials) -> LoginHandle:
        """Return a handle that finds the identity of valid credentials again (`Access`)."""
        user, password, token = credentials[:3]
        if not token and password.startswith(TOKEN_PREFIX):
            token = password
        if self.logins.is_admin(token or password):
            return lambda: ADMIN
        token_fingerprint, password_mark = fingerprint(token), self._password_mark(user)

        def owner() -> Identity | None:
            self.refresh()
            if token:
                name = self.user_snapshot.token_owner(token_fingerprint, self._wall())
            else:
                name = user if self._password_mark(user) == password_mark else ""
            identity = self.user_snapshot.identity(name)
            return None if identity is ANONYMOUS else identity

        return owner

    def _password_mark(self, user: str) -> str:
        return self._upgrades.mark(self.user_snapshot.hash_of(user))

    # --- changes -----------------------------------------------------------------------------

    def hash(self, password: str) -> str:
        """Return the hash of a new password. Slow on purpose; thread-safe.

        Raises AccessError if it is invalid or shorter than the configured minimum.
        """
        return hash_password(password, self._settings.min_password_length)

    def change(self, change: Change, by: str, done: ChangeCallback, limited_user: str = "") -> None:
        """Apply a change off the event loop; changes are applied in order.

        `done` is called on the event loop's thread. `limited_user`: the user who makes the change,
        if only MAX_OWN_CHANGES of that user may be pending.
        """
        pending = self._pending_changes
        own_limit = MAX_OWN_CHANGES if limited_user else MAX_CHANGES
        if pending.total() >= MAX_CHANGES or pending[limited_user] >= own_limit:
            done(AccessError("too many changes of users at once; try again"))
            return
        pending[limited_user] += 1
        self._submit(change, by, partial(self._changed, done, limited_user))

    async def apply(self, change: Change, by: str) -> None:
        """Apply a change as `change` does, and wait until it is on disk. Raises AccessError,
        LowDiskSpace."""
        outcome: SluiceError | None = await wait_for_callback(self.change, change, by)
        if outcome is not None:
            raise outcome

    def _submit(self, change: Change, author: str, callback: FailureCallback) -> None:
        self._changes.submit(self._change, change, author, callback)

    def _change(self, change: Change, author: str, callback: FailureCallback) -> None:
        """Change the file, in the thread."""
        failure: Exception | None = None
        try:
            self._store.change(change, author)
        except Exception as error:
            # any error: the caller waits for the end of the change
            failure = error
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            self._call_soon(callback, failure)

    def _changed(
        self, callback: ChangeCallback, limited_user: str, failure: Exception | None
    ) -> None:
        self._pending_changes -= Counter((limited_user,))
        self.refresh()
        if failure is None or isinstance(failure, AccessError):
            callback(failure)
            return
        log.error("the user database cannot be changed", error=str(failure))
        if isinstance(failure, OSError) and failure.errno in NO_SPACE:
            callback(LowDiskSpace("the user database cannot be changed: its disk is full"))
        else:
            callback(AccessError("the user database cannot be changed; the broker's log says why"))

    def now(self) -> int:
        """Return the time in seconds since the epoch."""
        return int(self._wall())


class ConnectionAccess(Access):
    """Access of one connection to a broker that may have users.

    Callbacks run in an event loop iteration of the broker; an exception in a callback closes this
    connection.
    """

    __slots__ = (
        "__weakref__",
        "_authenticator",
        "_check",
        "_guest",
        "_transport",
        "identity",
    )

    def __init__(
        self,
        authenticator: Authenticator,
        transport: ClientConnection,
        guest: Callable[[], Identity | None],
    ) -> None:
        """Create the access of a connection; `guest` returns its identity without a login."""
        self._authenticator = authenticator
        self._transport = transport
        self._guest = guest
        self._check: LoginCheck | None = None
        """Login that waits in the queue of checks."""
        self.renew()
        if self.guest is EVERYBODY:
            authenticator.register_anonymous(self)
        self.identity = self.guest
        """Latest identity of this connection."""

    def renew(self) -> None:
        """Update `guest` and `users` (`Access`)."""
        authenticator = self._authenticator
        authenticator.refresh()
        self.guest = self._guest()
        self.users = authenticator if authenticator.required else None

    def login_handle(self, credentials: Credentials) -> LoginHandle:
        """Return a handle for the latest login (`Access`)."""
        return self._authenticator.login_handle(credentials)

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        """Authenticate the client (`Access`). Ignore the credentials if no login is required."""
        if self.guest is not None:
            self._transport.call_later(0, partial(admitted, self.guest))
        else:
            self._authenticator.refresh()
            answer = partial(self._answer, admitted)
            self._check = self._authenticator.logins.begin(peer, credentials, answer)

    def cancel_login(self) -> None:
        """Cancel the pending login (`Access`)."""
        if self._check is not None:
            self._authenticator.logins.queue.cancel(self._check)

    def disconnect_anonymous(self) -> bool:
        """Close the connection if its client has to log in now; return whether it was closed."""
        if self._guest() is EVERYBODY:
            return False
        self._transport.disconnect("users have been added, and this protocol requires a login now")
        return True

    def log_denied(self, peer: str, identity: Identity, operation: str) -> None:
        """Log a denied operation in the audit log (`Access`)."""
        self._authenticator.audit.log_denied(peer, identity.name, operation)

    def change(self, change: Change, done: ChangeCallback) -> None:
        """Apply a change of users in the name of the connection's user (`Access`)."""
        identity = self.identity or ANONYMOUS
        name = identity.name

        def answer(outcome: SluiceError | None) -> None:
            self._transport.call_later(0, partial(done, outcome))

        author = f"{name or ANONYMOUS_USER} at {self._transport.peer}"
        limited_user = "" if identity.superuser else name
        self._authenticator.change(change, author, answer, limited_user)

    def _answer(self, callback: LoginCallback, verdict: Identity | AccessError) -> None:
        def call() -> None:
            self._check = None
            if isinstance(verdict, Identity):
                self.identity = verdict
            callback(verdict)

        self._transport.call_later(0, call)
