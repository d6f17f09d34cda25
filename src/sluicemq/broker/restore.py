"""From the journal back to a running engine, and the engine's part of a snapshot.

The journal knows which messages are live. The engine only adds what that does not tell: the
settings of declared destinations, durable subscriptions and what each still has to deliver,
failed attempts, places changed by requeueing, and prepared transactions. All bodies stay on disk.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import GONE, RECORDED, TAKEN, Delivery
from sluicemq.broker.engine import DURABLE_SUBSCRIPTION, Broker, entry_of
from sluicemq.broker.records import (
    Attempts,
    Settings,
    State,
    SubscriptionEntry,
    decode_attempts,
    decode_prepared,
    decode_requeue,
    decode_settings,
    decode_state,
    decode_subscription,
    encode,
)
from sluicemq.broker.subscription import Subscription
from sluicemq.journal.format import RecordType
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError

if TYPE_CHECKING:
    from sluicemq.broker.destination import Destination
    from sluicemq.journal.recovery import Recovery, Row


def snapshot(broker: Broker) -> bytes:
    """The engine's part of a snapshot, as of everything appended to the journal so far.

    Costs time for what is unusual (requeued, attempted, pending on durable subscriptions), not
    for the backlog of queues.
    """
    pending = {number: array("Q") for number in broker.durable_subscriptions}
    for number, subscription in broker.durable_subscriptions.items():
        pending[number].extend(d.sequence for d in subscription.browse())
    for message, _, targets in broker.staged:
        for target in targets or ():
            if target.number in pending:
                pending[target.number].append(message.sequence)
    attempts: list[Attempts] = []
    for destination in broker.destinations.values():
        for subscription in (destination.queue, *destination.subscriptions.values()):
            if subscription.number:
                counts = [
                    (d.sequence, d.attempts)
                    for d in subscription.attempted()
                    if d.journaled == RECORDED
                ]
                if counts:
                    attempts.append(Attempts(subscription.number, counts))
    transactions = broker.transactions
    for transaction in (*transactions.open.values(), *transactions.prepared.values()):
        for delivery, _ in transaction.acks:
            if delivery.subscription.number in pending:
                pending[delivery.subscription.number].append(delivery.sequence)
    state = State(
        [
            Settings(d.address.kind, d.name, d.settings)
            for d in broker.destinations.values()
            if not d.automatic and not d.temporary
        ],
        [entry_of(s) for s in broker.durable_subscriptions.values()],
        [(number, sequences.tobytes()) for number, sequences in pending.items()],
        attempts,
        [
            (d.subscription.number, d.sequence, d.order, d.expiration)
            for d in broker.core.requeued.values()
            if d.state != GONE and d.journaled == RECORDED
        ],
        [(t.record, t.payload) for t in transactions.prepared.values()],
    )
    return encode(state)


def restore(broker: Broker, recovery: Recovery) -> int:
    """Fill a new broker from its journal. Returns how many deliveries wait.

    Raises ConfigurationError if a durable subscription has a selector nobody here can compile.
    """
    restoration = _Restoration(broker, recovery)
    restoration.read()
    count = restoration.deliver()
    recovery.done()
    return count


class _Restoration:
    def __init__(self, broker: Broker, recovery: Recovery) -> None:
        self.broker = broker
        self.recovery = recovery
        self.subscriptions: dict[int, SubscriptionEntry] = {}
        self.pending: dict[int, set[int]] = {}
        self.settled: dict[int, set[int]] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.requeued: dict[tuple[int, int], tuple[int, int]] = {}
        self.prepared: dict[int, bytes] = {}
        self.declared: dict[Address, Settings] = {}

    def read(self) -> None:
        """Snapshot, then everything after it."""
        if self.recovery.state:
            self._take(decode_state(self.recovery.state))
        for record in self.recovery.events():
            kind = record.type
            if kind == RecordType.SETTLED:
                self._settled(record.subscription, record.sequences)
            elif kind == RecordType.SETTINGS:
                settings = decode_settings(record.payload)
                self.declared[Address(Kind(settings.kind), settings.name)] = settings
            elif kind == RecordType.DESTINATION_GONE:
                address = self.recovery.address_of(record)
                self.declared.pop(address, None)
                for number, entry in list(self.subscriptions.items()):
                    if address == Address(Kind.TOPIC, entry.topic):
                        del self.subscriptions[number]
            elif kind == RecordType.SUBSCRIPTION:
                entry = decode_subscription(record.payload)
                self.subscriptions[entry.number] = entry
            elif kind == RecordType.SUBSCRIPTION_GONE:
                self.subscriptions.pop(decode_subscription(record.payload).number, None)
            elif kind == RecordType.REQUEUED:
                requeue = decode_requeue(record.payload)
                self.requeued[requeue.subscription, record.reference] = (
                    record.sequence,
                    requeue.expiration,
                )
            elif kind == RecordType.ATTEMPTED:
                self._attempted(decode_attempts(record.payload))
            elif kind == RecordType.PREPARED:
                self.prepared[record.sequence] = record.payload
            elif kind == RecordType.RESOLVED:
                self.prepared.pop(record.reference, None)

    def _take(self, state: State) -> None:
        for settings in state.settings:
            self.declared[Address(Kind(settings.kind), settings.name)] = settings
        for entry in state.subscriptions:
            self.subscriptions[entry.number] = entry
        for number, packed in state.pending:
            self.pending[number] = set(array("Q", packed))
        for attempts in state.attempts:
            self._attempted(attempts)
        for number, sequence, order, expiration in state.requeued:
            self.requeued[number, sequence] = (order, expiration)
        self.prepared.update(state.prepared)

    def _settled(self, subscription: int, sequences: list[int]) -> None:
        if subscription & DURABLE_SUBSCRIPTION:
            self.settled.setdefault(subscription, set()).update(sequences)

    def _attempted(self, attempts: Attempts) -> None:
        for sequence, count in attempts.counts:
            self.attempts[attempts.subscription, sequence] = count

    def deliver(self) -> int:
        """Build destinations, subscriptions and their deliveries."""
        broker = self.broker
        for address, settings in self.declared.items():
            broker.adopt(address, settings.settings)
        for entry in self.subscriptions.values():
            self._subscribe(entry)
        held = self._held()
        destinations: dict[int, Destination] = {}
        count = 0
        for row in self.recovery.rows():
            destination = destinations.get(row[1])
            if destination is None:
                address = broker.journal.addresses[row[1]]
                destination = broker.find(address) or broker.adopt(address, None)
                destinations[row[1]] = destination
                broker.number(destination)
            if not destination.topic:
                self._place(destination.queue, row, held)
                count += 1
            else:
                for subscription in self._takers(destination, row):
                    self._place(subscription, row, held)
                    count += 1
        self._adopt_prepared(held)
        return count

    def _subscribe(self, entry: SubscriptionEntry) -> None:
        broker = self.broker
        selector = None
        if entry.selector:
            if broker.compile_selector is None:
                raise ConfigurationError(
                    f"the durable subscription {entry.name} of topic {entry.topic} has a selector, "
                    "but no protocol that understands selectors is installed"
                )
            selector = broker.compile_selector(entry.selector)
        address = Address(Kind.TOPIC, entry.topic)
        topic = broker.find(address) or broker.adopt(address, None)
        subscription = Subscription(
            broker.core,
            topic,
            entry.name,
            entry.number,
            selector,
            entry.exclude or None,
            entry.shared,
        )
        broker.adopt_subscription(subscription)

    def _takers(self, topic: Destination, row: Row) -> list[Subscription]:
        """The subscriptions of a topic that still have to deliver a message."""
        sequence = row[0]
        if topic.settings.hold:
            return [topic.queue]
        if sequence <= self.recovery.position:
            chosen = [n for n, sequences in self.pending.items() if sequence in sequences]
        else:
            chosen = list(self.broker.journal.fetch(sequence).routes)
        subscriptions = self.broker.durable_subscriptions
        return [
            subscriptions[number]
            for number in chosen
            if number in subscriptions and sequence not in self.settled.get(number, ())
        ]

    def _place(
        self,
        subscription: Subscription,
        row: Row,
        held: dict[tuple[int, int], list[Delivery]],
    ) -> None:
        sequence, _, priority, expiration, _, size, _, delayed = row
        key = (subscription.number, sequence)
        clock = self.broker.clock
        place = self.requeued.get(key) if self.requeued else None
        if place is not None:
            expiration = place[1]
        expires = max(1, clock.steady + expiration - clock.wall) if expiration else 0
        delivery = Delivery(
            subscription, sequence, None, priority, size, RECORDED, expiration, expires
        )
        if self.attempts:
            delivery.attempts = self.attempts.get(key, 0)
        if held and key in held:
            delivery.state = TAKEN
            subscription.unacked += 1
            subscription.unacked_bytes += size
            held[key].append(delivery)
        elif place is not None:
            delivery.order = place[0]
            self.broker.core.requeued[key] = delivery
            subscription.restore_requeued(delivery)
        else:
            deliver_at = self.broker.journal.fetch(sequence).deliver_at if delayed else 0
            subscription.restore(delivery, deliver_at)

    def _held(self) -> dict[tuple[int, int], list[Delivery]]:
        """Where to put the deliveries that prepared transactions have acknowledged."""
        held: dict[tuple[int, int], list[Delivery]] = {}
        for payload in self.prepared.values():
            for subscription, sequences in decode_prepared(payload).acks:
                for sequence in sequences:
                    held[subscription, sequence] = []
        return held

    def _adopt_prepared(self, held: dict[tuple[int, int], list[Delivery]]) -> None:
        for record, payload in self.prepared.items():
            prepared = decode_prepared(payload)
            deliveries: list[Delivery] = []
            for subscription, sequences in prepared.acks:
                for sequence in sequences:
                    deliveries.extend(held[subscription, sequence])
            self.broker.transactions.adopt(record, payload, prepared, deliveries)
