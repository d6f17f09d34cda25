"""Connection of a session: its user, the input that waits, its replies, and its end.

A session owns one `Channel` and the publisher and consumers that use it. It adds the frames of its
protocol and what they mean.

    state    input                            output                      next
    -------  -------------------------------  --------------------------  -------------------------
    open     processed; frames behind one     sent; replies that the      ended: end of input, or a
             that takes time are held         client does not read count  command that ends it
    ended    ignored; held frames are still   sent                        closed: all is answered
             processed
    closed   ignored                          dropped

Reading from the client pauses while frames are held, or while more than MOST_UNCONFIRMED bytes wait
for their confirmation, or more than MOST_UNREAD bytes of replies are unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sluicemq.broker import Broker
from sluicemq.model.access import Identity, Operation
from sluicemq.protocols.transport import Transport
from sluicemq.security.access import Access, demand

MOST_UNCONFIRMED: Final = 16 << 20
"""Bytes received whose confirmations are pending from which on reading pauses."""
MOST_UNREAD: Final = 1 << 20
"""Bytes of replies to a client that does not read from which on reading from it pauses."""

Frame = TypeVar("Frame")


class Channel(Generic[Frame]):
    """State of one connection that all protocols have.

    traffic      counters of all clients of the protocol
    identity     user of the connection
    congested    the client reads too slowly: no deliveries
    ended        further input is ignored
    closed       nothing more is sent
    held         frames that wait behind one that takes time; None if none does
    held_bytes   their size as input, in bytes
    paused       reading is paused
    unconfirmed  bytes received whose confirmations are pending
    unread       bytes of replies since the client stopped reading
    """

    __slots__ = (
        "access",
        "broker",
        "closed",
        "congested",
        "ended",
        "has_backlog",
        "held",
        "held_bytes",
        "identity",
        "paused",
        "traffic",
        "transport",
        "unconfirmed",
        "unread",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        access: Access,
        protocol: str,
        identity: Identity,
    ) -> None:
        self.transport = transport
        self.broker = broker
        self.access = access
        self.traffic = broker.traffic_of(protocol)
        self.identity = identity
        self.congested = False
        self.ended = False
        self.closed = False
        self.held: list[Frame] | None = None
        self.held_bytes = 0
        self.paused = False
        self.unconfirmed = 0
        self.unread = 0
        self.has_backlog: Callable[[bool], bool] | None = None
        """Returns whether input is left that has to be processed before more is read; its argument
        is whether that has to wait."""

    def demand(self, operation: Operation, name: str) -> None:
        """Raise AccessDenied and write to the audit log unless the user may do this."""
        demand(self.access, self.transport.peer, self.identity, operation, name)

    def deny(self, what: str) -> None:
        """Write to the audit log that the user may not do `what`."""
        self.access.denied(self.transport.peer, self.identity, what)

    # --- input -------------------------------------------------------------------------------

    def hold(self, frames: list[Frame], size: int) -> None:
        """Let frames of `size` bytes wait, behind those that wait already."""
        if self.held is None:
            self.held = frames
        else:
            self.held += frames
        self.held_bytes += size

    def release(self) -> list[Frame]:
        """Return the frames that have waited; further ones are processed at once."""
        held, self.held = self.held, None
        self.held_bytes = 0
        return held or []

    def update_reading(self) -> None:
        """Pause or resume reading, as described in the module."""
        if self.closed:
            return
        wait = (
            self.held is not None
            or self.unconfirmed > MOST_UNCONFIRMED
            or self.unread > MOST_UNREAD
        )
        if self.has_backlog is not None and self.has_backlog(wait):
            wait = True
        self.pause_reading(wait)

    def pause_reading(self, paused: bool) -> None:
        """Pause or resume reading."""
        if paused != self.paused:
            self.paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def end(self) -> None:
        """Ignore further input."""
        self.ended = True

    def close(self) -> bool:
        """Ignore further input and send nothing more; return False if that was so already."""
        was_open = not self.closed
        self.ended = self.closed = True
        return was_open

    # --- output ------------------------------------------------------------------------------

    def fall_behind(self) -> None:
        """Handle that the client reads too slowly."""
        self.congested = True

    def catch_up(self) -> None:
        """Handle that the client has read all output."""
        self.congested = False
        self.unread = 0

    def write(self, chunks: list[bytes]) -> None:
        """Send replies: what is not a delivery."""
        if self.closed:
            return
        self.transport.write(chunks)
        if self.congested:
            self.unread += sum(map(len, chunks))
            self.update_reading()
