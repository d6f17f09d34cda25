"""Admission of connections to a listener, by its limits.

A limit applies to all connections of the listener, to those of a client address, or to those of a
user. Connections of a TLS listener count from the beginning of their handshake.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import structlog

from sluicemq.admin.endpoints import ListedConnection
from sluicemq.model.errors import TooManyConnections
from sluicemq.model.url import Url
from sluicemq.protocols.transport import Session, Transport
from sluicemq.security.failures import address_of
from sluicemq.server.event_loop import EventLoopBatch
from sluicemq.server.input_budget import InputBudget
from sluicemq.server.listener_settings import Listener

SessionFactory = Callable[[Transport, bool], Session]
"""Function that creates the session of a new connection of a listener. The session rejects the
client with an error if the second argument is True. Raises TooManyConnections."""

DESCRIPTORS: Final = "descriptors"
"""Name of the limit of the process's file descriptors."""

ConnectionT = TypeVar("ConnectionT", bound=ListedConnection)

log = structlog.get_logger("sluicemq.listener")


class Admission(Generic[ConnectionT]):
    """Connections of one listener.

    url             address with the port that the operating system chose for port 0
    refusals        connections beyond the limit, whose sessions send an error. `connections` does
                    not contain them; the login timeout bounds their lifetime
    reading_paused  connections whose reading is paused
    logging_in      connections whose client has not logged in
    closed          number of connections closed because of a limit or deadline, by its code
    received_bytes, sent_bytes  those of closed connections
    """

    def __init__(
        self,
        options: Listener,
        session_factory: SessionFactory,
        batch: EventLoopBatch,
        budget: InputBudget,
        max_descriptors: int = sys.maxsize,
    ) -> None:
        """Admit no connection yet; all listeners share `batch` and `budget`.

        Connections whose descriptor is not below `max_descriptors` are closed. The system assigns
        the lowest unused one, so at least those above remain for files.
        """
        self.options = options
        self._max_descriptors = max_descriptors
        self.batch = batch
        self.budget = budget
        self.session_factory = session_factory
        self.url: Url = options.url
        self.connections: set[ConnectionT] = set()
        self.refusals: set[ConnectionT] = set()
        self.reading_paused: set[ConnectionT] = set()
        self.logging_in: set[ConnectionT] = set()
        self.closed: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        """Number of connections and pending handshakes by client address; empty without a limit
        per address."""
        self._handshake_peers: set[str] = set()
        """Peers of the pending handshakes that `_by_address` counts."""
        self._users: dict[ConnectionT, str] = {}
        """Users whose connection limit counts a connection, "" for none."""
        self._by_user: Counter[str] = Counter()
        """Number of connections by user; that of "" has no meaning."""
        self.accepted = 0
        self.refused = 0
        self.received_bytes = 0
        self.sent_bytes = 0

    def admit(self, connection: ConnectionT, descriptor: int) -> bool:
        """Register a connection. Return False if it has to be closed at once: beyond
        `max_connections`, only `max_rejections` connections are in `refusals`."""
        self.remove_handshake(connection.peer)
        limit_name = self._limit_reached(connection.peer, descriptor)
        if not limit_name:
            self.connections.add(connection)
            self.accepted += 1
            self._count_address(connection.peer, 1)
            return True
        self._refuse(limit_name)
        if limit_name != "max_connections" or len(self.refusals) >= self.options.rejections:
            return False
        self.refusals.add(connection)
        return True

    def admit_handshake(self, peer: str, descriptor: int, pending: int) -> bool:
        """Return whether a connection from `peer` may begin its handshake, because it will be
        admitted or rejected with an error. `pending` is the number of other pending handshakes.
        Until `admit` or `remove_handshake` it counts towards the limit of its address."""
        limit_name = self._limit_reached(peer, descriptor, pending)
        if not limit_name:
            if self.options.max_connections_per_address and peer not in self._handshake_peers:
                self._handshake_peers.add(peer)
                self._count_address(peer, 1)
            return True
        if limit_name == "max_connections":
            connection_count = len(self.connections) + len(self.refusals) + pending
            if connection_count < self.options.max_connections + self.options.rejections:
                return True
        self._refuse(limit_name)
        return False

    def remove_handshake(self, peer: str) -> None:
        """Stop counting a pending handshake, because it has ended."""
        if peer in self._handshake_peers:
            self._handshake_peers.remove(peer)
            self._count_address(peer, -1)

    def _count_address(self, peer: str, change: int) -> None:
        if self.options.max_connections_per_address:
            address = address_of(peer)
            self._by_address[address] += change
            if not self._by_address[address]:
                del self._by_address[address]

    def _limit_reached(self, peer: str, descriptor: int, pending: int = 0) -> str:
        """Return the limit that forbids another connection from `peer`: a setting or
        DESCRIPTORS; "" if one more may connect. `pending` is the number of pending handshakes."""
        if descriptor >= self._max_descriptors:
            return DESCRIPTORS
        options = self.options
        limit = options.max_connections_per_address
        if limit and (address := address_of(peer)) and self._by_address[address] >= limit:
            return "max_connections_per_address"
        is_full = len(self.connections) + pending >= options.max_connections
        return "max_connections" if is_full else ""

    def _refuse(self, limit_name: str) -> None:
        """Count a refused connection; log the first, second, fourth, eighth ... of them."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            log.warning(
                "connection refused: too many",
                url=str(self.url),
                refused=self.refused,
                **{limit_name: getattr(self.options, limit_name, self._max_descriptors)},
            )

    def claim_user(self, connection: ConnectionT, user: str) -> None:
        """Count a connection as one of `user` only. Raises TooManyConnections."""
        limit = self.options.max_connections_per_user
        previous_user = self._users.get(connection, "")
        if not limit or user == previous_user:
            return
        if user and self._by_user[user] >= limit:
            self.closed["user-limit"] += 1
            raise TooManyConnections(f"{user} has {limit} connections already, which is the limit")
        self._users[connection] = user
        self._by_user[user] += 1
        self._by_user[previous_user] -= 1

    def remove(self, connection: ConnectionT) -> None:
        """Unregister a closed connection."""
        self.reading_paused.discard(connection)
        self.logging_in.discard(connection)
        self.refusals.discard(connection)
        if connection in self.connections:
            self.connections.remove(connection)
            self.received_bytes += connection.received_bytes
            self.sent_bytes += connection.sent_bytes
            self._by_user[self._users.pop(connection, "")] -= 1
            self._count_address(connection.peer, -1)


def name_of(address: object) -> str:
    """Return the peer's address for logs; `unix` if it has none."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
