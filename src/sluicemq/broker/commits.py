"""Commits and preparations of large transactions, in one slice per event loop iteration.

The transaction's contents are first written in *parts*: PREPARED records without an xid. One more
record decides: a PREPARED record with the xid (for `prepare`), or one with `decided` set (for a
commit). Only then the parts of a commit are applied, each as one journal unit that ends with the
RESOLVED record of the part:

    PREPARED part 1 … | PREPARED decided, parts 1 … n | MESSAGE … RESOLVED part 1 | …

So recovery completes a decided commit and undoes an undecided one; other records may be between the
units. Parts are small, and each slice waits until the previous one is on disk: the transaction
delays other work by no more than one slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from sluicemq.broker.codec import PreparedMessage, PreparedTransaction, encode
from sluicemq.broker.delivery import RECORDED

if TYPE_CHECKING:
    from sluicemq.broker.broker import Broker
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.subscription import Subscription
    from sluicemq.broker.transaction import Transaction, Transactions

SLICE_SECONDS: Final = 0.005
"""Time after which a slice ends, with the part that is being written or applied, in seconds."""
SLICE_DELIVERIES: Final = 1000
"""Deliveries after which a slice ends: making durable messages visible takes time.

A transaction with no more deliveries and no more bytes than a slice is not large.
"""
SLICE_BYTES: Final = 4 << 20
PART_DELIVERIES: Final = 64
PART_BYTES: Final = 256 << 10


class CommitPart(NamedTuple):
    """Sends and acks of a large transaction in one PREPARED record without an xid.

    record  sequence of that record
    sends   number of messages
    acks    number of deliveries
    """

    record: int
    sends: int
    acks: int


class Commits:
    """Runner of the slices.

    slice_seconds, slice_deliveries, part_deliveries  default to the constants
    apply_part  applies a whole transaction, or its next part: Transactions.perform
    """

    def __init__(self, broker: Broker, transactions: Transactions) -> None:
        self._broker = broker
        self._transactions = transactions
        self.apply_part: Callable[[Transaction, int, int, int], int] = transactions.perform
        self._ready: deque[Iterator[int]] = deque()
        self.slice_seconds = SLICE_SECONDS
        self.slice_deliveries = SLICE_DELIVERIES
        self.part_deliveries = PART_DELIVERIES

    def is_large(self, transaction: Transaction) -> bool:
        """Return whether an immediate commit of the transaction could block the event loop."""
        sends = len(transaction.sends)
        if sends + len(transaction.acks) <= 1:
            return False
        widest = max((len(d.subscriptions) for d in transaction.destinations), default=0)
        deliveries = sends * max(1, widest) + len(transaction.acks)
        return deliveries > self.slice_deliveries or transaction.bytes > SLICE_BYTES

    def commit(self, transaction: Transaction) -> None:
        """Begin to commit; the `transaction.done` callbacks are called at the end."""
        for destination in transaction.destinations.values():
            destination.committing += 1
        self._start(self._commit(transaction))

    def prepare(self, transaction: Transaction) -> None:
        """Begin to prepare under `transaction.xid`; the `transaction.done` callbacks are called at
        the end.
        """
        self._start(self._prepare(transaction))

    def advance(self) -> None:
        """Run one slice of the work that is ready. Called once per event loop iteration."""
        if not self._ready:
            return
        steps = self._ready.popleft()
        sequence = next(steps, None)
        if sequence is not None:
            self._broker.when_durable(sequence, partial(self._start, steps))
        if self._ready:
            self._broker.wake()

    def _start(self, steps: Iterator[int]) -> None:
        """Schedule the first slice for a later iteration: this one may have no time left."""
        self._ready.append(steps)
        self._broker.wake()

    # --- steps: each yields the sequence to wait for before the next one --------------------------

    def _prepare(self, transaction: Transaction) -> Iterator[int]:
        yield from self._write_parts(transaction)
        parts = [part.record for part in transaction.parts]
        self._transactions.record_prepared(
            transaction,
            PreparedTransaction(transaction.xid, [], [], owner=transaction.owner, parts=parts),
        )
        yield transaction.record
        _call_done(transaction)

    def _commit(self, transaction: Transaction) -> Iterator[int]:
        destinations = list(transaction.destinations.values())
        if not transaction.parts:
            yield from self._write_parts(transaction)
        transactions = self._transactions
        yield transactions.record_decision(transaction)
        yield from self._apply(transaction)
        sequence = transactions.resolve(transaction, transaction.record, True)
        for destination in destinations:
            destination.committing -= 1
        transactions.end(transaction, True)
        yield sequence
        _call_done(transaction)

    def _write_parts(self, transaction: Transaction) -> Iterator[int]:
        sends = iter(transaction.sends)
        acks = iter(transaction.acks)
        broker = self._broker
        elapsed = broker.clock.elapsed
        left = len(transaction.sends) + len(transaction.acks)
        done = 0
        end = elapsed() + self.slice_seconds
        while left:
            messages = []
            ended = []
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
                ended.append(ack[0])
                deliveries += 1
            record = broker.core.records.prepared(
                encode(PreparedTransaction(b"", messages, stored_acks(ended)))
            )
            transaction.parts.append(CommitPart(record, len(messages), len(ended)))
            left -= len(messages) + len(ended)
            done += deliveries
            if left and (done >= self.slice_deliveries or elapsed() >= end):
                yield record
                done = 0
                end = elapsed() + self.slice_seconds

    def _apply(self, transaction: Transaction) -> Iterator[int]:
        elapsed = self._broker.clock.elapsed
        done = 0
        end = elapsed() + self.slice_seconds
        while transaction.parts:
            part = transaction.parts.popleft()
            done += part.acks
            for destination, _ in islice(transaction.sends, part.sends):
                done += max(1, len(destination.subscriptions))
            sequence = self.apply_part(transaction, part.sends, part.acks, part.record)
            if transaction.parts and (done >= self.slice_deliveries or elapsed() >= end):
                yield sequence
                done = 0
                end = elapsed() + self.slice_seconds


def stored_acks(deliveries: Iterable[Delivery]) -> list[tuple[int, list[int]]]:
    """Return acknowledged deliveries in the form of a PREPARED record."""
    return [(s.number, sequences) for s, sequences in recorded(deliveries).items()]


def recorded(deliveries: Iterable[Delivery]) -> dict[Subscription, list[int]]:
    """Return the sequences of deliveries whose end is journaled, by subscription."""
    found: dict[Subscription, list[int]] = {}
    for delivery in deliveries:
        if delivery.journaled == RECORDED:
            found.setdefault(delivery.subscription, []).append(delivery.sequence)
    return found


def _call_done(transaction: Transaction) -> None:
    done, transaction.done = transaction.done, []
    for callback in done:
        callback()
