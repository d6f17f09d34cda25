"""Index of the store's messages with their positions and delivery states.

The index holds positions, not messages: a packet is read when it is imported. The data of an item
is a packet, and attached are the consumers that it was routed to:

    count:i32 (consumer:i64 state:i32) *

The states are 0 to be delivered, 1 delivered, 2 acknowledged; a queue's consumer is number 0.

The packets have the format that our JMQ clients send, so the same code decodes them. The history of
dead letters is in properties; it is also converted to this broker's properties, so that its
dead-letter commands and pages show it. The expiration of a dead letter stays in the packet and has
no effect, as in Open MQ.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct
from typing import Final

from sluicemq.migrate.openmq.destinations import AUTOMATIC, OpenmqDestination, unique_name
from sluicemq.migrate.openmq.records import Faults, StoredItem, stored_items, tolerating
from sluicemq.migrate.openmq.transactions import SYSID_SIZE, LoggedAck
from sluicemq.migrate.source_files import ChangeDetector, Damage, SourceFile
from sluicemq.model.dead_letters import ATTEMPTS, DMQ_PREFIX, ORIGIN, REASON, TIME
from sluicemq.model.destination import Address, DestinationSettings
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Durability, Message, Property
from sluicemq.protocols.jmq.destinations import DEAD_MESSAGES
from sluicemq.protocols.jmq.mapping import message_of
from sluicemq.protocols.jmq.packets import MAGIC
from sluicemq.protocols.jmq.wire import FIXED_SIZE, MAX_PACKET, Decoder, Limits, Packet

KIND: Final = "openmq"
MESSAGES: Final = "message"
"""Directory with one subdirectory per destination."""
DELIVERED: Final = 1
ACKNOWLEDGED: Final = 2
QUEUE: Final = 0
"""Consumer number of a queue."""

_MOST_INTERESTS: Final = 1_000_000
_i32: Final = Struct(">i")
_interest: Final = Struct(">qi")
_fixed: Final = Struct(">Ihhiq32s")
"""Layout: magic, version, type, size, expiration, SysMessageID; all versions but the oldest."""
_OLDEST: Final = 103
_OLDEST_SYSID: Final = 24
_LOG: Final = "transaction log"

_REASONS: Final = {
    "EXPIRED": "expired",
    "OLDEST": "overflow",
    "LOW_PRIORITY": "overflow",
    "UNDELIVERABLE": "max-attempts",
}

Id = tuple[str, bytes]
"""Key of a message in the store: its destination's unique name and its SysMessageID."""


@dataclass(slots=True)
class StoredMessage:
    """A message of the index.

    states  by consumer number
    raw     the packet, or None while it is in a file: there at `position`
    """

    destination: OpenmqDestination
    sysid: bytes
    states: dict[int, int]
    raw: bytes | None = None
    path: Path = Path()
    position: int = 0
    size: int = 0

    @property
    def address(self) -> Address:
        """Return the destination that holds the message."""
        return self.destination.address

    def packet(self) -> bytes:
        """Return the packet. Raises SourceError."""
        if self.raw is not None:
            return self.raw
        with SourceFile.open(self.path) as data:
            return data.read(self.position, self.size)

    def message(self) -> tuple[Message, Packet]:
        """Decode the packet. Raises SourceError."""
        where = _LOG if self.raw else f"{self.path}, byte {self.position}"
        return message_of_packet(self.packet(), where, self.address)


class StoreIndex:
    """Index of the store's messages. `destinations` by unique name; the transaction log adds
    more."""

    def __init__(self, directory: Path, faults: Faults, change_detector: ChangeDetector) -> None:
        self._directory = directory / MESSAGES
        self._faults = faults
        self._change_detector = change_detector
        self.destinations: dict[str, OpenmqDestination] = {}
        self.messages: dict[Id, StoredMessage] = {}

    def read(self, destination: OpenmqDestination) -> None:
        """Add a destination and its messages."""
        self.destinations[destination.unique] = destination
        directory = self._directory / destination.directory
        for item in stored_items(directory, self._faults, self._change_detector):
            with tolerating(self._faults):
                self._take(destination, item)

    def orphans(self) -> list[Path]:
        """Return message directories that belong to no destination."""
        if not self._directory.is_dir():
            return []
        known = {destination.directory for destination in self.destinations.values()}
        found = [each for each in self._directory.iterdir() if each.name not in known]
        return sorted(each for each in found if each.is_dir())

    def _take(self, destination: OpenmqDestination, item: StoredItem) -> None:
        file = item.file
        position, size, _ = item.data
        if size < FIXED_SIZE:
            raise file.damage(position, f"a packet of {size} bytes is announced")
        magic, version, _, declared_size, _, sysid = file.unpack(_fixed, position)
        if magic != MAGIC or declared_size != size or size > MAX_PACKET:
            raise file.damage(position, "there is no packet of that size")
        if version == _OLDEST:
            sysid = file.read(position + _OLDEST_SYSID, SYSID_SIZE)
        states: dict[int, int] = {}
        attached = item.attachment
        if attached.size:
            count = file.unpack(_i32, attached.position)[0]
            length = count * _interest.size
            if not (0 <= count <= _MOST_INTERESTS and length <= attached.size - _i32.size):
                raise file.damage(attached.position, f"{count} consumers are announced")
            states.update(_interest.iter_unpack(file.read(attached.position + _i32.size, length)))
        self.messages[destination.unique, sysid] = StoredMessage(
            destination, sysid, states, None, file.path, position, size
        )

    # --- changes by the transaction log --------------------------------------------------------

    def sent(self, raw: bytes) -> None:
        """Add a message that the store may or may not contain yet. Raises Damage."""
        message, packet = message_of_packet(raw, _LOG)
        address = message.destination
        unique = unique_name(address)
        destination = self.destinations.get(unique)
        if destination is None:
            destination = OpenmqDestination(address, unique, AUTOMATIC, DestinationSettings())
            self.destinations[unique] = destination
        # routed again, as Open MQ does
        stored = StoredMessage(destination, packet.sysid, {}, raw)
        self.messages.setdefault((unique, packet.sysid), stored)

    def acknowledged(self, ack: LoggedAck) -> None:
        """Apply a consumer's acknowledgement; the message may have been removed already."""
        stored = self.messages.get((ack.destination, ack.sysid))
        if stored is not None:
            consumer = QUEUE if ack.destination.startswith("Q:") else ack.consumer
            stored.states[consumer] = ACKNOWLEDGED


# --- packets -----------------------------------------------------------------------------------


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
    timestamp = properties.get(f"{DMQ_PREFIX}UNDELIVERED_TIMESTAMP")
    try:
        instant = datetime.fromtimestamp(timestamp / 1000 if isinstance(timestamp, int) else 0, UTC)
    except (ValueError, OverflowError, OSError):
        instant = datetime.fromtimestamp(0, UTC)
    properties[REASON] = _REASONS.get(str(undelivered_reason), "client")
    properties[ORIGIN] = message.destination.name
    properties[ATTEMPTS] = attempts if isinstance(attempts, int) else 0
    properties[TIME] = instant.isoformat(timespec="milliseconds")
    message.properties = properties
    message.expiration = 0
