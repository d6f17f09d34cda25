"""What the broker asks of a journal. `log.FileJournal` keeps it on disk, `memory.MemoryJournal`
in memory; a replicated one would implement the same.

Everything is called on one thread, the owner's, and both callbacks come on it too. A record is
appended at once and gets its sequence number, is handed over by `commit`, and is durable when
`on_durable` says so. Appends with last=False and the next one with last=True form one unit:
after a crash all of them are there or none.

A record that can be settled is live: it stays readable until its `references` have been released
by SETTLED records (RESOLVED for a PREPARED one). `retain` and `release` add references that do
not survive a restart. All appends raise JournalFailed once the journal has failed or is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from sluicemq.journal.format import Record
from sluicemq.journal.space import SpaceReport
from sluicemq.model.destination import Address
from sluicemq.model.histogram import Histogram
from sluicemq.model.message import Message


class JournalStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters for people and metrics. Sizes in bytes, times in seconds. `records` and
    `written_bytes` are of all groups since the start, `group_…` of the last one."""

    segments: int = 0
    bytes: int = 0
    durable: int = 0
    live: int = 0
    carried: int = 0
    groups: int = 0
    records: int = 0
    written_bytes: int = 0
    group_records: int = 0
    group_bytes: int = 0
    sync_last: float = 0.0
    sync_total: float = 0.0


class Journal(Protocol):
    """See the module."""

    identity: bytes
    """8 random bytes, the same for the life of the data directory."""
    durable: int
    """The highest sequence number that a crash cannot take back."""
    addresses: dict[int, Address]
    """Destinations by number."""
    written: int
    """The highest sequence number that the end of this process cannot take back, though a crash of
    the machine could; at least `durable`."""
    sync_delay: int
    """ms within which what nobody waits for is to be committed with `sync`."""
    deliveries: bool
    """Whether deliveries are worth a record."""
    record_transient: bool
    """Whether messages with Durability.NONE are to be appended, as Durability.TRANSIENT."""
    gauge_interval: int
    """ms between records of how a destination stands; 0 = there are none."""
    syncs: Histogram
    """How long the system took to put what was written on the disk, each time."""
    on_durable: Callable[[int], None]
    """Called after each group that moves it with the new value of `durable`."""
    on_written: Callable[[int], None]
    """Called after each group with the new value of `written`."""
    on_space: Callable[[SpaceReport], None]
    """Called when the level of free space changes; there is enough until then."""
    snapshot_source: Callable[[], bytes]
    """Called now and then; gives the broker's own state, to be handed back at the next start."""

    @property
    def pending(self) -> bool:
        """Records have been appended that the next `commit` will have to write."""

    def next_sequence(self) -> int:
        """A number for a message that is not journaled."""

    def destination(self, address: Address) -> int:
        """The destination's number; journaled when it is new."""

    def forget_destination(self, address: Address) -> None:
        """The destination is gone. Its number is never given again."""

    def append_message(
        self, message: Message, destination: int, references: int = 1, last: bool = True
    ) -> int:
        """Append the message, set its `sequence` and return it.

        `references` (0-65535) is how often it will be settled. JournalError when it is too large
        for a record (4 GiB).
        """

    def append_settled(
        self,
        subscription: int,
        destination: int,
        cause: int,
        sequences: list[int],
        time_ms: int,
        last: bool = True,
    ) -> int:
        """Append the end of deliveries and release one reference of each. Returns the record's
        own sequence number. Numbers that are not live are recorded and otherwise ignored."""

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
        """Append a record of another type. RESOLVED releases its `reference`."""

    def retain(self, sequence: int, count: int = 1) -> None:
        """Keep a record readable for `count` releases more. RecordNotFound when it is unknown."""

    def release(self, sequence: int) -> bool:
        """Undo one `retain`. True when nothing keeps the record any more."""

    def fetch(self, sequence: int) -> Message:
        """Read a live message back. RecordNotFound, or JournalDamaged when it is not intact."""

    def head(self, sequence: int) -> Message:
        """As `fetch`, but of a long message without its body, and then without the check that needs
        it: to look at many."""

    def entry(self, sequence: int) -> Record:
        """Read any live record back, with the errors of `fetch`."""

    def commit(self, sync: bool = True) -> None:
        """Hand over what has been appended; without `sync` it may be written and no more: then it
        becomes durable with a later group. Nothing happens inside a unit. While a group is being
        written it goes with the next one, unless something is appended meanwhile: then ask again.

        So a group never begins between two appends of a turn: who sees one of them after a crash
        can rely on those before it, acknowledgements included, which come at the end of the turn.
        """

    def read_from(self, sequence: int) -> Iterator[Record]:
        """Durable records that are still kept, in order, from that number on."""

    def measure_space(self) -> None:
        """Ask the file system for its free space, which may take long; on any thread."""

    def check_space(self) -> None:
        """Judge what was measured last. Call once a second."""

    def space_state(self) -> SpaceReport:
        """The free space as last measured."""

    def held_by_slots(self) -> dict[str, int]:
        """Bytes that could be given back but for a retention slot, by the slot's name."""

    def seal(self) -> None:
        """End the segment that is written, so that it can be read by column or go."""

    def fence(self) -> None:
        """Refuse every further append: somebody else is to write from now on."""

    def stats(self) -> JournalStats: ...

    def close(self) -> None:
        """Make everything durable and let go of the journal. A second call does nothing."""
