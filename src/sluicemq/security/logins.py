"""Logins: verification of credentials.

    valid token, proven password or digest ──> admitted at once
    address and user are blocked ────────────> TooManyFailures, with the seconds to wait
    otherwise ───────────────────────────────> checked in the queue (`LoginQueue`); a failure is
                                               counted in the failure table

A password is proven at an address after one successful login from there, as long as the stored hash
stays the same or is replaced by another hash of the same password (`PasswordUpgrades`). The broker
keeps only a keyed digest in memory, which includes the address: an immediate response reveals that
a guess is right, so a right guess from an address without earlier logins has to wait in the queue
like a wrong one. A password that is proven at another address still waits but needs no check, so
that many clients of one user can reconnect after a restart.

Tokens and MD5 digests can be compared in no time. So that they are no faster way to guess, wrong
ones wait in the same queue and take a check against a hash that no password matches. The same holds
for a user who does not exist or has no password, and for a password that is too long.
"""

from __future__ import annotations

import hmac
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

import structlog

from sluicemq.model.access import Identity
from sluicemq.model.errors import (
    AccessError,
    AuthenticationFailed,
    AuthenticationMissing,
    LoginBusy,
    TooManyFailures,
)
from sluicemq.security.access import AuthSettings, Credentials, LoginCallback
from sluicemq.security.audit import Audit, audited_user
from sluicemq.security.failures import FailureTable, address_of
from sluicemq.security.passwords import (
    MAX_PASSWORD,
    NO_DIGEST,
    TOKEN_PREFIX,
    UNMATCHABLE_HASH,
    bcrypt_cost,
    digest_answer,
    hash_password,
    page_digest_answer,
    verify,
)
from sluicemq.security.records import (
    MAX_USERS,
    Change,
    Database,
    UserSnapshot,
    fingerprint,
    replace_hashes,
)

log = structlog.get_logger("sluicemq.identity")

# --- Queue of checks ------------------------------------------------------------------------------
#
# Queue of login checks: a few run at a time, off the event loop, and addresses take turns.
#
# Password checks are slow on purpose. argon2 and bcrypt release the interpreter lock, so that
# messages are processed while a thread checks; everything else happens on the event loop's thread
# and needs no lock.
#
#     submit ── the queue is full ──────────> LoginBusy, to the newest check of the address that has
#        │                                    the most waiting (the new one, if that is its own)
#        └─ waits ── its connection ends ───> removed from the queue (`cancel`)
#             └─ next ── decide() is certain > answered without a check
#                  └─ thread ── conclude() ─> answered
#
# Within an address, checks keep their order, but only one check of an address and user runs at a
# time. Waiting checks of the same address with the same key (the same user and the same secret)
# share the result of the first of them, which is counted once.

CallSoon = Callable[..., Any]
"""Schedules a call on the event loop's thread: `loop.call_soon_threadsafe`."""

Verdict = bool | AccessError
"""Result of a check of credentials, or the reason why they were not checked."""

Verify = Callable[[str, str, int], bool]
"""Checks a password in a thread: `passwords.verify`."""


@dataclass(slots=True, eq=False)
class LoginCheck:
    """Check of the credentials of one login.

    address   address of the client (`failures.address_of`)
    user      name of the user in the failure table
    key       the same for the same user and secret
    stored    password hash
    password  password that is compared with the hash
    highest   highest cost of a bcrypt hash in the user database (`passwords.verify`)
    decide    called before the check: returns the verdict if no check is needed, else None
    conclude  called once with the result of the check, or of `decide`; returns the final verdict
    answer    called once with the verdict
    """

    address: str
    user: str
    key: bytes
    _: KW_ONLY
    stored: str
    password: str
    highest: int
    decide: Callable[[], Verdict | None]
    conclude: Callable[[bool], bool]
    answer: Callable[[Verdict], None]


