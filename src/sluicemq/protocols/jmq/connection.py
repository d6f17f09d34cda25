"""What the parts of one JMQ connection share: who it is, what it has, and how it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from sluicemq.broker import Broker, Delivery
from sluicemq.model.access import NOBODY, Identity, Operation
from sluicemq.model.errors import SluiceError
from sluicemq.model.message import Property
from sluicemq.protocols.access import Access, demand
from sluicemq.protocols.jmq.flow import Outlet
from sluicemq.protocols.jmq.options import Options
from sluicemq.protocols.jmq.packets import LAST_MESSAGE_TYPE, A, Level, PacketType, Status
from sluicemq.protocols.jmq.statuses import Refused, shown, status_of
from sluicemq.protocols.jmq.wire import Oversized, Packet, encode_reply
from sluicemq.protocols.link import Link

if TYPE_CHECKING:
    from sluicemq.protocols.jmq.consumers import JmsConsumer
    from sluicemq.protocols.jmq.coordinator import Coordinator
    from sluicemq.protocols.jmq.sessions import JmsSession

MOST_UNREAD: Final = 1 << 20
"""Bytes of answers to a client that does not read, at which nothing more is read from it."""

_NEVER_ANSWERED: Final = frozenset(
    {
        PacketType.START,
        PacketType.REDELIVER,
        PacketType.RESUME_FLOW,
        PacketType.FLOW_PAUSED,
        0x7FFF,  # there is no type above it
    }
)


class Sender:
    """Who has sent a message, for no-local: it equals itself, which stands for the connection, and
    its client id. (Protocol specification, JMQNoLocal.)"""

    __slots__ = ("client_id",)

    def __init__(self) -> None:
        self.client_id = ""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return bool(self.client_id) and self.client_id == other
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return self.client_id


class Connection:
    """See the module.

    number       JMQConnectionID
    identity     whom it acts as, since its login
    level        of the protocol, as the client wants it
    sessions     by JMQSessionID
    consumers    by JMQConsumerID; those that are closed too, while they hold something
    unsent       deliveries that are settled when their bytes have left
    pressed      called when `unread` may have changed
    owns         it has had temporary destinations
    traffic      of all JMQ clients
    unread       bytes of answers since the client stopped reading
    reconnected  the client has lost another connection, and has not said START on this one
    closed       nothing is said any more
    """

    __slots__ = (
        "access",
        "broker",
        "closed",
        "consumers",
        "coordinator",
        "identity",
        "level",
        "link",
        "number",
        "options",
        "outlet",
        "owns",
        "pressed",
        "reconnected",
        "sender",
        "sessions",
        "traffic",
        "unread",
        "unsent",
    )

    def __init__(
        self,
        link: Link,
        broker: Broker,
        coordinator: Coordinator,
        access: Access,
        options: Options,
        pressed: Callable[[], None],
    ) -> None:
        self.link = link
        self.broker = broker
        self.coordinator = coordinator
        self.access = access
        self.options = options
        self.pressed = pressed
        self.traffic = broker.traffic_of("jmq")
        self.number = coordinator.uid()
        self.identity: Identity = NOBODY
        self.level = Level.HIGHEST
        self.sender = Sender()
        self.outlet = Outlet()
        self.sessions: dict[int, JmsSession] = {}
        self.consumers: dict[int, JmsConsumer] = {}
        self.unsent: list[tuple[JmsConsumer, Delivery]] = []
        self.owns = False
        self.unread = 0
        self.reconnected = False
        self.closed = False

    @property
    def client_id(self) -> str:
        """ "" while there is none."""
        return self.sender.client_id

    def demand(self, operation: Operation, name: str) -> None:
        """AccessDenied unless the user may do that."""
        demand(self.access, self.link.peer, self.identity, operation, name)

    # --- answers -----------------------------------------------------------------------------

    def reply(
        self,
        packet: Packet | Oversized,
        status: Status = Status.OK,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer a request, if it wants an answer and its type has one."""
        if packet.flags & A and packet.type not in _NEVER_ANSWERED:
            kind = packet.type + 1
            if 0 < packet.type <= LAST_MESSAGE_TYPE:
                kind = PacketType.SEND_REPLY
            self.write(encode_reply(kind, packet.consumer_id, status, properties, body))

    def refuse(self, packet: Packet | Oversized, error: SluiceError) -> None:
        """Answer a request that cannot be granted."""
        self.reply(packet, status_of(error), shown(error))

    def write(self, data: bytes) -> None:
        """Bytes that are no delivery."""
        if self.closed:
            return
        self.link.write((data,))
        if self.outlet.congested:
            self.unread += len(data)
            self.pressed()


# --- properties of requests ----------------------------------------------------------------------


def number(packet: Packet, name: str, usual: int | None = None) -> int:
    """An integral property of whatever width. Without `usual` it has to be there: Refused."""
    value = packet.properties.get(name)
    if value is None and usual is not None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unusable(name, value)
    return value


def text(packet: Packet, name: str) -> str:
    """A String, "" if there is none. Raises Refused."""
    value = packet.properties.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _unusable(name, value)
    return value


def truth(packet: Packet, name: str, usual: bool = False) -> bool:
    """A Boolean. Raises Refused."""
    value = packet.properties.get(name)
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise _unusable(name, value)
    return value


def _unusable(name: str, value: Property) -> Refused:
    if value is None:
        return Refused(Status.BAD_REQUEST, f"{name} is missing")
    return Refused(Status.BAD_REQUEST, f"{name} cannot be {str(value)[:80]!r}")
