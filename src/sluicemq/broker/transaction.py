"""Transactions over sends and acknowledgements, local and two-phase (XA).

             publish, acknowledge            prepare                    commit
   (begin) ────────────────> OPEN ───────────────────────> PREPARED ──────────────> (gone)
                              │  └──────── commit ────────────┼───────────────────> (gone)
                              └─────────── rollback ──────────┴───────────────────> (gone)

Other clients see no effect of a transaction before its commit. After a crash a commit has happened
either completely or not at all. A prepared transaction is in the journal and belongs to no
connection: it survives a restart. The callers decide by its owner which users may end it.

A small commit is one journal unit. A large one is written and applied in slices, so that it does
not block the event loop; it is COMMITTING meanwhile and cannot be undone. In the same way a large
transaction is PREPARING until its PREPARED record is written.

The contents of a large transaction are first written in *parts*: PREPARED records without an xid.
One more record decides: a PREPARED record with the xid (for `prepare`), or one with `decided` set
(for a commit). Only then the parts of a commit are applied, each as one journal unit that ends with
the RESOLVED record of the part:

    PREPARED part 1 … | PREPARED decided, parts 1 … n | MESSAGE … RESOLVED part 1 | …

So recovery completes a decided commit and undoes an undecided one; other records may be between the
units. Parts are small.

The messages of open and prepared transactions count against `memory_limit`, and each transaction
has limits of its own (`max_transaction_bytes`, with its acknowledgements, and
`max_transaction_messages` of EngineSettings).

Slices use the time for scans (scheduler.py). Each of them waits until the records of the previous
one are on disk, so a transaction delays other work by no more than one slice.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from itertools import count, islice
from typing import Final, NamedTuple

from sluicemq.broker.codec import (
    PreparedMessage,
    PreparedTransaction,
    ResolvedTransaction,
    encode,
)
from sluicemq.broker.destinations import Destinations
from sluicemq.broker.pending.entry import RECORDED, SHARED
from sluicemq.broker.publishing import GroupCommit, Publisher
from sluicemq.broker.redelivery import (
    REQUEUED_TOGETHER,
    requeue_in_slices,
    requeue_unacked,
    restore_unacked,
)
from sluicemq.broker.state import Consumer, Core, Delivery, Destination, Subscription
from sluicemq.broker.subscription import mark_window_available, remove_drained_consumer
from sluicemq.journal.format import RecordType
from sluicemq.journal.space import ignore
from sluicemq.model.destination import DestinationSettings
from sluicemq.model.errors import LimitExceeded, TransactionEnded, TransactionError
from sluicemq.model.message import Message

SLICE_DELIVERIES: Final = 1000
"""Deliveries after which a slice ends: making durable messages visible takes time.

