"""Interface of a journal, its settings, and the implementation in memory.

`MemoryJournal` is for brokers without a disk, `log.FileJournal` for all others; a replicated
journal would implement the same interface. The methods of `Journal` that have a body are those of a
journal without a disk.

The owner's thread calls all methods, unless stated otherwise, and receives all callbacks. An
append assigns a sequence number, `commit` passes the record to the writer, and `on_durable`
reports when it is durable. Appends with last=False and the next one with last=True form one unit:
after a crash either all records of a unit exist or none.

A message or a TRANSACTION_PREPARED record is live: it stays readable until its `references` have
been released, by COMPLETED records or by the TRANSACTION_RESOLVED record. `retain` and `release`
manage additional references that do not survive a restart. All appends raise JournalFailed after
the journal has failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Final, Protocol

import msgspec

from sluicemq.journal.format import MAX_REFERENCES, UNIT_END, Record, RecordType, encode_address
from sluicemq.journal.slots import DEFAULT_IDLE_TIMEOUT, DEFAULT_SLOT_LIMIT
from sluicemq.journal.space import SpaceLevel, SpaceReport, ignore
from sluicemq.model.destination import Address
from sluicemq.model.errors import JournalError, JournalFailed, RecordNotFound
from sluicemq.model.histogram import Histogram
from sluicemq.model.message import Message
from sluicemq.model.setting import about

MIN_SEGMENT: Final = 64 * 1024
"""Minimum configured size of a segment in bytes; smaller ones need too many files."""
MAX_SEGMENT: Final = 16 << 30
"""Maximum configured size of a segment in bytes. The format permits 32 GiB, and the last group may
exceed the configured size."""


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the journal."""

    segment_bytes: Annotated[
        int,
        about(
            "Size at which a new segment begins; use 1 MiB or more.",
            "bytes",
            ge=MIN_SEGMENT,
            le=MAX_SEGMENT,
        ),
    ] = 64 << 20
    preallocate_bytes: Annotated[
        int,
        about(
            "Space reserved in a segment ahead of the end of the data (0 = none); on most file "
            "systems an fdatasync takes less time if the file does not grow.",
            "bytes",
        ),
    ] = 4 << 20
    flush_interval: Annotated[
        int,
        about(
            "Maximum time until records that no client waits for are synced: acknowledgements, "
            "lazily journaled messages. Until then they survive the end of the process, but not a "
            "crash of the machine.",
            "ms",
        ),
    ] = 100
    verify_on_start: Annotated[bool, about("Verify the CRC of every sealed segment at start.")] = (
        True
    )
    compaction_threshold: Annotated[
        float,
        about(
            "Sealed segments with a smaller fraction of live data are compacted; 0 = never.",
            le=1,
        ),
    ] = 0.25
    slot_limit_bytes: Annotated[
        int, about("Limit of retention slots that have no limit of their own.", "bytes", ge=1)
    ] = DEFAULT_SLOT_LIMIT
    slot_idle_timeout: Annotated[
        int,
        about(
            "Time after which a retention slot that retains segments is lost, unless its "
            "reader advances or acknowledges it (0 = never); the broker logs a warning at "
            "half of it.",
            "ms",
        ),
    ] = DEFAULT_IDLE_TIMEOUT
    disk_free_limit_bytes: Annotated[
        int,
        about(
            "Free space of the journal's file system below which persistent messages are "
            "rejected and optional records (deliveries, depths) are not written; consumers, "
            "acknowledgements and administration continue. At most a quarter of the file "
            "system. Messages are accepted again at 1.25 times the limit.",
            "bytes",
        ),
    ] = 512 << 20
    disk_free_limit_percent: Annotated[
        float, about("The same in percent of the file system; the larger limit applies.", le=100)
    ] = 5.0
    reserve_bytes: Annotated[
        int,
        about(
            "Space preallocated in the data directory and used when the file system is full: for "
            "acknowledgements, commits of prepared transactions, indexes and snapshots. At "
            "most a sixteenth of the file system. 0 = none.",
            "bytes",
        ),
    ] = 64 << 20
    invalidate_slots_on_low_disk_space: Annotated[
        bool,
        about(
            "Below the limit of free space, retention slots that would retain segments are "
            "lost, and their readers have a gap."
        ),
    ] = False
    record_deliveries: Annotated[
        bool,
        about(
            "Journal deliveries: messages that were unacked when the broker was killed are "
            "marked as redelivered after the restart, and pipelines read the deliveries."
        ),
    ] = True
    record_transient: Annotated[
        bool,
        about(
            "Also journal messages with durability `none`, so that pipelines read them and "
            "their outcomes. Publishers do not wait for them, and a restart still drops them. "
            "Messages to temporary destinations are not journaled."
        ),
    ] = False
    depth_interval: Annotated[
        int,
        about(
            "Interval at which the depth of each destination (ready and unacked messages, "
            "consumers) is recorded if it has changed (0 = never).",
            "ms",
        ),
    ] = 5000


class JournalStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters for people and metrics. Sizes in bytes. `groups`, `records` and `written_bytes` are
    since the start."""

    segments: int = 0
    bytes: int = 0
    durable: int = 0
    live: int = 0
    relocated: int = 0
    groups: int = 0
    records: int = 0
    written_bytes: int = 0


class Journal(Protocol):
    """Durable log of a broker, called by its owner's thread."""

    identity: bytes
    """8 random bytes, constant for the lifetime of the data directory."""
    durable: int
    """Highest sequence number that survives a crash of the machine."""
    addresses: dict[int, Address]
    """Destinations by number."""
    written: int
    """Highest sequence number that survives the end of this process, though not necessarily a crash
    of the machine; at least `durable`."""
    options: JournalOptions
    """Settings."""
    syncs: Histogram
    """Durations of the fdatasync calls."""

    def observe(
        self,
        on_durable: Callable[[int], None] = ignore,
        on_written: Callable[[int], None] = ignore,
        on_space: Callable[[SpaceReport], None] = ignore,
    ) -> None:
        """Set the functions to call on the owner's thread; they replace those of an earlier call.

        on_durable  with the new value of `durable` after each group that changes it
        on_written  with the new value of `written` after each group
        on_space    when the level of free space changes; initially there is enough space
        """

    @property
    def has_pending_records(self) -> bool:
        """True if records have been appended that no `commit` has passed on yet."""

    @property
    def is_behind(self) -> bool:
        """True if many bytes have been appended that wait for the write of earlier ones: publishers
        then wait even for messages whose confirmation requires no sync."""
        return False

    @property
    def is_stalled(self) -> bool:
        """True if so many sequence numbers have been assigned during the write of a group that the
        segment has none left: no further message must be accepted."""
        return False

    def next_sequence(self) -> int:
        """Return a sequence number for a message that is not journaled."""

    def destination_number(self, address: Address) -> int:
        """Return the destination's number; a new one is assigned and journaled if it has none."""

    def forget_destination(self, address: Address) -> None:
        """Record that the destination was deleted. Its number is never reused."""

    def append_message(
        self, message: Message, destination: int, references: int = 1, last: bool = True
    ) -> int:
        """Append the message, set its `sequence` and return that number.

        `references` (0-65535) is the number of references that COMPLETED records will release.
        Raises JournalError if the message is too large for a record (4 GiB).
        """

    def append_completed(
        self,
        subscription: int,
        destination: int,
        cause: int,
        sequences: list[int],
        time_ms: int,
        last: bool = True,
    ) -> int:
        """Append a COMPLETED record, release one reference of each of `sequences`, and return the
        record's own sequence number. Numbers that are not live are recorded but release nothing."""

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
        """Append a record of another type. TRANSACTION_RESOLVED releases the record `reference`."""

    def retain(self, sequence: int, count: int = 1) -> None:
        """Add `count` references to a record. Raises RecordNotFound if it is unknown."""

    def release(self, sequence: int) -> None:
        """Undo one `retain`, if there is one."""

    def fetch(self, sequence: int) -> Message:
        """Return a live message. Raises RecordNotFound, or JournalDamaged if it is not intact."""

    def fetch_head(self, sequence: int) -> Message:
        """Return a live message like `fetch`, but omit a long body and skip its checksum.

        Intended for reading many messages.
        """
        return self.fetch(sequence)

    def fetch_entry(self, sequence: int) -> Record:
        """Return a live record of any type. Raises the same errors as `fetch`."""

    def commit(self, sync: bool = True) -> None:
        """Pass the appended records to the writer as one group.

        Without `sync`, the group may only be written, and becomes durable with a later group. A
        call inside a unit does nothing. While a group is being written, the records form the next
        group, unless more records are appended meanwhile: the caller must then commit again.

        A group therefore never begins between two appends of one event loop iteration. If one of
        these records survives a crash, so do all earlier ones of the iteration; acknowledgements
        are appended at its end.
        """

    def fail(self, error: BaseException) -> None:
        """Reject all further appends because of `error`, and discard the uncommitted records.

        A broker calls this if an error leaves a unit incomplete.
        """

    def space_state(self) -> SpaceReport:
        """Return the free space as last measured."""
        return SpaceReport(SpaceLevel.ENOUGH)

    def bytes_held_by_slots(self) -> dict[str, int]:
        """Return the bytes that only a retention slot keeps from being reclaimed, by slot name."""
        return {}

    def stats(self) -> JournalStats: ...

    def close(self) -> None:
        """Make all records durable and release the journal. A second call does nothing."""


