"""Published messages in a broker's journal, read without Spark."""

from __future__ import annotations

from pathlib import Path

from sluicemq.journal.format import RecordType, decode_message
from sluicemq.journal.reader import read_records
from sluicemq.model.destination import Address
from sluicemq.model.message import Message


def published(data: Path, destination: str = "") -> list[Message]:
    """Return all messages in order, or those of one destination ("topic:NAME" for a topic)."""
    addresses: dict[int, Address] = {}
    messages = []
    for _, _, record in read_records(data / "journal"):
        if record.type == RecordType.DESTINATION_CREATED:
            addresses[record.destination] = record.address
        elif record.type == RecordType.MESSAGE:
            message = decode_message(record, addresses[record.destination])
            if destination in ("", str(message.destination)):
                messages.append(message)
    return messages
