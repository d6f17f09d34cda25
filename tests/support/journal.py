"""A journal in memory that keeps all records, and the records of any journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from sluicemq.journal import FileJournal, Journal, MemoryJournal, Record, RecordType
from sluicemq.journal.format import (
    DELAYED,
    ROUTED,
    UNIT_END,
    decode_record,
    encode_completed,
    encode_meta,
    encode_record,
)
from sluicemq.journal.reader import read_records
from sluicemq.model.message import Message


class RecordingJournal(MemoryJournal):
    """A journal in memory that keeps all records."""

    def __init__(self, *, record_deliveries: bool = False, depth_interval: int = 0) -> None:
        super().__init__()
        self.options = replace(
            self.options, record_deliveries=record_deliveries, depth_interval=depth_interval
        )
        self.records: list[Record] = []

    def _keep(self, type: int, sequence: int, time_ms: int, body: bytes, **fields: Any) -> None:
        header, rest, _ = encode_record(type, sequence, time_ms * 1000, body, **fields)
        data = memoryview(header + rest)
        self.records.append(decode_record(data, 0, len(data)))

    def append_message(
        self, message: Message, destination: int, references: int = 1, last: bool = True
    ) -> int:
        sequence = super().append_message(message, destination, references, last)
        self._keep(
            RecordType.MESSAGE,
            sequence,
            message.arrival,
            message.body,
            meta=encode_meta(message),
            expiration=message.expiration,
            destination=destination,
            flags=(UNIT_END if last else 0)
            | (ROUTED if message.routes else 0)
            | (DELAYED if message.deliver_at else 0),
            priority=message.priority,
            origin=message.origin,
            kind=message.kind,
            durability=message.durability,
            references=references,
        )
        return sequence

    def append_completed(
        self,
        subscription: int,
        destination: int,
        cause: int,
        sequences: list[int],
        time_ms: int,
        last: bool = True,
    ) -> int:
        sequence = super().append_completed(
            subscription, destination, cause, sequences, time_ms, last
        )
        body = encode_completed(subscription, sequences)
        flags = UNIT_END if last else 0
        self._keep(
            RecordType.COMPLETED,
            sequence,
            time_ms,
            body,
            destination=destination,
            flags=flags,
            kind=cause,
        )
        return sequence

    def append_entry(
        self,
        type: int,
        payload: bytes,
        time_ms: int,
        *,
        reference: int = 0,
        destination: int = 0,
        references: int = 0,
        last: bool = True,
    ) -> int:
        sequence = super().append_entry(
            type,
            payload,
            time_ms,
            reference=reference,
            destination=destination,
            references=references,
            last=last,
        )
        self._keep(
            type,
            sequence,
            time_ms,
            payload,
            reference=reference,
            destination=destination,
            flags=UNIT_END if last else 0,
            references=references,
        )
        return sequence


def read_from(journal: Journal, sequence: int) -> Iterator[Record]:
    """Iterate over the durable records of a journal from a sequence number on."""
    if isinstance(journal, FileJournal):
        for _, _, record in read_records(journal.directory, sequence=sequence):
            yield record
        return
    assert isinstance(journal, RecordingJournal)
    for record in journal.records:
        if sequence <= record.sequence <= journal.durable:
            yield record