class MemoryJournal(Journal):
    """Journal in memory.

    It keeps live records only. Records of deliveries and depths are disabled, because nothing could
    read them. `commit` makes all records durable immediately and calls `on_durable` before it
    returns.
    """

    def __init__(self) -> None:
        self.identity = os.urandom(8)
        self.durable = self.written = 0
        self.options = JournalOptions(flush_interval=0, record_deliveries=False, depth_interval=0)
        self.syncs = Histogram()
        self.addresses: dict[int, Address] = {}
        self._on_durable: Callable[[int], None] = ignore
        self._on_written: Callable[[int], None] = ignore
        self._live: dict[int, Message | Record] = {}
        self._references: dict[int, int] = {}
        self._retained: dict[int, int] = {}
        self._numbers: dict[Address, int] = {}
        self._next_number = 1
        self._next = 1
        self._in_unit = False
        self._unclaimed: list[int] = []
        self._closed = False

    def observe(
        self,
        on_durable: Callable[[int], None] = ignore,
        on_written: Callable[[int], None] = ignore,
        on_space: Callable[[SpaceReport], None] = ignore,
    ) -> None:
        self._on_durable = on_durable
        self._on_written = on_written

    def _assign_sequence(self, last: bool) -> int:
        if self._closed:
            raise JournalFailed("the journal is closed")
        self._in_unit = not last
        return self.next_sequence()

    @property
    def has_pending_records(self) -> bool:
        return self.written < self._next - 1

    def next_sequence(self) -> int:
        sequence = self._next
        self._next = sequence + 1
        return sequence

    def destination_number(self, address: Address) -> int:
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
        message.sequence = sequence = self._assign_sequence(last)
        self._live[sequence] = message
        self._references[sequence] = references
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
        sequence = self._assign_sequence(last)
        for ended_sequence in sequences:
            self._release_reference(ended_sequence)
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
        sequence = self._assign_sequence(last)
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
            self._references[sequence] = references
        if type == RecordType.TRANSACTION_RESOLVED:
            self._release_reference(reference)
        return sequence

    def _append(self, type: int, payload: bytes, time_ms: int, destination: int) -> None:
        """Append a record of the journal itself, which must not end a unit of the broker."""
        self.append_entry(type, payload, time_ms, destination=destination, last=not self._in_unit)

    def _release_reference(self, sequence: int) -> None:
        references = self._references.get(sequence, 0)
        if references:
            self._references[sequence] = references - 1
            if references == 1 and sequence not in self._retained:
                self._delete_record(sequence)

    def _delete_record(self, sequence: int) -> None:
        self._references.pop(sequence, None)
        self._live.pop(sequence, None)

    def retain(self, sequence: int, count: int = 1) -> None:
        if sequence not in self._references:
            raise RecordNotFound(f"no record {sequence} to retain")
        self._retained[sequence] = self._retained.get(sequence, 0) + count

    def release(self, sequence: int) -> None:
        holds = self._retained.pop(sequence, 0)
        if holds > 1:
            self._retained[sequence] = holds - 1
        elif holds and not self._references[sequence]:
            self._delete_record(sequence)

    def fetch(self, sequence: int) -> Message:
        message = self._live.get(sequence)
        if not isinstance(message, Message):
            raise RecordNotFound(f"no message {sequence}")
        return message

    def fetch_entry(self, sequence: int) -> Record:
        record = self._live.get(sequence)
        if not isinstance(record, Record):
            raise RecordNotFound(f"no record {sequence}")
        return record

    def commit(self, sync: bool = True) -> None:
        if not self._in_unit and self.durable < self._next - 1:
            self.durable = self.written = self._next - 1
            unclaimed, self._unclaimed = self._unclaimed, []
            self._on_written(self.written)
            self._on_durable(self.durable)
            for sequence in unclaimed:
                if sequence not in self._retained:
                    self._delete_record(sequence)

    def fail(self, error: BaseException) -> None:
        self._closed = True

    def stats(self) -> JournalStats:
        return JournalStats(
            durable=self.durable,
            live=sum(references > 0 for references in self._references.values()),
        )

    def close(self) -> None:
        if not self._closed:
            self.commit()
            self._closed = True
