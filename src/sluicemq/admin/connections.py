"""Endpoints that list and close connections.

A superuser sees all connections; other users see those with their own user name.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.errors import ApiError
from sluicemq.admin.pagination import Page, SortedPageQuery, page_with
from sluicemq.admin.printable_names import printable
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.server_interface import ConnectionView
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.model.access import Identity

LONGEST_REASON: Final = 200
"""Maximum length of the reason for closing a connection, in characters."""
_CLOSE_REASON: Final = "closed by an administrator"


class ConnectionQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of connections."""

    filter: Annotated[
        str,
        Meta(
            description="Only connections with this text in the peer's address, user or client ID."
        ),
    ] = ""
    protocol: Annotated[str, Meta(description="Only connections with this protocol.")] = ""
    sort: Literal[
        "id",
        "protocol",
        "peer",
        "user",
        "client_id",
        "listener",
        "started",
        "state",
        "consumers",
        "received_bytes",
        "sent_bytes",
    ] = "id"


class ClosingQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Options for closing a connection."""

    reason: Annotated[
        str,
        Meta(
            max_length=LONGEST_REASON,
            description="Reason sent to the client and written to the log.",
        ),
    ] = ""


class ConnectionItem(msgspec.Struct, kw_only=True, frozen=True):
    """A connection. `started` is in ms since the epoch.

    state  connecting, open, blocked (the broker has paused reading from it), slow (the client does
           not read its output), or closing
    """

    id: int
    protocol: str
    peer: str
    user: str
    client_id: str
    listener: str
    started: int
    state: str
    consumers: int
    received_bytes: int
    sent_bytes: int
    tls: bool


class ConnectionEndpoints:
    """Handlers of `/connections`."""

    def __init__(self, context: ApiContext) -> None:
        self._broker = context.broker
        self._connections = context.connections

    async def list(self, call: Call) -> Page[ConnectionItem]:
        """GET /connections"""
        query: ConnectionQuery = call.query
        slices = TimeSlices(self._broker)
        found: list[ConnectionView] = []
        for view in self._connections:
            if may_see(call.identity, view) and _is_meant(query, view):
                found.append(view)
            if slices.due:
                await slices.rest()
        found.sort(key=attrgetter(query.sort, "id"), reverse=query.order == "desc")
        return page_with([_item(view) for view in found[query.part]], query, len(found))

    async def show(self, call: Call) -> ConnectionItem:
        """GET /connections/{id}"""
        view = self._connections.get(_number(call))
        if view is None or not may_see(call.identity, view):
            raise _missing()
        return _item(view)

    async def close(self, call: Call) -> None:
        """DELETE /connections/{id}"""
        reason = " ".join(printable(call.query.reason).split())
        number = _number(call)
        view = self._connections.get(number)
        message = f"{_CLOSE_REASON}: {reason}" if reason else _CLOSE_REASON
        if view is None or not self._connections.close(number, message):
            raise _missing()
        user = printable(view.user) or "an anonymous client"
        call.note = f"{view.protocol} of {user} at {view.peer} {reason}"


def may_see(identity: Identity, view: ConnectionView) -> bool:
    """Return whether the user may see the connection."""
    return identity.superuser or (bool(identity.name) and view.user == identity.name)


def _is_meant(query: ConnectionQuery, view: ConnectionView) -> bool:
    if query.protocol and view.protocol != query.protocol:
        return False
    substring = query.filter
    return not substring or any(
        substring in text for text in (view.peer, view.user, view.client_id)
    )


def _item(view: ConnectionView) -> ConnectionItem:
    return ConnectionItem(
        **{
            **view._asdict(),
            "user": printable(view.user),
            "client_id": printable(view.client_id),
        }
    )


def _number(call: Call) -> int:
    text = call.names["id"]
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise _missing()
    return int(text)


def _missing() -> ApiError:
    return ApiError(404, "connection-not-found", "there is no such connection, or not any more")


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /connections."""
    handlers = ConnectionEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/connections",
            "listConnections",
            handlers.list,
            "List the connections",
            Need.VISIBLE,
            query=ConnectionQuery,
            answer=Page[ConnectionItem],
        ),
        Endpoint(
            "GET",
            "/connections/{id}",
            "getConnection",
            handlers.show,
            "Show a connection",
            Need.OWNER,
            answer=ConnectionItem,
        ),
        Endpoint(
            "DELETE",
            "/connections/{id}",
            "closeConnection",
            handlers.close,
            "Close a connection",
            Need.SUPERUSER,
            query=ClosingQuery,
            status=204,
        ),
    ]
