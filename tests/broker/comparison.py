"""Run a broker and its naive model in lockstep: each method changes both in the same way.

`check` compares them. Destinations and subscriptions are identified by name on both sides,
consumers and transactions by pairs of objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import NamedTuple

import pytest

from sluicemq import broker as engine
from sluicemq.broker.codec import BatchPart, decode_prepared
from sluicemq.broker.pending.cursor import Cursor
from sluicemq.broker.pending.entry import READY, RECORDED, SCHEDULED, UNACKED
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.broker.scheduler import ManualClock
from sluicemq.journal import FileJournal
from sluicemq.journal.interface import Journal
from sluicemq.model.dead_letters import origin_of
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import (
    ActionRefused,
    BatchRefused,
    LimitExceeded,
    SubscriptionInUse,
)
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from tests.broker import model
from tests.support.broker import purge

STATES = {READY: model.READY, UNACKED: model.UNACKED, SCHEDULED: model.SCHEDULED}


class AtLeast:
    """A selector: priority, or the size of the body, at or above a threshold."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.equalities = ()
        self.nodes = 3
        self.field, _, threshold = text.partition(" >= ")
        self.threshold = int(threshold)

    def __call__(self, message: Message) -> bool:
        return self.matches(message.priority, len(message.body))

    def matches(self, priority: int, size: int) -> bool:
        return (priority if self.field == "priority" else size) >= self.threshold


class WindowPair:
    def __init__(self, credit: int, refill: bool) -> None:
        self.engine = engine.Window(credit, refill)
        self.model = model.Window(credit, refill)
        self.overdrawn = False


class Delivered(NamedTuple):
    """A delivery at the time the engine made it."""

    consumer: model.Consumer
    name: str
    sequence: int
    order: int
    attempts: int


class ConsumerPair:
    """A consumer of the engine and of the model, and the engine's sink."""

    def __init__(
        self, comparison: ModelComparison, window: WindowPair, model_consumer: model.Consumer
    ) -> None:
        self.comparison = comparison
        self.window = window
        self.model = model_consumer
        self.engine: engine.Consumer | None = None

    def deliver(self, consumer: engine.Consumer, deliveries: list[engine.Delivery]) -> None:
        assert self.engine is None or consumer is self.engine
        for delivery in deliveries:
            assert delivery.message is not None
            name = self.comparison.name_of(delivery)
            self.comparison.delivered.append(
                Delivered(self.model, name, delivery.sequence, delivery.order, delivery.attempts)
            )
        self.comparison.report()

    def detached(self, consumer: engine.Consumer) -> None:
        assert self.engine is consumer
        self.comparison.consumers.remove(self)


class TransactionPair:
    def __init__(self, transaction: engine.Transaction) -> None:
        self.engine = transaction
        self.model = model.Transaction()

    def drop_sends(self, number: int) -> None:
        """Drop the first messages, which the engine has dropped with their destinations."""
        assert all(destination.removed for destination, _ in self.model.sends[:number])
        del self.model.sends[:number]


class CommitObserver:
    """Observer of the engine that applies the parts of commits, which have one message or
    acknowledgement each, to the model."""

    def __init__(self, comparison: ModelComparison) -> None:
        self.comparison = comparison

    def accepted(self, destination: engine.Destination, message: Message) -> bool:
        for pair in self.comparison.committing:
            names = [model_message.name for _, model_message in pair.model.sends]
            if message.message_id in names:
                pair.drop_sends(names.index(message.message_id))
                self.comparison.apply_commit_part(pair, 1, 0)
        return False

    def ended(self, subscription: engine.Subscription, sequence: int, outcome: str) -> None:
        for pair in self.comparison.committing:
            if outcome == engine.ACKNOWLEDGED and pair.model.acks:
                entry, _ = pair.model.acks[0]
                source = entry.subscription
                if (entry.sequence, source.name, source.destination.address) == (
                    sequence,
                    subscription.name,
                    subscription.destination.address,
                ):
                    self.comparison.apply_commit_part(pair, 0, 1)

    def visible(self, message: Message) -> None:
        pass

    def staged(self, message: Message) -> None:
        pass

    def durable(self, sequence: int) -> None:
        pass

    def delivered(
        self, subscription: engine.Subscription, deliveries: Sequence[engine.Delivery]
    ) -> None:
        pass


