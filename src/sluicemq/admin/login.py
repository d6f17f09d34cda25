"""Endpoints for browser sessions and for changing one's own password."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.browser_sessions import BrowserSession, cookie
from sluicemq.admin.errors import ApiError, answer
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.model.access import Identity
from sluicemq.model.errors import AuthenticationFailed, AuthenticationMissing
from sluicemq.security.access import TOKEN_PREFIX, Credentials
from sluicemq.security.management import PermissionView
from sluicemq.security.user_operations import UserChange


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """User and password, or a token."""

    user: str = ""
    password: str = ""
    token: str = ""


class PasswordRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Current and new password of the caller."""

    current_password: str
    new_password: Annotated[str, Meta(min_length=1, max_length=1024)]


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller.

    user        "" if the broker requires no login
    csrf_token  value of the header `X-CSRF-Token` of requests that change something; "" without a
                session
    """

    user: str
    superuser: bool
    csrf_token: str
    permissions: list[PermissionView]


class LoginEndpoints:
    """Handlers of `/session`."""

    def __init__(self, context: ApiContext) -> None:
        self._sessions = context.sessions
        self._users = context.users

    async def login(self, call: Call) -> Response:
        """POST /session. A caller who needs no login gets no session."""
        requested: LoginRequest = call.body
        caller = call.caller
        caller.access.renew()
        guest = caller.access.guest
        if guest is not None:
            return answer(self._view(guest, None))
        if not requested.password and not requested.token:
            raise AuthenticationMissing("log in with a user name and a password, or with a token")
        credentials = Credentials(requested.user, requested.password, requested.token)
        return self._begin(call, await caller.login(credentials), credentials)

    async def show(self, call: Call) -> SessionView:
        """GET /session"""
        return self._view(call.identity, call.who.session)

    async def logout(self, call: Call) -> Response:
        """DELETE /session"""
        if call.who.session is not None:
            self._sessions.end(call.who.session)
        response = Response(status_code=204)
        response.headers["Set-Cookie"] = cookie("", secure=self._secure(call))
        return response

    async def change_password(self, call: Call) -> Response:
        """POST /session/password. Ends all sessions with the old password and renews this one."""
        requested: PasswordRequest = call.body
        name = call.identity.name
        if self._users.user(name) is None or call.caller.access.guest is not None:
            message = "the caller was authenticated without a password, so it cannot be changed"
            raise ApiError(409, "no-password", message)
        if requested.current_password.startswith(TOKEN_PREFIX):
            raise AuthenticationFailed("a token is no password")
        if (await call.caller.login(Credentials(name, requested.current_password))).name != name:
            raise AuthenticationFailed("that is not the password")
        change = UserChange(password=requested.new_password)
        await self._users.apply(call.by, self._users.operations.alter(name, change))
        if call.who.session is None:
            return answer(self._view(call.identity, None))
        self._sessions.end(call.who.session)
        return self._begin(call, call.identity, Credentials(name, requested.new_password))

    def _begin(self, call: Call, identity: Identity, credentials: Credentials) -> Response:
        secret, session = self._sessions.begin(call.caller.access.login_handle(credentials))
        response = answer(self._view(identity, session))
        response.headers["Set-Cookie"] = cookie(secret, secure=self._secure(call))
        return response

    def _secure(self, call: Call) -> bool:
        return call.caller.tls or self._sessions.secure

    def _view(self, identity: Identity, session: BrowserSession | None) -> SessionView:
        return SessionView(
            user=identity.name,
            superuser=identity.superuser,
            csrf_token="" if session is None else session.csrf,
            permissions=self._users.rights(identity.name),
        )


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /session."""
    handlers = LoginEndpoints(context)
    return [
        Endpoint(
            "POST",
            "/session",
            "createSession",
            handlers.login,
            "Log in and begin a session",
            Need.NOTHING,
            body=LoginRequest,
            answer=SessionView,
            audited=False,
        ),
        Endpoint(
            "GET",
            "/session",
            "getSession",
            handlers.show,
            "Show the caller's session",
            Need.USER,
            answer=SessionView,
        ),
        Endpoint(
            "DELETE", "/session", "deleteSession", handlers.logout, "Log out", Need.USER, status=204
        ),
        Endpoint(
            "POST",
            "/session/password",
            "changePassword",
            handlers.change_password,
            "Change the caller's password",
            Need.USER,
            body=PasswordRequest,
            answer=SessionView,
        ),
    ]
