"""Transactions over sends and acknowledgements, local and two-phase (XA).

              publish, settle                 prepare                    commit
    (begin) ────────────────> OPEN ───────────────────────> PREPARED ──────────────> (gone)
                               │  └──────── commit ────────────┼───────────────────> (gone)
                               └─────────── rollback ──────────┴───────────────────> (gone)

Until the commit nothing of it exists for anyone else. A commit is one journal unit, so after a
crash it happened whole or not at all. A prepared transaction is in the journal and belongs to
no connection: it survives a restart and anyone who knows its xid may end it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING

from sluicemq.broker.consumer import Consumer
from sluicemq.broker.delivery import RECORDED, Delivery
from sluicemq.broker.records import Prepared, Resolved, StoredMessage, encode
from sluicemq.broker.redelivery import give_back, hold
from sluicemq.journal.format import Cause, RecordType
from sluicemq.model.errors import TransactionEnded, TransactionError, TransactionNotFound
from sluicemq.model.message import Message

if TYPE_CHECKING:
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.engine import Broker
    from sluicemq.broker.subscription import Subscription


class TransactionState(Enum):
    """See the module."""

    OPEN = "open"
    PREPARED = "prepared"
    ENDED = "ended"


class Transaction:
    """Sends and acknowledgements that take effect together.

    created when it began, in wall ms since the epoch; of one that the journal brought back, when it
            was prepared
    sends   messages in order, with their destinations
    acks    deliveries in order, with the consumers that held them (None after a restart)
    xid     set by `prepare`, as are
    record  the sequence of its PREPARED record, and
    payload what that says
    told    called when it has ended, by whomever: True if it was committed
    """

    __slots__ = (
        "acks",
        "created",
        "number",
        "payload",
        "record",
        "sends",
        "state",
        "told",
        "xid",
    )

    def __init__(self, number: int, created: int) -> None:
        self.number = number
        self.created = created
        self.state = TransactionState.OPEN
        self.sends: list[tuple[Destination, Message]] = []
        self.acks: list[tuple[Delivery, Consumer | None]] = []
        self.xid = b""
        self.record = 0
        self.payload = b""
        self.told: Callable[[bool], None] | None = None


class Transactions:
    """The broker's transactions: `open` by number, `prepared` by xid."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._numbers = count(1)
        self.open: dict[int, Transaction] = {}
        self.prepared: dict[bytes, Transaction] = {}

    def begin(self) -> Transaction:
        """A new, empty transaction."""
        transaction = Transaction(next(self._numbers), self._broker.clock.wall)
        self.open[transaction.number] = transaction
        return transaction

    def publish(self, transaction: Transaction, destination: Destination, message: Message) -> None:
        """Send as part of the transaction. Raises as Broker.publish, and TransactionError (ended,
        or prepared)."""
        self._expect(transaction, TransactionState.OPEN)
        if destination.limited or destination.parked:
            admitted = self._broker.admit(destination, message, None)
            assert admitted is not None  # without a callback nothing is parked
            destination, message = admitted
        message.epoch = self._broker.clock.epoch
        transaction.sends.append((destination, message))

    def settle(self, transaction: Transaction, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge as part of the transaction; False if the consumer does not hold it."""
        self._expect(transaction, TransactionState.OPEN)
        delivery = consumer.unacked.pop(sequence, None)
        if delivery is None:
            return False
        transaction.acks.append((delivery, consumer))
        consumer.subscription.let_go(consumer)
        window = consumer.window
        if window.refill:
            window.credit += 1
            if window.credit == 1:
                for peer in window.consumers:
                    peer.subscription.enter_line(peer)
            self._broker.core.dirty[consumer.subscription] = None
        return True

    def unsettle(self, transaction: Transaction, consumer: Consumer, sequence: int) -> bool:
        """Take an acknowledgement back: the consumer holds the delivery again, also one that has
        retired. Of one that has gone it goes back to its place in the line."""
        self._expect(transaction, TransactionState.OPEN)
        for place, (delivery, holder) in enumerate(transaction.acks):
            if delivery.sequence == sequence and holder is consumer:
                del transaction.acks[place]
                subscription = consumer.subscription
                if consumer in subscription.consumers or (
                    consumer.retired and not subscription.closed
                ):
                    hold(consumer, delivery)
                else:
                    give_back(subscription, [delivery], True)
                return True
        return False

    def prepare(self, transaction: Transaction, xid: bytes) -> int:
        """First phase. Returns the sequence to wait for before answering. Raises TransactionEnded,
        and TransactionError when it, or another of that xid, is prepared already."""
        self._expect(transaction, TransactionState.OPEN)
        if xid in self.prepared:
            raise TransactionError(f"a transaction with xid {xid.hex()} is prepared already")
        acks: dict[int, list[int]] = {}
        for delivery, _ in transaction.acks:
            if delivery.journaled == RECORDED:
                acks.setdefault(delivery.subscription.number, []).append(delivery.sequence)
        payload = encode(
            Prepared(
                xid,
                [StoredMessage.of(message) for _, message in transaction.sends],
                list(acks.items()),
            )
        )
        broker = self._broker
        transaction.record = broker.journal.append_entry(
            RecordType.PREPARED, payload, broker.clock.wall, references=1
        )
        transaction.xid = xid
        transaction.payload = payload
        transaction.state = TransactionState.PREPARED
        del self.open[transaction.number]
        self.prepared[xid] = transaction
        return transaction.record

    def adopt(
        self,
        record: int,
        payload: bytes,
        prepared: Prepared,
        deliveries: list[Delivery],
        created: int,
    ) -> None:
        """Bring a prepared transaction back after a restart."""
        transaction = Transaction(next(self._numbers), created)
        transaction.state = TransactionState.PREPARED
        transaction.xid = prepared.xid
        transaction.record = record
        transaction.payload = payload
        for stored in prepared.sends:
            message = stored.message(record)
            transaction.sends.append((self._broker.resolve(message.destination), message))
        transaction.acks = [(delivery, None) for delivery in deliveries]
        self.prepared[prepared.xid] = transaction

    def find_prepared(self, xid: bytes) -> Transaction:
        """The prepared transaction with that xid. Raises TransactionNotFound."""
        transaction = self.prepared.get(xid)
        if transaction is None:
            raise TransactionNotFound(f"no prepared transaction has xid {xid.hex()}")
        return transaction

    def commit(self, transaction: Transaction) -> int:
        """Make everything happen. Returns the sequence to wait for before answering (0: none).

        Raises TransactionEnded; DestinationNotFound, LimitExceeded when a destination has gone
        and cannot be created again: then nothing has happened.
        """
        was = transaction.state
        self._expect_some(transaction)
        broker = self._broker
        sends = []
        for destination, message in transaction.sends:
            if destination.removed:
                destination = broker.resolve(destination.address)
            if message.durability:
                # numbering appends records of its own, which must not end up inside the unit
                broker.number(destination)
            sends.append((destination, message))
        acks: dict[Subscription, list[int]] = {}
        for delivery, _ in transaction.acks:
            if delivery.journaled == RECORDED:
                acks.setdefault(delivery.subscription, []).append(delivery.sequence)
        prepared = was is TransactionState.PREPARED
        if acks:
            broker.core.notes.write()
        left = sum(1 for _, message in sends if message.durability) + len(acks) + prepared
        sequence = 0
        for destination, message in sends:
            if message.durability:
                left -= 1
                broker.accept(destination, message, last=left == 0)
                sequence = message.sequence
            else:
                broker.accept(destination, message, last=False)
        wall = broker.clock.wall
        for subscription, sequences in acks.items():
            left -= 1
            sequence = broker.journal.append_settled(
                subscription.number,
                subscription.destination.number,
                Cause.ACKNOWLEDGED,
                sequences,
                wall,
                last=left == 0,
            )
        if prepared:
            sequence = self._resolve(transaction, True)
        broker.show_unit()
        for delivery, _ in transaction.acks:
            subscription = delivery.subscription
            subscription.unacked -= 1
            subscription.unacked_bytes -= delivery.size
            subscription.destination.statistics.settled += 1
            subscription.forget(delivery)
        self._end(transaction, True)
        return sequence

    def rollback(self, transaction: Transaction) -> int:
        """Undo: sends are forgotten, acknowledged deliveries go back to their place.

        Returns the sequence to wait for before answering (0: none). Raises TransactionEnded.
        """
        self._expect_some(transaction)
        sequence = 0
        if transaction.state is TransactionState.PREPARED:
            sequence = self._resolve(transaction, False)
        returned: dict[Subscription, list[Delivery]] = {}
        for delivery, _ in transaction.acks:
            returned.setdefault(delivery.subscription, []).append(delivery)
        for subscription, deliveries in returned.items():
            give_back(subscription, deliveries, True)
        self._end(transaction, False)
        return sequence

    def _resolve(self, transaction: Transaction, committed: bool) -> int:
        return self._broker.journal.append_entry(
            RecordType.RESOLVED,
            encode(Resolved(transaction.xid, committed)),
            self._broker.clock.wall,
            reference=transaction.record,
        )

    def _end(self, transaction: Transaction, committed: bool) -> None:
        transaction.state = TransactionState.ENDED
        self.open.pop(transaction.number, None)
        if self.prepared.get(transaction.xid) is transaction:
            del self.prepared[transaction.xid]
        transaction.sends.clear()
        transaction.acks.clear()
        transaction.payload = b""  # who remembers how it ended must not keep its bodies
        told, transaction.told = transaction.told, None
        if told is not None:
            told(committed)

    def _expect_some(self, transaction: Transaction) -> None:
        if transaction.state is TransactionState.ENDED:
            raise TransactionEnded(f"transaction {transaction.number} has ended")

    def _expect(self, transaction: Transaction, state: TransactionState) -> None:
        self._expect_some(transaction)
        if transaction.state is not state:
            raise TransactionError(
                f"transaction {transaction.number} is {transaction.state.value}, not {state.value}"
            )
