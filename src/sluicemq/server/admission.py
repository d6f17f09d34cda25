"""Admission of connections to a listener: their limits and counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from sluicemq.model.errors import TooManyConnections
from sluicemq.security.failures import address_of
from sluicemq.server.address import Url

if TYPE_CHECKING:
    from sluicemq.server.event_loop_batch import EventLoopBatch
    from sluicemq.server.input import InputBudget
    from sluicemq.server.listener_settings import Listener
    from sluicemq.server.session_factories import SessionFactory

log = structlog.get_logger("sluicemq.listener")


class Admitted(Protocol):
    """Connection as its admission knows it.

    peer     address of the client
    claimed  user whose connection limit counts it, "" = none
    """

    peer: str
    claimed: str
    received_bytes: int
    sent_bytes: int


AnyConnection = TypeVar("AnyConnection", bound=Admitted)


class Admission(Generic[AnyConnection]):
    """Connections of one listener.

    url         address with the port that the operating system chose for port 0
    refusals    connections beyond the limit, whose sessions send an error. `connections` does not
                contain them; the login timeout bounds their lifetime
    unread      connections whose reading is paused
    logging_in  connections whose client has not logged in
    closed      number of connections closed because of a limit or deadline, by its code
    received_bytes, sent_bytes  those of closed connections
    """

    def __init__(
        self,
        options: Listener,
        session_factory: SessionFactory,
        batch: EventLoopBatch,
        budget: InputBudget,
        refusing: SessionFactory | None = None,
    ) -> None:
        """Admit no connection yet; all listeners share `batch` and `budget`.

        `refusing` creates the sessions that reject clients beyond `max_connections` with an error;
        None closes these connections immediately.
        """
        self.options = options
        self.batch = batch
        self.budget = budget
        self._session_factory = session_factory
        self._refusing = refusing
        self.url: Url = options.url
        self.connections: set[AnyConnection] = set()
        self.refusals: set[AnyConnection] = set()
        self.unread: set[AnyConnection] = set()
        self.logging_in: set[AnyConnection] = set()
        self.closed: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        """Number of connections by client address; empty without a limit per address."""
        self._by_user: Counter[str] = Counter()
        self.accepted = 0
        self.refused = 0
        self.received_bytes = 0
        self.sent_bytes = 0

    def admit(self, connection: AnyConnection) -> SessionFactory | None:
        """Count a connection in and return what makes its session. Beyond `max_connections` that is
        a session which refuses, for up to `max_rejections` connections; None for the others."""
        reached = self._limit_reached(connection.peer)
        if not reached:
            self.connections.add(connection)
            self.accepted += 1
            if self.options.max_connections_per_address:
                self._by_address[address_of(connection.peer)] += 1
            return self._session_factory
        self._refuse(reached)
        if reached != "max_connections" or len(self.refusals) >= self.options.max_rejections:
            return None
        if self._refusing is not None:
            self.refusals.add(connection)
        return self._refusing

    def may_arrive(self, peer: str, arrivals: int) -> bool:
        """Return whether a connection from `peer` may begin its handshake, beside `arrivals` that
        have: it will be admitted, or can be told that there are too many."""
        reached = self._limit_reached(peer, arrivals)
        if not reached:
            return True
        if reached == "max_connections" and self._refusing is not None:
            present = len(self.connections) + len(self.refusals) + arrivals
            if present < self.options.max_connections + self.options.max_rejections:
                return True
        self._refuse(reached)
        return False

    def _limit_reached(self, peer: str, arrivals: int = 0) -> str:
        """Return the setting that allows no more connection from `peer`, beside `arrivals` whose
        handshake goes on; "" if one more may connect."""
        options = self.options
        limit = options.max_connections_per_address
        if limit:
            address = address_of(peer)
            if address and self._by_address[address] >= limit:
                return "max_connections_per_address"
        present = len(self.connections) + arrivals
        return "max_connections" if present >= options.max_connections else ""

    def _refuse(self, setting: str) -> None:
        """Count a refused connection; log the first, second, fourth, eighth ... of them."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            log.warning(
                "connection refused: too many",
                url=str(self.url),
                refused=self.refused,
                **{setting: getattr(self.options, setting)},
            )

    def claim_user(self, connection: AnyConnection, user: str) -> None:
        """Count a connection as one of `user`, and of no other user any more. Raises
        TooManyConnections."""
        limit = self.options.max_connections_per_user
        if not limit or user == connection.claimed:
            return
        if user and self._by_user[user] >= limit:
            self.closed["user-limit"] += 1
            raise TooManyConnections(f"{user} has {limit} connections already, which is the limit")
        self._forget_user(connection)
        if user:
            self._by_user[user] += 1
            connection.claimed = user

    def _forget_user(self, connection: AnyConnection) -> None:
        user, connection.claimed = connection.claimed, ""
        if user:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]

    def leave(self, connection: AnyConnection) -> None:
        """Count a connection out."""
        self.unread.discard(connection)
        self.logging_in.discard(connection)
        self.refusals.discard(connection)
        if connection in self.connections:
            self.connections.remove(connection)
            self.received_bytes += connection.received_bytes
            self.sent_bytes += connection.sent_bytes
            self._forget_user(connection)
            if self.options.max_connections_per_address:
                address = address_of(connection.peer)
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]
