"""ASGI application of the HTTP listener: the stages of a request, and the dispatch to endpoints.

    origin ── route ── login ── permission ── parameters ── body ── handler ── answer ── audit

The endpoints of all services are in one route table (`endpoints.RouteTable`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from types import NoneType
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluicemq.admin.batches import BatchService
from sluicemq.admin.caller import (
    COOKIE,
    BrowserSession,
    RequestIdentity,
    caller_of,
    check_csrf_token,
    check_origin,
    is_browser,
)
from sluicemq.admin.clients import ConnectionService, SubscriptionService, TransactionService
from sluicemq.admin.destinations import DeadLetterService, DestinationService
from sluicemq.admin.endpoints import (
    SMALL_BYTES,
    ApiContext,
    Call,
    Endpoint,
    RouteTable,
    Service,
    address_in,
    handles,
    in_origin_form,
    may_be_unread,
    parameters,
    read_body,
    read_query,
)
from sluicemq.admin.errors import ApiError, decoding_error_text, error_response, json_response
from sluicemq.admin.journal import BackupService, JournalService
from sluicemq.admin.message_actions import ActionService, PublishingService
from sluicemq.admin.messages import MessageService
from sluicemq.admin.openapi import OpenApiService
from sluicemq.admin.overview import OverviewService, StatusService
from sluicemq.admin.scrape_endpoint import GET_METRICS, MetricsPage
from sluicemq.admin.static_files import ConsoleService
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.management.journal import WRITE_BATCH_PART
from sluicemq.management.messages import PUBLISH_MESSAGE
from sluicemq.management.operation import Body, Need, NoParameters, implementations
from sluicemq.management.users import (
    CHANGE_PASSWORD,
    CREATE_SESSION,
    DELETE_SESSION,
    GET_SESSION,
    LoginRequest,
    PasswordRequest,
    SessionView,
    UserRequest,
)
from sluicemq.model.access import ANONYMOUS, Identity
from sluicemq.model.errors import (
    AuthenticationFailed,
    AuthenticationMissing,
    JournalFailed,
    SluiceError,
)
from sluicemq.security.access import Credentials, LoginHandle, wait_for_callback
from sluicemq.security.passwords import TOKEN_PREFIX

# --- Browser sessions -----------------------------------------------------------------------------
#
# Endpoints for browser sessions and for changing one's own password.


class LoginService(Service):
    """Handlers of `/session`."""

    @handles(CREATE_SESSION)
    async def login(self, call: Call, parameters: Body[LoginRequest]) -> Response:
        """Log the caller in and begin a session, unless the caller needs no login."""
        requested = parameters.body
        caller = call.caller
        caller.access.renew()
        guest = caller.access.guest
        if guest is not None:
            return json_response(self._view(guest, None))
        if not requested.password and not requested.token:
            raise AuthenticationMissing("log in with a user name and a password, or with a token")
        credentials = Credentials(requested.user, requested.password, requested.token)
        return self._begin(call, *await caller.login(credentials))

    @handles(GET_SESSION)
    async def show(self, call: Call, parameters: NoParameters) -> SessionView:
        """Return the user, the CSRF token and the permissions of the caller."""
        return self._view(call.identity, call.sender.session)

    @handles(DELETE_SESSION)
    async def logout(self, call: Call, parameters: NoParameters) -> Response:
        """End the session and delete its cookie."""
        if call.sender.session is not None:
            self._context.sessions.end(call.sender.session)
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, secure=self._secure(call), httponly=True, samesite="strict")
        return response

    @handles(CHANGE_PASSWORD)
    async def change_password(self, call: Call, parameters: Body[PasswordRequest]) -> Response:
        """Change the caller's password, end all sessions with the old one and renew this one."""
        requested = parameters.body
        name = call.identity.name
        if name not in self._context.users.database.users or call.caller.access.guest is not None:
            raise ApiError(
                409,
                "no-password",
                "the caller was authenticated without a password, so it cannot be changed",
            )
        if requested.current_password.startswith(TOKEN_PREFIX):
            raise AuthenticationFailed("a token cannot be used as a password")
        identity, _ = await call.caller.login(Credentials(name, requested.current_password))
        if identity.name != name:
            raise AuthenticationFailed("the password is wrong")
        change = UserRequest(password=requested.new_password)
        error: SluiceError | None = await wait_for_callback(
            call.caller.access.change, self._context.users.user_change(name, change, new=False)
        )
        if error is not None:
            raise error
        if call.sender.session is None:
            return json_response(self._view(call.identity, None))
        self._context.sessions.end(call.sender.session)
        credentials = Credentials(name, requested.new_password)
        return self._begin(call, call.identity, call.caller.access.login_handle(credentials))

    def _begin(self, call: Call, identity: Identity, login_handle: LoginHandle) -> Response:
        secret, session = self._context.sessions.begin(identity.name, login_handle)
        response = json_response(self._view(identity, session))
        response.set_cookie(
            COOKIE, secret, secure=self._secure(call), httponly=True, samesite="strict"
        )
        return response

    def _secure(self, call: Call) -> bool:
        return call.caller.tls or self._context.http.secure_cookies

    def _view(self, identity: Identity, session: BrowserSession | None) -> SessionView:
        return SessionView(
            user=identity.name,
            superuser=identity.superuser,
            csrf_token="" if session is None else session.csrf,
            permissions=self._context.users.rights(identity.name),
        )


