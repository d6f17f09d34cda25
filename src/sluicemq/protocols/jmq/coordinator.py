"""What all JMQ connections of one broker share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sluicemq.broker import Broker
from sluicemq.model.message import Origin
from sluicemq.protocols.jmq.branches import Branches
from sluicemq.protocols.jmq.clientids import ClientIds
from sluicemq.protocols.jmq.deadletter import JmqBurial
from sluicemq.protocols.jmq.destinations import create_dead_messages
from sluicemq.protocols.jmq.interests import Durables
from sluicemq.protocols.jmq.packets import Status

if TYPE_CHECKING:
    from sluicemq.protocols.jmq.session import JmqSession

_COUNT_BITS: Final = 22
"""Of a unique id, below the time: so many ids in a millisecond, on average, are never wanted."""
_MOST: Final = (1 << 63) - 1


class Store(NamedTuple):
    """Who has a store session (HELLO, JMQStoreSession): whether a client may go on here with what
    it had there.

    status  OK: it is this broker's; MOVED_PERMANENTLY: `owner` has taken it over; TIMEOUT: somebody
            is about to; NOT_FOUND: nobody is known to have it
    owner   JMQStoreOwner, a URL; "" = not known
    """

    status: Status
    owner: str = ""


class Coordinator:
    """See the module. There is one for each broker.

    session      JMQBrokerSessionID: of this run of the broker
    connections  by JMQConnectionID
    """

    __slots__ = (
        "_broker",
        "_next",
        "_ready",
        "branches",
        "client_ids",
        "connections",
        "durables",
        "session",
    )

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next = (broker.clock.wall << _COUNT_BITS) & _MOST
        self._ready = False
        self.session = self.uid()
        self.connections: dict[int, JmqSession] = {}
        self.client_ids = ClientIds()
        self.durables = Durables(broker)
        self.branches = Branches(broker, self.uid)
        broker.burials[Origin.JMQ] = JmqBurial()

    def uid(self) -> int:
        """A number that no other thing of this broker has, nor had in years: 63 bits."""
        self._next += 1
        return self._next & _MOST

    def prepare(self) -> None:
        """A client has come: what it expects to be there always is there."""
        if not self._ready:
            self._ready = True
            create_dead_messages(self._broker)

    @property
    def store_session(self) -> int:
        """JMQStoreSession of this broker: the same for the life of its data directory."""
        return int.from_bytes(self._broker.identity, "big") & _MOST or 1

    def store(self, session: int) -> Store:
        """Who has that store session. A broker that takes stores over answers for those too."""
        return Store(Status.OK if session == self.store_session else Status.NOT_FOUND)
