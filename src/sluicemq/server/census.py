"""The connections of all listeners, as the administration sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluicemq.admin.ports import ConnectionView, ListenerView
from sluicemq.server.connection import Connection
from sluicemq.server.listener import OpenListener


class Census:
    """See `sluicemq.admin.ports.Connections`."""

    def __init__(self, listeners: Sequence[OpenListener]) -> None:
        """`listeners` are those in service, now or later."""
        self._listeners = listeners

    def __len__(self) -> int:
        return sum(len(listener.connections) for listener in self._listeners)

    def __iter__(self) -> Iterator[ConnectionView]:
        for listener in list(self._listeners):
            for connection in list(listener.connections):
                yield _view(listener, connection)

    def listeners(self) -> list[ListenerView]:
        """See Connections."""
        return [
            ListenerView(str(each.url), each.url.protocol, each.url.tls, len(each.connections))
            for each in self._listeners
        ]

    def get(self, number: int) -> ConnectionView | None:
        """See Connections."""
        found = self._find(number)
        return None if found is None else _view(*found)

    def close(self, number: int, reason: str) -> bool:
        """See Connections."""
        found = self._find(number)
        if found is None:
            return False
        found[1].close(reason)
        return True

    def _find(self, number: int) -> tuple[OpenListener, Connection] | None:
        for listener in self._listeners:
            for connection in listener.connections:
                if connection.number == number:
                    return listener, connection
        return None


def _view(listener: OpenListener, connection: Connection) -> ConnectionView:
    url = listener.url
    return ConnectionView(
        id=connection.number,
        protocol=url.protocol,
        peer=connection.peer,
        user=connection.peer_user,
        client_id="",
        listener=str(url),
        since=connection.since,
        state="open",
        consumers=0,
        bytes_in=0,
        bytes_out=0,
        tls=url.tls,
    )
