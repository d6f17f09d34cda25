"""Logins: verification of credentials.

    valid token, proven password or digest ──> admitted at once, always
    the pair (address, user) is refused ─────> TooManyFailures, with the seconds to wait
    else ────────────────────────────────────> the queue (`login_queue`), then the failure table

A password is proven where it has been right before: at the same address, with the same stored
hash, or the one that has replaced it for the same password (`upgrades`). What is remembered is a
keyed digest, in memory. The address is part of it because an answer that comes at once tells that a
guess is right; where nobody has logged in, a right guess must take its turn in the queue like a
wrong one. There a password that is proven elsewhere only saves the work of the check, which lets
many clients of one user come back after a restart.

A wrong token and an MD5 digest cost nothing to compare. So that they are no faster way to guess,
they wait in the same queue, and a wrong one takes a check against a hash that nothing fits; so does
a password of a user who does not exist, who has none, or that is too long to be one.
"""

from __future__ import annotations

import hmac
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from sluicemq.model.access import Identity
from sluicemq.model.errors import (
    AccessError,
    AuthenticationFailed,
    AuthenticationMissing,
    LoginBusy,
    TooManyFailures,
)
from sluicemq.security.access import TOKEN_PREFIX, Admitted, Credentials
from sluicemq.security.audit import Audit, audited_user
from sluicemq.security.failures import FailureTable, address_of
from sluicemq.security.login_queue import (
    CallSoon,
    LoginCheck,
    LoginQueue,
    Verdict,
    Verify,
)
from sluicemq.security.passwords import (
    MAX_PASSWORD,
    NO_DIGEST,
    UNKNOWN,
    bcrypt_cost,
    digest_answer,
    page_digest_answer,
)
from sluicemq.security.records import fingerprint

if TYPE_CHECKING:
    from sluicemq.security.access import AuthSettings
    from sluicemq.security.records import UserSnapshot
    from sluicemq.security.upgrades import PasswordUpgrades

ADMIN: Final = Identity("(admin token)", superuser=True)
"""Name of the client that presents the admin token. No user can have that name."""
LOCAL: Final = "local"
"""Address of all clients of Unix sockets in the queue and in the failure table."""
TOKENS: Final = "(token)"
"""User of wrong tokens in the failure table, because a wrong token identifies no user."""


