"""Random steps for a broker and its naive model (model.py, comparison.py).

Four machines, because each is about as much as one can read: queues and their consumers, topics
and their subscriptions, transactions, batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from sluicemq.broker.codec import BatchPart
from sluicemq.broker.scheduler import ManualClock
from sluicemq.journal.port import Journal, MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import BatchConflict
from sluicemq.model.message import Durability
from tests.broker import model
from tests.broker.comparison import (
    AtLeast,
    ConsumerPair,
    ModelComparison,
    TransactionPair,
    WindowPair,
)

T = TypeVar("T")

picks = st.integers(0, 30)
"""Choice of an existing object; a number, because the objects change from step to step."""
priorities = st.sampled_from([4, 4, 4, 0, 9, 5])
sizes = st.sampled_from([1, 3, 0, 10])
durabilities = st.sampled_from([Durability.NONE, Durability.LAZY, Durability.SYNC])
lives = st.sampled_from([0, 0, 0, 150, 350, 1050])
delays = st.sampled_from([0, 0, 0, 200, 1000])
selectors = st.sampled_from(
    [None, None, AtLeast("priority >= 4"), AtLeast("priority >= 5"), AtLeast("size >= 3")]
)
seldom = st.sampled_from([False, False, False, True])
"""Whether to perform operations that leave little to test afterwards."""
ends = st.booleans()
"""Whether the event loop iteration ends with this step."""

queue_settings = st.one_of(
    st.builds(
        DestinationSettings,
        max_messages=st.sampled_from([0, 2, 3]),
        max_bytes=st.sampled_from([0, 0, 6]),
        overflow=st.sampled_from(Overflow),
        dead_letter=st.booleans(),
    ),
    st.builds(
        DestinationSettings,
        max_attempts=st.sampled_from([0, 1, 3]),
        retry_delay=st.sampled_from([0, 100, 700]),
        retry_delay_max=st.sampled_from([0, 900]),
        dead_letter=st.booleans(),
        message_ttl=st.sampled_from([0, 450]),
        max_message_bytes=st.sampled_from([0, 5]),
        priority_ordering=st.booleans(),
    ),
    st.builds(
        DestinationSettings,
        max_consumers=st.sampled_from([0, 1, 2]),
        active_consumers=st.sampled_from([0, 1, 2]),
    ),
)


class Machine(RuleBasedStateMachine):
    """Base of the machines: the broker, choices of its objects, and the comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.comparison = ModelComparison(self.journal(), ManualClock())

    def journal(self) -> Journal:
        return MemoryJournal()

    def pick(self, things: Sequence[T], number: int) -> T:
        return things[number % len(things)]

    def destination(self, number: int) -> model.Destination:
        return self.pick(list(self.comparison.model.destinations.values()), number)

    def consumable(self) -> list[model.Subscription]:
        """Return the subscriptions with consumers; a topic's own one only holds messages."""
        subscriptions = self.comparison.model.subscriptions()
        return [s for s in subscriptions if s.name or s.destination.address.kind is Kind.QUEUE]

    def holders(self) -> list[tuple[ConsumerPair, model.Entry]]:
        pairs = (*self.comparison.consumers, *self.comparison.retired)
        return [(pair, entry) for pair in pairs for entry in pair.model.held()]

    def holding(self, number: int) -> tuple[ConsumerPair, model.Entry] | None:
        holders = self.holders()
        return self.pick(holders, number) if holders else None

    def end(self, ends_iteration: bool) -> None:
        if ends_iteration:
            self.comparison.flush()

    @invariant()
    def same(self) -> None:
        self.comparison.check()

    def teardown(self) -> None:
        self.comparison.flush()
        self.comparison.catch_up()

    @rule(
        where=picks,
        count=st.integers(1, 3),
        size=sizes,
        priority=priorities,
        durability=durabilities,
        ttl=lives,
        delay=delays,
        may_wait=st.booleans(),
        ends_iteration=ends,
    )
    def publish(
        self,
        where: int,
        count: int,
        size: int,
        priority: int,
        durability: Durability,
        ttl: int,
        delay: int,
        may_wait: bool,
        ends_iteration: bool,
    ) -> None:
        destination = self.destination(where)
        for _ in range(count):
            model_message = self.comparison.model_message(
                size, priority, durability, ttl, delay, f"sender {count}"
            )
            self.comparison.publish(destination, model_message, may_wait)
        self.end(ends_iteration)

    @rule(
        where=picks,
        credit=st.sampled_from([0, 1, 1, 2, 5, 1000]),
        refill=st.booleans(),
        selector=selectors,
        ack_timeout=st.sampled_from([0, 0, 100, 500]),
        ends_iteration=ends,
    )
    def attach(
        self,
        where: int,
        credit: int,
        refill: bool,
        selector: AtLeast | None,
        ack_timeout: int,
        ends_iteration: bool,
    ) -> None:
        subscriptions = self.consumable()
        if not subscriptions:
            return
        subscription = self.pick(subscriptions, where)
        window = WindowPair(credit, refill)
        self.comparison.attach(subscription, window, selector, ack_timeout)
        self.end(ends_iteration)

    @initialize(
        budget=st.sampled_from([1 << 30, 0]), tries=st.sampled_from([(500, 60), (1, 1), (3, 1)])
    )
    def limit(self, budget: int, tries: tuple[int, int]) -> None:
        """With a budget of nothing every body that can be read back is; with few tries a selector
        that is new remains so for some time."""
        comparison = self.comparison
        comparison.budget = comparison.broker.core.memory_budget = budget
        comparison.tries = (
            comparison.broker.core.rescan_first_slice,
            comparison.broker.core.rescan_rate,
        ) = tries

    @rule(
        where=picks,
        model_messages=st.lists(
            st.tuples(st.sampled_from([2, 3]), priorities, durabilities), min_size=1, max_size=5
        ),
        may_wait=st.booleans(),
    )
    def publish_several(
        self, where: int, model_messages: list[tuple[int, int, Durability]], may_wait: bool
    ) -> None:
        destination = self.destination(where)
        for size, priority, durability in model_messages:
            model_message = self.comparison.model_message(size, priority, durability)
            self.comparison.publish(destination, model_message, may_wait)
        self.comparison.flush()

    @rule(where=picks, credit=st.integers(1, 4), selector=selectors)
    def consume(self, where: int, credit: int, selector: AtLeast | None) -> None:
        subscriptions = self.consumable()
        full = [s for s in subscriptions if s.entries and len(s.consumers) < 3]
        if full or subscriptions:
            subscription = self.pick(full or subscriptions, where)
            self.comparison.attach(subscription, WindowPair(credit, True), selector)

    @precondition(lambda self: self.holders())
    @rule(keep=st.integers(0, 3))
    def acknowledge_most(self, keep: int) -> None:
        for pair, entry in self.holders()[keep:]:
            self.comparison.acknowledge(pair, entry)
        self.comparison.flush()

    @precondition(lambda self: self.comparison.consumers)
    @rule(which=picks, ends_iteration=ends)
    def detach(self, which: int, ends_iteration: bool) -> None:
        self.comparison.detach(self.pick(self.comparison.consumers, which))
        self.end(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(which=picks, keep=st.integers(0, 3), attempted=st.booleans(), ends_iteration=ends)
    def retire(self, which: int, keep: int, attempted: bool, ends_iteration: bool) -> None:
        pair = self.pick(self.comparison.consumers, which)
        self.comparison.retire(pair, pair.model.held()[:keep], attempted)
        self.end(ends_iteration)

    @precondition(lambda self: self.comparison.retired)
    @rule(which=picks, ends_iteration=ends)
    def detach_retired(self, which: int, ends_iteration: bool) -> None:
        self.comparison.detach(self.pick(self.comparison.retired, which))
        self.end(ends_iteration)

    @precondition(lambda self: self.holders())
    @rule(which=picks, count=st.integers(1, 4), attempted=st.booleans(), ends_iteration=ends)
    def start_next_attempt(
        self, which: int, count: int, attempted: bool, ends_iteration: bool
    ) -> None:
        holder = self.holding(which)
        assert holder is not None
        pair, _ = holder
        self.comparison.start_next_attempt(pair, pair.model.held()[-count:], attempted)
        self.end(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(which=picks, credit=st.integers(1, 3), ends_iteration=ends)
    def grant(self, which: int, credit: int, ends_iteration: bool) -> None:
        self.comparison.grant(self.pick(self.comparison.consumers, which).window, credit)
        self.end(ends_iteration)

    @precondition(lambda self: self.holders())
    @rule(which=picks, ends_iteration=ends)
    def acknowledge(self, which: int, ends_iteration: bool) -> None:
        holder = self.holding(which)
        assert holder is not None
        self.comparison.acknowledge(*holder)
        self.end(ends_iteration)

    @precondition(lambda self: self.holders())
    @rule(
        which=picks,
        count=st.integers(1, 4),
        attempted=st.booleans(),
        spared=st.booleans(),
        ends_iteration=ends,
    )
    def release(
        self, which: int, count: int, attempted: bool, spared: bool, ends_iteration: bool
    ) -> None:
        holder = self.holding(which)
        assert holder is not None
        pair, _ = holder
        self.comparison.release(pair, pair.model.held()[:count], attempted, spared)
        self.end(ends_iteration)

    @precondition(lambda self: self.holders())
    @rule(which=picks, count=st.integers(1, 4), ends_iteration=ends)
    def time_out(self, which: int, count: int, ends_iteration: bool) -> None:
        holder = self.holding(which)
        assert holder is not None
        pair, _ = holder
        self.comparison.time_out(pair, pair.model.held()[:count])
        self.end(ends_iteration)

    @rule(tenths=st.sampled_from([1, 1, 2, 5, 12]), ends_iteration=ends)
    def advance(self, tenths: int, ends_iteration: bool) -> None:
        self.comparison.advance(tenths * 100)
        self.end(ends_iteration)

    @rule(really=seldom, where=picks, unacked=st.booleans(), ends_iteration=ends)
    def purge(self, really: bool, where: int, unacked: bool, ends_iteration: bool) -> None:
        if really:
            self.comparison.purge(self.destination(where), unacked)
        self.end(ends_iteration)

    def entries(self) -> list[model.Entry]:
        """Return all entries an administrator may see, including those in transactions."""
        return [entry for s in self.comparison.model.subscriptions() for entry in s.entries]

    def shows(self, subscription: model.Subscription) -> bool:
        """Return whether consumers read the subscription. The journal does not know the order of
        messages that a topic without subscriptions holds."""
        return subscription in self.consumable()

    @precondition(lambda self: self.entries())
    @rule(which=picks, ends_iteration=ends)
    def delete_one(self, which: int, ends_iteration: bool) -> None:
        self.comparison.delete(self.pick(self.entries(), which))
        self.end(ends_iteration)

    @precondition(lambda self: self.entries())
    @rule(which=picks, to=picks, ends_iteration=ends)
    def move_one(self, which: int, to: int, ends_iteration: bool) -> None:
        self.comparison.move_one(self.pick(self.entries(), which), self.destination(to))
        self.end(ends_iteration)

    @precondition(lambda self: 0 < len(self.entries()) < 40)
    @rule(which=picks, to=picks, ends_iteration=ends)
    def copy_one(self, which: int, to: int, ends_iteration: bool) -> None:
        self.comparison.copy_one(self.pick(self.entries(), which), self.destination(to))
        self.end(ends_iteration)

    @precondition(lambda self: self.entries())
    @rule(which=picks, ends_iteration=ends)
    def redeliver_one(self, which: int, ends_iteration: bool) -> None:
        entry = self.pick(self.entries(), which)
        if self.shows(entry.subscription):
            self.comparison.redeliver(entry)
        self.end(ends_iteration)

    def dead(self) -> list[model.Entry]:
        return [entry for entry in self.entries() if entry.model_message.dead]

    @precondition(lambda self: self.dead())
    @rule(which=picks, ends_iteration=ends)
    def redrive(self, which: int, ends_iteration: bool) -> None:
        self.comparison.redrive(self.pick(self.dead(), which))
        self.end(ends_iteration)

    @rule()
    def flush(self) -> None:
        self.comparison.flush()

    @rule()
    def catch_up(self) -> None:
        self.comparison.catch_up()


class QueueMachine(Machine):
    """Queues: limits, credit, redelivery, dead letters, time."""

    def __init__(self) -> None:
        super().__init__()
        for name in "ab":
            self.comparison.declare(Address(Kind.QUEUE, name), DestinationSettings())

    @rule(name=st.sampled_from("ab"), declared=queue_settings, ends_iteration=ends)
    def declare_queue(self, name: str, declared: DestinationSettings, ends_iteration: bool) -> None:
        address = Address(Kind.QUEUE, name)
        existing = self.comparison.model.destinations.get(address)
        if existing is None or existing.owner is None:
            self.comparison.declare(address, declared)
        self.end(ends_iteration)

    @rule(declared=queue_settings, owner=st.sampled_from(["x", "y"]))
    def declare_temporary(self, declared: DestinationSettings, owner: str) -> None:
        address = Address(Kind.QUEUE, f"temporary of {owner}")
        if address not in self.comparison.model.destinations:
            self.comparison.declare(address, declared, owner)

    @rule(really=seldom, owner=st.sampled_from(["x", "y"]), ends_iteration=ends)
    def delete_temporary(self, really: bool, owner: str, ends_iteration: bool) -> None:
        if not really:
            return
        for destination in list(self.comparison.model.destinations.values()):
            if destination.owner == owner:
                self.comparison.model.remove(destination)
        self.comparison.broker.delete_temporary(owner)
        self.end(ends_iteration)

    @rule(really=seldom, where=picks, ends_iteration=ends)
    def remove_queue(self, really: bool, where: int, ends_iteration: bool) -> None:
        destination = self.destination(where)
        if really and destination.queue in self.consumable() and destination.address.name != "a":
            self.comparison.remove(destination)
        self.end(ends_iteration)

    @rule(
        first=picks,
        second=picks,
        credit=st.integers(0, 2),
        refill=st.booleans(),
        ends_iteration=ends,
    )
    def attach_to_several(
        self, first: int, second: int, credit: int, refill: bool, ends_iteration: bool
    ) -> None:
        window = WindowPair(credit, refill)
        for number in (first, second):
            self.comparison.attach(self.pick(self.consumable(), number), window)
        self.end(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(which=picks, ends_iteration=ends)
    def revoke(self, which: int, ends_iteration: bool) -> None:
        self.comparison.revoke(self.pick(self.comparison.consumers, which).window)
        self.end(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(which=picks, suspended=st.booleans(), ends_iteration=ends)
    def suspend(self, which: int, suspended: bool, ends_iteration: bool) -> None:
        self.comparison.suspend(self.pick(self.comparison.consumers, which), suspended)
        self.end(ends_iteration)

    @rule(where=picks, paused=st.booleans(), ends_iteration=ends)
    def pause(self, where: int, paused: bool, ends_iteration: bool) -> None:
        self.comparison.pause(self.destination(where), paused)
        self.end(ends_iteration)

    def seen(self) -> list[model.Entry]:
        """Return the delivered entries, which can be acked, requeued or given up by sequence."""
        return [
            entry
            for subscription in self.comparison.model.subscriptions()
            for entry in subscription.entries
            if entry.attempts and not isinstance(entry.holder, model.Transaction)
        ]

    @precondition(lambda self: self.seen())
    @rule(which=picks, ends_iteration=ends)
    def acknowledge_any(self, which: int, ends_iteration: bool) -> None:
        self.comparison.acknowledge_any(self.pick(self.seen(), which))
        self.end(ends_iteration)

    @precondition(lambda self: self.seen())
    @rule(which=picks, ttl=lives, ends_iteration=ends)
    def requeue(self, which: int, ttl: int, ends_iteration: bool) -> None:
        self.comparison.requeue(self.pick(self.seen(), which), ttl)
        self.end(ends_iteration)

    @precondition(lambda self: self.seen())
    @rule(which=picks, force=st.booleans(), ends_iteration=ends)
    def dead_letter(self, which: int, force: bool, ends_iteration: bool) -> None:
        self.comparison.dead_letter(self.pick(self.seen(), which), force)
        self.end(ends_iteration)


class TopicMachine(Machine):
    """Topics: durable, shared and no-local subscriptions, held messages, and members of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.comparison.declare(Address(Kind.TOPIC, "plain"), DestinationSettings())
        self.comparison.declare(
            Address(Kind.TOPIC, "hold"), DestinationSettings(retain_without_subscriptions=True)
        )

    @rule(name=st.sampled_from(["plain", "hold"]), declared=queue_settings, ends_iteration=ends)
    def declare_topic(self, name: str, declared: DestinationSettings, ends_iteration: bool) -> None:
        fields = {field: getattr(declared, field) for field in declared.__struct_fields__}
        fields["retain_without_subscriptions"] = name == "hold"
        self.comparison.declare(Address(Kind.TOPIC, name), DestinationSettings(**fields))
        self.end(ends_iteration)

    @rule(
        where=st.sampled_from(["plain", "hold"]),
        name=st.sampled_from(["s", "t", "u"]),
        durable=st.booleans(),
        shared=st.booleans(),
        selector=selectors,
        exclude=st.sampled_from([None, "sender 1", "sender 2"]),
        ends_iteration=ends,
    )
    def subscribe(
        self,
        where: str,
        name: str,
        durable: bool,
        shared: bool,
        selector: AtLeast | None,
        exclude: str | None,
        ends_iteration: bool,
    ) -> None:
        topic = self.comparison.model.destinations[Address(Kind.TOPIC, where)]
        if topic.settings.retain_without_subscriptions:
            exclude = (
                None  # the journal does not store senders: a held message may have lost its sender
            )
        if name not in topic.subscriptions:
            self.comparison.subscribe(topic, name, durable, shared, selector, exclude)
        self.end(ends_iteration)

    @rule(name=st.sampled_from(["m", "n", "o"]), ends_iteration=ends)
    def join(self, name: str, ends_iteration: bool) -> None:
        topic = self.comparison.model.destinations[Address(Kind.TOPIC, "hold")]
        if name not in topic.subscriptions:
            self.comparison.join(topic, name)
        self.end(ends_iteration)

    def named(self) -> list[model.Subscription]:
        return [s for s in self.comparison.model.subscriptions() if s.name]

    @precondition(lambda self: any(s.member for s in self.named()))
    @rule(which=picks, ends_iteration=ends)
    def leave(self, which: int, ends_iteration: bool) -> None:
        self.comparison.unsubscribe(self.pick([s for s in self.named() if s.member], which))
        self.end(ends_iteration)

    @precondition(lambda self: self.named())
    @rule(really=seldom, which=picks, ends_iteration=ends)
    def unsubscribe(self, really: bool, which: int, ends_iteration: bool) -> None:
        if really:
            self.comparison.unsubscribe(self.pick(self.named(), which))
        self.end(ends_iteration)

    @rule(really=seldom, where=st.sampled_from(["plain", "hold"]))
    def remove_topic(self, really: bool, where: str) -> None:
        if not really:
            return
        address = Address(Kind.TOPIC, where)
        self.comparison.remove(self.comparison.model.destinations[address])
        self.comparison.declare(
            address, DestinationSettings(retain_without_subscriptions=where == "hold")
        )


class TransactionMachine(Machine):
    """Transactions, local and prepared, among plain sends and acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.comparison.declare(Address(Kind.QUEUE, "a"), DestinationSettings())
        self.comparison.declare(Address(Kind.TOPIC, "t"), DestinationSettings())
        topic = self.comparison.model.destinations[Address(Kind.TOPIC, "t")]
        self.comparison.subscribe(topic, "s", True, True, None, None)

    def open_ones(self) -> list[TransactionPair]:
        return [pair for pair in self.comparison.transactions if not pair.model.prepared]

    @rule(declared=queue_settings)
    def declare_a(self, declared: DestinationSettings) -> None:
        self.comparison.declare(Address(Kind.QUEUE, "a"), declared)

    @rule(really=seldom)
    def remove_a(self, really: bool) -> None:
        if not really:
            return
        address = Address(Kind.QUEUE, "a")
        self.comparison.remove(self.comparison.model.destinations[address])
        self.comparison.declare(address, DestinationSettings())

    @precondition(lambda self: len(self.comparison.transactions) < 4)
    @rule()
    def begin(self) -> None:
        self.comparison.begin()

    @precondition(lambda self: self.open_ones())
    @rule(which=picks, where=picks, priority=priorities, durability=durabilities)
    def publish_in(self, which: int, where: int, priority: int, durability: Durability) -> None:
        model_message = self.comparison.model_message(3, priority, durability)
        self.comparison.publish_in(
            self.pick(self.open_ones(), which), self.destination(where), model_message
        )

    @rule(which=picks, held=picks, ends_iteration=ends)
    def acknowledge_in(self, which: int, held: int, ends_iteration: bool) -> None:
        if not self.open_ones():
            self.comparison.begin()
        if not self.holders():
            subscription = self.pick(self.consumable(), held)
            self.comparison.publish(subscription.destination, self.comparison.model_message())
            self.comparison.attach(subscription, WindowPair(2, True))
            self.comparison.flush()
        holder = self.holding(held)
        if holder is not None:
            self.comparison.acknowledge_in(self.pick(self.open_ones(), which), *holder)
        self.end(ends_iteration)

    def acked(self) -> list[tuple[TransactionPair, ConsumerPair, model.Entry]]:
        return [
            (transaction, pair, entry)
            for transaction in self.open_ones()
            for entry, consumer in transaction.model.acks
            for pair in (*self.comparison.consumers, *self.comparison.retired)
            if pair.model is consumer
        ]

    @precondition(lambda self: self.acked())
    @rule(which=picks, ends_iteration=ends)
    def withdraw_ack(self, which: int, ends_iteration: bool) -> None:
        self.comparison.withdraw_ack(*self.pick(self.acked(), which))
        self.end(ends_iteration)

    @precondition(lambda self: self.open_ones())
    @rule(which=picks, ends_iteration=ends)
    def prepare(self, which: int, ends_iteration: bool) -> None:
        self.comparison.prepare(self.pick(self.open_ones(), which))
        self.end(ends_iteration)

    @precondition(lambda self: self.comparison.transactions)
    @rule(which=picks, ends_iteration=ends)
    def commit(self, which: int, ends_iteration: bool) -> None:
        self.comparison.commit(self.pick(self.comparison.transactions, which))
        self.end(ends_iteration)

    @precondition(lambda self: self.open_ones())
    @rule(which=picks, ends_iteration=ends)
    def commit_in_slices(self, which: int, ends_iteration: bool) -> None:
        self.comparison.commit_in_slices(self.pick(self.open_ones(), which))
        self.end(ends_iteration)

    @precondition(lambda self: self.comparison.committing)
    @rule(slices=st.integers(1, 4))
    def continue_commits(self, slices: int) -> None:
        for _ in range(slices):
            self.comparison.flush()

    @precondition(lambda self: self.comparison.transactions)
    @rule(which=picks, ends_iteration=ends)
    def rollback(self, which: int, ends_iteration: bool) -> None:
        self.comparison.rollback(self.pick(self.comparison.transactions, which))
        self.end(ends_iteration)


class BatchMachine(Machine):
    """Batches that are written once, and repeated, among plain sends and acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.comparison.declare(Address(Kind.QUEUE, "a"), DestinationSettings())
        self.comparison.declare(Address(Kind.QUEUE, "b"), DestinationSettings(max_messages=3))
        self.comparison.declare(Address(Kind.TOPIC, "t"), DestinationSettings())
        topic = self.comparison.model.destinations[Address(Kind.TOPIC, "t")]
        self.comparison.subscribe(topic, "s", True, True, None, None)
        self.latest = {"x": 0, "y": 0}
        self.written: list[BatchPart] = []

    @rule(declared=queue_settings)
    def declare_b(self, declared: DestinationSettings) -> None:
        self.comparison.declare(Address(Kind.QUEUE, "b"), declared)

    def open_parts(self, writer: str) -> list[BatchPart]:
        """Return the parts of incomplete partitions of the latest batch."""
        latest_parts = [
            part
            for part in self.written
            if (part.writer, part.batch) == (writer, self.latest[writer])
        ]
        done = {part.partition for part in latest_parts if part.final}
        return [part for part in latest_parts if part.partition not in done]

    @rule(
        writer=st.sampled_from("xy"),
        ahead=st.sampled_from([0, 0, 0, 1, 5]),
        partition=st.integers(0, 2),
        final=st.booleans(),
        model_messages=st.lists(st.tuples(picks, sizes, durabilities), max_size=4),
        ends_iteration=ends,
    )
    def write_batch(
        self,
        writer: str,
        ahead: int,
        partition: int,
        final: bool,
        model_messages: list[tuple[int, int, Durability]],
        ends_iteration: bool,
    ) -> None:
        batch = self.latest[writer] + ahead
        before = [
            part
            for part in self.written
            if (part.writer, part.batch, part.partition) == (writer, batch, partition)
        ]
        if any(part.final for part in before):
            return
        part = BatchPart(
            writer, batch, partition, len(before), final, len(model_messages), len(model_messages)
        )
        sends = [
            (self.destination(number), self.comparison.model_message(size, 4, durability))
            for number, size, durability in model_messages
        ]
        if self.comparison.write_batch(part, sends):
            self.latest[writer] = batch
            self.written.append(part)
        self.end(ends_iteration)

    @precondition(lambda self: self.written)
    @rule(which=picks)
    def repeat(self, which: int) -> None:
        self.comparison.repeat_batch(self.pick(self.written, which))

    @precondition(lambda self: self.open_parts("x"))
    @rule(which=picks, other=st.sampled_from([{"digest": 77}, {"rows": 77}, {"final": True}]))
    def repeat_with_other_rows(self, which: int, other: dict[str, int]) -> None:
        part = replace(self.pick(self.open_parts("x"), which), **other)
        with pytest.raises(BatchConflict):
            self.comparison.broker.batches.find(part)
