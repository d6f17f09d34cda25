"""Registry of the connections of all listeners, for the admin API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluicemq.admin.api_context import AttachedConsumer
from sluicemq.management.broker import InputItem, ListenerItem
from sluicemq.management.clients import ConnectionItem
from sluicemq.server.connection import Connection
from sluicemq.server.input import InputBudget
from sluicemq.server.listener import OpenListener


class ConnectionRegistry:
    """Connections of all listeners (`sluicemq.admin.api_context.Connections`)."""

    def __init__(self, listeners: Sequence[OpenListener], budget: InputBudget) -> None:
        """Register the connections of `listeners`, a list that may grow; they share `budget`."""
        self._listeners = listeners
        self._budget = budget

    def __len__(self) -> int:
        return sum(len(listener.admission.connections) for listener in self._listeners)

    def __iter__(self) -> Iterator[ConnectionItem]:
        for listener in list(self._listeners):
            for connection in list(listener.admission.connections):
                yield _view(listener, connection)

    def consumers(self) -> Iterator[AttachedConsumer]:
        """Return the consumers of all connections."""
        for listener in list(self._listeners):
            for connection in list(listener.admission.connections):
                found = connection.consumers()
                if found:
                    session_info = connection.session_info()
                    for consumer in found:
                        yield AttachedConsumer(
                            connection.number, session_info.protocol, session_info.user, consumer
                        )

    def by_protocol(self) -> dict[str, int]:
        """Return the number of connections by protocol."""
        counts: dict[str, int] = {}
        for listener in self._listeners:
            for connection in listener.admission.connections:
                protocol = connection.session_info().protocol
                counts[protocol] = counts.get(protocol, 0) + 1
        return counts

    def listeners(self) -> list[ListenerItem]:
        """Return the open listeners, in the order of the configuration."""
        return [
            ListenerItem(
                str(each.url),
                each.url.protocol,
                each.url.tls,
                len(each.admission.connections),
                each.options.max_connections,
                each.admission.accepted,
                each.admission.refused,
                each.admission.received_bytes
                + sum(connection.received_bytes for connection in each.admission.connections),
                each.admission.sent_bytes
                + sum(connection.sent_bytes for connection in each.admission.connections),
                dict(each.admission.closed),
            )
            for each in self._listeners
        ]

    def input(self) -> InputItem:
        """Return the memory use of unfinished input."""
        budget = self._budget
        return InputItem(budget.used, budget.limit, budget.holders, budget.suspended)

    def get(self, number: int) -> ConnectionItem | None:
        """Return the connection with this id, or None."""
        found = self._find(number)
        return None if found is None else _view(*found)

    def close(self, number: int, reason: str) -> bool:
        """Disconnect a client and send it `reason`; return False if there is no such connection."""
        found = self._find(number)
        if found is None:
            return False
        found[1].disconnect(reason)
        return True

    def _find(self, number: int) -> tuple[OpenListener, Connection] | None:
        for listener in self._listeners:
            for connection in listener.admission.connections:
                if connection.number == number:
                    return listener, connection
        return None


def _view(listener: OpenListener, connection: Connection) -> ConnectionItem:
    session_info = connection.session_info()
    return ConnectionItem(
        id=connection.number,
        protocol=session_info.protocol,
        peer=connection.peer,
        user=session_info.user,
        client_id=session_info.client_id,
        listener=str(listener.url),
        started=connection.since,
        state=connection.state,
        consumers=sum(1 for _ in connection.consumers()),
        received_bytes=connection.received_bytes,
        sent_bytes=connection.sent_bytes,
        tls=listener.url.tls,
    )