class LoginQueue:
    """Queue of one broker."""

    def __init__(
        self,
        call_soon: CallSoon,
        *,
        checks: int,
        max_waiting: int,
        verify: Verify = verify,
    ) -> None:
        """Create an empty queue: up to `checks` run at a time, and up to `max_waiting` wait."""
        self._call_soon = call_soon
        self._checks = checks
        self._max_waiting = max_waiting
        self._verify = verify
        self._pool = ThreadPoolExecutor(checks, "password")
        self._running: set[tuple[str, str]] = set()
        """Address and user of the running checks."""
        self._waiting: OrderedDict[str, dict[LoginCheck, None]] = OrderedDict()
        """Waiting checks by address, the next address first; no entry is empty."""

    @property
    def size(self) -> int:
        """Number of waiting checks."""
        return sum(len(checks) for checks in self._waiting.values())

    def submit(self, check: LoginCheck) -> None:
        """Queue a check. Its `answer` may be called at once."""
        own_count = len(self._waiting.get(check.address, ()))
        if self.size >= self._max_waiting:
            heaviest_address = max(self._waiting, key=lambda address: len(self._waiting[address]))
            if len(self._waiting[heaviest_address]) <= own_count + 1:
                check.answer(LoginBusy())
                return
            displaced_check = next(reversed(self._waiting[heaviest_address]))
            self._remove(displaced_check)
            displaced_check.answer(LoginBusy())
        self._waiting.setdefault(check.address, {})[check] = None
        self._advance()

    def cancel(self, check: LoginCheck) -> None:
        """Remove a check from the queue because its connection closes. A running check is
        completed, and counts."""
        if check in self._waiting.get(check.address, ()):
            self._remove(check)
            check.answer(AuthenticationFailed("the connection ends before the login is checked"))

    def close(self) -> None:
        """Stop all checks without calling `answer`."""
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _remove(self, check: LoginCheck) -> None:
        checks = self._waiting[check.address]
        del checks[check]
        if not checks:
            del self._waiting[check.address]

    def _next(self) -> LoginCheck | None:
        """Remove the next check from the queue and return it."""
        for address, checks in self._waiting.items():
            for check in checks:
                if (address, check.user) not in self._running:
                    self._waiting.move_to_end(address)
                    self._remove(check)
                    return check
        return None

    def _advance(self) -> None:
        while len(self._running) < self._checks and (check := self._next()) is not None:
            verdict = check.decide()
            if verdict is None:
                self._running.add((check.address, check.user))
                self._pool.submit(self._run, check)
            elif isinstance(verdict, AccessError):
                check.answer(verdict)
            else:
                self._settle(check, verdict)

    def _run(self, check: LoginCheck) -> None:
        """Verify the password; runs in a thread."""
        try:
            is_valid = self._verify(check.stored, check.password, check.highest)
        except Exception as error:
            # otherwise the slot would not be released until the restart
            log.error("a password cannot be checked", exc_info=error)
            is_valid = False
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            self._call_soon(self._finish, check, is_valid)

    def _finish(self, check: LoginCheck, is_valid: bool) -> None:
        self._running.discard((check.address, check.user))
        try:
            self._settle(check, is_valid)
        finally:
            self._advance()

    def _settle(self, check: LoginCheck, is_valid: bool) -> None:
        verdict = check.conclude(is_valid)
        duplicates = [
            duplicate
            for duplicate in self._waiting.get(check.address, ())
            if duplicate.key == check.key
        ]
        for duplicate in duplicates:
            self._remove(duplicate)
        for login_check in (check, *duplicates):
            login_check.answer(verdict)


# --- Replacement of bcrypt hashes -----------------------------------------------------------------
#
# Replacement of bcrypt hashes by argon2 ones after their users' first successful login.
#
#     login ──> offer() ── waits ──> thread: hash, change the file ──> loop: next ones
#                           │                     └ cannot be written ──> paused
#                           └ paused, or too many wait: at a later login
#
# The password stays the same, so the new hash must not end a session that began with the old one,
# nor fail a login that is being checked against it, nor invalidate a proven password. They compare
# the result of `mark`, which is the old hash for every hash that this process has replaced.
#
# If the user file cannot be written, replacing stops until the file changes or the broker restarts;
# bcrypt hashes are still verified.

