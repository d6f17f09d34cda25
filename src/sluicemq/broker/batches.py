"""Exactly-once batches: rows written by a data pipeline, in parts that may be sent repeatedly.

A writer numbers its batches in ascending order. Each partition of a batch arrives as one part, or
as several in order, the last of them `final`. A part is one journal unit: its messages and a record
that it was written, so after a crash either both are present or neither is. The broker compares
each part with the parts it knows:

    batch below the writer's latest       written already: the writer continued, so it was complete
    partition whose final part is known   written already: a repetition may contain the rows in
                                          another order and split them differently; but if the rows
                                          differ, its final part is a conflict
    known part of another partition       written already if its rows are the same, in any order;
                                          otherwise a conflict
    next part                             to be written
    later part                            a conflict: earlier parts are missing

Rows are compared by their number and a digest (BatchPart.digest). The digests of the parts add up
to that of the partition, regardless of the order of the rows and of the split into parts.

A writer belongs to the user that used its name first: another user could skip its batches by
writing a later one. The callers check which users may write under a writer's name (`owner_of`).

The broker forgets a writer after RETENTION_MS, or if there are more than `max_batch_writers`: the
oldest of the owner with the most writers is forgotten first, so that no user can displace the
writers of others.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from sluicemq.broker.codec import BatchPart, WriterState, encode
from sluicemq.broker.destinations import Destinations
from sluicemq.broker.publishing import Publisher
from sluicemq.broker.state import Core, Destination
from sluicemq.journal.format import RecordType
from sluicemq.model.destination import Address, CreatedBy
from sluicemq.model.errors import (
    BatchConflict,
    BatchRefused,
    BrokerError,
    BrokerStopping,
    DestinationNotFound,
    DestinationPrivate,
    MessageTooLarge,
    QuotaExceeded,
    Refusal,
)
from sluicemq.model.message import Message
from sluicemq.model.rows import DIGEST_MASK

RETENTION_MS: Final = 30 * 24 * 60 * 60 * 1000


class BatchAnswer(NamedTuple):
    """Result of writing a part.

    is_repeat True if the part had been written before
    sequence  sequence to wait for (Broker.when_durable) before responding, also if `is_repeat`
    """

    is_repeat: bool
    sequence: int


@dataclass(slots=True)
class BatchWriterState:
    """State of one writer.

    batch     number of its latest batch
    last_used wall ms of its last part
    sequence  record of its last part; 0 = on disk since before the start
    done      complete partitions, ascending
    rows      number of rows of each complete partition
    digests   digest of each complete partition: the sum of its parts' digests
    partial   digest and rows of each part of the incomplete partitions
    repeated  repetition of a complete partition: number of its last part, digest and rows of the
              parts before that one, and its own
    owner     user that owns the writer, "" = none yet
    """

    batch: int
    owner: str
    last_used: int = 0
    sequence: int = 0
    done: array[int] = field(default_factory=lambda: array("I"))
    rows: array[int] = field(default_factory=lambda: array("Q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    partial: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    repeated: dict[int, tuple[int, tuple[int, int], tuple[int, int]]] = field(default_factory=dict)

    def total(self, partition: int) -> tuple[int, int] | None:
        """Return digest and rows of a complete partition; None if it is not complete."""
        index = bisect_left(self.done, partition)
        if index < len(self.done) and self.done[index] == partition:
            return self.digests[index], self.rows[index]
        return None

    def repeat(self, part: BatchPart) -> bool:
        """Record a repeated part of a complete partition.

        Return False if it is the last part and the rows of the repetition differ from those written
        first. They cannot be compared if parts are missing, because the broker was restarted during
        the repetition.
        """
        number, before, last = self.repeated.pop(part.partition, (-1, (0, 0), (0, 0)))
        if part.part == 0:
            before = (0, 0)  # also after an interrupted repetition
        elif part.part == number + 1:
            before = _sum([before, last])
        elif part.part != number:
            return True
        last = (part.digest, part.rows)
        self.repeated[part.partition] = (part.part, before, last)
        return not part.final or _sum([before, last]) == self.total(part.partition)

    def add(self, part: BatchPart) -> None:
        """Record a part that has been written."""
        if not part.final:
            self.partial.setdefault(part.partition, []).append((part.digest, part.rows))
            return
        earlier_parts = self.partial.pop(part.partition, [])
        digest, rows = _sum([*earlier_parts, (part.digest, part.rows)])
        index = bisect_left(self.done, part.partition)
        self.done.insert(index, part.partition)
        self.rows.insert(index, rows)
        self.digests.insert(index, digest)


class Batches:
    """Registry of batch writers by name, ordered by their last write, the latest at the end."""

    def __init__(self, core: Core, destinations: Destinations, publisher: Publisher) -> None:
        self._core = core
        self._destinations = destinations
        self._publisher = publisher
        self.writers: OrderedDict[str, BatchWriterState] = OrderedDict()

    def owner_of(self, writer: str) -> str:
        """Return the user that owns the writer; "" if it has no owner or is unknown."""
        state = self.writers.get(writer)
        return "" if state is None else state.owner

    def find(self, part: BatchPart) -> BatchAnswer | None:
        """Return the result for a part that was written before; None if it is to be written.

        The caller checks that names and numbers are in their ranges (codec.BatchPart). Raises
        BatchConflict.
        """
        writer = self.writers.get(part.writer)
        parts: list[tuple[int, int]] = []
        if writer is not None and part.batch <= writer.batch:
            if part.batch < writer.batch:
                return BatchAnswer(True, writer.sequence)
            total = writer.total(part.partition)
            if total is not None:
                if not writer.repeat(part):
                    raise BatchConflict(
                        f"{_name(part)} ends the partition, but its rows are not the {total[1]} "
                        "rows that were written first: the query's rows, or how they are "
                        "partitioned, have changed. Write other rows as another batch"
                    )
                return BatchAnswer(True, writer.sequence)
            parts = writer.partial.get(part.partition, [])
            if part.part < len(parts):
                if part.final or parts[part.part] != (part.digest, part.rows):
                    raise BatchConflict(
                        f"{_name(part)} differs from the part that was written first: the rows of "
                        "the query, or their order, have changed. Order the rows by a stable key, "
                        "or allow transactions large enough for a partition"
                    )
                return BatchAnswer(True, writer.sequence)
        if part.part > len(parts):
            raise BatchConflict(f"{_name(part)}: only {len(parts)} parts before it were written")
        return None

    def check(
        self, messages: Sequence[tuple[Address, Message]], creator: str | None = None
    ) -> list[Refusal]:
        """Return the messages that the broker would refuse now, in order. Raises BrokerStopping.

        Destinations that have to be created count against the quota of `creator` (see
        Destinations.resolve). As in any transaction, the messages of the batch itself do not count
        against the limits.
        """
        return self._plan(messages, creator)[1]

    def write(
        self,
        part: BatchPart,
        messages: Sequence[tuple[Address, Message]],
        creator: str | None = None,
    ) -> BatchAnswer:
        """Publish all messages of a part that is not written yet, or none; `creator` as in `check`.

        Before any change it raises BatchRefused (with every refusal, see `check`), BatchConflict
        or BrokerStopping. Messages with durability NONE are lost in a
        restart, but the part is not written again.
        """
        answer = self.find(part)
        if answer is not None:
            return answer
        plan, refusals = self._plan(messages, creator)
        if refusals:
            raise BatchRefused(refusals, len(messages))
        publications = []
        for destination, message, target in plan:
            if target is not destination:
                message = self._publisher.redirect(message, destination, target)
            publications.append((target, message))
        wall = self._core.clock.wall
        append_part = partial(
            self._core.journal.append_entry, RecordType.BATCH_PART, encode(part), wall
        )
        sequence = self._publisher.publish_unit(publications, append_last=append_part)
        self.record_part(part, wall, sequence)
        return BatchAnswer(False, sequence)

    def _plan(
        self, messages: Sequence[tuple[Address, Message]], creator: str | None
    ) -> tuple[list[tuple[Destination, Message, Destination]], list[Refusal]]:
        """Return the refusals, and the other messages with their destination and where they are
        published: there, or to its dead-letter queue.
        """
        if self._core.stopping:
            raise BrokerStopping("the broker is shutting down")
        plan: list[tuple[Destination, Message, Destination]] = []
        refusals: list[Refusal] = []
        for row, (address, message) in enumerate(messages):
            try:
                destination = self._destinations.resolve(
                    address, creator=creator, by=CreatedBy.MANAGEMENT
                )
                target = destination
                if destination.limited or destination.parked:
                    target = self._publisher.apply_limits(destination, message)
                self._publisher.record_transient(destination, message)
                if not message.durability:
                    self._publisher.expect_memory()
                self._publisher.expect_space(message)
            except (
                DestinationNotFound,
                DestinationPrivate,
                MessageTooLarge,
                QuotaExceeded,
            ) as error:
                refusals.append(Refusal(row, error, False))
            except BrokerError as error:
                refusals.append(Refusal(row, error, True))
            else:
                plan.append((destination, message, target))
        return plan, refusals

    # --- memory --------------------------------------------------------------------------------

    def record_part(self, part: BatchPart, wall: int, sequence: int) -> None:
        """Record a part written at `wall` ms: now, or before a restart (sequence 0)."""
        writer = self.writers.pop(part.writer, None)
        if writer is None or part.batch > writer.batch:
            writer = BatchWriterState(part.batch, part.owner)
        writer.owner = part.owner
        writer.add(part)
        writer.last_used = wall
        writer.sequence = sequence
        self.writers[part.writer] = writer
        self._drop_old_writers(wall)

    def _drop_old_writers(self, wall: int) -> None:
        writers = self.writers
        while next(iter(writers.values())).last_used <= wall - RETENTION_MS:
            writers.popitem(last=False)
        while len(writers) > self._core.settings.max_batch_writers:
            [(owner, _)] = Counter(writer.owner for writer in writers.values()).most_common(1)
            del writers[next(name for name, writer in writers.items() if writer.owner == owner)]

    def state(self) -> list[WriterState]:
        """Return the state of all writers for a snapshot."""
        return [
            WriterState(
                name,
                writer.batch,
                writer.last_used,
                writer.done.tobytes(),
                writer.rows.tobytes(),
                writer.digests.tobytes(),
                list(writer.partial.items()),
                writer.owner,
            )
            for name, writer in self.writers.items()
        ]

    def recover(self, states: list[WriterState]) -> None:
        """Recover the writers from a snapshot."""
        for state in states:
            writer = self.writers[state.name] = BatchWriterState(state.batch, state.owner)
            writer.last_used = state.seen
            writer.done.frombytes(state.done)
            writer.rows.frombytes(state.rows)
            writer.digests.frombytes(state.digests)
            writer.partial.update(state.partial)


def _sum(parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the digest and the number of rows of all parts together."""
    return sum(digest for digest, _ in parts) & DIGEST_MASK, sum(rows for _, rows in parts)


def _name(part: BatchPart) -> str:
    return f"part {part.part} of partition {part.partition}, batch {part.batch} of {part.writer!r}"
