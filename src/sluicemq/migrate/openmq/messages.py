"""Packets of the store -> messages.

The packets have the format that our JMQ clients send, so the same code decodes them. The history of
dead letters is in properties; it is also converted to this broker's properties, so that its
dead-letter commands and pages show it. The expiration of a dead letter stays in the packet and has
no effect, as in Open MQ.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sluicemq.migrate.plan import Key, key_of
from sluicemq.migrate.source_files import Damage
from sluicemq.model.dead_letters import ATTEMPTS, DMQ_PREFIX, ORIGIN, REASON, TIME
from sluicemq.model.destination import Address
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Durability, Message, Property
from sluicemq.protocols.jmq.destinations import DEAD_MESSAGES
from sluicemq.protocols.jmq.mapping import message_of
from sluicemq.protocols.jmq.wire import Decoder, Limits, Packet

KIND: Final = "openmq"
_REASONS: Final = {
    "EXPIRED": "expired",
    "OLDEST": "overflow",
    "LOW_PRIORITY": "overflow",
    "UNDELIVERABLE": "max-attempts",
}


def key_of_packet(address: Address, sysid: bytes) -> Key:
    """Return the key that identifies the message."""
    return key_of(KIND, address, sysid)


def message_of_packet(
    raw: bytes, where: str, destination: Address | None = None
) -> tuple[Message, Packet]:
    """Decode the message, for `destination` if it is not where it was sent. Raises Damage."""
    decoder = Decoder(Limits(packet=len(raw), header=len(raw), properties=len(raw)))
    packets = decoder.feed(raw)
    if decoder.error is not None or len(packets) != 1 or not isinstance(packets[0], Packet):
        raise Damage(f"{where}: this is no packet: {decoder.error or 'it is not whole'}")
    packet = packets[0]
    if not packet.is_message:
        raise Damage(f"{where}: the packet is no message, but of type {packet.type}")
    try:
        message = message_of(packet, None, Durability.SYNC, Durability.SYNC)
    except ProtocolError as fault:
        raise Damage(f"{where}: {fault}") from None
    if destination is not None and destination != message.destination:
        if destination == DEAD_MESSAGES:
            _add_dead_letter_properties(message)
        message.destination = destination
    return message, packet


def _add_dead_letter_properties(message: Message) -> None:
    properties: dict[str, Property] = dict(message.properties or {})
    undelivered_reason = properties.get(f"{DMQ_PREFIX}UNDELIVERED_REASON")
    attempts = properties.get(f"{DMQ_PREFIX}DELIVERY_COUNT")
    properties[REASON] = _REASONS.get(str(undelivered_reason), "client")
    properties[ORIGIN] = message.destination.name
    properties[ATTEMPTS] = attempts if isinstance(attempts, int) else 0
    properties[TIME] = _iso(properties.get(f"{DMQ_PREFIX}UNDELIVERED_TIMESTAMP"))
    message.properties = properties
    message.expiration = 0


def _iso(instant: Property) -> str:
    try:
        seconds = instant / 1000 if isinstance(instant, int) else 0
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC).isoformat(timespec="milliseconds")