class ModelComparison:
    def __init__(self, journal: Journal, clock: ManualClock, budget: int = 1 << 30) -> None:
        self.clock = clock
        self.model = model.Model(clock.wall, clock.steady)
        self.consumers: list[ConsumerPair] = []
        self.retired: list[ConsumerPair] = []
        self.transactions: list[TransactionPair] = []
        self.committing: list[TransactionPair] = []
        """Transactions whose commit is applied in slices, one message or ack at a time."""
        self.budget = budget
        self.rescan_limits = (500, 60)
        """Deliveries evaluated for a new selector: at once, and per ms."""
        self.names = count(1)
        self.delivered: deque[Delivered] = deque()
        """Deliveries not yet reported to the model. A message may be delivered while it is being
        published, which is before the model can know it."""
        self.start(journal)

    def start(self, journal: Journal) -> None:
        """Start a new broker on the journal."""
        self.journal = journal
        settings = engine.EngineSettings(
            memory_budget=self.budget,
            message_overhead=0,
            delivery_overhead=0,
            chunk_deliveries=2,
            rescan_first_slice=self.rescan_limits[0],
            rescan_rate=self.rescan_limits[1],
        )
        self.broker = broker = engine.Broker(
            journal,
            self.clock,
            settings,
            AtLeast,
            start_deadline=self.start_deadline,
            observer=CommitObserver(self),
        )
        broker.transactions.part_deliveries = 1
        if isinstance(journal, FileJournal):
            journal.set_snapshot_source(lambda: snapshot(broker))
        self.engine_on_durable = broker.group_commit.on_durable
        journal.observe(self.on_durable, broker.group_commit.on_written, broker.publisher.on_space)

    def start_deadline(self) -> engine.Deadline:
        """Start a deadline that lets each slice of a commit apply one part."""
        checks = count()
        return lambda: bool(self.committing) and next(checks) > 0

    def on_durable(self, sequence: int) -> None:
        self.model.make_staged_visible()
        self.engine_on_durable(sequence)

    def report(self) -> None:
        """Report deliveries to the model, up to one of a message it does not know yet."""
        delivered = self.delivered
        while delivered:
            consumer, name, sequence, order, attempts = delivered[0]
            if not self.model.knows(consumer, name, sequence):
                return
            delivered.popleft()
            entry = self.model.deliver(consumer, name, sequence, order)
            assert attempts == entry.attempts, f"attempts of {entry}"

    # --- lookup ---------------------------------------------------------------------------------

    def find(self, destination: model.Destination) -> engine.Destination:
        return self.broker.destinations[destination.address]

    def subscription(self, model_subscription: model.Subscription) -> engine.Subscription:
        destination = self.find(model_subscription.destination)
        return (
            destination.subscriptions[model_subscription.name]
            if model_subscription.name
            else destination.queue
        )

    def name_of(self, delivery: engine.Delivery) -> str:
        message = delivery.message or self.journal.fetch(delivery.sequence)
        return message.message_id

    # --- destinations ---------------------------------------------------------------------------

    def declare(
        self, address: Address, settings: DestinationSettings, owner: object = None
    ) -> None:
        self.broker.destinations.declare(address, settings, owner=owner)
        self.model.declare(address, settings, owner)

    def remove(self, destination: model.Destination) -> None:
        target = self.find(destination)
        self.model.remove(destination)
        self.broker.remove(target, force=True)

    def purge(self, destination: model.Destination, unacked: bool) -> None:
        expected = sum(self.model.purge(s, unacked) for s in destination.all_subscriptions())
        assert purge(self.broker, self.find(destination), unacked=unacked) == expected

    def pause(self, destination: model.Destination, paused: bool) -> None:
        destination.paused = paused
        target = self.find(destination)
        self.broker.destinations.set_paused(target, paused)

    # --- publishing -----------------------------------------------------------------------------

    def model_message(
        self,
        size: int = 1,
        priority: int = 4,
        durability: Durability = Durability.SYNC,
        ttl: int = 0,
        delay: int = 0,
        sender: object = None,
    ) -> model.ModelMessage:
        return model.ModelMessage(
            f"m{next(self.names)}",
            size,
            priority,
            durability,
            self.clock.wall + ttl if ttl else 0,
            self.clock.wall + delay if delay else 0,
            sender,
        )

    def message(self, address: Address, model_message: model.ModelMessage) -> Message:
        return Message(
            address,
            bytes(model_message.size),
            BodyKind.BYTES,
            Origin.INTERNAL,
            model_message.durability,
            self.clock.wall,
            model_message.expiration,
            model_message.priority,
            model_message.deliver_at,
            model_message.name,
            sender=model_message.sender,
        )

    def publish(
        self,
        destination: model.Destination,
        model_message: model.ModelMessage,
        may_wait: bool = False,
    ) -> None:
        target = self.find(destination)
        message = self.message(destination.address, model_message)
        verdict = self.model.admit(destination, model_message, may_wait)
        unblocked = (
            self.unblocked_callback(destination, model_message, message) if may_wait else None
        )
        try:
            accepted = self.broker.publish(target, message, unblocked)
        except LimitExceeded:
            assert verdict == "reject"
            destination.totals.rejected += 1
            return
        model_message.sequence = message.sequence
        assert accepted == (verdict != "park")
        if verdict == "accept":
            self.model.accept(destination, model_message)
        elif verdict == "park":
            destination.parked.append(model_message)
        else:
            assert verdict == "redirect"
            destination.totals.dead_lettered += 1
            self.model.accept(
                self.model.dead_letter_queue(destination),
                self.model.dead_letter_of(model_message, destination),
            )
        self.report()

    def unblocked_callback(
        self, destination: model.Destination, model_message: model.ModelMessage, message: Message
    ) -> Callable[[], None]:
        def on_unblocked() -> None:
            if destination.removed:
                return
            self.model.check_dispatch_order()
            assert destination.parked.pop(0) is model_message
            model_message.sequence = message.sequence
            assert destination.settings.overflow in model.DROPPING or not self.model.blocks(
                destination, model_message.size
            ), "unblocked although the destination is full"
            self.model.accept(destination, model_message)
            self.report()

        return on_unblocked

    # --- consuming ------------------------------------------------------------------------------

    def attach(
        self,
        model_subscription: model.Subscription,
        window: WindowPair,
        selector: AtLeast | None = None,
        ack_timeout: int = 0,
    ) -> ConsumerPair | None:
        predicate = selector.matches if selector else None
        consumer = model.Consumer(model_subscription, window.model, predicate, ack_timeout)
        pair = ConsumerPair(self, window, consumer)
        limit = (
            model_subscription.destination.settings.max_consumers
            if model_subscription.shared
            else 1
        )
        subscription = self.subscription(model_subscription)
        if limit and len(model_subscription.consumers) >= limit:
            try:
                owner = subscription.destination.owner
                self.broker.attach(subscription, pair, window.engine, owner=owner)
            except SubscriptionInUse:
                return None
            raise AssertionError("more consumers than allowed")
        self.model.attach(consumer)
        pair.engine = self.broker.attach(
            subscription,
            pair,
            window.engine,
            selector=selector,
            ack_timeout=ack_timeout,
            owner=subscription.destination.owner,
        )
        self.consumers.append(pair)
        return pair

    def detach(self, pair: ConsumerPair) -> None:
        assert pair.engine is not None
        (self.retired if pair.model.retired else self.consumers).remove(pair)
        self.model.check_dispatch_order()
        self.model.detach(pair.model)
        self.broker.detach(pair.engine)

    def retire(self, pair: ConsumerPair, kept: list[model.Entry], attempted: bool) -> None:
        assert pair.engine is not None
        self.consumers.remove(pair)
        self.retired.append(pair)
        self.model.check_dispatch_order()
        self.model.retire(pair.model, kept, attempted)
        self.broker.retire(pair.engine, [entry.sequence for entry in kept], attempted=attempted)
        pair.window = WindowPair(0, False)

    def start_next_attempt(
        self, pair: ConsumerPair, entries: list[model.Entry], attempted: bool
    ) -> None:
        assert pair.engine is not None
        self.model.check_dispatch_order()
        expected = self.model.start_next_attempt(pair.model, entries, attempted)
        sequences = [entry.sequence for entry in entries]
        sent = self.broker.start_next_attempt(pair.engine, sequences, attempted=attempted)
        assert [(d.sequence, d.attempts) for d in sent] == [
            (entry.sequence, entry.attempts) for entry in expected
        ]
        assert all(delivery.message is not None for delivery in sent)

    def grant(self, window: WindowPair, credit: int) -> None:
        self.model.check_dispatch_order()
        window.model.credit += credit
        self.broker.grant(window.engine, credit)

    def revoke(self, window: WindowPair) -> None:
        window.model.credit = 0
        window.overdrawn = False
        self.broker.revoke(window.engine)

    def suspend(self, pair: ConsumerPair, suspended: bool) -> None:
        assert pair.engine is not None
        pair.model.suspended = suspended
        (self.broker.suspend if suspended else self.broker.resume)(pair.engine)

    def acknowledge(self, pair: ConsumerPair, entry: model.Entry) -> None:
        assert pair.engine is not None
        self.model.check_dispatch_order()
        self.model.acknowledge(entry)
        assert self.broker.acknowledge(pair.engine, entry.sequence)
        assert not self.broker.acknowledge(pair.engine, entry.sequence), "acknowledged twice"

    def acknowledge_any(self, entry: model.Entry) -> None:
        self.model.check_dispatch_order()
        subscription = self.subscription(entry.subscription)
        self.model.acknowledge(entry)
        assert self.broker.acknowledge_any(subscription, entry.sequence)
        assert not self.broker.acknowledge_any(subscription, entry.sequence), "acknowledged twice"

    def release(
        self, pair: ConsumerPair, entries: list[model.Entry], attempted: bool, spared: bool
    ) -> None:
        assert pair.engine is not None
        self.model.check_dispatch_order()
        self.model.release(pair.model, entries, attempted, spared)
        sequences = [entry.sequence for entry in entries]
        self.broker.release(pair.engine, sequences, attempted=attempted, ignore_max_attempts=spared)

    def time_out(self, pair: ConsumerPair, entries: list[model.Entry]) -> None:
        assert pair.engine is not None
        self.model.check_dispatch_order()
        self.model.time_out(pair.model, entries)
        self.broker.release(pair.engine, [entry.sequence for entry in entries], timed_out=True)

    def requeue(self, entry: model.Entry, ttl: int) -> None:
        self.model.check_dispatch_order()
        subscription = self.subscription(entry.subscription)
        expiration = self.clock.wall + ttl if ttl else 0
        self.model.requeue(entry, expiration)
        assert self.broker.requeue(subscription, entry.sequence, expiration)

    def dead_letter(self, entry: model.Entry, force: bool) -> None:
        self.model.check_dispatch_order()
        subscription = self.subscription(entry.subscription)
        self.model.dead_letter(entry, force)
        assert self.broker.dead_letter(subscription, entry.sequence, "rejected", force=force)

    # --- management operations ------------------------------------------------------------------

    def find_delivery(self, entry: model.Entry) -> engine.Delivery:
        subscription = self.subscription(entry.subscription)
        delivery = self.broker.operations.find(subscription, entry.sequence)
        assert delivery is not None, f"{entry} is not found"
        assert delivery.sequence == entry.sequence
        assert STATES[delivery.state] == entry.state
        assert delivery.attempts == entry.attempts
        return delivery

    def run_operation(self, is_allowed: bool, operation: Callable[[], int]) -> None:
        """Run an operation on the engine, which must refuse it unless the model allows it."""
        if is_allowed:
            operation()
        else:
            with pytest.raises(ActionRefused):
                operation()
        self.report()

    def delete(self, entry: model.Entry) -> None:
        self.model.check_dispatch_order()
        subscription = self.subscription(entry.subscription)
        delivery = self.find_delivery(entry)
        is_allowed = self.model.delete(entry)
        self.run_operation(
            is_allowed, lambda: self.broker.operations.delete(subscription, [delivery])
        )

    def move_one(self, entry: model.Entry, target: model.Destination) -> None:
        self.model.check_dispatch_order()
        delivery, engine_target = self.find_delivery(entry), self.find(target)
        is_allowed = self.model.move_one(entry, target)
        self.run_operation(is_allowed, lambda: self.broker.operations.move(delivery, engine_target))

    def copy_one(self, entry: model.Entry, target: model.Destination) -> None:
        self.model.check_dispatch_order()
        delivery, engine_target = self.find_delivery(entry), self.find(target)
        is_allowed = self.model.copy_one(entry, target)
        self.run_operation(is_allowed, lambda: self.broker.operations.copy(delivery, engine_target))

    def redrive(self, entry: model.Entry) -> None:
        self.model.check_dispatch_order()
        delivery = self.find_delivery(entry)
        origin = origin_of(self.broker.core.read(delivery))
        assert (origin is None) == (entry.model_message.origin is None)
        if origin is not None:
            assert origin == entry.model_message.origin
            is_allowed = self.model.redrive(entry)
            self.run_operation(is_allowed, lambda: self.broker.operations.redrive(delivery, origin))

    def redeliver(self, entry: model.Entry) -> None:
        self.model.check_dispatch_order()
        delivery = self.find_delivery(entry)
        is_allowed = self.model.redeliver(entry, delivery.journaled == RECORDED)
        self.run_operation(is_allowed, lambda: self.broker.operations.redeliver(delivery))

    # --- topics ---------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: model.Destination,
        name: str,
        durable: bool,
        shared: bool,
        selector: AtLeast | None,
        exclude: object,
    ) -> None:
        self.model.check_dispatch_order()
        predicate = selector.matches if selector else None
        model_subscription = model.Subscription(topic, name, durable, shared, predicate, exclude)
        self.model.subscribe(model_subscription)
        self.broker.subscribe(
            self.find(topic),
            name,
            durable=durable,
            shared=shared,
            selector=selector,
            exclude=exclude,
        )

    def join(self, topic: model.Destination, name: str) -> None:
        """Subscribe as a member of the topic's group."""
        self.model.check_dispatch_order()
        self.model.join(topic, name)
        self.broker.subscribe(self.find(topic), name, member=True)

    def unsubscribe(self, model_subscription: model.Subscription) -> None:
        self.model.check_dispatch_order()
        subscription = self.subscription(model_subscription)
        self.model.unsubscribe(model_subscription)
        self.broker.unsubscribe(subscription)

    # --- transactions ---------------------------------------------------------------------------

    def begin(self) -> TransactionPair:
        pair = TransactionPair(self.broker.transactions.begin())
        self.transactions.append(pair)
        return pair

    def publish_in(
        self,
        pair: TransactionPair,
        destination: model.Destination,
        model_message: model.ModelMessage,
    ) -> None:
        message = self.message(destination.address, model_message)
        verdict = self.model.admit(destination, model_message, False)
        try:
            self.broker.transactions.publish(pair.engine, self.find(destination), message)
        except LimitExceeded:
            assert verdict == "reject"
            destination.totals.rejected += 1
            return
        if verdict == "redirect":
            destination.totals.dead_lettered += 1
            model_message = self.model.dead_letter_of(model_message, destination)
            destination = self.model.dead_letter_queue(destination)
        pair.model.sends.append((destination, model_message))

    def acknowledge_in(
        self, transaction: TransactionPair, pair: ConsumerPair, entry: model.Entry
    ) -> None:
        assert pair.engine is not None
        self.model.check_dispatch_order()
        self.model.acknowledge_in(transaction.model, entry)
        transactions = self.broker.transactions
        assert transactions.acknowledge(transaction.engine, pair.engine, entry.sequence)
        assert not transactions.acknowledge(transaction.engine, pair.engine, entry.sequence)

    def withdraw_ack(
        self, transaction: TransactionPair, pair: ConsumerPair, entry: model.Entry
    ) -> None:
        assert pair.engine is not None
        self.model.check_dispatch_order()
        self.model.withdraw_ack(entry, transaction.model, pair.model)
        pair.window.overdrawn = True
        [delivery] = [
            delivery
            for delivery, consumer in transaction.engine.acks.items()
            if consumer is pair.engine and delivery.sequence == entry.sequence
        ]
        assert self.broker.transactions.withdraw_ack(transaction.engine, delivery)

    def prepare(self, pair: TransactionPair) -> None:
        xid = f"xid {next(self.names)}".encode()
        self.broker.transactions.prepare(pair.engine, xid)
        pair.model.prepared = True
        assert self.broker.transactions.prepared[xid] is pair.engine

    def commit(self, pair: TransactionPair) -> None:
        self.transactions.remove(pair)
        self.model.check_dispatch_order()
        self.model.commit(pair.model)
        self.broker.transactions.commit(pair.engine)

    def commit_in_slices(self, pair: TransactionPair) -> None:
        """Begin a commit that each later flush continues."""
        self.transactions.remove(pair)
        self.committing.append(pair)
        self.model.check_dispatch_order()
        pair.model.sends = [
            (self.model.resolve(d.address) if d.removed else d, model_message)
            for d, model_message in pair.model.sends
        ]
        commits = self.broker.transactions
        slice_size, commits.slice_deliveries = commits.slice_deliveries, 1
        self.broker.transactions.commit(pair.engine)
        commits.slice_deliveries = slice_size

    def apply_commit_part(self, pair: TransactionPair, sends: int, acks: int) -> None:
        """Apply a part of a commit to the model, while the engine applies it."""
        self.model.check_dispatch_order()
        part = model.Transaction()
        part.sends, pair.model.sends = pair.model.sends[:sends], pair.model.sends[sends:]
        part.acks, pair.model.acks = pair.model.acks[:acks], pair.model.acks[acks:]
        self.model.commit(part)

    def finish_after_restart(self, pair: TransactionPair) -> None:
        """Apply a decided commit to the model, which the new broker has completed."""
        for destination, model_message in pair.model.sends:
            if model_message.durability.survives:
                model_message.sender = None
                self.model.accept(self.model.resolve(destination.address), model_message)
        for entry, _ in pair.model.acks:
            if entry in entry.subscription.entries and not entry.subscription.closed:
                self.model.acknowledge(entry)

    def rollback(self, pair: TransactionPair) -> None:
        self.transactions.remove(pair)
        self.model.check_dispatch_order()
        self.model.rollback(pair.model)
        self.broker.transactions.rollback(pair.engine)

    # --- batches --------------------------------------------------------------------------------

    def write_batch(
        self, part: BatchPart, sends: list[tuple[model.Destination, model.ModelMessage]]
    ) -> bool:
        """Write a part; return False if rows of it are refused."""
        self.model.check_dispatch_order()
        messages = [
            (d.address, self.message(d.address, model_message)) for d, model_message in sends
        ]
        rejected_rows = []
        admitted = model.Transaction()
        redirected = []
        for row, (destination, model_message) in enumerate(sends):
            verdict = self.model.admit(destination, model_message, False)
            if verdict == "reject":
                destination.totals.rejected += 1
                rejected_rows.append(row)
            elif verdict == "redirect":
                redirected.append(destination)
                queue = self.model.dead_letter_queue(destination)
                admitted.sends.append(
                    (queue, self.model.dead_letter_of(model_message, destination))
                )
            else:
                admitted.sends.append((destination, model_message))
        if rejected_rows:
            with pytest.raises(BatchRefused) as error:
                self.broker.batches.write(part, messages)
            assert [refusal.row for refusal in error.value.refused] == rejected_rows
            return False
        assert not self.broker.batches.write(part, messages).is_repeat
        for destination in redirected:
            destination.totals.dead_lettered += 1
        self.model.commit(admitted)
        return True

    def repeat_batch(self, part: BatchPart) -> None:
        """Write an existing part again, which changes nothing."""
        message = Message(Address(Kind.QUEUE, "a"), b"twice", durability=Durability.SYNC)
        result = self.broker.batches.write(part, [(message.destination, message)])
        assert result.is_repeat

    # --- event loop iterations ------------------------------------------------------------------

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.model.wall, self.model.steady = self.clock.wall, self.clock.steady
        self.model.tick()
        self.broker.tick()

    def catch_up(self) -> None:
        """Advance the clock until all rescans for new selectors have ended."""
        for _ in range(30):
            rescanned = [s for s in self.model.subscriptions() if self.subscription(s).rescan]
            if not rescanned:
                return
            self.advance(100)
            self.flush()
        raise AssertionError(f"{rescanned} are still being rescanned")

    def flush(self) -> None:
        """End the event loop iteration, and run further ones until no work is left."""
        self.model.check_dispatch_order()
        core = self.broker.core
        while True:
            self.broker.flush()
            if isinstance(self.journal, FileJournal):
                self.journal.sync()
            if not (
                core.dispatchable
                or core.unfinished
                or core.unblocking
                or self.broker.publisher.staged
            ):
                break
        self.model.check_dispatch_order()
        self.check()
        self.check_nothing_deliverable()

    # --- comparison -----------------------------------------------------------------------------

    def check(self) -> None:
        """Check that both sides hold the same state."""
        self.report()
        assert not self.delivered, f"not ready: {self.delivered[0]}"
        assert set(self.broker.destinations) == set(self.model.destinations)
        self.learn_staged_sequences()
        in_memory: dict[int, int] = {}
        for destination in self.model.destinations.values():
            engine_destination = self.find(destination)
            assert set(engine_destination.subscriptions) == set(destination.subscriptions)
            for model_subscription in destination.all_subscriptions():
                deliveries = self.check_subscription(
                    model_subscription, self.subscription(model_subscription)
                )
                in_memory |= sizes(d.message for d in deliveries if d.message is not None)
            assert engine_destination.paused == destination.paused
            assert engine_destination.staged == len(self.model.staged_of(destination))
            assert engine_destination.waiting == self.model.count_waiting(destination)
            assert engine_destination.waiting_bytes == self.model.bytes_waiting(destination)
            in_memory |= sizes(engine_destination.parked)
            assert [message.message_id for message in engine_destination.parked] == [
                model_message.name for model_message in destination.parked
            ]
            for name, expected in vars(destination.totals).items():
                value = getattr(engine_destination.statistics, name)
                assert value == expected, f"{destination.address}: {name} {value} != {expected}"
        end_state = engine.TransactionState.ENDED
        self.committing = [p for p in self.committing if p.engine.state is not end_state]
        for transaction in (*self.transactions, *self.committing):
            acked = [delivery.message for delivery in transaction.engine.acks]
            in_memory |= sizes(message for message in acked if message is not None)
            in_memory |= sizes(message for _, message in transaction.engine.sends)
        assert self.broker.core.memory == sum(in_memory.values()), "bytes in memory"
        for pair in self.consumers:
            assert pair.window.engine.credit == pair.window.model.credit
            assert pair.window.engine.credit >= 0 or pair.window.overdrawn
            assert pair.engine is not None
            assert pair.engine.active == pair.model.active

    def check_subscription(
        self, model_subscription: model.Subscription, subscription: engine.Subscription
    ) -> list[engine.Delivery]:
        assert subscription.durable == model_subscription.durable
        assert (subscription in subscription.destination.members) == model_subscription.member
        assert subscription.shared == model_subscription.shared
        assert subscription.exclude == model_subscription.exclude
        assert bool(subscription.selector) == bool(model_subscription.matches)
        deliveries = list(subscription.browse())
        by_sequence = {delivery.sequence: delivery for delivery in deliveries}
        assert len(by_sequence) == len(deliveries), f"{model_subscription} contains a message twice"
        entries = model_subscription.entries
        self.learn_positions(entries, deliveries)
        assert sorted(by_sequence) == sorted(e.sequence for e in entries), (
            f"messages of {model_subscription}"
        )
        for entry in entries:
            delivery = by_sequence[entry.sequence]
            assert STATES[delivery.state] == entry.state, f"state of {entry}"
            assert delivery.attempts == entry.attempts, f"attempts of {entry}"
            assert delivery.expires == entry.expires, f"expiry of {entry}"
            assert self.name_of(delivery) == entry.model_message.name
        for consumer in subscription.consumers:
            unacked_sequences = [
                e.sequence
                for e in entries
                if getattr(e.holder, "subscription", None) is model_subscription
            ]
            assert set(consumer.unacked) <= set(unacked_sequences)
        assert set(subscription.acked_in_transactions) == {
            e.sequence for e in entries if isinstance(e.holder, model.Transaction)
        }
        assert set(subscription.requeued) == {
            d.sequence for d in deliveries if d.attempts and not d.unacked
        }, "requeued deliveries"
        assert subscription.refused.keys() <= subscription.scheduled.keys()
        pending_sequences = [d.sequence for d in subscription.cursor()]
        assert pending_sequences == [
            e.sequence for e in sorted(model_subscription.ready(), key=lambda e: e.queue_order)
        ]
        self.check_order(subscription, pending_sequences)
        retired = {c for c in subscription.retired if c.unacked}
        assert set(subscription.retired) == retired, "retired consumers without unacked messages"
        assert retired == {
            pair.engine
            for pair in self.retired
            if pair.model.subscription is model_subscription and pair.model.held()
        }
        assert subscription.waiting == len(model_subscription.waiting())
        assert subscription.waiting_bytes == sum(
            e.model_message.size for e in model_subscription.waiting()
        )
        assert subscription.unacked == len(model_subscription.unacked())
        assert subscription.unacked_bytes == sum(
            e.model_message.size for e in model_subscription.unacked()
        )
        return deliveries

    def check_order(self, subscription: engine.Subscription, pending_sequences: list[int]) -> None:
        """Check that a random offset leads to the delivery at that position."""
        position = len(pending_sequences) // 2
        pending = subscription.all_ready
        cursor = Cursor(pending, 1 << 62)
        assert cursor.skip(position, 1 << 30) == position
        sequences = []
        while cursor.priority >= 0:
            sequences += [delivery.sequence for delivery in cursor.examine(3)]
        assert sequences == pending_sequences[position:]

    def learn_staged_sequences(self) -> None:
        """Copy the sequence numbers of staged copies from the engine to the model."""
        staged = [message for message, *_ in self.broker.publisher.staged]
        assert sorted(message.message_id for message in staged) == sorted(
            model_message.name for model_message, *_ in self.model.staged
        )
        numbers = {model_message.sequence for model_message, *_ in self.model.staged}
        for model_message, *_ in self.model.staged:
            if not model_message.sequence:
                model_message.sequence = next(
                    message.sequence
                    for message in staged
                    if message.message_id == model_message.name and message.sequence not in numbers
                )
                numbers.add(model_message.sequence)

    def learn_positions(
        self, entries: Iterable[model.Entry], deliveries: list[engine.Delivery]
    ) -> None:
        """Copy the sequence numbers of copies, and the positions of requeued messages, from the
        engine to the model."""
        known_sequences = {entry.sequence for entry in entries}
        last = max((entry.order for entry in entries), default=0)
        free = sorted(
            (d for d in deliveries if d.sequence not in known_sequences), key=lambda d: d.sequence
        )
        by_sequence = {delivery.sequence: delivery for delivery in deliveries}
        for entry in entries:
            if not entry.sequence:
                match = [d for d in free if self.name_of(d) == entry.model_message.name]
                assert match, f"{entry} is missing"
                if len(match) > 1:  # dead letters of one message from several subscriptions
                    origin = entry.model_message.origin
                    match.sort(key=lambda d: origin_of(self.broker.core.read_head(d)) != origin)
                free.remove(match[0])
                entry.sequence, entry.order = match[0].sequence, match[0].order
            elif not entry.order:
                assert entry.sequence in by_sequence, f"{entry} is missing"
                entry.order = by_sequence[entry.sequence].order
                assert entry.order > last, f"{entry} is not at the tail"

    def check_nothing_deliverable(self) -> None:
        """Check that no message is left that an active consumer could receive."""
        for model_subscription in self.model.subscriptions():
            if model_subscription.destination.paused:
                continue
            is_rescanning = self.subscription(model_subscription).rescan is not None
            for consumer in model_subscription.consumers:
                if is_rescanning and consumer.matches is not None:
                    continue  # it may be blocked
                if consumer.active and not consumer.suspended and consumer.window.credit > 0:
                    receivable_entries = [
                        e for e in model_subscription.ready() if consumer.may_receive(e)
                    ]
                    assert not receivable_entries, f"{receivable_entries} could have been delivered"
        for destination in self.model.destinations.values():
            if destination.parked:
                size = destination.parked[0].size
                assert destination.settings.overflow not in model.DROPPING, (
                    f"{destination.address} blocks although it drops messages"
                )
                assert self.model.blocks(destination, size), (
                    f"{destination.address} blocks although it is not full"
                )

    # --- restart --------------------------------------------------------------------------------

    def restart(self, journal: FileJournal) -> None:
        """Start a new broker that recovers from the files of the old one."""
        decided_pairs = [
            pair
            for pair in self.committing
            if pair.engine.state is engine.TransactionState.COMMITTING
            and pair.engine.record
            and decode_prepared(journal.fetch_entry(pair.engine.record).body).decided
        ]
        self.committing.clear()
        for pair in decided_pairs:
            pair.model.prepared = True
            pair.drop_sends(len(pair.model.sends) - len(pair.engine.sends))
        event_recorder = self.broker.core.event_recorder
        self.model.restart(
            deliveries_recorded=not (event_recorder.buffered or event_recorder.unrecorded)
        )
        self.consumers.clear()
        self.retired.clear()
        prepared = {p.engine.xid: p for p in self.transactions if p.model.prepared}
        self.transactions = list(prepared.values())
        self.start(journal)
        recover(self.broker, journal.recovery)
        assert set(self.broker.transactions.prepared) == set(prepared)
        for xid, pair in prepared.items():
            pair.engine = self.broker.transactions.prepared[xid]
            for destination, model_message in pair.model.sends:
                self.model.resolve(destination.address)
                model_message.sender = None
            pair.model.acks[:] = [
                (entry, None)
                for entry, _ in pair.model.acks
                if entry in entry.subscription.entries and not entry.subscription.closed
            ]
        for pair in decided_pairs:
            self.finish_after_restart(pair)
        for address, destination in list(self.model.destinations.items()):
            if destination.automatic and address not in self.broker.destinations:
                assert not any(s.entries for s in destination.all_subscriptions()), (
                    f"{address} is lost"
                )
                self.model.forget(address)
        for model_subscription in self.model.subscriptions():
            self.count_attempts(model_subscription)
        self.advance(0)  # unacked messages may have expired
        self.flush()

    def count_attempts(self, model_subscription: model.Subscription) -> None:
        """Copy the number of recorded deliveries of ready messages from the engine to the model."""
        attempts = {d.sequence: d.attempts for d in self.subscription(model_subscription).browse()}
        for entry in model_subscription.entries:
            if entry.holder is None and entry.sequence in attempts:
                minimum, maximum = entry.may_count
                entry.attempts = entry.failed = attempts[entry.sequence]
                assert minimum <= entry.attempts <= maximum, f"attempts of {entry} after a restart"


def sizes(messages: Iterable[Message]) -> dict[int, int]:
    """Return the memory use of each message, by the id of the object."""
    return {id(message): len(message.body) + message.header_bytes() for message in messages}