# --- The application ------------------------------------------------------------------------------

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Default headers of responses: browsers must not render a response as a page, embed it in a
frame, or cache it. An endpoint can override them."""

UNIDENTIFIED: Final = RequestIdentity(ANONYMOUS, lambda: ANONYMOUS)
"""Identity of requests to endpoints that need no login."""

SERVICES: Final = (
    ActionService,
    BackupService,
    BatchService,
    ConnectionService,
    ConsoleService,
    DeadLetterService,
    DestinationService,
    StatusService,
    JournalService,
    LoginService,
    MessageService,
    MetricsPage,
    OverviewService,
    PublishingService,
    SubscriptionService,
    TransactionService,
)
"""Services, created once per application; the service of users belongs to the context."""


class Application:
    """ASGI application of the administration API. Error responses have a JSON body."""

    def __init__(self, context: ApiContext) -> None:
        self.context = context
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Turns of the requests of each user that has some."""
        services = (
            OpenApiService(lambda: (endpoint.operation for endpoint in self.table.endpoints)),
            context.users,
            *(service(context) for service in SERVICES),
        )
        self.table = RouteTable(
            endpoint for service in services for endpoint in self._endpoints(service)
        )

    def _endpoints(self, service: object) -> Iterator[Endpoint]:
        limits = self.context.limits
        body_limits = {PUBLISH_MESSAGE: limits.publish_request, WRITE_BATCH_PART: limits.part}
        for operation, handler in implementations(service):
            limit = body_limits.get(operation, SMALL_BYTES)
            if operation is GET_METRICS and self.context.http.public_metrics:
                operation = replace(operation, needs=Need.NOTHING)
            yield Endpoint(operation, handler, limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: send its response, audit it and record its duration."""
        start = perf_counter()
        scope = in_origin_form(scope)
        request = Request(scope, receive)
        call: Call | None = None
        has_read_body = False
        try:
            call = await self._admit(request)
            self._check_permission(call)
            response = await self._handle(call)
            has_read_body = call.endpoint.operation.changes
        except Exception as error:
            if isinstance(error, JournalFailed):
                caller_of(request).raise_in_event_loop(error)
            response = error_response(error)
            if response.status_code == 401 and is_browser(request):
                del response.headers["WWW-Authenticate"]
        if not has_read_body and may_be_unread(request):
            # the session does not read the rest of an unread body
            response.headers["Connection"] = "close"
        if call is not None and call.audited:
            call.audit(self.context.audit, response.status_code)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        try:
            await response(scope, receive, send)
        finally:
            # an unknown path is no label: clients could create any number of label values
            operation = None if call is None else call.endpoint.operation
            route = ("", "") if operation is None else (operation.method, operation.full_path)
            duration = perf_counter() - start
            self.context.scrape_state.requests.record(*route, response.status_code, duration)

    async def _admit(self, request: Request) -> Call:
        """Authenticate a request and match it with its endpoint. Raises ApiError, AccessError."""
        check_origin(request)
        self.context.broker.schedule_flush()
        endpoint, names = self.table.find(request.method, request.scope["raw_path"])
        caller = caller_of(request)
        request_identity = UNIDENTIFIED
        if endpoint.operation.needs is not Need.NOTHING:
            request_identity = await caller.identify(request, self.context.sessions)
            caller.user = request_identity.identity.name
        query = read_query(request.scope["query_string"])
        turns = self._turns.setdefault(request_identity.identity.name, asyncio.Lock())
        slices = TimeSlices(self.context.broker, caller, turns)
        return Call(endpoint, request, caller, request_identity, names, query, slices)

    def _check_permission(self, call: Call) -> None:
        """Check the permission that the endpoint needs. Raises AccessDenied and writes an audit
        line if the caller lacks it; raises ApiError if the CSRF token of a browser session is
        missing or wrong."""
        operation = call.endpoint.operation
        if operation.changes and call.sender.session is not None:
            check_csrf_token(call.request, call.sender.session)
        if isinstance(operation.needs, tuple) and operation.has_address:
            # an error of the handler would tell whether the destination exists
            name = address_in(call.names, call.query).name
            if not any(call.identity.may(permission, name) for permission in operation.needs):
                raise call.denial(" or ".join(operation.needs), name)
        elif operation.needs is Need.SUPERUSER and not call.identity.superuser:
            route = f"{operation.method} {operation.full_path}"
            raise call.denial(route, reason=": this requires a superuser")

    async def _handle(self, call: Call) -> Response:
        """Read the parameters of a request, and return the response of its handler."""
        operation = call.endpoint.operation
        body = None
        if operation.changes and not operation.raw_body:
            advice = "nothing that is sent here needs more"
            content = await read_body(call.request, call.endpoint.limit, advice)
            body = _decoded(call, content or b"{}")
        requested = parameters(operation, call.names, call.query, body)
        answer = await call.endpoint.handler(call, requested)
        if isinstance(answer, Response):
            return answer
        if operation.answer is NoneType:
            return Response(status_code=call.status)
        return json_response(answer, call.status)


def _decoded(call: Call, body: bytes | bytearray) -> Any:
    """Return the decoded body. Raises ApiError if it is invalid."""
    body_type = call.endpoint.operation.body or NoParameters
    try:
        return msgspec.json.decode(body, type=body_type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(
            400, "bad-body", f"the body is not valid: {decoding_error_text(error, body_type)}"
        ) from None