A transaction with no more deliveries and no more bytes than a slice is not large.
"""
PART_DELIVERIES: Final = 64
SLICE_BYTES: Final = 4 << 20
PART_BYTES: Final = 256 << 10

Steps = Iterator[tuple[int, int]]
"""Work that yields, between two of its parts, the sequence to wait for if the slice ends there, and
the number of deliveries since the last such place."""


class CommitPart(NamedTuple):
    """Sends and acks of a large transaction in one PREPARED record without an xid.

    record  sequence of that record
    sends   number of messages
    acks    number of deliveries
    """

    record: int
    sends: int
    acks: int


class TransactionState(Enum):
    """State of a transaction; the module shows the transitions."""

    OPEN = "open"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ENDED = "ended"


class Transaction:
    """Sends and acknowledgements that take effect together.

    created time of its beginning in wall ms since the epoch; after recovery, of its preparation
    sends   messages in order, with their destinations; applied ones are removed
    acks    deliveries in order, with the consumers that held them (None after a restart); likewise
    bytes   memory used by `sends`
    destinations  destinations of `sends`, each with the one to publish to, which differs once a
                  commit has begun and the original has been deleted
    parts   records that hold the first of `sends` and `acks`, in order
    xid     XA transaction id, set by `prepare`
    record  sequence of its TRANSACTION_PREPARED record, set by `prepare`
    end_record  after its end the sequence to wait for before responding (0 = none)
    callbacks  for a durable and applied preparation or commit
    owner   user that began it; "" = no owner: it precedes the first user, or was migrated
    """

    __slots__ = (
        "_destination_names",
        "acks",
        "bytes",
        "callbacks",
        "created",
        "destinations",
        "end_record",
        "number",
        "owner",
        "parts",
        "record",
        "sends",
        "state",
        "xid",
    )

    def __init__(self, number: int, created: int, owner: str) -> None:
        self.number = number
        self.owner = owner
        self.created = created
        self.state = TransactionState.OPEN
        self.sends: deque[tuple[Destination, Message]] = deque()
        self.acks: OrderedDict[Delivery, Consumer | None] = OrderedDict()
        self.bytes = 0
        self.destinations: dict[Destination, Destination] = {}
        self.parts: deque[CommitPart] = deque()
        self.xid = b""
        self.record = 0
        self.end_record = 0
        self._destination_names: tuple[frozenset[str], frozenset[str]] | None = None
        self.callbacks: list[Callable[[], None]] = []

    @property
    def records(self) -> list[int]:
        """PREPARED records needed after a restart: that of the transaction, if any, then its
        parts.
        """
        parts = [part.record for part in self.parts]
        return [self.record, *parts] if self.record else parts

    def destination_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the destinations it sends to, and of those it acknowledges from."""
        names = self._destination_names
        if names is None:
            names = (
                frozenset([destination.name for destination in self.destinations]),
                frozenset([delivery.subscription.destination.name for delivery in self.acks]),
            )
            if self.state is TransactionState.PREPARED:  # a prepared transaction no longer changes
                self._destination_names = names
        return names


