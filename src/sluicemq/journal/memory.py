"""Journal in memory, for brokers without a disk.

It keeps live records only. Records of deliveries and depths are disabled, because nothing could
read them.

`commit` makes all records durable immediately and calls `on_durable` before it returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sluicemq.journal.format import (
    MAX_REFERENCES,
    UNIT_END,
    Record,
    RecordType,
    encode_address,
)
from sluicemq.journal.port import JournalOptions, JournalStats
from sluicemq.journal.space import SpaceLevel, SpaceReport, ignore
from sluicemq.model.destination import Address
from sluicemq.model.errors import JournalError, JournalFailed, RecordNotFound
from sluicemq.model.histogram import Histogram
from sluicemq.model.message import Message


class MemoryJournal:
    """Journal in memory; implements `port.Journal`."""

    __slots__ = (
        "_closed",
        "_holds",
        "_left",
        "_live",
        "_next",
        "_next_number",
        "_numbers",
        "_open",
        "_unclaimed",
        "addresses",
        "durable",
        "identity",
        "on_durable",
        "on_space",
        "on_written",
        "options",
        "snapshot_source",
        "syncs",
        "written",
    )

    def __init__(self) -> None:
        self.identity = os.urandom(8)
        self.durable = self.written = 0
        self.options = JournalOptions(flush_interval=0, record_deliveries=False, depth_interval=0)
        self.syncs = Histogram()
        self.addresses: dict[int, Address] = {}
        self.on_durable: Callable[[int], None] = ignore
        self.on_written: Callable[[int], None] = ignore
        self.on_space: Callable[[SpaceReport], None] = ignore
        self.snapshot_source: Callable[[], bytes] = bytes
        self._live: dict[int, Message | Record] = {}
        self._left: dict[int, int] = {}
        self._holds: dict[int, int] = {}
        self._numbers: dict[Address, int] = {}
        self._next_number = 1
        self._next = 1
        self._open = False
        self._unclaimed: list[int] = []
        self._closed = False

    def _take(self, last: bool) -> int:
        if self._closed:
            raise JournalFailed("the journal is closed")
        self._open = not last
        sequence = self._next
        self._next = sequence + 1
        return sequence

    @property
    def pending(self) -> bool:
        return self.written < self._next - 1

    def next_sequence(self) -> int:
        sequence = self._next
        self._next = sequence + 1
        return sequence

    def destination(self, address: Address) -> int:
        number = self._numbers.get(address)
        if number is None:
            number = self._next_number
            self._append(
                RecordType.DESTINATION_CREATED, encode_address(address), 0, destination=number
            )
            self._next_number = number + 1
            self._numbers[address] = number
            self.addresses[number] = address
        return number

    def forget_destination(self, address: Address) -> None:
        number = self._numbers.get(address)
        if number is not None:
            self._append(
                RecordType.DESTINATION_DELETED, encode_address(address), 0, destination=number
            )
            del self._numbers[address], self.addresses[number]

    def append_message(
        self, message: Message, destination: int, references: int = 1, last: bool = True
    ) -> int:
        if references > MAX_REFERENCES:
            raise JournalError(f"a message cannot have more than {MAX_REFERENCES} references")
        message.sequence = sequence = self._take(last)
        self._live[sequence] = message
        self._left[sequence] = references
        if not references:
            self._unclaimed.append(sequence)
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
        sequence = self._take(last)
        for ended in sequences:
            self._settle(ended)
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
        sequence = self._take(last)
        if references:
            self._live[sequence] = Record(
                sequence,
                type,
                time_ms * 1000,
                0,
                reference,
                destination,
                UNIT_END if last else 0,
                0,
                0,
                0,
                0,
                references,
                b"",
                payload,
            )
            self._left[sequence] = references
        if type == RecordType.TRANSACTION_RESOLVED:
            self._settle(reference)
        return sequence

    def _append(self, type: int, payload: bytes, time_ms: int, destination: int) -> None:
        """Append a record of the journal itself, which must not end a unit of the broker."""
        self.append_entry(type, payload, time_ms, destination=destination, last=not self._open)

    def _settle(self, sequence: int) -> None:
        left = self._left.get(sequence, 0)
        if left:
            self._left[sequence] = left - 1
            if left == 1 and sequence not in self._holds:
                self._drop(sequence)

    def _drop(self, sequence: int) -> None:
        self._left.pop(sequence, None)
        self._live.pop(sequence, None)

    def retain(self, sequence: int, count: int = 1) -> None:
        if sequence not in self._left:
            raise RecordNotFound(f"no record {sequence} to retain")
        self._holds[sequence] = self._holds.get(sequence, 0) + count

    def release(self, sequence: int) -> bool:
        holds = self._holds.get(sequence, 0)
        if not holds:
            return False
        if holds > 1:
            self._holds[sequence] = holds - 1
            return False
        del self._holds[sequence]
        if self._left[sequence]:
            return False
        self._drop(sequence)
        return True

    def fetch(self, sequence: int) -> Message:
        message = self._live.get(sequence)
        if not isinstance(message, Message):
            raise RecordNotFound(f"no message {sequence}")
        return message

    def head(self, sequence: int) -> Message:
        return self.fetch(sequence)

    def entry(self, sequence: int) -> Record:
        record = self._live.get(sequence)
        if not isinstance(record, Record):
            raise RecordNotFound(f"no record {sequence}")
        return record

    def commit(self, sync: bool = True) -> None:
        if not self._open and self.durable < self._next - 1:
            self.durable = self.written = self._next - 1
            unclaimed, self._unclaimed = self._unclaimed, []
            self.on_written(self.written)
            self.on_durable(self.durable)
            for sequence in unclaimed:
                if sequence not in self._holds:
                    self._drop(sequence)

    def measure_space(self) -> None:
        """Do nothing; there is no disk."""

    def check_space(self) -> None:
        """Do nothing; there is no disk."""

    def space_state(self) -> SpaceReport:
        return SpaceReport(SpaceLevel.ENOUGH)

    def held_by_slots(self) -> dict[str, int]:
        return {}

    def stats(self) -> JournalStats:
        return JournalStats(
            durable=self.durable, live=sum(left > 0 for left in self._left.values())
        )

    def close(self) -> None:
        if not self._closed:
            self.commit()
            self._closed = True
