"""Who sends a request, and whether a browser was tricked into sending it.

Every request shows who it is from: user name and password (basic), or a token (bearer). What a
connection has shown is asked about again only after a while: checking passwords is slow on purpose.

Web pages of others can make a browser send requests to this machine. Those say where they come
from (`Origin`), or, when a page's own name was made to point here, what they take the broker for
(`Host`). The first are refused; the second where nobody is asked for a password.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import time
from typing import Final

from starlette.requests import HTTPConnection

from sluicemq.admin.errors import Problem
from sluicemq.model.access import Identity
from sluicemq.model.errors import AccessError
from sluicemq.protocols.access import Access, Credentials
from sluicemq.protocols.link import Link

FRESH_SECONDS: Final = 30.0
"""After a login, for how long the same credentials need no other one on that connection."""


class Caller:
    """Who is at the other end of one connection. `gone` when it has ended."""

    __slots__ = ("_at", "_identity", "_link", "_shown", "access", "gone", "host")

    def __init__(self, link: Link, access: Access, host: str) -> None:
        """`host`: see HttpSession."""
        self._link = link
        self._shown = ""
        self._identity: Identity | None = None
        self._at = 0.0
        self.access = access
        self.host = host
        self.gone = False

    @property
    def peer(self) -> str:
        """For logs."""
        return self._link.peer

    async def identify(self, authorization: str) -> Identity:
        """Whom a request with that header acts as. AuthenticationFailed, AuthenticationMissing;
        Problem for a header that has no meaning."""
        guest = self.access.guest
        if guest is not None and not authorization:
            return guest
        now = time.monotonic()
        known = self._identity
        if known is not None and authorization == self._shown and now - self._at < FRESH_SECONDS:
            return known
        credentials = read_authorization(authorization)
        future: asyncio.Future[Identity | AccessError] = asyncio.get_running_loop().create_future()

        def admitted(verdict: Identity | AccessError) -> None:
            if not future.done():
                future.set_result(verdict)

        self.access.login(self.peer, credentials, admitted)
        verdict = await future
        if isinstance(verdict, AccessError):
            self._identity = None
            raise verdict
        self._identity = verdict
        self._shown = authorization
        self._at = now
        return verdict

    def fault(self, error: Exception) -> None:
        """Something that the broker may not survive: the connection knows."""

        def fail() -> None:
            raise error

        self._link.call_later(0, fail)


def caller_of(connection: HTTPConnection) -> Caller:
    """Of a request."""
    caller = connection.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


async def identify(connection: HTTPConnection) -> Identity:
    """Whom a request acts as; see `Caller.identify`."""
    return await caller_of(connection).identify(connection.headers.get("authorization", ""))


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
