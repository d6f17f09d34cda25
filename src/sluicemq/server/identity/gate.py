"""Whom each connection acts as: what `sluicemq.protocols.access` asks for.

    connection          protocol has logins              has none
    certificate         the user it names, and everybody if the broker knows no users
    user=NAME           (no meaning)                     that user
    public address      must log in                      nobody, without rights
    else                must log in, or everybody if     everybody, or nobody
                        no logins are required           if required = always

`insecure_public` makes public listeners like the others. Logins are required as soon as the broker
knows a user (required = auto), and from then on until it stops: a database that is emptied or
damaged meanwhile opens nothing.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from sluicemq.model.access import EVERYBODY, NOBODY, Identity, Permission
from sluicemq.model.errors import (
    AccessError,
    AuthenticationFailed,
    AuthenticationMissing,
    ConfigurationError,
)
from sluicemq.protocols.access import (
    TOKEN_PREFIX,
    Account,
    Admitted,
    Bond,
    Credentials,
    Done,
    Users,
)
from sluicemq.protocols.link import Link
from sluicemq.server.config import Config
from sluicemq.server.identity import changes
from sluicemq.server.identity.audit import Audit, shown_user
from sluicemq.server.identity.changes import Change
from sluicemq.server.identity.checks import Attempt, CallSoon, Checks
from sluicemq.server.identity.passwords import (
    MAX_PASSWORD,
    UNKNOWN,
    digest_answer,
    digest_form,
    hash_password,
    read_secret_file,
    verify,
)
from sluicemq.server.identity.records import UserRecord
from sluicemq.server.identity.roster import Roster
from sluicemq.server.identity.store import UserStore
from sluicemq.server.identity.throttle import Throttle, address_of
from sluicemq.server.identity.tokens import fingerprint
from sluicemq.server.listening import Listener

ADMIN: Final = Identity("(admin token)", superuser=True)
"""Who shows the admin token. No user can have that name."""
LOCAL: Final = Identity("(local)", superuser=True)
"""Who may open the admin socket: the owner of the data, who could change all of it anyway."""
MOST_CHANGES: Final = 64
"""Changes of users that may be under way."""

_MOST_PROVEN: Final = 1024
_MOST_FAMILIAR: Final = 10_000

log = structlog.get_logger("sluicemq.identity")


class Gate:
    """See the module. All calls on the loop's thread."""

    __slots__ = (
        "_admin",
        "_call_soon",
        "_changes",
        "_checks",
        "_config",
        "_damage",
        "_familiar",
        "_key",
        "_proven",
        "_roster",
        "_store",
        "_throttle",
        "_under_way",
        "_wall",
        "audit",
        "required",
    )

    def __init__(
        self,
        config: Config,
        call_soon: CallSoon,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        verify: Callable[[str, str], bool] = verify,
    ) -> None:
        """Raises ConfigurationError if the user database or the token file cannot be used."""
        settings = config.identity
        self._config = config
        self._call_soon = call_soon
        self._wall = wall
        self.audit = Audit(settings.audit)
        self._checks = Checks(call_soon, verify=verify)
        self._changes = ThreadPoolExecutor(1, "users")
        self._under_way = 0
        self._throttle = Throttle(
            clock,
            free=settings.login_failures,
            delay=settings.login_delay,
            delay_max=settings.login_delay_max,
            memory=settings.login_memory,
        )
        self._key = os.urandom(32)
        self._proven: set[bytes] = set()
        """Of right passwords, keyed with the stored hash: a new password makes them void."""
        self._familiar: set[tuple[str, str]] = set()
        """Addresses that users have logged in from: not locked out by others who guess at them."""
        self._admin = ""
        if settings.admin_token_file is not None:
            self._admin = fingerprint(read_secret_file(settings.admin_token_file))
        self._damage = ""
        self._store = UserStore(config.users_file)
        self._roster = Roster(self._store.read())
        self.required = False
        """Whether clients of protocols with logins have to log in."""
        self._decide()

    def open(self, link: Link, listener: Listener, *, logs_in: bool) -> ConnectionAccess:
        """The access of a new connection. `logs_in`: its protocol has logins."""
        return ConnectionAccess(self, link, lambda: self._guest(listener, link.peer_user, logs_in))

    def open_local(self, link: Link) -> ConnectionAccess:
        """The access of a new connection to the admin socket."""
        return ConnectionAccess(self, link, lambda: LOCAL)

    def refresh(self) -> None:
        """Take notice of a changed database. One system call if it has not."""
        try:
            database = self._store.read()
        except ConfigurationError as error:
            self._stay(str(error))
            return
        before = self._roster.database
        if database is before:
            self._damage = ""
            return
        if before.users and not self._store.exists:
            self._stay(f"{self._config.users_file} is gone")
            return
        self._damage = ""
        self._roster = Roster(database)
        self.audit.changed(before, database)
        self._decide()

    @property
    def roster(self) -> Roster:
        """The users of this moment."""
        return self._roster

    @property
    def all_by_digest(self) -> bool:
        """Whether clients that can be asked for one thing only are best asked for a digest."""
        return not self._admin and self._roster.all_by_digest

    def close(self) -> None:
        """No more checks and changes; those under way are finished."""
        self._checks.close()
        self._changes.shutdown()

    def _stay(self, damage: str) -> None:
        if damage != self._damage:
            self._damage = damage
            log.error("the users stay as they were", error=damage)

    def _decide(self) -> None:
        required = self._config.identity.required
        self.required = required == "always" or (
            required == "auto"
            and (self.required or bool(self._admin) or bool(self._roster.database.users))
        )

    def _guest(self, listener: Listener, certified: str, logs_in: bool) -> Identity | None:
        if certified:
            if not self.required:
                return EVERYBODY
            identity = self._roster.identity(certified)
            return None if logs_in and identity is NOBODY else identity
        if logs_in:
            must = self.required
        elif listener.user:
            return self._roster.identity(listener.user)
        else:
            must = self._config.identity.required == "always"
        if must or (listener.url.public and not self._config.insecure_public):
            return None if logs_in else NOBODY
        return EVERYBODY

    # --- logins ------------------------------------------------------------------------------

    def login(self, peer: str, credentials: Credentials, admitted: Admitted) -> None:
        """See Access. May answer at once."""
        self.refresh()
        user, password, token, digest, nonce = credentials
        if not token and password.startswith(TOKEN_PREFIX):
            token = password  # clients that can be given nothing but a password
        if not token and not password and not digest:
            admitted(AuthenticationMissing("log in with a user name and a password"))
            return
        address = address_of(peer)
        if self._wait(address, "" if token else user):
            self._refuse(peer, user, "too many failures", admitted)
        elif token:
            self._check_token(peer, address, token, admitted)
        elif digest:
            self._check_digest(peer, address, user, digest, nonce, admitted)
        elif self._is_admin(password):
            self._admit(peer, address, ADMIN, "token", admitted)
        else:
            self._check_password(peer, address, user, password, admitted)

    def bond(self, credentials: Credentials) -> Bond:
        """See Access."""
        user, password, token = credentials[:3]
        if not token and password.startswith(TOKEN_PREFIX):
            token = password
        if self._is_admin(token or password):
            return lambda: ADMIN
        mark, stored = fingerprint(token), self._roster.hash_of(user)

        def held() -> Identity | None:
            self.refresh()
            name = self._roster.holder(mark, self._wall())
            return self._roster.identity(name) if name else None

        def known() -> Identity | None:
            self.refresh()
            identity = self._roster.identity(user)
            same = self._roster.hash_of(user) == stored
            return identity if same and identity is not NOBODY else None

        return held if token else known

    def _is_admin(self, secret: str) -> bool:
        return bool(self._admin) and hmac.compare_digest(self._admin, fingerprint(secret))

    def _check_token(self, peer: str, address: str, token: str, admitted: Admitted) -> None:
        if self._is_admin(token):
            self._admit(peer, address, ADMIN, "token", admitted)
        elif name := self._roster.holder(fingerprint(token), self._wall()):
            self._admit(peer, address, self._roster.identity(name), "token", admitted)
        else:
            self._reject(peer, address, "", "token", admitted)

    def _check_digest(
        self, peer: str, address: str, user: str, digest: str, nonce: str, admitted: Admitted
    ) -> None:
        """At once: an MD5 costs nothing. Users that have no digest form take as long as others."""
        form = self._roster.digest_of(user)
        shown = digest.encode("utf-8", "surrogatepass")
        right = hmac.compare_digest(digest_answer(form or UNKNOWN, nonce).encode(), shown)
        if right and form and nonce:
            self._admit(peer, address, self._roster.identity(user), "digest", admitted)
        else:
            self._reject(peer, address, user, "digest", admitted)

    def _check_password(
        self, peer: str, address: str, user: str, password: str, admitted: Admitted
    ) -> None:
        stored = self._roster.hash_of(user)
        secret = password.encode("utf-8", "surrogatepass")
        if len(secret) > MAX_PASSWORD:
            self._reject(peer, address, user, "password", admitted)
            return
        name = user.encode("utf-8", "surrogatepass")
        key = hmac.digest(self._key, b"%b\0%b\0%b" % (stored.encode(), name, secret), "sha256")
        if key in self._proven:
            self._admit(peer, address, self._roster.identity(user), "password", admitted)
            return

        def outcome(right: bool | None) -> None:
            if right is None:
                self._refuse(peer, user, "too many failures", admitted)
            elif right and stored != UNKNOWN and self._roster.hash_of(user) == stored:
                if len(self._proven) >= _MOST_PROVEN:
                    self._proven.clear()
                self._proven.add(key)
                self._admit(peer, address, self._roster.identity(user), "password", admitted)
            else:
                self._reject(peer, address, user, "password", admitted)

        def wanted() -> bool:
            return not self._wait(address, user)

        if not self._checks.begin(Attempt(key, stored, password, wanted, outcome)):
            self._refuse(peer, user, "too many at once", admitted)

    def _wait(self, address: str, user: str) -> float:
        """Seconds until an attempt from there at that user is looked at."""
        wait = self._throttle.wait(f"address {address}") if address else 0.0
        if user and (address, user) not in self._familiar:
            wait = max(wait, self._throttle.wait(f"user {shown_user(user)}"))
        return wait

    def _admit(
        self, peer: str, address: str, identity: Identity, how: str, admitted: Admitted
    ) -> None:
        if address:
            if len(self._familiar) >= _MOST_FAMILIAR:
                self._familiar.clear()
            self._familiar.add((address, identity.name))
        self.audit.login(peer, identity.name, how)
        admitted(identity)

    def _reject(self, peer: str, address: str, user: str, how: str, admitted: Admitted) -> None:
        wait = self._throttle.fail(f"address {address}") if address else 0.0
        if user and (address, user) not in self._familiar:
            wait = max(wait, self._throttle.fail(f"user {shown_user(user)}"))
        self.audit.login_failed(peer, user, how, wait)
        admitted(AuthenticationFailed("the user name or the password is wrong"))

    def _refuse(self, peer: str, user: str, why: str, admitted: Admitted) -> None:
        self.audit.refused(peer, user, why)
        admitted(AuthenticationFailed("there have been too many attempts; try again later"))

    # --- changes -----------------------------------------------------------------------------

    def change(self, prepare: Callable[[], Change], by: str, done: Done) -> None:
        """Carry out the change that `prepare` makes, both off the loop. Changes keep their order.

        `done` is called on the loop's thread.
        """
        if self._under_way >= MOST_CHANGES:
            done(AccessError("too many changes of users at once; try again"))
            return
        self._under_way += 1
        self._changes.submit(self._change, prepare, by, done)

    def _change(self, prepare: Callable[[], Change], by: str, done: Done) -> None:
        outcome: AccessError | None = None
        try:
            self._store.change(prepare(), by)
        except AccessError as error:
            outcome = error
        except (ConfigurationError, OSError) as error:
            log.error("the user database cannot be changed", error=str(error))
            outcome = AccessError("the user database cannot be changed; the broker's log says why")
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            self._call_soon(self._changed, done, outcome)

    def _changed(self, done: Done, outcome: AccessError | None) -> None:
        self._under_way -= 1
        self.refresh()
        done(outcome)

    def now(self) -> int:
        """Seconds since the epoch."""
        return int(self._wall())


