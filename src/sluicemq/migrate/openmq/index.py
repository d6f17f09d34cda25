"""Index of the store's messages with their positions and delivery states.

The index holds positions, not messages: a packet is read when it is imported. A packet in a record:

    size:i32 packet  count:i32 (consumer:i64 state:i32) *

In a file of its own the packet is the data, and the rest the attachment. The states are 0 to be
delivered, 1 delivered, 2 acknowledged; a queue's consumer is number 0.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final

from sluicemq.migrate.openmq.destinations import AUTOMATIC, OpenmqDestination, unique_name
from sluicemq.migrate.openmq.messages import message_of_packet
from sluicemq.migrate.openmq.records import Faults, large_files, read_large, records, tolerating
from sluicemq.migrate.openmq.transactions import SYSID_SIZE, VRFILE, LoggedAck
from sluicemq.migrate.source_files import ChangeDetector, SourceFile
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Message
from sluicemq.protocols.jmq.packets import MAGIC
from sluicemq.protocols.jmq.wire import FIXED_SIZE, MAX_PACKET, Packet

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

_INTERRUPTED: Final = "the broker was ended while it wrote this, so its sender received no reply"

Id = tuple[str, bytes]
"""Key of a message in the store: its destination's unique name and its SysMessageID."""


class StoredMessage:
    """A message of the index.

    states  by consumer number
    raw     the packet, or None while it is in a file: there at `position`
    """

    __slots__ = ("destination", "path", "position", "raw", "size", "states", "sysid")

    def __init__(
        self, destination: OpenmqDestination, sysid: bytes, states: dict[int, int]
    ) -> None:
        self.destination = destination
        self.sysid = sysid
        self.states = states
        self.raw: bytes | None = None
        self.path = Path()
        self.position = 0
        self.size = 0

    @property
    def address(self) -> Address:
        """Return the destination that holds the message."""
        return self.destination.address

    def bytes(self) -> bytes:
        """Return the packet. Raises SourceError."""
        if self.raw is not None:
            return self.raw
        with SourceFile.open(self.path) as data:
            return data.read(self.position, self.size)

    def message(self) -> tuple[Message, Packet]:
        """Decode the packet. Raises SourceError."""
        where = "transaction log" if self.raw else f"{self.path}, byte {self.position}"
        return message_of_packet(self.bytes(), where, self.address)


class StoreIndex:
    """Index of the store's messages. `destinations` by unique name; the transaction log adds
    more."""

    def __init__(self, directory: Path, faults: Faults, change_detector: ChangeDetector) -> None:
        self._directory = directory / MESSAGES
        self._faults = faults
        self._witness = change_detector
        self.destinations: dict[str, OpenmqDestination] = {}
        self.messages: dict[Id, StoredMessage] = {}

    def read(self, destination: OpenmqDestination) -> None:
        """Add a destination and its messages."""
        self.destinations[destination.unique] = destination
        directory = self._directory / destination.directory
        if not directory.is_dir():
            return
        vrfile = directory / VRFILE
        if vrfile.exists():
            self._witness.look(vrfile)
            with SourceFile.open(vrfile) as data:
                for span in records(data, self._faults):
                    with tolerating(self._faults):
                        if not span.complete:
                            raise data.damage(span.position, _INTERRUPTED)
                        self._take_record(destination, data, span.position, span.size)
        for path in large_files(directory):
            self._witness.look(path)
            with SourceFile.open(path) as data, tolerating(self._faults):
                self._take_large(destination, data)

    def orphans(self) -> list[Path]:
        """Return message directories that belong to no destination."""
        if not self._directory.is_dir():
            return []
        known = {destination.directory for destination in self.destinations.values()}
        found = [each for each in self._directory.iterdir() if each.name not in known]
        return sorted(each for each in found if each.is_dir())

    def _take_record(
        self, destination: OpenmqDestination, data: SourceFile, position: int, size: int
    ) -> None:
        packet_size = data.unpack(_i32, position)[0]
        start = position + _i32.size
        behind = start + packet_size
        end = position + size
        if not FIXED_SIZE <= packet_size <= end - start - _i32.size:
            raise data.damage(position, f"a packet of {packet_size} bytes is announced")
        self._take(destination, data, start, packet_size, _states(data, behind, end))

    def _take_large(self, destination: OpenmqDestination, data: SourceFile) -> None:
        large = read_large(data)
        if large is None:
            return
        if not large.data.complete:
            raise data.damage(0, _INTERRUPTED)
        attached = large.attachment
        states = {}
        if attached.size:
            states = _states(data, attached.position, attached.position + attached.size)
        self._take(destination, data, large.data.position, large.data.size, states)

    def _take(
        self,
        destination: OpenmqDestination,
        data: SourceFile,
        position: int,
        size: int,
        states: dict[int, int],
    ) -> None:
        magic, version, _, declared_size, _, sysid = data.unpack(_fixed, position)
        if magic != MAGIC or declared_size != size or size > MAX_PACKET:
            raise data.damage(position, "there is no packet of that size")
        if version == _OLDEST:
            sysid = data.read(position + _OLDEST_SYSID, SYSID_SIZE)
        stored = StoredMessage(destination, sysid, states)
        stored.path, stored.position, stored.size = data.path, position, size
        self.messages[destination.unique, sysid] = stored

    # --- changes by the transaction log --------------------------------------------------------

    def sent(self, raw: bytes) -> None:
        """Add a message that the store may or may not contain yet. Raises Damage."""
        message, packet = message_of_packet(raw, "transaction log")
        address = message.destination
        unique = unique_name(address.kind is Kind.QUEUE, address.name)
        destination = self.destinations.get(unique)
        if destination is None:
            destination = OpenmqDestination(address, unique, AUTOMATIC, DestinationSettings())
            self.destinations[unique] = destination
        identity = (unique, packet.sysid)
        if identity not in self.messages:
            stored = StoredMessage(destination, packet.sysid, {})  # routed again, as Open MQ does
            stored.raw = raw
            self.messages[identity] = stored

    def acknowledged(self, ack: LoggedAck) -> None:
        """Apply a consumer's acknowledgement; the message may have been removed already."""
        stored = self.messages.get((ack.destination, ack.sysid))
        if stored is not None:
            consumer = QUEUE if ack.destination.startswith("Q:") else ack.consumer
            stored.states[consumer] = ACKNOWLEDGED


def _states(data: SourceFile, position: int, end: int) -> dict[int, int]:
    count = data.unpack(_i32, position)[0]
    size = count * _interest.size
    if not (0 <= count <= _MOST_INTERESTS and size <= end - position - _i32.size):
        raise data.damage(position, f"{count} consumers are announced")
    return dict(_interest.iter_unpack(data.read(position + _i32.size, size)))
