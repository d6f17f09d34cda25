"""ASGI application of the HTTP listener: the stages of a request, and the dispatch to endpoints.

    origin ── route ── login ── permission ── parameters ── body ── handler ── answer ── audit

The endpoints of all services are in one route table (`routing.RouteTable`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message as Event
from starlette.types import Receive, Scope, Send

from sluicemq.admin import (
    audit,
    backup,
    batch_writers,
    batches,
    configuration,
    connections,
    consumers,
    dead_letters,
    destinations,
    event_stream,
    health,
    journal,
    login,
    message_actions,
    messages,
    openapi,
    overview,
    publishing,
    slots,
    static_files,
    subscriptions,
    transactions,
    users,
)
from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.caller import (
    RequestIdentity,
    caller_of,
    check_origin,
    check_page,
    identify,
    is_browser,
)
from sluicemq.admin.errors import ApiError, answer, refusal
from sluicemq.admin.metrics import scrape_endpoint
from sluicemq.admin.request_bodies import (
    SMALL_BYTES,
    BodyBudget,
    announced,
    may_be_unread,
    read_chunks,
)
from sluicemq.admin.routing import (
    Call,
    Endpoint,
    Need,
    RawBody,
    RouteTable,
    address_in,
    parameters,
    read_query,
)
from sluicemq.model.access import ANONYMOUS, Identity, Operation
from sluicemq.model.errors import AccessDenied, JournalFailed
from sluicemq.security.access import demand

TOGETHER_BYTES: Final = 256 * 1024 * 1024
"""Total size limit, in bytes, of the large JSON bodies being read at the same time."""
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

NOT_ASKED: Final = RequestIdentity(ANONYMOUS, lambda: ANONYMOUS)
"""Identity of requests to endpoints that need no login."""

SERVICES: Final[tuple[Callable[[ApiContext], list[Endpoint]], ...]] = (
    message_actions.endpoints,
    audit.endpoints,
    backup.endpoints,
    batches.endpoints,
    configuration.endpoints,
    connections.endpoints,
    consumers.endpoints,
    dead_letters.endpoints,
    destinations.endpoints,
    event_stream.endpoints,
    health.endpoints,
    journal.endpoints,
    login.endpoints,
    messages.endpoints,
    overview.endpoints,
    scrape_endpoint.endpoints,
    static_files.endpoints,
    publishing.endpoints,
    slots.endpoints,
    subscriptions.endpoints,
    transactions.endpoints,
    users.endpoints,
    batch_writers.endpoints,
)
"""Functions that return the endpoints of each service."""


class Application:
    """ASGI application of the administration API. Error responses have a JSON body."""

    def __init__(self, context: ApiContext) -> None:
        self.context = context
        described = openapi.endpoints(lambda: self.table.endpoints)
        self.table = RouteTable(
            [*described, *(each for service in SERVICES for each in service(context))]
        )
        self._budget = BodyBudget(TOGETHER_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: send its response, audit it and record its duration."""
        began = perf_counter()
        started = False

        async def sending(event: Event) -> None:
            nonlocal started
            started = True
            await send(event)

        request = Request(scope, receive)
        call: Call | None = None
        try:
            call = await self._admit(request)
            self._permit(call)
            call.query = parameters(call.endpoint, read_query(request.scope["query_string"]))
            response = await self._handle(call)
        except Exception as error:
            if isinstance(error, JournalFailed):
                caller_of(request).fault(error)
            response = refusal(error)
            if response.status_code == 401 and is_browser(request):
                del response.headers["WWW-Authenticate"]
            if may_be_unread(request):
                # the session does not read the rest of an unread body
                response.headers["Connection"] = "close"
        if call is not None and call.audited:
            self._note(call, response)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        try:
            await response(scope, receive, sending)
        except Exception as error:
            if started:
                raise
            await refusal(error)(scope, receive, send)
        finally:
            # an unknown path is no label: clients could create any number of label values
            route = ("", "") if call is None else (call.endpoint.method, call.endpoint.full_path)
            taken = perf_counter() - began
            self.context.figures.requests.record(*route, response.status_code, taken)

    async def _admit(self, request: Request) -> Call:
        """Authenticate a request and match it with its endpoint. Raises ApiError, AccessError."""
        check_origin(request)
        self.context.broker.wake()
        endpoint, names = self.table.find(request.method, request.scope["raw_path"])
        who = NOT_ASKED
        if endpoint.needs is not Need.NOTHING:
            who = await identify(request, self.context.sessions)
        address = address_in(names, read_query(request.scope["query_string"]))
        return Call(endpoint, request, caller_of(request), who, names, address)

    def _permit(self, call: Call) -> None:
        """Check the permission that the endpoint needs. Raises AccessDenied and writes an audit
        line if the caller lacks it; raises Problem if the CSRF token of a browser session is
        missing or wrong."""
        if call.endpoint.changes and call.who.session is not None:
            check_page(call.request, call.who.session)
        needs = call.endpoint.needs
        if isinstance(needs, Operation):
            caller = call.caller
            demand(caller.access, caller.peer, call.identity, needs, call.address.name)
        elif needs is Need.SUPERUSER and not call.identity.superuser:
            what = f"{call.endpoint.method} {call.endpoint.full_path}"
            call.denied(what)
            raise AccessDenied(f"{_who(call.identity)} may not {what}: that takes a superuser")

    async def _handle(self, call: Call) -> Response:
        endpoint = call.endpoint
        if endpoint.body is None or isinstance(endpoint.body, RawBody):
            return _response(call, await endpoint.handler(call))
        size = _size(call.request, endpoint.limit)
        if size <= SMALL_BYTES:
            call.body = _decoded(endpoint, await _read(call.request, size))
            return _response(call, await endpoint.handler(call))
        async with self._budget.reserve(size):
            call.body = _decoded(endpoint, await _read(call.request, size))
            return _response(call, await endpoint.handler(call))

    def _note(self, call: Call, response: Response) -> None:
        """Write an audit line for a request that may have changed something."""
        what = f"{call.request.method} {call.request.url.path} {call.note}".rstrip()
        result = "done" if response.status_code < 400 else str(response.status_code)
        action = call.endpoint.operation_id
        self.context.audit.acted(call.caller.peer, call.identity.name, action, what, result)


def _who(identity: Identity) -> str:
    return identity.name or "an anonymous client"


def _size(request: Request, limit: int) -> int:
    """Return the size of the body in bytes; 0 without a body. Raises ApiError for a body above the
    limit or of unknown length."""
    headers = request.headers
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return 0
    return announced(request, limit, "nothing that is sent here needs more")


async def _read(request: Request, size: int) -> bytes:
    return b"".join([chunk async for chunk in read_chunks(request)]) if size else b"{}"


def _decoded(endpoint: Endpoint, body: bytes) -> Any:
    assert isinstance(endpoint.body, type)
    try:
        return msgspec.json.decode(body, type=endpoint.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "bad-body", f"the body is not valid: {error}") from None


def _response(call: Call, content: Any) -> Response:
    if isinstance(content, Response):
        return content
    if call.endpoint.answer is None:
        return Response(status_code=call.status)
    return answer(content, call.status)