FailureCallback = Callable[[Exception | None], None]
"""Callback, on the event loop's thread, with the error for which a change failed."""
AUTHOR: Final = "the broker (bcrypt replaced by argon2id at the first login)"
"""Author of these changes in the audit log."""
MAX_REPLACED: Final = 16
"""Maximum number of hashes replaced by one change of the file, which takes 0.4 s."""
MAX_WAITING: Final = 1000
"""Maximum number of users whose hash waits for its replacement; their passwords are in memory until
then."""


@dataclass(slots=True, eq=False)
class PasswordUpgrades:
    """Replacements of one broker. All methods but `_replace` are called on the event loop's thread.

    `_submit` gives a change to the thread that changes the file; `_on_written` is called after each
    change.
    """

    _submit: Callable[[Change, str, FailureCallback], None]
    _on_written: Callable[[], None]
    _replaced: dict[str, str] = field(default_factory=dict)
    """New hash of each replaced hash. Entries are added before the file is written, so that every
    replaced hash in the file is known."""
    _waiting: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Stored hash and password by user."""
    _running: bool = False
    _paused: bool = False
    _closed: bool = False

    def mark(self, stored: str) -> str:
        """Return the hash that identifies a user's password in comparisons."""
        return self._replaced.get(stored, stored)

    def offer(self, user: str, stored: str, password: str) -> None:
        """Replace the hash `stored` of this password soon, if it is a bcrypt hash."""
        # only bcrypt hashes accept longer passwords
        is_replaceable = bcrypt_cost(stored) and len(password.encode()) <= MAX_PASSWORD
        if is_replaceable and not self._paused and len(self._waiting) < MAX_WAITING:
            self._waiting[user] = stored, password
            self._advance()

    def resume(self) -> None:
        """Resume replacing hashes, because the file has changed."""
        self._paused = False

    def close(self) -> None:
        """Start no more replacements."""
        self._closed = True
        self._waiting.clear()

    def _advance(self) -> None:
        if self._waiting and not self._running and not self._closed:
            part = dict(islice(self._waiting.items(), MAX_REPLACED))
            for user in part:
                del self._waiting[user]
            self._running = True
            self._submit(partial(self._replace, part), AUTHOR, self._done)

    def _replace(self, part: dict[str, tuple[str, str]], database: Database) -> Database:
        """Hash the passwords of a part of the users, and replace their hashes; runs in a thread."""
        hashes = {user: (old, hash_password(password)) for user, (old, password) in part.items()}
        for old, new in hashes.values():
            if len(self._replaced) >= MAX_USERS:
                del self._replaced[next(iter(self._replaced))]
            self._replaced[new] = old
        return replace_hashes(database, hashes)

    def _done(self, failure: Exception | None) -> None:
        self._running = False
        if failure is None:
            self._on_written()
        elif isinstance(failure, AccessError):
            # another process is changing the file: these users are offered again
            log.info("bcrypt hashes are not replaced yet", error=str(failure))
        else:
            self._paused = True
            self._waiting.clear()
            log.warning(
                "bcrypt hashes stay, because the user database cannot be changed",
                error=str(failure) or type(failure).__name__,
            )
        self._advance()


# --- Decision on credentials ----------------------------------------------------------------------

ADMIN: Final = Identity("(admin token)", superuser=True)
"""Name of the client that presents the admin token. No user can have that name."""
LOCAL: Final = "local"
"""Address of all clients of Unix sockets in the queue and in the failure table."""
TOKENS: Final = "(token)"
"""User of wrong tokens in the failure table, because a wrong token identifies no user."""


@dataclass(slots=True, eq=False)
class ProvenDigests:
    """Keyed digests of verified credentials; the least recently used one is evicted."""

    _max_size: int
    _key: bytes = field(default_factory=partial(os.urandom, 32))
    _digests: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def digest(self, *parts: str) -> bytes:
        """Return the keyed digest of some texts."""
        encoded_parts = [part.encode("utf-8", "surrogatepass") for part in parts]
        # lengths first: no two lists of parts give the same bytes
        lengths = b"".join(len(part).to_bytes(8, "big") for part in encoded_parts)
        return hmac.digest(self._key, lengths + b"".join(encoded_parts), "sha256")

    def add(self, digest: bytes) -> None:
        """Add a digest, or mark it as used."""
        self._digests[digest] = None
        self._digests.move_to_end(digest)
        if len(self._digests) > self._max_size:
            self._digests.popitem(last=False)

    def __contains__(self, digest: bytes) -> bool:
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True


