"""Recovery of the engine from the journal, its part of a snapshot, and offline import.

The journal knows which messages are live. The engine adds the state that the messages do not
contain: settings of declared destinations, durable subscriptions and their pending messages,
attempts, positions changed by requeueing, prepared transactions, and batches. All bodies stay on
disk.

A delivery interrupted by the end of the broker counts as an attempt, as for a consumer that
disconnects: the client may have seen it. Recovery itself dead-letters no message for its attempts:
the limit is checked only after the next failed delivery.

An offline import publishes nothing through the engine, which only provides the destinations, the
subscriptions and their numbers, so a million messages need no memory: they are appended as the
engine would do, and the broker recovers them at its next start.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat

from sluicemq.broker.broker import Broker
from sluicemq.broker.codec import (
    Attempts,
    BatchPart,
    EngineState,
    PreparedMessage,
    PreparedTransaction,
    StoredSettings,
    SubscriptionEntry,
    as_text,
    decode_attempts,
    decode_batch,
    decode_clock_step,
    decode_prepared,
    decode_requeue,
    decode_settings,
    decode_state,
    decode_subscription,
    encode,
)
from sluicemq.broker.destinations import stored_settings, subscription_entry
from sluicemq.broker.dispatch import enqueue
from sluicemq.broker.pending.entry import ENDED, RECORDED, SHARED, UNACKED
from sluicemq.broker.state import DURABLE_SUBSCRIPTION, Delivery, Destination, Subscription
from sluicemq.broker.subscription import requeue_in_place
from sluicemq.journal import FileJournal
from sluicemq.journal.format import Cause, RecordType, decode_deliveries
from sluicemq.journal.recovery import LiveRow, Recovery
from sluicemq.model.destination import Address, Kind, is_temporary
from sluicemq.model.errors import ConfigurationError, SelectorError
from sluicemq.model.message import Message


def snapshot(broker: Broker) -> bytes:
    """Return the engine's part of a snapshot, up to the last record appended to the journal.

    Its cost depends on exceptional messages (requeued, attempted, pending on durable
    subscriptions), not on the backlog of queues.
    """
    pending = {
        number: array("Q", _recorded(subscription))
        for number, subscription in broker.durable_subscriptions.items()
    }
    attempts: list[Attempts] = []
    unacked: dict[int, list[Delivery]] = {}
    for destination in broker.destinations.values():
        if destination.topic and destination.number and _may_have_group_messages(destination):
            group = pending[destination.number] = array("Q", destination.shared_copies)
            for subscription in (destination.queue, *destination.members):
                group.extend(_recorded(subscription))
        for subscription in destination.all_subscriptions:
            if subscription.number:
                counts = list(_failures(subscription))
                if counts:
                    attempts.append(Attempts(subscription.number, counts))
                if subscription.unacked and broker.core.event_recorder.recording:
                    unacked.setdefault(subscription.number, []).extend(_unacked(subscription))
    for message, _, _ in broker.publisher.staged:
        for number in message.routes:
            if number in pending:
                pending[number].append(message.sequence)
    state = EngineState(
        settings=[
            stored_settings(d, broker.settings.default_destination)
            for d in broker.destinations.values()
            if d.number or d.paused or d.is_permanent or not (d.temporary or d.automatic)
        ],
        subscriptions=[subscription_entry(s) for s in broker.durable_subscriptions.values()],
        pending=[(number, sequences.tobytes()) for number, sequences in pending.items()],
        attempts=attempts,
        requeued=[
            (d.subscription.number, d.sequence, d.order, d.expiration)
            for d in broker.core.requeued_at_tail.values()
            if d.state != ENDED and d.journaled == RECORDED
        ],
        prepared=[
            record for transaction in broker.transactions.values() for record in transaction.records
        ],
        next_subscription=broker.next_subscription,
        delivered=[
            (
                number,
                array("Q", [delivery.sequence for delivery in deliveries]).tobytes(),
                array("I", [delivery.attempts for delivery in deliveries]).tobytes(),
            )
            for number, deliveries in unacked.items()
        ],
        writers=broker.batches.state(),
        clock_steps=broker.core.clock_log.steps,
    )
    return encode(state)


def _may_have_group_messages(topic: Destination) -> bool:
    """Return whether messages may be for the topic's group."""
    return (
        topic.settings.retain_without_subscriptions
        or topic.grouped
        or bool(topic.shared_copies or topic.queue.waiting)
    )


def _recorded(subscription: Subscription) -> Iterator[int]:
    """Return the sequences of deliveries whose end this subscription alone journals."""
    return (d.sequence for d in subscription.browse() if d.journaled == RECORDED)


