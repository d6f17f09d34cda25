"""How much a connection may be sent: nothing before START, and then in portions if the client
wants that.

A connection that asked for it (JMQSize or JMQRBufferSize of HELLO) is sent so many messages, the
last of them with the F bit, and then none until RESUME_FLOW. In safe mode it is sent one, and the
next when that has been acknowledged. (Protocol specification, HELLO and RESUME_FLOW.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluicemq.protocols.jmq.consumers import JmsConsumer

UNLIMITED: Final = 1 << 40
"""Messages: more than anybody will count."""


class Outlet:
    """See the module. `consumers` are those of the connection that are not closed.

    room         messages that may be written now
    limit        messages between two RESUME_FLOWs, 0 = unlimited
    credit       what is left of them
    safe         safe mode
    outstanding  in safe mode: a message that has not been acknowledged
    """

    __slots__ = (
        "congested",
        "consumers",
        "credit",
        "limit",
        "outstanding",
        "room",
        "safe",
        "started",
    )

    def __init__(self) -> None:
        self.consumers: dict[JmsConsumer, None] = {}
        self.room = 0
        self.limit = 0
        self.credit = UNLIMITED
        self.safe = False
        self.outstanding = False
        self.started = False
        self.congested = False

    def measure(self) -> None:
        """Something has changed: stop the consumers, or let them go on."""
        room = 0
        if self.started and not self.congested and not self.outstanding:
            room = min(self.credit, 1) if self.safe else self.credit
        before, self.room = self.room, room
        if (before == 0) != (room == 0):
            for consumer in list(self.consumers):
                consumer.level()

    def limit_to(self, limit: int) -> None:
        """The client may be sent `limit` messages from now on; <= 0 is without limit."""
        self.limit = max(0, limit)
        self.resume()

    def resume(self) -> None:
        """As many again."""
        self.credit = self.limit or UNLIMITED
        self.measure()

    def spend(self, count: int) -> None:
        """So many have been written, `room` at most."""
        if self.limit:
            self.credit -= count
        if self.safe:
            self.outstanding = True
        if self.limit or self.safe:
            self.measure()

    def acknowledged(self) -> None:
        """In safe mode: nothing is outstanding any more."""
        self.outstanding = False
        self.measure()