class ConnectionAccess:
    """The access of one connection; see `sluicemq.protocols.access.Access`.

    Answers come in a turn of the broker, and a fault in what they set off costs this connection.
    """

    __slots__ = ("_gate", "_guest", "_link", "guest", "users", "who")

    def __init__(self, gate: Gate, link: Link, guest: Callable[[], Identity | None]) -> None:
        """`guest` says whom it acts as without a login."""
        self._gate = gate
        self._link = link
        self._guest = guest
        self.renew()
        self.who = self.guest
        """The last identity this connection was given."""

    def renew(self) -> None:
        """See Access."""
        gate = self._gate
        gate.refresh()
        self.guest = self._guest()
        self.users: Users | None = ConnectionUsers(gate, self) if gate.required else None

    def bond(self, credentials: Credentials) -> Bond:
        """See Access. Of a guest, it is the guest."""
        guest = self.guest
        return self._gate.bond(credentials) if guest is None else lambda: guest

    def login(self, peer: str, credentials: Credentials, admitted: Admitted) -> None:
        """See Access. Where no login is needed, whatever the client shows is ignored."""
        if self.guest is not None:
            self.answer(partial(admitted, self.guest))
        else:
            self._gate.login(peer, credentials, partial(self._answer, admitted))

    def denied(self, peer: str, identity: Identity, what: str) -> None:
        """See Access."""
        self._gate.audit.denied(peer, identity.name, what)

    def answer(self, callback: Callable[[], None]) -> None:
        """Call back in a later turn."""
        self._link.call_later(0, callback)

    def by(self) -> str:
        """Who changes something, for the audit log."""
        name = self.who.name if self.who is not None else ""
        return f"{name or 'everybody'} at {self._link.peer}"

    def _answer(self, admitted: Admitted, verdict: Identity | AccessError) -> None:
        def call() -> None:
            if isinstance(verdict, Identity):
                self.who = verdict
            admitted(verdict)

        self.answer(call)


