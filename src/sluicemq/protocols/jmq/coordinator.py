"""What all JMQ connections of one broker share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sluicemq.broker import Broker
from sluicemq.model.message import Origin
from sluicemq.protocols.jmq.branches import Branches
from sluicemq.protocols.jmq.clientids import ClientIds
from sluicemq.protocols.jmq.destinations import create_dead_messages
from sluicemq.protocols.jmq.mapping import JmqDeadLetterPolicy
from sluicemq.protocols.jmq.subscriptions import Durables
from sluicemq.protocols.transport import Background

if TYPE_CHECKING:
    from sluicemq.protocols.jmq.session import JmqSession

_COUNT_BITS: Final = 22
"""Of a unique id, below the time: so many ids in a millisecond, on average, are never wanted."""
_MOST: Final = (1 << 63) - 1


class Coordinator:
    """See the module. There is one for each broker.

    session      JMQBrokerSessionID: of this run of the broker
    connections  by JMQConnectionID
    background   for what takes longer than others should wait
    """

    __slots__ = (
        "_broker",
        "_next",
        "_ready",
        "background",
        "branches",
        "client_ids",
        "connections",
        "durables",
        "session",
    )

    def __init__(self, broker: Broker, background: Background | None = None) -> None:
        """Without `background` long selectors are compiled on the event loop."""
        self._broker = broker
        self.background = background
        self._next = (broker.clock.wall << _COUNT_BITS) & _MOST
        self._ready = False
        self.session = self.uid()
        self.connections: dict[int, JmqSession] = {}
        self.client_ids = ClientIds()
        self.durables = Durables(broker)
        self.branches = Branches(broker, self.uid)
        broker.dead_letters.policies[Origin.JMQ] = JmqDeadLetterPolicy()

    def uid(self) -> int:
        """A number that no other thing of this broker has, nor had in years: 63 bits."""
        self._next += 1
        return self._next & _MOST

    def prepare(self) -> None:
        """A client has come: what it expects to be there always is there."""
        if not self._ready:
            self._ready = True
            create_dead_messages(self._broker)