class Transactions:
    """The broker's transactions: `open` by number, `prepared` by xid.

    A transaction stays in its table until a preparation or commit in progress is done.

    ends  functions called with each transaction that has ended, and True if it was committed
    slice_deliveries, part_deliveries  default to the constants
    """

    def __init__(
        self,
        core: Core,
        destinations: Destinations,
        publisher: Publisher,
        group_commit: GroupCommit,
    ) -> None:
        self._core = core
        self._destinations = destinations
        self._publisher = publisher
        self._group_commit = group_commit
        self._numbers = count(1)
        self.open: dict[int, Transaction] = {}
        self.prepared: dict[bytes, Transaction] = {}
        self.ends: list[Callable[[Transaction, bool], None]] = []
        self.slice_deliveries = SLICE_DELIVERIES
        self.part_deliveries = PART_DELIVERIES

    def values(self) -> list[Transaction]:
        """Return all transactions, open and prepared."""
        return [*self.open.values(), *self.prepared.values()]

    def begin(self, owner: str = "") -> Transaction:
        """Begin an empty transaction owned by the user `owner`."""
        transaction = Transaction(next(self._numbers), self._core.clock.wall, owner)
        self.open[transaction.number] = transaction
        return transaction

    def publish(self, transaction: Transaction, destination: Destination, message: Message) -> None:
        """Publish a message as part of the transaction.

        Raises as Broker.publish; LimitExceeded also if the transaction, or all transactions
        together, would hold too much: it stays open and can be committed or rolled back. Raises
        TransactionError if it has ended, or is prepared or committed.
        """
        self._expect_open(transaction)
        self._publisher.expect_space(message)
        self._check_limits(transaction, self._core.size_in_memory(message))
        self._publisher.record_transient(destination, message)
        if destination.limited or destination.parked:
            destination, message = self._publisher.admit(destination, message)
        message.epoch = self._core.clock.epoch
        self._add(transaction, destination, message)

    def _add(self, transaction: Transaction, destination: Destination, message: Message) -> None:
        transaction.sends.append((destination, message))
        transaction.destinations[destination] = destination
        size = self._core.size_in_memory(message)
        transaction.bytes += size
        self._core.memory += size

    def _check_limits(self, transaction: Transaction, size: int) -> None:
        """Raise LimitExceeded unless the transaction may grow by a message of `size` bytes."""
        settings = self._core.settings
        limit = settings.max_transaction_messages
        if limit and len(transaction.sends) >= limit:
            raise LimitExceeded(
                f"the transaction holds {limit} messages, the limit "
                "(broker.max_transaction_messages); commit or roll it back"
            )
        self._check_bytes(transaction, "a message", size)
        if self._core.memory + size > settings.memory_limit:
            raise LimitExceeded(
                "messages in memory, those of open transactions included, have reached the limit "
                "(broker.memory_limit); commit or roll back, or try again later"
            )

    def _check_bytes(self, transaction: Transaction, added: str, size: int) -> None:
        held = transaction.bytes + len(transaction.acks) * self._core.overhead
        limit = self._core.settings.max_transaction_bytes
        if limit and held + size > limit:
            raise LimitExceeded(
                f"the transaction holds {held} bytes, and {added} of {size} exceeds the limit of "
                f"{limit} (broker.max_transaction_bytes); commit or roll it back"
            )

    def expect_capacity(self, transaction: Transaction, acks: int) -> None:
        """Raise LimitExceeded unless the transaction may hold so many more acknowledgements."""
        self._check_bytes(transaction, "an acknowledgement", acks * self._core.overhead)

    def acknowledge(self, transaction: Transaction, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge in the transaction; return False if the consumer does not hold the message.
        The caller checks `expect_capacity` before.
        """
        self._expect_open(transaction)
        delivery = consumer.unacked.pop(sequence, None)
        if delivery is None:
            return False
        transaction.acks[delivery] = consumer
        consumer.subscription.acked_in_transactions[sequence] = delivery
        core = self._core
        if core.memory > core.memory_budget and delivery.journaled and delivery.message:
            core.drop_message(delivery)
        remove_drained_consumer(consumer)
        window = consumer.window
        if window.refill:
            window.credit += 1
            if window.credit == 1:
                mark_window_available(window)
            self._core.dispatchable[consumer.subscription] = None
        return True

    def withdraw_ack(self, transaction: Transaction, delivery: Delivery) -> bool:
        """Withdraw an acknowledgement: its consumer, even a retired one, holds the delivery again.

        If the consumer is detached, the delivery returns to its original position. Raises
        JournalDamaged, RecordNotFound.
        """
        self._expect_open(transaction)
        consumer = transaction.acks.get(delivery)
        if consumer is None:
            return False
        subscription = consumer.subscription
        if consumer in subscription.consumers or (consumer.retired and not subscription.closed):
            restore_unacked(consumer, delivery)
        else:
            requeue_unacked(subscription, [delivery], True)
        del transaction.acks[delivery]
        del subscription.acked_in_transactions[delivery.sequence]
        return True

    def prepare(
        self, transaction: Transaction, xid: bytes, callback: Callable[[], None] = ignore
    ) -> None:
        """Prepare the transaction (first phase). `callback` is called once a crash cannot undo it.

        Raises TransactionEnded, and TransactionError if another transaction with that xid is
        prepared, if this one has another xid, or if it is being committed.
        """
        self._expect_not_ended(transaction)
        if transaction.xid == xid and transaction.state is TransactionState.PREPARING:
            transaction.callbacks.append(callback)
            return
        if transaction.xid == xid and transaction.state is TransactionState.PREPARED:
            self._group_commit.when_durable(transaction.record, callback)
            return
        self._expect_open(transaction)
        if xid in self.prepared:
            raise TransactionError(f"a transaction with xid {xid.hex()} is prepared already")
        self._publisher.expect_space(*(message for _, message in transaction.sends))
        for destination in transaction.destinations:
            if not destination.removed:
                # so that the journal knows its settings and its creator
                self._destinations.assign_number(destination)
        transaction.xid = xid
        if self._is_large(transaction):
            transaction.state = TransactionState.PREPARING
            transaction.callbacks.append(callback)
            self._start(self._prepare(transaction))
        else:
            sends = [PreparedMessage.of(message) for _, message in transaction.sends]
            acks = stored_acks(transaction.acks)
            self.record_prepared(
                transaction, PreparedTransaction(xid, sends, acks, transaction.owner)
            )
            self._group_commit.when_durable(transaction.record, callback)
        del self.open[transaction.number]
        self.prepared[xid] = transaction

    def record_prepared(self, transaction: Transaction, prepared: PreparedTransaction) -> None:
        """Write the PREPARED record of the transaction."""
        transaction.state = TransactionState.PREPARED
        transaction.record = self._append_prepared(prepared)

    def _append_prepared(self, prepared: PreparedTransaction, last: bool = True) -> int:
        core = self._core
        payload = encode(prepared)
        return core.journal.append_entry(
            RecordType.TRANSACTION_PREPARED, payload, core.clock.wall, references=1, last=last
        )

    def record_decision(self, transaction: Transaction) -> int:
        """Journal the decision to commit the parts of a transaction, which ends its PREPARED
        record.

        Return the sequence to wait for.
        """
        previous_record = transaction.record
        parts = [part.record for part in transaction.parts]
        decision = PreparedTransaction(b"", [], [], parts=parts, decided=True)
        transaction.record = self._append_prepared(decision, last=not previous_record)
        if not previous_record:
            return transaction.record
        return self.resolve(transaction, previous_record, True)

    def adopt(self, record: int, xid: bytes, created: int, owner: str) -> Transaction:
        """Recover a transaction from its PREPARED record.

        `adopt_part` adds its sends and acks. A transaction without an xid must be ended
        immediately.
        """
        transaction = Transaction(next(self._numbers), created, owner)
        transaction.state = TransactionState.PREPARED
        transaction.xid = xid
        transaction.record = record
        if xid:
            self.prepared[xid] = transaction
        return transaction

    def adopt_part(
        self,
        transaction: Transaction,
        record: int,
        sends: list[tuple[Destination, Message]],
        deliveries: list[Delivery],
    ) -> None:
        """Add the sends and acks of a PREPARED record to a recovered transaction.

        The record is that of the transaction itself or, before it, those of its parts in order.
        `deliveries` are the acknowledged ones.
        """
        for destination, message in sends:
            self._add(transaction, destination, message)
        transaction.acks.update(dict.fromkeys(deliveries))
        for delivery in deliveries:
            delivery.subscription.acked_in_transactions[delivery.sequence] = delivery
        if record != transaction.record:
            transaction.parts.append(CommitPart(record, len(sends), len(deliveries)))

    def finish(self, transaction: Transaction) -> None:
        """Complete a commit that was decided before the restart."""
        for part in transaction.parts:
            self.perform(transaction, part.sends, part.acks, part.record)
        self.resolve(transaction, transaction.record, True)
        self.end(transaction, True)

    def commit(
        self,
        transaction: Transaction,
        callback: Callable[[], None] = ignore,
        defaults: DestinationSettings | None = None,
    ) -> None:
        """Commit a transaction. `callback` is called once it is applied and a crash cannot undo it.
        Deleted destinations are created again; `defaults` as of `Destinations.resolve`.

        Raises TransactionEnded; TransactionError while it is being prepared; DestinationNotFound or
        LimitExceeded if a destination was deleted and cannot be created again; LowDiskSpace unless
        it is prepared. After an error nothing has changed. Once this has returned, the transaction
        cannot be undone.
        """
        self._expect_not_ended(transaction)
        if transaction.state is TransactionState.COMMITTING:
            transaction.callbacks.append(callback)
            return
        if transaction.state is TransactionState.PREPARING:
            raise TransactionError(f"transaction {transaction.number} is still being prepared")
        if self._publisher.is_refusing and transaction.state is TransactionState.OPEN:
            self._publisher.expect_space(*(message for _, message in transaction.sends))
        destinations = transaction.destinations
        for destination in destinations:
            # late replies to temporary destinations do not prevent the commit, and are dropped
            if destination.removed and not destination.temporary:
                destinations[destination] = self._destinations.resolve(
                    destination.address,
                    defaults,
                    creator=destination.creator,
                    by=destination.provenance.created_by,
                )
        if transaction.parts or (not transaction.record and self._is_large(transaction)):
            transaction.state = TransactionState.COMMITTING
            transaction.callbacks.append(callback)
            for destination in destinations.values():
                destination.committing += 1
            self._start(self._commit(transaction))
            return
        transaction.end_record = self.perform(
            transaction, len(transaction.sends), len(transaction.acks), transaction.record
        )
        self.end(transaction, True)
        self._group_commit.when_durable(transaction.end_record, callback)

    def perform(self, transaction: Transaction, sends: int, acks: int, record: int) -> int:
        """Publish the first `sends` messages and end the first `acks` deliveries in one journal
        unit.

        The unit also ends the PREPARED record at `record` (0 = none). Return the sequence to wait
        for (0 = none). A message to a destination deleted since the commit began goes to the
        destination of its other messages.
        """
        publications = []
        for _ in range(sends):
            original, message = transaction.sends.popleft()
            size = self._core.size_in_memory(message)
            transaction.bytes -= size
            self._core.memory -= size
            destination = transaction.destinations[original]
            if not destination.removed:
                publications.append((destination, message))
        deliveries = [transaction.acks.popitem(last=False)[0] for _ in range(acks)]
        sequence = self._publisher.publish_unit(
            publications,
            deliveries,
            append_last=partial(self.resolve, transaction, record, True) if record else None,
        )
        for delivery in deliveries:
            subscription = delivery.subscription
            del subscription.acked_in_transactions[delivery.sequence]
            subscription.unacked -= 1
            subscription.unacked_bytes -= delivery.size
            subscription.destination.statistics.acknowledged += 1
        return sequence

    def rollback(self, transaction: Transaction) -> int:
        """Roll back: drop the messages and return acknowledged deliveries to their positions.

        Return the sequence to wait for before responding (0 = none). Raises TransactionEnded, and
        TransactionError while it is being prepared or committed.
        """
        self._expect_not_ended(transaction)
        if transaction.state in (TransactionState.PREPARING, TransactionState.COMMITTING):
            raise TransactionError(
                f"transaction {transaction.number} is {transaction.state.value}: it cannot be "
                "rolled back now"
            )
        sequence = 0
        # parts are resolved after the record that refers to them
        for record in transaction.records:
            sequence = self.resolve(transaction, record, False)
        acked_deliveries: dict[Subscription, list[Delivery]] = {}
        for delivery in transaction.acks:
            acked_deliveries.setdefault(delivery.subscription, []).append(delivery)
        for subscription, deliveries in acked_deliveries.items():
            requeue_in_slices(subscription, len(deliveries), _requeue(subscription, deliveries))
        transaction.end_record = sequence
        self.end(transaction, False)
        return sequence

    def resolve(self, transaction: Transaction, record: int, committed: bool) -> int:
        """Journal the end of the PREPARED record at `record`."""
        core = self._core
        payload = encode(ResolvedTransaction(transaction.xid, committed))
        return core.journal.append_entry(
            RecordType.TRANSACTION_RESOLVED, payload, core.clock.wall, reference=record
        )

    def end(self, transaction: Transaction, committed: bool) -> None:
        """Remove a transaction that was committed or rolled back."""
        transaction.state = TransactionState.ENDED
        self.open.pop(transaction.number, None)
        if self.prepared.get(transaction.xid) is transaction:
            del self.prepared[transaction.xid]
        self._core.memory -= transaction.bytes
        transaction.bytes = 0
        transaction.sends.clear()
        transaction.acks.clear()
        transaction.destinations.clear()
        transaction.parts.clear()
        for on_end in self.ends:
            on_end(transaction, committed)

    def _expect_not_ended(self, transaction: Transaction) -> None:
        if transaction.state is TransactionState.ENDED:
            raise TransactionEnded(f"transaction {transaction.number} has ended")

    def _expect_open(self, transaction: Transaction) -> None:
        self._expect_not_ended(transaction)
        if transaction.state is not TransactionState.OPEN:
            raise TransactionError(
                f"transaction {transaction.number} is {transaction.state.value}, not open"
            )

    def _is_large(self, transaction: Transaction) -> bool:
        """Return whether an immediate commit of the transaction could block the event loop."""
        sends = len(transaction.sends)
        if sends + len(transaction.acks) <= 1:
            return False
        max_subscriptions = max((len(d.subscriptions) for d in transaction.destinations), default=0)
        deliveries = sends * max(1, max_subscriptions) + len(transaction.acks)
        return deliveries > self.slice_deliveries or transaction.bytes > SLICE_BYTES

    # --- slices ----------------------------------------------------------------------------------

    def _start(self, steps: Steps) -> None:
        """Schedule the next slice for a later flush: this iteration may have no time left."""
        self._core.scans.schedule(partial(self._run_slice, steps))

    def _run_slice(self, steps: Steps) -> None:
        remaining = self.slice_deliveries
        for sequence, deliveries in steps:
            remaining -= deliveries
            if remaining <= 0 or self._core.scans.is_time_up():
                self._group_commit.when_durable(sequence, partial(self._start, steps))
                break

    def _prepare(self, transaction: Transaction) -> Steps:
        yield from self._write_parts(transaction)
        parts = [part.record for part in transaction.parts]
        self.record_prepared(
            transaction,
            PreparedTransaction(transaction.xid, [], [], owner=transaction.owner, parts=parts),
        )
        self._call_when_durable(transaction, transaction.record)

    def _commit(self, transaction: Transaction) -> Steps:
        destinations = list(transaction.destinations.values())
        if not transaction.parts:
            yield from self._write_parts(transaction)
        yield self.record_decision(transaction), self.slice_deliveries
        yield from self._apply(transaction)
        transaction.end_record = self.resolve(transaction, transaction.record, True)
        for destination in destinations:
            destination.committing -= 1
        self.end(transaction, True)
        self._call_when_durable(transaction, transaction.end_record)

    def _write_parts(self, transaction: Transaction) -> Steps:
        sends = iter(transaction.sends)
        acks = iter(transaction.acks)
        remaining = len(transaction.sends) + len(transaction.acks)
        while remaining:
            messages = []
            acked_deliveries = []
            deliveries = size = 0
            while deliveries < self.part_deliveries and size < PART_BYTES:
                send = next(sends, None)
                if send is not None:
                    messages.append(PreparedMessage.of(send[1]))
                    deliveries += max(1, len(send[0].subscriptions))
                    size += len(send[1].body)
                    continue
                ack = next(acks, None)
                if ack is None:
                    break
                acked_deliveries.append(ack)
                deliveries += 1
            part = PreparedTransaction(b"", messages, stored_acks(acked_deliveries))
            record = self._append_prepared(part)
            transaction.parts.append(CommitPart(record, len(messages), len(acked_deliveries)))
            remaining -= len(messages) + len(acked_deliveries)
            if remaining:
                yield record, deliveries

    def _apply(self, transaction: Transaction) -> Steps:
        while transaction.parts:
            part = transaction.parts.popleft()
            deliveries = part.acks
            for destination, _ in islice(transaction.sends, part.sends):
                deliveries += max(1, len(destination.subscriptions))
            sequence = self.perform(transaction, part.sends, part.acks, part.record)
            if transaction.parts:
                yield sequence, deliveries

    def _call_when_durable(self, transaction: Transaction, sequence: int) -> None:
        """Call the callbacks once the record `sequence` is on disk."""
        callbacks, transaction.callbacks = transaction.callbacks, []
        for callback in callbacks:
            self._group_commit.when_durable(sequence, callback)


def _requeue(subscription: Subscription, deliveries: list[Delivery]) -> Iterator[None]:
    """Requeue deliveries that a transaction had acknowledged."""
    for start in range(0, len(deliveries), REQUEUED_TOGETHER):
        requeued = deliveries[start : start + REQUEUED_TOGETHER]
        for delivery in requeued:
            del subscription.acked_in_transactions[delivery.sequence]
        requeue_unacked(subscription, requeued, True)
        yield


def stored_acks(deliveries: Iterable[Delivery]) -> list[tuple[int, list[int]]]:
    """Return acknowledged deliveries that survive a restart, in the form of a PREPARED record."""
    sequences: dict[int, list[int]] = {}
    for delivery in deliveries:
        subscription = delivery.subscription
        if delivery.journaled == RECORDED or (
            delivery.journaled == SHARED and subscription.durable
        ):
            sequences.setdefault(subscription.number, []).append(delivery.sequence)
    return list(sequences.items())