class ConnectionUsers:
    """The user database as one connection may change it; see `Users`. What the caller may do is the
    session's to ask."""

    __slots__ = ("_access", "_gate")

    def __init__(self, gate: Gate, access: ConnectionAccess) -> None:
        self._gate = gate
        self._access = access

    def create(self, name: str, password: str, superuser: bool, done: Done) -> None:
        """See Users."""
        now = self._gate.now()

        def prepare() -> Change:
            user = UserRecord(
                password=hash_password(password), superuser=superuser, created=now, updated=now
            )
            return partial(changes.add_user, name=name, user=user)

        self._change(prepare, done)

    def remove(self, name: str, done: Done) -> None:
        """See Users."""
        self._change(lambda: partial(changes.remove_user, name=name), done)

    def set_password(self, name: str, password: str, done: Done) -> None:
        """See Users. A user who has a digest form gets a new one."""
        now = self._gate.now()

        def prepare() -> Change:
            hashed = hash_password(password)
            digest = digest_form(name, password)
            return lambda database: changes.set_password(database, name, hashed, digest, now)

        self._change(prepare, done)

    def grant(self, name: str, permission: Permission, done: Done) -> None:
        """See Users."""
        now = self._gate.now()
        self._change(
            lambda: partial(changes.grant, name=name, permission=permission, now=now), done
        )

    def revoke(self, name: str, pattern: str, done: Done) -> None:
        """See Users."""
        now = self._gate.now()
        self._change(lambda: partial(changes.revoke, name=name, pattern=pattern, now=now), done)

    def accounts(self) -> list[Account]:
        """See Users."""
        self._gate.refresh()
        return self._gate.roster.accounts()

    def permissions(self, name: str) -> list[Permission]:
        """See Users. Those of its roles included."""
        self._gate.refresh()
        database = self._gate.roster.database
        return list(database.rights(name)) if name in database.users else []

    def _change(self, prepare: Callable[[], Change], done: Done) -> None:
        access = self._access
        self._gate.change(
            prepare, access.by(), lambda outcome: access.answer(partial(done, outcome))
        )
