"""Authentication of HTTP requests, and protection against cross-site requests.

Every request carries credentials: user name and password (basic), a token (bearer), or a session
cookie. The broker verifies the `Authorization` header once per connection, because checking
passwords is slow on purpose, and checks with every request that the login is still valid.

Foreign web pages can make a browser send requests to the broker. Browsers mark such requests with
their origin (`Origin`, `Sec-Fetch-Site`); the broker rejects them. A page whose host name resolves
to the broker's address (DNS rebinding) is detected by the `Host` header; the broker checks it if
requests need no login. A request that changes something and is authenticated by a session cookie
must also carry the session's CSRF token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from sluicemq.admin.errors import ApiError
from sluicemq.broker import Clock
from sluicemq.management.settings import HttpSettings
from sluicemq.model.access import Identity
from sluicemq.model.errors import AccessError, AuthenticationMissing
from sluicemq.protocols.transport import Transport
from sluicemq.security.access import Access, Credentials, LoginHandle, wait_for_callback

# --- Browser sessions -----------------------------------------------------------------------------
#
# Browser sessions: logins that last for more than one request.
#
# A random secret in a cookie identifies a session. Each login generates a new secret, so that a
# cookie from before the login cannot identify the session (session fixation). Requests that change
# something carry a second secret, the CSRF token, which only the page that logged in has received.
#
# Sessions are kept in memory. A session ends with the process, after an idle timeout, after a
# maximum lifetime, and when its credentials are no longer valid.

COOKIE: Final = "sluicemq_session"
_RANDOM_BYTES: Final = 32


@dataclass(slots=True, eq=False)
class BrowserSession:
    """One browser session; `csrf` is its CSRF token. Times are in ms of the steady clock."""

    key: bytes
    csrf: str
    user: str
    login_handle: LoginHandle
    created_at: int
    used_at: int


class BrowserSessions:
    """Browser sessions of all HTTP listeners."""

    def __init__(self, clock: Clock, settings: HttpSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._sessions: OrderedDict[bytes, BrowserSession] = OrderedDict()
        """Sessions by the hash of their secret, the least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: str, login_handle: LoginHandle) -> tuple[str, BrowserSession]:
        """Create a session; return its secret and the session.

        Above the limit, the least recently used session of the user with the most sessions ends, so
        that no user can end the sessions of others.
        """
        secret = secrets.token_urlsafe(_RANDOM_BYTES)
        csrf, now = secrets.token_urlsafe(_RANDOM_BYTES), self._clock.steady
        session = BrowserSession(_key(secret), csrf, user, login_handle, now, now)
        self._sessions[session.key] = session
        while self._is_expired(next(iter(self._sessions.values()))):
            self._sessions.popitem(last=False)
        if len(self._sessions) > self._settings.max_sessions:
            users = Counter(entry.user for entry in self._sessions.values())
            [(heaviest_user, _)] = users.most_common(1)
            self.end(
                next(entry for entry in self._sessions.values() if entry.user == heaviest_user)
            )
        return secret, session

    def find(self, secret: str) -> BrowserSession | None:
        """Return the session with that secret and mark it as used; None if there is none."""
        session = self._sessions.get(_key(secret))
        if session is None or self.current(session) is None:
            return None
        session.used_at = self._clock.steady
        self._sessions.move_to_end(session.key)
        return session

    def current(self, session: BrowserSession) -> Identity | None:
        """Return the identity of a session; None if the session has ended. Does not mark the
        session as used."""
        identity = None
        if session.key in self._sessions and not self._is_expired(session):
            identity = session.login_handle()
        if identity is None:
            self.end(session)
        return identity

    def end(self, session: BrowserSession) -> None:
        """Log the session out."""
        self._sessions.pop(session.key, None)

    def _is_expired(self, session: BrowserSession) -> bool:
        now, settings = self._clock.steady, self._settings
        return (
            now - session.used_at >= settings.session_idle_timeout * 1000
            or now - session.created_at >= settings.session_lifetime * 1000
        )


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


CSRF_HEADER: Final = "X-CSRF-Token"


class RequestIdentity(NamedTuple):
    """Identity of the sender of a request.

    current  returns the identity at a later time, for long-running responses; None once the login
             is no longer valid
    session  browser session that authenticates the request; None for other credentials
    """

    identity: Identity
    current: Callable[[], Identity | None]
    session: BrowserSession | None = None


