"""Endpoints for browser sessions and for changing one's own password."""

from __future__ import annotations

from starlette.responses import Response

from sluicemq.admin.api_context import Service
from sluicemq.admin.caller import BrowserSession, cookie
from sluicemq.admin.errors import ApiError, answer
from sluicemq.admin.routing import Call, handles
from sluicemq.management.operation import NoParameters
from sluicemq.management.users import (
    CHANGE_PASSWORD,
    CREATE_SESSION,
    DELETE_SESSION,
    GET_SESSION,
    ChangePassword,
    Login,
    SessionView,
    UserRequest,
)
from sluicemq.model.access import Identity
from sluicemq.model.errors import AuthenticationFailed, AuthenticationMissing
from sluicemq.security.access import TOKEN_PREFIX, Credentials


class LoginService(Service):
    """Handlers of `/session`."""

    @handles(CREATE_SESSION)
    async def login(self, call: Call, parameters: Login) -> Response:
        """POST /session. A caller who needs no login gets no session."""
        requested = parameters.body
        caller = call.caller
        caller.access.renew()
        guest = caller.access.guest
        if guest is not None:
            return answer(self._view(guest, None))
        if not requested.password and not requested.token:
            raise AuthenticationMissing("log in with a user name and a password, or with a token")
        credentials = Credentials(requested.user, requested.password, requested.token)
        return self._begin(call, await caller.login(credentials), credentials)

    @handles(GET_SESSION)
    async def show(self, call: Call, parameters: NoParameters) -> SessionView:
        """GET /session"""
        return self._view(call.identity, call.who.session)

    @handles(DELETE_SESSION)
    async def logout(self, call: Call, parameters: NoParameters) -> Response:
        """DELETE /session"""
        if call.who.session is not None:
            self._context.sessions.end(call.who.session)
        response = Response(status_code=204)
        response.headers["Set-Cookie"] = cookie("", secure=self._secure(call))
        return response

    @handles(CHANGE_PASSWORD)
    async def change_password(self, call: Call, parameters: ChangePassword) -> Response:
        """POST /session/password. Ends all sessions with the old password and renews this one."""
        requested = parameters.body
        name = call.identity.name
        if name not in self._context.users.database.users or call.caller.access.guest is not None:
            message = "the caller was authenticated without a password, so it cannot be changed"
            raise ApiError(409, "no-password", message)
        if requested.current_password.startswith(TOKEN_PREFIX):
            raise AuthenticationFailed("a token is no password")
        if (await call.caller.login(Credentials(name, requested.current_password))).name != name:
            raise AuthenticationFailed("that is not the password")
        change = UserRequest(password=requested.new_password)
        await self._context.users.alter(call, name, change, new=False)
        if call.who.session is None:
            return answer(self._view(call.identity, None))
        self._context.sessions.end(call.who.session)
        return self._begin(call, call.identity, Credentials(name, requested.new_password))

    def _begin(self, call: Call, identity: Identity, credentials: Credentials) -> Response:
        secret, session = self._context.sessions.begin(call.caller.access.login_handle(credentials))
        response = answer(self._view(identity, session))
        response.headers["Set-Cookie"] = cookie(secret, secure=self._secure(call))
        return response

    def _secure(self, call: Call) -> bool:
        return call.caller.tls or self._context.sessions.secure

    def _view(self, identity: Identity, session: BrowserSession | None) -> SessionView:
        return SessionView(
            user=identity.name,
            superuser=identity.superuser,
            csrf_token="" if session is None else session.csrf,
            permissions=self._context.users.rights(identity.name),
        )
