"""Sessions of browsers: who has logged in once, and need not show it with every request.

A session is known by a random secret in a cookie, made anew at each login: one that a browser
brings along from before, or that somebody has planted there, becomes nobody's session. Requests
that change something show a second secret, which only the page that logged in has seen.

They live in memory, and end with the process, when they have not been used for a while, after a
time in any case, and when what was logged in with no longer holds.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sluicemq.model.access import Identity
from sluicemq.protocols.access import LoginHandle

if TYPE_CHECKING:
    from sluicemq.broker.clock import Clock

COOKIE: Final = "sluicemq_session"
IDLE_SECONDS: Final = 1800.0
LIFE_SECONDS: Final = 43_200.0
MOST: Final = 1000
_RANDOM_BYTES: Final = 32


class BrowserSession:
    """One session; `csrf` is what its page shows. Times are steady ms."""

    __slots__ = ("began", "csrf", "key", "login_handle", "used")

    def __init__(self, key: bytes, login_handle: LoginHandle, now: int) -> None:
        self.key = key
        self.login_handle = login_handle
        self.csrf = secrets.token_urlsafe(_RANDOM_BYTES)
        self.began = now
        self.used = now

    def shows(self, token: str) -> bool:
        """Whether that is what only its page can know."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.csrf.encode())


class BrowserSessions:
    """All of them, whichever listener they were begun at."""

    def __init__(
        self,
        clock: Clock,
        *,
        idle: float = IDLE_SECONDS,
        life: float = LIFE_SECONDS,
        most: int = MOST,
        secure: bool = False,
    ) -> None:
        """`idle` and `life` in seconds; `secure`: cookies are for TLS even where there is none."""
        self._clock = clock
        self._idle = round(idle * 1000)
        self._life = round(life * 1000)
        self._most = most
        self._found: OrderedDict[bytes, BrowserSession] = OrderedDict()
        """By the hash of the secret; the one that was used last at the end."""
        self.secure = secure

    def __len__(self) -> int:
        return len(self._found)

    def begin(self, login_handle: LoginHandle) -> tuple[str, BrowserSession]:
        """A new one, and its secret. The one unused the longest goes if there are too many."""
        secret = secrets.token_urlsafe(_RANDOM_BYTES)
        session = BrowserSession(_key(secret), login_handle, self._clock.steady)
        self._found[session.key] = session
        while len(self._found) > self._most or self._over(next(iter(self._found.values()))):
            self._found.popitem(last=False)
        return secret, session

    def find(self, secret: str) -> BrowserSession | None:
        """The session with that secret, which is used by this."""
        session = self._found.get(_key(secret))
        if session is None or self.current(session) is None:
            return None
        session.used = self._clock.steady
        self._found.move_to_end(session.key)
        return session

    def current(self, session: BrowserSession) -> Identity | None:
        """Whom it acts as now; None when it is over. Does not count as use."""
        identity = None
        if session.key in self._found and not self._over(session):
            identity = session.login_handle()
        if identity is None:
            self.end(session)
        return identity

    def end(self, session: BrowserSession) -> None:
        """Log the session out."""
        self._found.pop(session.key, None)

    def _over(self, session: BrowserSession) -> bool:
        now = self._clock.steady
        return now - session.used >= self._idle or now - session.began >= self._life


def cookie(secret: str, *, secure: bool) -> str:
    """The header that makes a browser keep it until it is closed; one without a secret makes it
    forget."""
    parts = [f"{COOKIE}={secret}", "Path=/", "HttpOnly", "SameSite=Strict"]
    if secure:
        parts.append("Secure")
    if not secret:
        parts.append("Max-Age=0")
    return "; ".join(parts)


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
