"""The application behind the HTTP listener: its routes, and what every request has to pass.

GET              /api/v1/status                      version and identity, to try a connection
GET              /api/v1/journal                     which segments there are
GET              /api/v1/journal/segments/{first}    their bytes
GET              /api/v1/journal/destinations        names of destinations, by number
GET              /api/v1/journal/slots
GET, PUT, DELETE /api/v1/journal/slots/{name}        what a reader still needs
POST             /api/v1/batches                     messages, exactly once
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message as Event
from starlette.types import Receive, Scope, Send

from sluicemq import __version__
from sluicemq.admin.batches import BatchPages, Limits
from sluicemq.admin.bodies import may_be_unread
from sluicemq.admin.errors import Problem, answer, refusal
from sluicemq.admin.identity import caller_of, check_origin, identify
from sluicemq.admin.journal import JournalPages
from sluicemq.admin.slots import SlotPages
from sluicemq.broker import Broker
from sluicemq.model.errors import JournalFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX: Final = "/api/v1"


class Application:
    """An ASGI application. All responses that are not what was asked for are refusals in JSON."""

    def __init__(self, broker: Broker, limits: Limits | None = None) -> None:
        self._broker = broker
        self._router = Router(self._routes(limits or Limits()), False, _nowhere)

    def _routes(self, limits: Limits) -> Sequence[Route]:
        journal = JournalPages(self._broker.journal)
        slots = SlotPages(self._broker.journal)
        batches = BatchPages(self._broker, limits)
        return (
            Route(f"{PREFIX}/status", self._status),
            Route(f"{PREFIX}/journal", journal.show),
            Route(f"{PREFIX}/journal/segments/{{first}}", journal.segment),
            Route(f"{PREFIX}/journal/destinations", journal.destinations),
            Route(f"{PREFIX}/journal/slots", slots.list),
            Route(f"{PREFIX}/journal/slots/{{name}}", slots.serve, methods=slots.METHODS),
            Route(f"{PREFIX}/batches", batches.post, methods=("POST",)),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = False

        async def sending(event: Event) -> None:
            nonlocal started
            started = True
            await send(event)

        request = Request(scope, receive)
        scope["app"] = self  # then the router raises what it would answer itself
        try:
            check_origin(request)
            await self._router(scope, receive, sending)
        except Exception as error:
            if isinstance(error, JournalFailed):
                caller_of(request).fault(error)
            if started:
                raise
            response = refusal(error)
            if may_be_unread(request):
                # of what was not read nobody wants the rest
                response.headers["Connection"] = "close"
            await response(scope, receive, send)

    async def _status(self, request: Request) -> Response:
        await identify(request)
        identity = self._broker.identity.hex()
        return answer({"version": __version__, "identity": identity})


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise Problem(404, "not-found", "there is nothing at this path")