class Logins:
    """Logins of one broker. All methods are called on the event loop's thread.

    queue          password checks that wait or run
    user_snapshot  returns the current users
    failures       failed logins
    proven         digests of verified credentials
    """

    def __init__(
        self,
        settings: AuthSettings,
        call_soon: CallSoon,
        audit: Audit,
        user_snapshot: Callable[[], UserSnapshot],
        upgrades: PasswordUpgrades,
        *,
        admin: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        verify: Verify,
    ) -> None:
        """Create the logins of a broker.

        `user_snapshot` returns the current users; `admin` is the fingerprint of the admin token, ""
        if there is none.
        """
        self._admin = admin
        self.audit = audit
        self.user_snapshot = user_snapshot
        self._upgrades = upgrades
        self._wall = wall
        self.failures = FailureTable(clock, settings)
        self.queue = LoginQueue(
            call_soon,
            checks=settings.max_concurrent_password_checks,
            max_waiting=settings.max_queued_logins,
            verify=verify,
        )
        self.proven = ProvenDigests(settings.password_cache_size)

    def begin(
        self, peer: str, credentials: Credentials, admitted: LoginCallback
    ) -> LoginCheck | None:
        """Verify credentials; `admitted` may be called at once.

        Return the check, for `cancel`; None if there is nothing to check.
        """
        user, password, token, digest, nonce = credentials
        if not token and password.startswith(TOKEN_PREFIX):
            token = password  # for clients that support passwords only
        if not token and not password and not digest:
            admitted(AuthenticationMissing("log in with a user name and a password"))
            return None
        given_user, name = ("", TOKENS) if token else (user, audited_user(user))
        login = _Login(self, peer, address_of(peer) or LOCAL, given_user, name, admitted)
        if self.is_admin(token or password):
            login.admit(ADMIN, "token")
            return None
        if token:
            return self._by_token(login, token)
        if digest:
            return self._by_digest(login, digest, nonce)
        return self._by_password(login, password)

    def is_admin(self, secret: str) -> bool:
        """Return whether a secret is the admin token."""
        return bool(self._admin) and hmac.compare_digest(self._admin, fingerprint(secret))

    def _by_token(self, login: _Login, token: str) -> LoginCheck | None:
        if name := self.user_snapshot().token_owner(fingerprint(token), self._wall()):
            login.admit(self.user_snapshot().identity(name), "token")
            return None
        return login.check("token", self.proven.digest("token", token), lambda: False)

    def _by_digest(self, login: _Login, digest: str, nonce: str) -> LoginCheck | None:
        user = login.given_user
        received_answer = digest.encode("utf-8", "surrogatepass")

        def is_correct() -> bool:
            stored_digest = self.user_snapshot().digest_of(user)
            valid_answers = [
                calculate(stored_digest or NO_DIGEST, nonce).encode()
                for calculate in (digest_answer, page_digest_answer)
            ]
            matches = [hmac.compare_digest(answer, received_answer) for answer in valid_answers]
            return any(matches) and bool(stored_digest and nonce)

        stored_digest = self.user_snapshot().digest_of(user)
        proof = self.proven.digest("digest at", login.address, user, stored_digest)
        if is_correct() and proof in self.proven:
            login.admit(self.user_snapshot().identity(user), "digest")
            return None
        key = self.proven.digest("digest", user, digest, nonce)
        return login.check("digest", key, is_correct, proofs=(proof,))

    def _by_password(self, login: _Login, password: str) -> LoginCheck | None:
        user = login.given_user
        password_hash = self.user_snapshot().hash_of(user)
        too_long = len(password.encode("utf-8", "surrogatepass")) > MAX_PASSWORD
        if too_long and not bcrypt_cost(password_hash):
            password, password_hash = "", UNMATCHABLE_HASH
        mark = self._upgrades.mark(password_hash)
        address_proof = self.proven.digest("password at", login.address, user, mark, password)
        if address_proof in self.proven:
            self._upgrades.offer(user, password_hash, password)
            login.admit(self.user_snapshot().identity(user), "password")
            return None
        password_proof = self.proven.digest("password", user, mark, password)

        def is_unchanged() -> bool:
            return (
                password_hash != UNMATCHABLE_HASH
                and self._upgrades.mark(self.user_snapshot().hash_of(user)) == mark
            )

        return login.check(
            "password",
            password_proof,
            lambda: is_unchanged() and password_proof in self.proven,
            stored=password_hash,
            password=password,
            is_current=is_unchanged,
            proofs=(address_proof, password_proof),
            on_success=lambda: self._upgrades.offer(
                user, self.user_snapshot().hash_of(user), password
            ),
        )