class ProvenDigests:
    """Keyed digests of verified credentials; the least recently used one is evicted."""

    __slots__ = ("_digests", "_key", "_most")

    def __init__(self, most: int) -> None:
        self._key = os.urandom(32)
        self._most = most
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def digest(self, *parts: str) -> bytes:
        """Return the keyed digest of some texts."""
        encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
        # lengths first: no two lists of parts give the same bytes
        lengths = b"".join(len(part).to_bytes(8, "big") for part in encoded)
        return hmac.digest(self._key, lengths + b"".join(encoded), "sha256")

    def add(self, digest: bytes) -> None:
        """Add a digest, or mark it as used."""
        self._digests[digest] = None
        self._digests.move_to_end(digest)
        if len(self._digests) > self._most:
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
    """

    __slots__ = (
        "_admin",
        "_audit",
        "_failures",
        "_proven",
        "_upgrades",
        "_wall",
        "queue",
        "user_snapshot",
    )

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
        self._audit = audit
        self.user_snapshot = user_snapshot
        self._upgrades = upgrades
        self._wall = wall
        self._failures = FailureTable(
            clock,
            allowed=settings.max_login_failures,
            block=settings.login_backoff,
            block_max=settings.login_backoff_max,
            expire=settings.login_failure_window,
            most=settings.max_login_failure_entries,
        )
        self.queue = LoginQueue(
            call_soon,
            checks=settings.max_concurrent_password_checks,
            most=settings.max_queued_logins,
            verify=verify,
        )
        self._proven = ProvenDigests(settings.password_cache_size)

    def begin(self, peer: str, credentials: Credentials, admitted: Admitted) -> LoginCheck | None:
        """Verify credentials; `admitted` may be called at once.

        Return the queued check, for `cancel`; None if no check is queued.
        """
        user, password, token, digest, nonce = credentials
        if not token and password.startswith(TOKEN_PREFIX):
            token = password  # for clients that support passwords only
        if not token and not password and not digest:
            admitted(AuthenticationMissing("log in with a user name and a password"))
            return None
        given_user, name = ("", TOKENS) if token else (user, audited_user(user))
        login = _Login(self, peer, given_user, name, admitted)
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
        if name := self.user_snapshot().holder(fingerprint(token), self._wall()):
            login.admit(self.user_snapshot().identity(name), "token")
            return None
        return login.check("token", self._proven.digest("token", token), lambda: False)

    def _by_digest(self, login: _Login, digest: str, nonce: str) -> LoginCheck | None:
        user = login.given_user
        presented = digest.encode("utf-8", "surrogatepass")

        def right() -> bool:
            form = self.user_snapshot().digest_of(user)
            answers = [
                answer(form or NO_DIGEST, nonce).encode()
                for answer in (digest_answer, page_digest_answer)
            ]
            equal = [hmac.compare_digest(answer, presented) for answer in answers]
            return any(equal) and bool(form and nonce)

        form = self.user_snapshot().digest_of(user)
        proven = self._proven.digest("digest at", login.address, user, form)
        if right() and proven in self._proven:
            login.admit(self.user_snapshot().identity(user), "digest")
            return None
        key = self._proven.digest("digest", user, digest, nonce)
        return login.check("digest", key, right, proves=(proven,))

    def _by_password(self, login: _Login, password: str) -> LoginCheck | None:
        user = login.given_user
        stored = self.user_snapshot().hash_of(user)
        too_long = len(password.encode("utf-8", "surrogatepass")) > MAX_PASSWORD
        if too_long and not bcrypt_cost(stored):
            password, stored = "", UNKNOWN
        mark = self._upgrades.mark(stored)
        here = self._proven.digest("password at", login.address, user, mark, password)
        if here in self._proven:
            self._upgrades.offer(user, stored, password)
            login.admit(self.user_snapshot().identity(user), "password")
            return None
        anywhere = self._proven.digest("password", user, mark, password)

        def unchanged() -> bool:
            return (
                stored != UNKNOWN
                and self._upgrades.mark(self.user_snapshot().hash_of(user)) == mark
            )

        return login.check(
            "password",
            anywhere,
            lambda: unchanged() and anywhere in self._proven,
            stored=stored,
            password=password,
            valid=unchanged,
            proves=(here, anywhere),
            proved=lambda: self._upgrades.offer(user, self.user_snapshot().hash_of(user), password),
        )

    # --- for _Login --------------------------------------------------------------------------

    def refusal(self, login: _Login) -> TooManyFailures | None:
        """Return the error with which logins of the pair are refused now, or None."""
        wait = self._failures.wait(login.address, login.name)
        if wait <= 0:
            return None
        whose = "with wrong tokens" if login.name == TOKENS else "for this user"
        return TooManyFailures(f"{whose} from this address", math.ceil(wait))

    def conclude(self, login: _Login, proves: tuple[bytes, ...], right: bool) -> None:
        """Record the result of a check, once for all attempts that it answers."""
        if right:
            for digest in proves:
                self._proven.add(digest)
        else:
            self._failures.fail(login.address, login.name)

    def admitted(self, login: _Login, identity: Identity, how: str) -> None:
        """Record a successful login."""
        if how != "token":
            self._failures.clear(login.address, login.name)
        self._audit.login(login.peer, identity.name, how)

    def failed(self, login: _Login, how: str) -> None:
        """Record a failed login."""
        wait = self._failures.wait(login.address, login.name)
        self._audit.login_failed(login.peer, login.given_user, how, wait)

    def refused(self, login: _Login, error: AccessError) -> None:
        """Record an attempt that was not checked."""
        if isinstance(error, TooManyFailures):
            why = "too many failures"
        elif isinstance(error, LoginBusy):
            why = "too many waiting"
        else:
            why = "connection closed"
        self._audit.refused(login.peer, login.given_user, why)


class _Login:
    """Login attempt.

    given_user  user name sent by the client; "" with a token
    name        user in the failure table; all invalid names share one
    """

    __slots__ = ("_admitted", "_answered", "_logins", "address", "given_user", "name", "peer")

    def __init__(
        self, logins: Logins, peer: str, given_user: str, name: str, admitted: Admitted
    ) -> None:
        self._logins = logins
        self._admitted = admitted
        self._answered = False
        self.peer = peer
        self.address = address_of(peer) or LOCAL
        self.given_user = given_user
        self.name = name

    def check(
        self,
        how: str,
        key: bytes,
        known: Callable[[], bool],
        *,
        stored: str = UNKNOWN,
        password: str = "",
        valid: Callable[[], bool] = lambda: False,
        proves: tuple[bytes, ...] = (),
        proved: Callable[[], None] = lambda: None,
    ) -> LoginCheck | None:
        """Queue the attempt, unless its pair is refused.

        Before the check, `known` returns whether the credentials are known to be right; after a
        successful check, `valid` returns whether `stored` is still current. On success the digests
        `proves` are added to those of verified credentials, and `proved` is called.
        """
        logins = self._logins
        if (refusal := logins.refusal(self)) is not None:
            self._answer(how, refusal)
            return None

        def decide() -> Verdict | None:
            return logins.refusal(self) or (True if known() else None)

        def conclude(right: bool) -> bool:
            right = right and (valid() or known())
            logins.conclude(self, proves, right)
            if right:
                proved()
            return right

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
        return None if self._answered else check

    def admit(self, identity: Identity, how: str) -> None:
        """Admit the client."""
        self._answered = True
        self._logins.admitted(self, identity, how)
        self._admitted(identity)

    def _answer(self, how: str, verdict: Verdict) -> None:
        self._answered = True
        if isinstance(verdict, AccessError):
            self._logins.refused(self, verdict)
            self._admitted(verdict)
        elif verdict:
            self.admit(self._logins.user_snapshot().identity(self.given_user), how)
        else:
            self._logins.failed(self, how)
            self._admitted(AuthenticationFailed("the user name or the password is wrong"))
