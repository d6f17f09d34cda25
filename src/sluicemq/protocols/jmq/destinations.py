"""Destinations as JMQ clients name, create, look at and destroy them.

| name                          | what may be done                                                 |
|-------------------------------|------------------------------------------------------------------|
| temporary_destination://...   | created by one connection and gone with it; consumers only there |
| mq.sys.dmq                    | the dead message queue: consumed and browsed, never sent to      |
| mq.metrics.*, mq.log.broker.* | topics of the broker: consumed, never sent to                    |
| another name with mq.         | nothing: it is reserved                                          |
| with an element * ** or >     | a wildcard: only of topics (wildcards.py)                        |
| any other                     | comes into being by being used, if the broker allows that        |

A client says CREATE_DESTINATION before it adds a producer or a consumer, whether there is such a
destination or not, so that it takes no more than the permission to produce or to consume. Nobody
needs permissions for temporary destinations: who knows the name has been given it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from sluicemq.broker import Broker, Destination
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import DestinationNotFound
from sluicemq.protocols.crossing import TEMPORARY, is_temporary
from sluicemq.protocols.jmq.connection import Connection, number, text
from sluicemq.protocols.jmq.names import read_name, shown_name
from sluicemq.protocols.jmq.packets import A, DestType, PacketType, Status, W
from sluicemq.protocols.jmq.statuses import Refused
from sluicemq.protocols.jmq.wildcards import Pattern, is_wildcard
from sluicemq.protocols.jmq.wire import Packet, encode_packet

DEAD_MESSAGES: Final = Address(Kind.QUEUE, "mq.sys.dmq")
DEFAULTS: Final = DestinationSettings(dead_letter=True, dead_letter_queue=DEAD_MESSAGES.name)
"""Of destinations that come into being by being used."""
DEAD_MESSAGES_SETTINGS: Final = DestinationSettings(
    max_messages=1000, max_bytes=10_000_000, overflow=Overflow.DROP_OLDEST
)
MAX_NAME: Final = 1024
"""Bytes of a name."""

_RESERVED: Final = "mq."
_FOR_MONITORS: Final = ("mq.metrics.", "mq.log.broker.")


# --- names ---------------------------------------------------------------------------------------


def is_reserved(address: Address) -> bool:
    """Whether nobody may send there."""
    return address.name.startswith(_RESERVED)


def check_name(address: Address) -> None:
    """Refused unless it can be a destination's name, a wildcard included."""
    kind, name = address
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_NAME or not name.isprintable():
        raise Refused(
            Status.BAD_REQUEST, f"a destination's name has 1 to {MAX_NAME} bytes, all printable"
        )
    if is_wildcard(name):
        if kind is Kind.QUEUE:
            raise Refused(Status.UNSUPPORTED_TYPE, f"{name}: there are no wildcards for queues")
        try:
            Pattern(name)
        except ValueError as error:
            raise Refused(Status.BAD_REQUEST, str(error)) from None


def address_of(packet: Packet) -> Address:
    """What a request names. Refused unless it can be a destination's name."""
    bits = number(packet, "JMQDestType")
    if bool(bits & DestType.QUEUE) == bool(bits & DestType.TOPIC):
        raise Refused(Status.BAD_REQUEST, f"JMQDestType {bits} is neither queue nor topic")
    kind = Kind.QUEUE if bits & DestType.QUEUE else Kind.TOPIC
    address = Address(kind, read_name(text(packet, "JMQDestination")))
    check_name(address)
    return address


def type_bits(destination: Destination) -> int:
    """JMQDestType."""
    bits = DestType.TOPIC if destination.topic else DestType.QUEUE
    if destination.temporary:
        bits |= DestType.TEMP
    elif destination.automatic:
        bits |= DestType.AUTO
    if destination.address == DEAD_MESSAGES:
        bits |= DestType.INTERNAL | DestType.DMQ
    return bits


# --- finding and creating ------------------------------------------------------------------------


def find_or_create(broker: Broker, address: Address) -> Destination:
    """Raises Refused, DestinationNotFound, LimitExceeded."""
    destination = broker.find(address)
    if destination is not None:
        return destination
    name = address.name
    if is_temporary(name):
        raise Refused(Status.NOT_FOUND, f"there is no {name}, or not any more")
    if is_reserved(address):
        if address.kind is Kind.QUEUE or not name.startswith(_FOR_MONITORS):
            raise Refused(Status.ERROR, f"{name}: names with {_RESERVED} are reserved")
        with suppress(DestinationNotFound):
            return broker.resolve(address, DEFAULTS)
        # it is the broker's to say, whatever applications may create
        return broker.create(address, DEFAULTS, None, True)
    return broker.resolve(address, DEFAULTS)


