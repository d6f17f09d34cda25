"""Limits of connections: their number at each listener (`Admission`), and the memory for their
unfinished input, shared by all listeners (`InputBudget`).

A connection holds input when its session has bytes that it cannot process yet: half a frame, the
beginning of an HTTP body, requests behind a login. `Connection` reports the number after each read.

    used <= limit      every connection is read
    used >  limit      only one connection, the `reader`, is still read: the one that has held input
                       for the longest time and does not pause reading itself. Every other
                       connection whose input grows is suspended. When the reader's frame is
                       complete, or the reader ends, the next one is chosen
    others > ceiling   a connection other than the reader whose input grows is closed if all but
                       the reader hold so much: each may add one read before it is suspended, and
                       there may be many

The reader may exceed the limit by one frame, so the budget cannot deadlock; `Connection` closes a
reader that makes no progress.

Frames that are decompressed in another thread need memory that no connection holds yet. It is
reserved before that begins, and counts as used. The first reservation may exceed the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

import structlog

from sluicemq.model.errors import TooManyConnections
from sluicemq.model.url import Url
from sluicemq.protocols.transport import Session, Transport
from sluicemq.security.failures import address_of
from sluicemq.server.event_loop import EventLoopBatch
from sluicemq.server.listener_settings import Listener

READ_BYTES: Final = 256 * 1024
"""Maximum bytes of a single read of the event loop."""
CEILING_FACTOR: Final = 2
"""Ceiling of the budget, in multiples of its limit."""


SessionFactory = Callable[[Transport, bool], Session]
"""Function that creates the session of a new connection of a listener. The session rejects the
client with an error if the second argument is True. Raises TooManyConnections."""

log = structlog.get_logger("sluicemq.listener")


class LimitedConnection(Protocol):
    """Connection as its limits know it.

    peer          address of the client
    claimed_user  user whose connection limit counts it, "" = none
    held_bytes    size of the input that it holds, as last reported; written by the budget only
    """

    peer: str
    claimed_user: str
    received_bytes: int
    sent_bytes: int
    held_bytes: int

    @property
    def awaits_no_input(self) -> bool:
        """True if more input would not complete the held input.

        The session has paused reading or waits for another event, or the connection is closing.
        """

    def set_suspended(self, suspended: bool) -> None:
        """Stop or continue to read. The budget has the new state already."""

    def review_input(self, now: int, exhausted_since: int) -> None:
        """Called once a second while it holds input: report what it holds, enforce deadlines.

        now              steady ms
        exhausted_since  steady ms since which the budget has been exhausted; -1 if it is not
        """


AnyConnection = TypeVar("AnyConnection", bound=LimitedConnection)


class InputBudget:
    """Count the input that connections hold, and suspend connections beyond `limit` bytes."""

    def __init__(self, limit: int, stall_timeout: float) -> None:
        """`limit` in bytes, at least 1. `stall_timeout` in seconds: a connection that is read and
        makes no progress for this time while the budget is exhausted is closed."""
        self.limit = limit
        self.stall_timeout = stall_timeout
        self.ceiling = CEILING_FACTOR * limit
        self.used = 0
        """Bytes held by all connections, and reserved."""
        self.reserved = 0
        """Bytes reserved for frames that are being decompressed."""
        self._holders: dict[LimitedConnection, None] = {}
        """Connections that hold input, the one with the oldest unfinished frame first."""
        self.suspended: dict[LimitedConnection, None] = {}
        """Connections that are not read until there is room."""
        self._reader: LimitedConnection | None = None
        """Connection that is still read while the budget is exhausted, else None."""
        self._exhausted_since = -1

    @property
    def holders(self) -> int:
        """Number of connections that hold input."""
        return len(self._holders)

    def report(self, holder: LimitedConnection, held_bytes: int) -> bool:
        """Record that a connection holds `held_bytes` now.

        Returns False if it has to be closed because the ceiling is exceeded.
        """
        before = holder.held_bytes
        holder.held_bytes = held_bytes
        self.used += held_bytes - before
        if held_bytes < before or not before:
            # Less than before: a frame is complete, and the next one is younger than all others.
            self._holders.pop(holder, None)
            if self._reader is holder:
                self._reader = None
            if held_bytes:
                self._holders[holder] = None
            elif holder in self.suspended:
                self._resume(holder)
        self.balance()
        if self.used <= self.limit or held_bytes <= before or holder is self._reader:
            return True
        other_bytes = (
            self.used - self.reserved - (0 if self._reader is None else self._reader.held_bytes)
        )
        if other_bytes > self.ceiling:
            return False
        if holder not in self.suspended:
            self.suspended[holder] = None
            holder.set_suspended(True)
        return True

    def release(self, holder: LimitedConnection) -> None:
        """Forget a connection that is closing and holds nothing any more. It is not resumed."""
        if not holder.held_bytes:
            return
        self.used -= holder.held_bytes
        holder.held_bytes = 0
        self._holders.pop(holder, None)
        self.suspended.pop(holder, None)
        if self._reader is holder:
            self._reader = None
        self.balance()

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes that no connection holds.

        Return False if the budget has too little room and other bytes are reserved. The caller may
        retry when those are released.
        """
        if self.reserved and self.used + size > self.limit:
            return False
        self.reserved += size
        self.used += size
        self.balance()
        return True

    def unreserve(self, size: int) -> None:
        """Release `size` reserved bytes."""
        self.reserved -= size
        self.used -= size
        self.balance()

    def balance(self) -> None:
        """Choose the reader while the budget is exhausted; else resume as many connections as there
        is room for, in the order in which they were suspended."""
        if self.used > self.limit:
            reader = self._reader
            if reader is None or reader.awaits_no_input:
                reader = next(
                    (candidate for candidate in self._holders if not candidate.awaits_no_input),
                    None,
                )
                self._reader = reader
            if reader is not None and reader in self.suspended:
                self._resume(reader)
            return
        self._reader = None
        self._exhausted_since = -1
        if self.suspended:
            capacity = max(1, (self.limit - self.used) // READ_BYTES)
            for holder in list(islice(self.suspended, capacity)):
                self._resume(holder)

    def review(self, now: int) -> None:
        """Enforce the deadlines of all connections that hold input. `now` is steady ms."""
        if self.used > self.limit and self._exhausted_since < 0:
            self._exhausted_since = now
        for holder in list(self._holders):
            holder.review_input(now, self._exhausted_since)
        self.balance()

    def _resume(self, holder: LimitedConnection) -> None:
        del self.suspended[holder]
        holder.set_suspended(False)


class Admission(Generic[AnyConnection]):
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
    ) -> None:
        """Admit no connection yet; all listeners share `batch` and `budget`."""
        self.options = options
        self.batch = batch
        self.budget = budget
        self.session_factory = session_factory
        self.url: Url = options.url
        self.connections: set[AnyConnection] = set()
        self.refusals: set[AnyConnection] = set()
        self.reading_paused: set[AnyConnection] = set()
        self.logging_in: set[AnyConnection] = set()
        self.closed: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        """Number of connections and pending handshakes by client address; empty without a limit
        per address."""
        self._handshake_peers: set[str] = set()
        """Peers of the pending handshakes that `_by_address` counts."""
        self._by_user: Counter[str] = Counter()
        self.accepted = 0
        self.refused = 0
        self.received_bytes = 0
        self.sent_bytes = 0

    def admit(self, connection: AnyConnection) -> bool:
        """Count a connection in. Return False if it has to be closed at once: beyond
        `max_connections`, only `max_rejections` connections are in `refusals`."""
        self.remove_handshake(connection.peer)
        limit_name = self._limit_reached(connection.peer)
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

    def admit_handshake(self, peer: str, pending: int) -> bool:
        """Return whether a connection from `peer` may begin its handshake, because it will be
        admitted or rejected with an error. `pending` is the number of other pending handshakes.
        Until `admit` or `remove_handshake` it counts towards the limit of its address."""
        limit_name = self._limit_reached(peer, pending)
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
        """Count a pending handshake out, because it has ended."""
        if peer in self._handshake_peers:
            self._handshake_peers.remove(peer)
            self._count_address(peer, -1)

    def _count_address(self, peer: str, change: int) -> None:
        if self.options.max_connections_per_address:
            address = address_of(peer)
            self._by_address[address] += change
            if not self._by_address[address]:
                del self._by_address[address]

    def _limit_reached(self, peer: str, pending: int = 0) -> str:
        """Return the setting that forbids another connection from `peer`; "" if one more may
        connect. `pending` is the number of pending handshakes."""
        options = self.options
        limit = options.max_connections_per_address
        if limit:
            address = address_of(peer)
            if address and self._by_address[address] >= limit:
                return "max_connections_per_address"
        connection_count = len(self.connections) + pending
        return "max_connections" if connection_count >= options.max_connections else ""

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
        if not limit or user == connection.claimed_user:
            return
        if user and self._by_user[user] >= limit:
            self.closed["user-limit"] += 1
            raise TooManyConnections(f"{user} has {limit} connections already, which is the limit")
        self._forget_user(connection)
        if user:
            self._by_user[user] += 1
            connection.claimed_user = user

    def _forget_user(self, connection: AnyConnection) -> None:
        user, connection.claimed_user = connection.claimed_user, ""
        if user:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]

    def remove(self, connection: AnyConnection) -> None:
        """Count a connection out."""
        self.reading_paused.discard(connection)
        self.logging_in.discard(connection)
        self.refusals.discard(connection)
        if connection in self.connections:
            self.connections.remove(connection)
            self.received_bytes += connection.received_bytes
            self.sent_bytes += connection.sent_bytes
            self._forget_user(connection)
            self._count_address(connection.peer, -1)