@dataclass(slots=True, eq=False)
class Caller:
    """Client of one HTTP connection.

    host       host name of the listener
    user       user name of the last identified request; "" if anonymous
    closing    set when the connection is about to close; long-running responses end then
    is_closed  True once the connection is closed
    """

    _transport: Transport
    access: Access
    host: str
    tls: bool = False
    user: str = ""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False
    _last_authorization: str = ""
    _login_handle: LoginHandle | None = None

    @property
    def peer(self) -> str:
        """Peer address for logs."""
        return self._transport.peer

    async def identify(self, request: HTTPConnection, sessions: BrowserSessions) -> RequestIdentity:
        """Identify the sender of a request that needs a login by its `Authorization` header or
        session cookie. Raises AuthenticationFailed, AuthenticationMissing, and ApiError for an
        invalid header."""
        self.access.renew()
        guest = self.access.guest
        if guest is not None:
            return RequestIdentity(guest, self._current_guest)
        if authorization := request.headers.get("authorization", ""):
            return await self._identify_by_header(authorization)
        session = sessions.find(request.cookies.get(COOKIE, ""))
        if session is not None and (identity := sessions.current(session)) is not None:
            return RequestIdentity(identity, lambda: sessions.current(session), session)
        raise AuthenticationMissing("log in with a user name and a password, or with a token")

    async def _identify_by_header(self, authorization: str) -> RequestIdentity:
        if (
            authorization != self._last_authorization
            or self._login_handle is None
            or (identity := self._login_handle()) is None
        ):
            self._login_handle = None
            identity, self._login_handle = await self.login(read_authorization(authorization))
            self._last_authorization = authorization
        return RequestIdentity(identity, self._login_handle)

    def _current_guest(self) -> Identity | None:
        self.access.renew()
        return self.access.guest

    async def login(self, credentials: Credentials) -> tuple[Identity, LoginHandle]:
        """Return the identity that the credentials authenticate, and the handle of the login.
        Raises AuthenticationFailed, AuthenticationMissing."""
        # before the check: the handle would accept a password that replaces the checked one
        login_handle = self.access.login_handle(credentials)
        result: Identity | AccessError = await wait_for_callback(
            self.access.login, self.peer, credentials
        )
        if isinstance(result, AccessError):
            raise result
        return result, login_handle

    def raise_in_event_loop(self, error: Exception) -> None:
        """Raise `error` in a callback of the transport: it may be fatal to the broker."""

        def fail() -> None:
            raise error

        self._transport.call_later(0, fail)


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the client that sent a request."""
    caller: Caller = connection.scope["state"]["caller"]
    return caller


def check_csrf_token(connection: HTTPConnection, session: BrowserSession) -> None:
    """Check the CSRF token of a request that a browser session authenticates.

    Raises ApiError if the token is missing or wrong.
    """
    token = connection.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(token.encode("utf-8", "replace"), session.csrf.encode()):
        raise ApiError(
            403,
            "csrf-token-missing",
            f"requests that change something require the session's CSRF token in the header "
            f"{CSRF_HEADER}; GET /session returns it",
        )


def is_browser(connection: HTTPConnection) -> bool:
    """Return whether a web page sent the request. The broker sends browsers no
    `WWW-Authenticate` challenge: they would cache the password and attach it to requests of other
    pages."""
    headers = connection.headers
    return "sec-fetch-mode" in headers or "x-requested-with" in headers


def read_authorization(header: str) -> Credentials:
    """Return the credentials in an `Authorization` header (RFC 7617, RFC 6750). Raises ApiError
    for an invalid header."""
    scheme, _, value = header.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return Credentials(token=value)
    if scheme.lower() == "basic":
        try:
            user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            colon = ""
        if colon:
            return Credentials(user, password)
    raise ApiError(
        400,
        "bad-authorization",
        "the Authorization header is neither `Basic` with user:password in base64 nor `Bearer` "
        "with a token",
    )


def check_origin(connection: HTTPConnection) -> None:
    """Reject requests that a browser sends for a foreign page. Raises ApiError."""
    headers = connection.headers
    host = headers.get("host", "")
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2] != host:
        raise ApiError(
            403, "cross-origin", f"requests from pages of {origin[:200]} are not accepted"
        )
    site = headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate":
        raise ApiError(403, "cross-origin", "requests from pages of other origins are not accepted")
    caller = caller_of(connection)
    if caller.access.guest is not None and caller.host and not is_trusted_host(host, caller.host):
        raise ApiError(
            403,
            "unknown-host",
            f"{host[:200]!r} is not a host name of this broker; use the address it listens on, or "
            "add users: then the host name is not checked",
        )


def is_trusted_host(header: str, listening: str) -> bool:
    """Return whether the `Host` header is a name that no foreign page can have: an IP address,
    `localhost`, or the host name of the listener."""
    before, _, port = header.rpartition(":")
    name = before if port.isdecimal() else header  # `[::1]:7680` has a port, `[::1]` has none
    if name.startswith("["):
        name = name[1:].rstrip("]")
    if name.lower() in ("", "localhost", listening):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