def _failures(subscription: Subscription) -> Iterator[tuple[int, int]]:
    """Yield (sequence, failed attempts) of journaled deliveries that have failed at least
    once.
    """
    for delivery in subscription.requeued.values():
        if delivery.journaled >= SHARED:
            yield delivery.sequence, delivery.attempts
    for delivery in _unacked(subscription):
        if delivery.attempts > 1:
            yield delivery.sequence, delivery.attempts - 1


def _unacked(subscription: Subscription) -> Iterator[Delivery]:
    """Return the unacked deliveries that are journaled."""
    return (d for d in subscription.unacked_deliveries if d.journaled >= SHARED)


def recover(broker: Broker, recovery: Recovery) -> int:
    """Fill a new broker from its journal and return the number of waiting deliveries.

    Raises ConfigurationError if the selector of a durable subscription cannot be compiled.
    """
    replay = _Recovery(broker, recovery)
    replay.read()
    broker.core.clock_log.resume(recovery.last_time())
    count = replay.deliver()
    recovery.close()
    return count


class _Recovery:
    """State read from the journal, applied to the broker when all records are read.

    attempts   failed deliveries, by subscription and sequence
    unacked_attempts  deliveries so far of messages not acknowledged afterwards, by subscription,
                      then by sequence
    acked_deliveries  recovered deliveries that a prepared transaction has acknowledged, by
                      subscription and sequence; [] until they are recovered
    """

    def __init__(self, broker: Broker, recovery: Recovery) -> None:
        self.broker = broker
        self.recovery = recovery
        self.subscriptions: dict[int, SubscriptionEntry] = {}
        self.pending: dict[int, set[int]] = {}
        self.completed: dict[int, set[int]] = {}
        self.attempts: dict[tuple[int, int], int] = {}
        self.unacked_attempts: dict[int, dict[int, int]] = {}
        self.requeued: dict[tuple[int, int], tuple[int, int]] = {}
        self.unresolved: dict[int, None] = {}
        """PREPARED records that are not resolved, in order."""
        self.prepared: dict[int, PreparedTransaction] = {}
        self.acked_deliveries: dict[tuple[int, int], list[Delivery]] = {}
        self.declared: dict[Address, StoredSettings] = {}
        self.orphans: dict[int, list[int]] = {}

    def read(self) -> None:
        """Read the snapshot, then all records after it."""
        if self.recovery.state:
            self._read_state(decode_state(self.recovery.state))
        for record in self.recovery.events():
            match record.type:
                case RecordType.COMPLETED:
                    self._read_completed(record.subscription, record.sequences)
                case RecordType.DELIVERED:
                    sequences = record.sequences
                    self._read_delivered(record.subscription, sequences, repeat(1, len(sequences)))
                case RecordType.REDELIVERED:
                    self._read_delivered(*decode_deliveries(record.body))
                case RecordType.BATCH_PART:
                    part = decode_batch(record.body)
                    self.broker.batches.record_part(part, record.time // 1000, 0)
                case RecordType.CLOCK_STEP:
                    step = decode_clock_step(record.body)
                    if step:
                        self.broker.core.clock_log.steps.append((record.sequence, step))
                case RecordType.DESTINATION_SETTINGS:
                    settings = decode_settings(record.body)
                    self.declared[settings.address] = settings
                case RecordType.DESTINATION_DELETED:
                    address = record.address
                    self.declared.pop(address, None)
                    for number, entry in list(self.subscriptions.items()):
                        if address == entry.address:
                            del self.subscriptions[number]
                case RecordType.SUBSCRIPTION_CREATED:
                    self._read_subscription(decode_subscription(record.body))
                case RecordType.SUBSCRIPTION_DELETED:
                    self.subscriptions.pop(decode_subscription(record.body).number, None)
                case RecordType.REQUEUED:
                    requeue = decode_requeue(record.body)
                    key = (requeue.subscription, record.reference)
                    self.requeued[key] = (record.sequence, requeue.expiration)
                    if requeue.attempts:
                        self.attempts[key] = requeue.attempts
                case RecordType.DELIVERY_ATTEMPTS:
                    self._read_attempts(decode_attempts(record.body))
                case RecordType.TRANSACTION_PREPARED:
                    self.unresolved[record.sequence] = None
                case RecordType.TRANSACTION_RESOLVED:
                    self.unresolved.pop(record.reference, None)

    def _read_state(self, state: EngineState) -> None:
        for settings in state.settings:
            self.declared[settings.address] = settings
        self.broker.next_subscription = state.next_subscription
        for entry in state.subscriptions:
            self._read_subscription(entry)
        for number, packed in state.pending:
            self.pending[number] = set(array("Q", packed))
        for attempts in state.attempts:
            self._read_attempts(attempts)
        for number, sequence, order, expiration in state.requeued:
            self.requeued[number, sequence] = (order, expiration)
        self.unresolved.update(dict.fromkeys(state.prepared))
        for number, packed, counts in state.delivered:
            self._read_delivered(number, array("Q", packed), array("I", counts))
        self.broker.batches.recover(state.writers)
        self.broker.core.clock_log.steps.extend(state.clock_steps)

    def _read_subscription(self, entry: SubscriptionEntry) -> None:
        """Record a subscription, and prevent the reuse of its number, whose old messages a new
        subscription would inherit.
        """
        self.subscriptions[entry.number] = entry
        broker = self.broker
        broker.next_subscription = max(
            broker.next_subscription, (entry.number & ~DURABLE_SUBSCRIPTION) + 1
        )

    def _read_completed(self, subscription: int, sequences: list[int]) -> None:
        delivery_counts = self.unacked_attempts.get(subscription)
        if delivery_counts:
            for sequence in sequences:
                delivery_counts.pop(sequence, None)
        address = self.broker.journal.addresses.get(subscription)
        if subscription & DURABLE_SUBSCRIPTION or (
            # the number of a topic is that of its group
            address is not None and address.kind is Kind.TOPIC
        ):
            self.completed.setdefault(subscription, set()).update(sequences)

    def _read_delivered(
        self, subscription: int, sequences: Iterable[int], attempts: Iterable[int]
    ) -> None:
        delivery_counts = self.unacked_attempts.setdefault(subscription, {})
        delivery_counts.update(zip(sequences, attempts, strict=True))

    def _read_attempts(self, attempts: Attempts) -> None:
        delivery_counts = self.unacked_attempts.get(attempts.subscription, {})
        for sequence, count in attempts.counts:
            self.attempts[attempts.subscription, sequence] = count
            delivery_counts.pop(sequence, None)

    def deliver(self) -> int:
        """Create the destinations, subscriptions and deliveries; return the number of
        deliveries.
        """
        for address, settings in self.declared.items():
            if not settings.temporary and not self._requires_use(settings):
                self._recover_destination(address, settings)
        for entry in self.subscriptions.values():
            self._subscribe(entry)
        for record in self.unresolved:
            body = self.broker.journal.fetch_entry(record).body
            prepared = self.prepared[record] = decode_prepared(body)
            for subscription, sequences in prepared.acks:
                for sequence in sequences:
                    self.acked_deliveries[subscription, sequence] = []
        destinations: dict[int, Destination | None] = {}
        count = 0
        for row in self.recovery.live_rows():
            if not count:
                self.broker.core.clock_log.drop_before(row.sequence)
            number = row[1]
            if number in destinations:
                destination = destinations[number]
            else:
                destination = destinations[number] = self._destination(row)
            if destination is None or row.transient:
                self._add_orphans(row, row.references)
            elif not destination.topic:
                self._recover_delivery(destination.queue, row)
                count += 1
            else:
                count += self._distribute(destination, row)
        self._adopt_prepared()
        self._discard_orphans()
        return count

    def _requires_use(self, settings: StoredSettings) -> bool:
        """Return whether a destination is recovered only if it has messages or durable
        subscriptions.

        This applies to destinations created by use, with default settings, that are deleted when
        idle.
        """
        stays = settings.paused or settings.grouped or settings.settings.idle_timeout == 0
        return settings.automatic and settings.default_settings and not stays

    def _recover_destination(
        self, address: Address, settings: StoredSettings | None, created: int = 0
    ) -> Destination:
        """Recover a destination; without settings, as an automatic one.

        `created` is in wall ms and applies unless the journal has the time of creation.
        """
        broker = self.broker
        defaults = broker.settings.default_destination
        if settings is None:
            settings = StoredSettings(
                address.kind, address.name, defaults, automatic=True, default_settings=True
            )
        destination = broker.destinations.create(
            address,
            defaults if settings.default_settings else settings.settings,
            automatic=settings.automatic,
            created=settings.created or created,
            creator=settings.creator,
            provenance=settings.provenance,
        )
        destination.recorded_depth = None
        destination.paused = settings.paused
        destination.grouped = settings.grouped
        return destination

    def _destination(self, row: LiveRow) -> Destination | None:
        """Return the destination of a row; None if it is deleted or was temporary.

        After a crash a temporary destination may have messages that were not acknowledged.
        """
        broker = self.broker
        address = broker.journal.addresses.get(row.destination)
        if address is None:
            return None
        settings = self.declared.get(address)
        if settings is not None and settings.temporary:
            return None
        destination = self._resolve(address, row.time)
        destination.set_number(row.destination)
        return destination

    def _resolve(self, address: Address, created: int = 0) -> Destination:
        """Return the destination, recovering it if needed; `created` as in
        `_recover_destination`.
        """
        return self.broker.destinations.find(address) or self._recover_destination(
            address, self.declared.get(address), created
        )

    def _discard_orphans(self) -> None:
        """Journal the end of messages without a subscription, and forget temporary destinations."""
        journal = self.broker.journal
        wall = self.broker.clock.wall
        for number, sequences in self.orphans.items():
            journal.append_completed(number, number, Cause.DISCARDED, sequences, wall)
        for address, settings in self.declared.items():
            if settings.temporary:
                journal.forget_destination(address)

    def _subscribe(self, entry: SubscriptionEntry) -> None:
        broker = self.broker
        address = entry.address
        name = as_text(entry.name)
        selector = None
        if entry.selector:
            try:
                selector = broker.restored_selector(as_text(entry.selector))
            except SelectorError as error:
                raise ConfigurationError(
                    f"the durable subscription {name} of topic {address.name} has a selector "
                    f"that this version does not understand: {error}"
                ) from None
        topic = self._resolve(address)
        subscription = Subscription(
            broker.core,
            topic,
            name,
            entry.number,
            selector,
            as_text(entry.exclude) or None,
            entry.shared,
            entry.owner,
        )
        topic.subscribe(subscription)
        broker.durable_subscriptions[subscription.number] = subscription

    def _distribute(self, topic: Destination, row: LiveRow) -> int:
        """Add a topic's message to the subscriptions that still have to deliver it; return their
        number.
        """
        sequence = row.sequence
        if sequence <= self.recovery.position:
            numbers = (topic.number, *(s.number for s in topic.subscriptions.values()))
            target_numbers = [n for n in numbers if sequence in self.pending.get(n, ())]
        else:
            target_numbers = list(self.broker.journal.fetch(sequence).routes)
        target_numbers = [n for n in target_numbers if sequence not in self.completed.get(n, ())]
        subscriptions = self.broker.durable_subscriptions
        targets = [subscriptions[number] for number in target_numbers if number in subscriptions]
        for subscription in targets:
            self._recover_delivery(subscription, row)
        count = len(targets)
        references = row.references - count
        if topic.number in target_numbers:
            references -= 1
            count += self._distribute_to_group(topic, row)
        # references of deleted subscriptions, or of ends that were not journaled
        self._add_orphans(row, references)
        return count

    def _distribute_to_group(self, topic: Destination, row: LiveRow) -> int:
        """Add a message that the topic's group has not ended; return the number of subscriptions.

        If the topic never had a member, a durable subscription may have taken the message over. The
        journal does not record which one, so all matching subscriptions get it, except those that
        it was published to: they had their own copy.
        """
        targets: list[Subscription] = []
        if topic.subscriptions and not topic.grouped:
            message = self.broker.journal.fetch(row.sequence)
            targets = [
                subscription
                for subscription in topic.subscriptions.values()
                if subscription.number not in message.routes and subscription.accepts(message)
            ]
        if not targets:
            self._recover_delivery(topic.queue, row)
            return 1
        topic.shared_copies[row.sequence] = len(targets)
        for subscription in targets:
            self._recover_delivery(subscription, row, SHARED)
        return len(targets)

    def _add_orphans(self, row: LiveRow, references: int) -> None:
        """Record that `references` ends which the journal awaits will not be journaled."""
        if references > 0:
            self.orphans.setdefault(row.destination, []).extend([row.sequence] * references)

    def _recover_delivery(
        self, subscription: Subscription, row: LiveRow, journaled: int = RECORDED
    ) -> None:
        sequence, _, priority, expiration, _, size, _, delayed, _ = row
        key = (subscription.number, sequence)
        requeue = self.requeued.get(key) if self.requeued else None
        if requeue is not None:
            expiration = requeue[1]
        expires = epoch = 0
        if expiration or delayed:
            epoch = self.broker.core.clock_log.epoch_of(requeue[0] if requeue else sequence)
        if expiration:
            expires = max(1, expiration - epoch)
        delivery = Delivery(
            subscription,
            sequence,
            None,
            subscription.destination.priority(priority),
            size,
            journaled,
            expiration,
            expires,
        )
        if self.attempts:
            delivery.attempts = self.attempts.get(key, 0)
        delivery_counts = self.unacked_attempts.get(subscription.number)
        if delivery_counts:
            delivery.attempts = max(delivery.attempts, delivery_counts.get(sequence, 0))
        if requeue is not None:
            delivery.order = requeue[0]
            self.broker.core.requeued_at_tail[key] = delivery
        if self.acked_deliveries and key in self.acked_deliveries:
            delivery.state = UNACKED
            delivery.attempts = max(delivery.attempts, self.attempts.get(key, 0) + 1)
            subscription.unacked += 1
            subscription.unacked_bytes += size
            self.acked_deliveries[key].append(delivery)
        elif requeue is not None:
            subscription.waiting += 1
            subscription.waiting_bytes += size
            if expires:
                self.broker.core.wheel.add(delivery, self.broker.clock.steady)
            requeue_in_place(delivery)
        else:
            if delivery.attempts:
                subscription.requeued[sequence] = delivery
            due = self.broker.journal.fetch(sequence).deliver_at - epoch if delayed else 0
            enqueue(delivery, due)

    def _adopt_prepared(self) -> None:
        """Recover prepared transactions, complete decided commits, and undo undecided ones."""
        transactions = self.broker.transactions
        part_records = {part for prepared in self.prepared.values() for part in prepared.parts}
        for record, prepared in self.prepared.items():
            if record in part_records:
                continue
            created = self.broker.journal.fetch_entry(record).time // 1000
            transaction = transactions.adopt(record, prepared.xid, created, prepared.owner)
            for part in (*prepared.parts, record):
                prepared_part = self.prepared.get(part)
                if prepared_part is None:
                    continue  # the part has been applied
                sends = list(self._sends(part, prepared.decided))
                deliveries = [
                    delivery
                    for subscription, sequences in prepared_part.acks
                    for sequence in sequences
                    for delivery in self.acked_deliveries[subscription, sequence]
                ]
                transactions.adopt_part(transaction, part, sends, deliveries)
            if prepared.decided:
                transactions.finish(transaction)
            elif not prepared.xid:
                transactions.rollback(transaction)

    def _sends(self, record: int, decided: bool) -> Iterator[tuple[Destination, Message]]:
        """Yield the messages of a PREPARED record with their destinations.

        Messages to temporary destinations, which were deleted with their connections, are left
        out; so are those that do not survive a restart if their commit was `decided` before it.
        """
        for send in self.prepared[record].sends:
            message = send.message(record)
            is_lost = decided and not message.durability.survives
            if not is_lost and not is_temporary(message.destination.name):
                yield self._resolve(message.destination), message


class OfflineImport:
    """Appends units of messages and prepared transactions.

    The caller assigns the numbers of destinations before a unit begins, as that may append records
    of its own, and ends each unit with `end_unit`.
    """

    def __init__(self, broker: Broker, journal: FileJournal, writer: str) -> None:
        """Import into `journal`, which is that of `broker`.

        `writer` names the source in the BATCH_PART records that end the units.
        """
        self._journal = journal
        self._clock = broker.clock
        self._writer = writer

    def message(self, message: Message, destination: int, attempts: Mapping[int, int]) -> int:
        """Append a message of the unit and return its sequence.

        `attempts` are its failed deliveries by the number of each subscription that receives it.
        """
        message.arrival = self._clock.wall
        sequence = self._journal.append_message(message, destination, len(attempts), False)
        for subscription, count in attempts.items():
            if count:
                payload = encode(Attempts(subscription, [(sequence, count)]))
                self._append(RecordType.DELIVERY_ATTEMPTS, payload, last=False)
        return sequence

    def prepared(
        self, xid: bytes, sends: Iterable[Message], acks: list[tuple[int, list[int]]]
    ) -> None:
        """Append a prepared transaction of the unit; `acks` are (subscription, sequences)."""
        messages = [PreparedMessage.of(message) for message in sends]
        payload = encode(PreparedTransaction(xid, messages, acks))
        self._append(RecordType.TRANSACTION_PREPARED, payload, references=1, last=False)

    def end_unit(self, number: int, messages: int) -> None:
        """End a unit with its number and its number of messages, and wait until it is on disk."""
        part = BatchPart(self._writer, number, 0, 0, True, 0, messages)
        self._append(RecordType.BATCH_PART, encode(part), last=True)
        self._journal.sync()

    def _append(self, type: int, payload: bytes, *, references: int = 0, last: bool) -> None:
        self._journal.append_entry(
            type, payload, self._clock.wall, references=references, last=last
        )