_REFUSALS: Final[dict[type[AccessError], str]] = {
    TooManyFailures: "too many failures",
    LoginBusy: "too many waiting",
}
"""Reasons in the audit log why a login was not checked."""


@dataclass(slots=True, eq=False)
class _Login:
    """Login attempt.

    address     of the client, in the queue and in the failure table
    given_user  user name sent by the client; "" with a token
    name        user in the failure table; all invalid names share one
    """

    logins: Logins
    peer: str
    address: str
    given_user: str
    name: str
    admitted: LoginCallback

    def check(
        self,
        how: str,
        key: bytes,
        is_known: Callable[[], bool],
        *,
        stored: str = UNMATCHABLE_HASH,
        password: str = "",
        is_current: Callable[[], bool] = lambda: False,
        proofs: tuple[bytes, ...] = (),
        on_success: Callable[[], None] = lambda: None,
    ) -> LoginCheck | None:
        """Queue the attempt, unless its pair is refused.

        Before the check, `is_known` returns whether the credentials are known to be right; after a
        successful check, `is_current` returns whether `stored` is still current. On success the
        digests `proofs` are added to those of verified credentials, and `on_success` is called.
        """
        logins = self.logins
        if (refusal := self._refusal()) is not None:
            self._answer(how, refusal)
            return None

        def decide() -> Verdict | None:
            return self._refusal() or (True if is_known() else None)

        def conclude(is_valid: bool) -> bool:
            """Record the result of the check, once for all attempts that it answers."""
            if not is_valid or not (is_current() or is_known()):
                logins.failures.fail(self.address, self.name)
                return False
            for digest in proofs:
                logins.proven.add(digest)
            on_success()
            return True

        check = LoginCheck(
            self.address,
            self.name,
            key,
            stored=stored,
            password=password,
            highest=logins.user_snapshot().highest_cost,
            decide=decide,
            conclude=conclude,
            answer=partial(self._answer, how),
        )
        logins.queue.submit(check)
        return check

    def _refusal(self) -> TooManyFailures | None:
        """Return the error with which logins of the pair are refused now, or None."""
        wait = self.logins.failures.wait(self.address, self.name)
        if wait <= 0:
            return None
        scope = "with wrong tokens" if self.name == TOKENS else "for this user"
        return TooManyFailures(f"{scope} from this address", math.ceil(wait))

    def admit(self, identity: Identity, how: str) -> None:
        """Admit the client."""
        if how != "token":
            self.logins.failures.clear(self.address, self.name)
        self.logins.audit.log_login(self.peer, identity.name, how)
        self.admitted(identity)

    def _answer(self, method: str, verdict: Verdict) -> None:
        audit = self.logins.audit
        if isinstance(verdict, AccessError):
            reason = _REFUSALS.get(type(verdict), "connection closed")
            audit.log_refused_login(self.peer, self.given_user, reason)
            self.admitted(verdict)
        elif verdict:
            self.admit(self.logins.user_snapshot().identity(self.given_user), method)
        else:
            wait = self.logins.failures.wait(self.address, self.name)
            audit.log_failed_login(self.peer, self.given_user, method, wait)
            reason = "the user name or the password is wrong"
            if method == "token":
                reason = "the token is unknown or has expired"
            self.admitted(AuthenticationFailed(reason))
