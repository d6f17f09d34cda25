"""Browser sessions: logins that last for more than one request.

A random secret in a cookie identifies a session. Each login generates a new secret, so that a
cookie from before the login cannot identify the session (session fixation). Requests that change
something carry a second secret, the CSRF token, which only the page that logged in has received.

Sessions are kept in memory. A session ends with the process, after an idle timeout, after a maximum
lifetime, and when its credentials are no longer valid.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sluicemq.model.access import Identity
from sluicemq.security.access import LoginHandle

if TYPE_CHECKING:
    from sluicemq.broker import Clock

COOKIE: Final = "sluicemq_session"
IDLE_SECONDS: Final = 1800.0
LIFE_SECONDS: Final = 43_200.0
MOST: Final = 1000
_RANDOM_BYTES: Final = 32


class BrowserSession:
    """One browser session; `csrf` is its CSRF token. Times are in ms of the steady clock."""

    __slots__ = ("began", "csrf", "key", "login_handle", "used")

    def __init__(self, key: bytes, login_handle: LoginHandle, now: int) -> None:
        self.key = key
        self.login_handle = login_handle
        self.csrf = secrets.token_urlsafe(_RANDOM_BYTES)
        self.began = now
        self.used = now

    def shows(self, token: str) -> bool:
        """Return whether `token` is the CSRF token of the session, in constant time."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.csrf.encode())


class BrowserSessions:
    """Browser sessions of all HTTP listeners."""

    def __init__(
        self,
        clock: Clock,
        *,
        idle: float = IDLE_SECONDS,
        life: float = LIFE_SECONDS,
        most: int = MOST,
        secure: bool = False,
    ) -> None:
        """Create an empty set of at most `most` sessions. `idle` and `life` are in seconds. With
        `secure`, cookies have the attribute `Secure` even on listeners without TLS."""
        self._clock = clock
        self._idle = round(idle * 1000)
        self._life = round(life * 1000)
        self._most = most
        self._found: OrderedDict[bytes, BrowserSession] = OrderedDict()
        """Sessions by the hash of their secret, the least recently used first."""
        self.secure = secure

    def __len__(self) -> int:
        return len(self._found)

    def begin(self, login_handle: LoginHandle) -> tuple[str, BrowserSession]:
        """Create a session; return its secret and the session. Removes the least recently used
        sessions above the limit."""
        secret = secrets.token_urlsafe(_RANDOM_BYTES)
        session = BrowserSession(_key(secret), login_handle, self._clock.steady)
        self._found[session.key] = session
        while len(self._found) > self._most or self._over(next(iter(self._found.values()))):
            self._found.popitem(last=False)
        return secret, session

    def find(self, secret: str) -> BrowserSession | None:
        """Return the session with that secret and mark it as used; None if there is none."""
        session = self._found.get(_key(secret))
        if session is None or self.current(session) is None:
            return None
        session.used = self._clock.steady
        self._found.move_to_end(session.key)
        return session

    def current(self, session: BrowserSession) -> Identity | None:
        """Return the identity of a session; None if the session has ended. Does not mark the
        session as used."""
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
    """Return the value of a `Set-Cookie` header that stores the secret until the browser closes;
    with an empty secret, one that deletes the cookie."""
    parts = [f"{COOKIE}={secret}", "Path=/", "HttpOnly", "SameSite=Strict"]
    if secure:
        parts.append("Secure")
    if not secret:
        parts.append("Max-Age=0")
    return "; ".join(parts)


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
