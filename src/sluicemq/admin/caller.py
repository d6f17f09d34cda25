"""Who sends a request, and whether a browser was tricked into sending it.

Every request shows who it is from: user name and password (basic), a token (bearer), or the cookie
of a session. What a connection has shown is asked about once: checking passwords is slow on
purpose. Whether it still holds is looked at with every request.

Web pages of others can make a browser send requests to this machine. Those say where they come
from (`Origin`, `Sec-Fetch-Site`), or, when a page's own name was made to point here, what they take
the broker for (`Host`). The first are refused; the second where nobody is asked for a password.
What comes with a session's cookie and changes something has to show, too, that it is from the page
that has logged in.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
from collections.abc import Callable
from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from sluicemq.admin.browser_sessions import COOKIE, BrowserSession, BrowserSessions
from sluicemq.admin.errors import Problem
from sluicemq.model.access import Identity
from sluicemq.model.errors import AccessError, AuthenticationMissing
from sluicemq.protocols.access import Access, Credentials, LoginHandle
from sluicemq.protocols.transport import Transport

CSRF_HEADER: Final = "X-CSRF-Token"


class RequestIdentity(NamedTuple):
    """Who sends a request.

    current  whom it acts as at a later time, for answers that go on for long; None when the login
             is over
    session  by which it is known, if it is by one
    """

    identity: Identity
    current: Callable[[], Identity | None]
    session: BrowserSession | None = None


class Caller:
    """Who is at the other end of one connection.

    user     whom it has acted as last; "" for nobody in particular
    leaving  the connection is about to end: answers that go on for long end now
    gone     it has ended
    """

    __slots__ = (
        "_login_handle",
        "_shown",
        "_transport",
        "access",
        "gone",
        "host",
        "leaving",
        "tls",
        "user",
    )

    def __init__(self, transport: Transport, access: Access, host: str, tls: bool = False) -> None:
        """`host`: see HttpSession."""
        self._transport = transport
        self._shown = ""
        self._login_handle: LoginHandle | None = None
        self.access = access
        self.host = host
        self.tls = tls
        self.user = ""
        self.leaving = asyncio.Event()
        self.gone = False

    @property
    def peer(self) -> str:
        """For logs."""
        return self._transport.peer

    async def identify(
        self, authorization: str, secret: str, sessions: BrowserSessions
    ) -> RequestIdentity:
        """Who sends a request with that header and that cookie ("" if it has none).
        AuthenticationFailed, AuthenticationMissing; Problem for a header that has no meaning."""
        self.access.renew()
        if authorization:
            return await self._by_header(authorization)
        guest = self.access.guest
        if guest is not None:
            return RequestIdentity(guest, self._current_guest)
        session = sessions.find(secret) if secret else None
        if session is not None and (identity := sessions.current(session)) is not None:
            return RequestIdentity(identity, lambda: sessions.current(session), session)
        raise AuthenticationMissing("log in with a user name and a password, or with a token")

    async def _by_header(self, authorization: str) -> RequestIdentity:
        login_handle = self._login_handle
        if login_handle is not None and authorization == self._shown:
            identity = login_handle()
            if identity is not None:
                return RequestIdentity(identity, login_handle)
        self._login_handle = None
        credentials = read_authorization(authorization)
        identity = await self.login(credentials)
        self._login_handle = login_handle = self.access.login_handle(credentials)
        self._shown = authorization
        return RequestIdentity(identity, login_handle)

    def _current_guest(self) -> Identity | None:
        self.access.renew()
        return self.access.guest

    async def login(self, credentials: Credentials) -> Identity:
        """Whom they admit. AuthenticationFailed, AuthenticationMissing."""
        future: asyncio.Future[Identity | AccessError] = asyncio.get_running_loop().create_future()

        def admitted(verdict: Identity | AccessError) -> None:
            if not future.done():
                future.set_result(verdict)

        self.access.login(self.peer, credentials, admitted)
        verdict = await future
        if isinstance(verdict, AccessError):
            raise verdict
        return verdict

    def fault(self, error: Exception) -> None:
        """Something that the broker may not survive: the connection knows."""

        def fail() -> None:
            raise error

        self._transport.call_later(0, fail)


def caller_of(connection: HTTPConnection) -> Caller:
    """Of a request."""
    caller = connection.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


async def identify(connection: HTTPConnection, sessions: BrowserSessions) -> RequestIdentity:
    """Who sends a request; see `Caller.identify`."""
    secret = connection.cookies.get(COOKIE, "")
    header = connection.headers.get("authorization", "")
    caller = caller_of(connection)
    who = await caller.identify(header, secret, sessions)
    caller.user = who.identity.name
    return who


def check_page(connection: HTTPConnection, session: BrowserSession) -> None:
    """Problem for what a page may have sent that has not logged in."""
    if not session.shows(connection.headers.get(CSRF_HEADER, "")):
        raise Problem(
            403,
            "csrf",
            f"what changes something shows the session's own token in the header {CSRF_HEADER}; "
            "GET /session tells it",
        )


def is_browser(connection: HTTPConnection) -> bool:
    """Whether a page has sent it. Browsers are never asked for a name and a password by the
    protocol itself: they would keep them, and send them along with requests of other pages."""
    headers = connection.headers
    return "sec-fetch-mode" in headers or "x-requested-with" in headers


def read_authorization(header: str) -> Credentials:
    """What an Authorization header shows (RFC 7617, RFC 6750); nothing if it is empty."""
    scheme, _, shown = header.partition(" ")
    shown = shown.strip()
    if not header:
        return Credentials()
    if scheme.lower() == "bearer" and shown:
        return Credentials(token=shown)
    if scheme.lower() == "basic":
        try:
            user, colon, password = base64.b64decode(shown, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            colon = ""
        if colon:
            return Credentials(user, password)
    raise Problem(
        400,
        "bad-authorization",
        "the Authorization header is neither `Basic` with user:password in base64 nor `Bearer` "
        "with a token",
    )


def check_origin(connection: HTTPConnection) -> None:
    """Problem for requests that a browser sends for somebody else's page; see the module."""
    headers = connection.headers
    host = headers.get("host", "")
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2] != host:
        raise Problem(
            403, "cross-origin", f"requests from pages of {origin[:200]} are not answered here"
        )
    site = headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate":
        raise Problem(403, "cross-origin", "requests from pages of others are not answered here")
    caller = caller_of(connection)
    if caller.access.guest is not None and caller.host and not is_ours(host, caller.host):
        raise Problem(
            403,
            "unknown-host",
            f"{host[:200]!r} is not what this broker is called; use the address it listens on, or "
            "add users, so that nobody has to be kept out by the name",
        )


def is_ours(header: str, listening: str) -> bool:
    """Names that no foreign page can have: addresses, localhost, what the listener says."""
    name = header.rpartition(":")[0] if _has_port(header) else header
    if name.startswith("["):
        name = name[1:].rstrip("]")
    if name.lower() in ("", "localhost", listening):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _has_port(header: str) -> bool:
    """`[::1]:7680` and `name:7680` have one, `[::1]` has none."""
    return header.rpartition(":")[2].isdecimal()