def create_dead_messages(broker: Broker) -> None:
    """The dead message queue is always there."""
    existing = broker.find(DEAD_MESSAGES)
    if existing is None or existing.automatic:
        broker.declare(DEAD_MESSAGES, DEAD_MESSAGES_SETTINGS)


def can_create(broker: Broker, address: Address) -> bool:
    """JMQCanCreate: it would come into being by being used."""
    if is_temporary(address.name) or is_reserved(address):
        return False
    settings = broker.settings
    if address.kind is Kind.QUEUE:
        return settings.auto_create_queues
    return settings.auto_create_topics


class Destinations:
    """The requests that are about destinations."""

    __slots__ = ("_broker", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._broker = connection.broker

    def create(self, packet: Packet) -> None:
        """CREATE_DESTINATION."""
        address = address_of(packet)
        bits = number(packet, "JMQDestType")
        wildcard = is_wildcard(address.name)
        if bits & DestType.TEMP:
            self._create_temporary(address)
        elif is_temporary(address.name):
            find_or_create(self._broker, address)
        elif not wildcard and not is_reserved(address):
            self._create(address)
        properties: dict[str, object] = {
            "JMQDestType": bits,
            "JMQDestUID": shown_name(address.name),
            "JMQValidateXMLSchema": False,
            "JMQReloadXMLSchemaOnFailure": False,
        }
        if not wildcard:
            self._connection.reply(packet, properties=properties)
        elif packet.flags & A:
            properties["JMQStatus"] = Status.OK.value
            kind = PacketType.CREATE_DESTINATION_REPLY
            self._connection.write(encode_packet(kind, W, packet.consumer_id, properties))

    def _create_temporary(self, address: Address) -> None:
        if not is_temporary(address.name) or is_wildcard(address.name):
            raise Refused(
                Status.ERROR, f"the names of temporary destinations begin with {TEMPORARY}"
            )
        self._connection.owns = True
        self._broker.declare(address, DEFAULTS, owner=self._connection)

    def _create(self, address: Address) -> None:
        identity = self._connection.identity
        if not (
            identity.may(Operation.PRODUCE, address.name)
            or identity.may(Operation.CONSUME, address.name)
        ):
            self._connection.demand(Operation.CREATE, address.name)
        try:
            find_or_create(self._broker, address)
        except DestinationNotFound as error:
            raise Refused(Status.FORBIDDEN, str(error)) from None

    def destroy(self, packet: Packet) -> None:
        """DESTROY_DESTINATION: meant for temporary ones, which only their connection destroys."""
        address = address_of(packet)
        destination = self._broker.find(address)
        if destination is None:
            raise Refused(Status.NOT_FOUND, f"there is no {address}")
        if destination.temporary:
            if destination.owner is not self._connection:
                raise Refused(Status.FORBIDDEN, f"{address} is another connection's")
        elif is_reserved(address):
            raise Refused(Status.FORBIDDEN, f"{address} is the broker's own")
        else:
            self._connection.demand(Operation.DELETE, address.name)
        self._broker.remove(destination)
        self._connection.reply(packet)

    def verify(self, packet: Packet) -> None:
        """VERIFY_DESTINATION: changes nothing."""
        address = address_of(packet)
        selector = text(packet, "JMQSelector")
        if selector.strip():
            self._broker.compile_selector(selector)
        if is_wildcard(address.name):
            if packet.flags & A:
                properties = {"JMQStatus": Status.OK.value, "JMQDestType": DestType.TOPIC}
                kind = PacketType.VERIFY_DESTINATION_REPLY
                self._connection.write(encode_packet(kind, W, packet.consumer_id, properties))
            return
        if not is_temporary(address.name):
            self._connection.demand(Operation.BROWSE, address.name)
        destination = self._broker.find(address)
        if destination is None:
            raise missing(self._broker, address)
        self._connection.reply(packet, properties={"JMQDestType": type_bits(destination)})


def missing(broker: Broker, address: Address) -> Refused:
    """What is said of a destination that is only looked at, and is not there."""
    properties = {"JMQCanCreate": can_create(broker, address)}
    return Refused(Status.NOT_FOUND, f"there is no {address}", properties)
