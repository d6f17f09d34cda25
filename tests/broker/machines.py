"""Random steps for a broker and its naive model (model.py, comparison.py).

There are four state machines, each short enough to be read as a whole: queues and their consumers,
topics and their subscriptions, transactions, and batches.
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
from sluicemq.journal.interface import Journal, MemoryJournal
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

indexes = st.integers(0, 30)
"""Choice of an existing object; a number, because the objects change from step to step."""
priorities = st.sampled_from([4, 4, 4, 0, 9, 5])
sizes = st.sampled_from([1, 3, 0, 10])
durabilities = st.sampled_from([Durability.NONE, Durability.LAZY, Durability.SYNC])
ttls = st.sampled_from([0, 0, 0, 150, 350, 1050])
delays = st.sampled_from([0, 0, 0, 200, 1000])
selectors = st.sampled_from(
    [None, None, AtLeast("priority >= 4"), AtLeast("priority >= 5"), AtLeast("size >= 3")]
)
rarely = st.sampled_from([False, False, False, True])
"""Whether to perform operations that leave little to test afterwards."""
iteration_ends = st.booleans()
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

    def pick(self, items: Sequence[T], index: int) -> T:
        return items[index % len(items)]

    def destination(self, index: int) -> model.Destination:
        return self.pick(list(self.comparison.model.destinations.values()), index)

    def consumable(self) -> list[model.Subscription]:
        """Return the subscriptions that may have consumers; that of a topic itself only retains
        messages."""
        subscriptions = self.comparison.model.subscriptions()
        return [s for s in subscriptions if s.name or s.destination.address.kind is Kind.QUEUE]

    def unacked(self) -> list[tuple[ConsumerPair, model.Entry]]:
        pairs = (*self.comparison.consumers, *self.comparison.retired)
        return [(pair, entry) for pair in pairs for entry in pair.model.held()]

    def pick_unacked(self, index: int) -> tuple[ConsumerPair, model.Entry] | None:
        pairs = self.unacked()
        return self.pick(pairs, index) if pairs else None

    def finish_step(self, ends_iteration: bool) -> None:
        if ends_iteration:
            self.comparison.flush()

    @invariant()
    def engine_equals_model(self) -> None:
        self.comparison.check()

    def teardown(self) -> None:
        self.comparison.flush()
        self.comparison.catch_up()

    @rule(
        destination_index=indexes,
        count=st.integers(1, 3),
        size=sizes,
        priority=priorities,
        durability=durabilities,
        ttl=ttls,
        delay=delays,
        may_wait=st.booleans(),
        ends_iteration=iteration_ends,
    )
    def publish(
        self,
        destination_index: int,
        count: int,
        size: int,
        priority: int,
        durability: Durability,
        ttl: int,
        delay: int,
        may_wait: bool,
        ends_iteration: bool,
    ) -> None:
        destination = self.destination(destination_index)
        for _ in range(count):
            model_message = self.comparison.model_message(
                size, priority, durability, ttl, delay, f"sender {count}"
            )
            self.comparison.publish(destination, model_message, may_wait)
        self.finish_step(ends_iteration)

    @rule(
        destination_index=indexes,
        credit=st.sampled_from([0, 1, 1, 2, 5, 1000]),
        refill=st.booleans(),
        selector=selectors,
        ack_timeout=st.sampled_from([0, 0, 100, 500]),
        ends_iteration=iteration_ends,
    )
    def attach(
        self,
        destination_index: int,
        credit: int,
        refill: bool,
        selector: AtLeast | None,
        ack_timeout: int,
        ends_iteration: bool,
    ) -> None:
        subscriptions = self.consumable()
        if not subscriptions:
            return
        subscription = self.pick(subscriptions, destination_index)
        window = WindowPair(credit, refill)
        self.comparison.attach(subscription, window, selector, ack_timeout)
        self.finish_step(ends_iteration)

    @initialize(
        budget=st.sampled_from([1 << 30, 0]),
        rescan_limits=st.sampled_from([(500, 60), (1, 1), (3, 1)]),
    )
    def limit_resources(self, budget: int, rescan_limits: tuple[int, int]) -> None:
        """Limit memory and rescans. Without a memory budget, all journaled bodies are paged out;
        with a low rescan rate, rescans for new selectors take several iterations."""
        comparison = self.comparison
        core = comparison.broker.core
        comparison.budget = core.memory_budget = budget
        comparison.rescan_limits = first_slice, rate = rescan_limits
        core.settings = replace(core.settings, rescan_first_slice=first_slice, rescan_rate=rate)

    @rule(
        destination_index=indexes,
        model_messages=st.lists(
            st.tuples(st.sampled_from([2, 3]), priorities, durabilities), min_size=1, max_size=5
        ),
        may_wait=st.booleans(),
    )
    def publish_several(
        self,
        destination_index: int,
        model_messages: list[tuple[int, int, Durability]],
        may_wait: bool,
    ) -> None:
        destination = self.destination(destination_index)
        for size, priority, durability in model_messages:
            model_message = self.comparison.model_message(size, priority, durability)
            self.comparison.publish(destination, model_message, may_wait)
        self.comparison.flush()

    @rule(destination_index=indexes, credit=st.integers(1, 4), selector=selectors)
    def consume(self, destination_index: int, credit: int, selector: AtLeast | None) -> None:
        subscriptions = self.consumable()
        with_messages = [s for s in subscriptions if s.entries and len(s.consumers) < 3]
        if with_messages or subscriptions:
            subscription = self.pick(with_messages or subscriptions, destination_index)
            self.comparison.attach(subscription, WindowPair(credit, True), selector)

    @precondition(lambda self: self.unacked())
    @rule(keep=st.integers(0, 3))
    def acknowledge_most(self, keep: int) -> None:
        for pair, entry in self.unacked()[keep:]:
            self.comparison.acknowledge(pair, entry)
        self.comparison.flush()

    @precondition(lambda self: self.comparison.consumers)
    @rule(index=indexes, ends_iteration=iteration_ends)
    def detach(self, index: int, ends_iteration: bool) -> None:
        self.comparison.detach(self.pick(self.comparison.consumers, index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(
        index=indexes,
        keep=st.integers(0, 3),
        attempted=st.booleans(),
        ends_iteration=iteration_ends,
    )
    def retire(self, index: int, keep: int, attempted: bool, ends_iteration: bool) -> None:
        pair = self.pick(self.comparison.consumers, index)
        self.comparison.retire(pair, pair.model.held()[:keep], attempted)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.comparison.retired)
    @rule(index=indexes, ends_iteration=iteration_ends)
    def detach_retired(self, index: int, ends_iteration: bool) -> None:
        self.comparison.detach(self.pick(self.comparison.retired, index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.unacked())
    @rule(
        index=indexes,
        count=st.integers(1, 4),
        attempted=st.booleans(),
        ends_iteration=iteration_ends,
    )
    def start_next_attempt(
        self, index: int, count: int, attempted: bool, ends_iteration: bool
    ) -> None:
        unacked = self.pick_unacked(index)
        assert unacked is not None
        pair, _ = unacked
        self.comparison.start_next_attempt(pair, pair.model.held()[-count:], attempted)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(index=indexes, credit=st.integers(1, 3), ends_iteration=iteration_ends)
    def grant(self, index: int, credit: int, ends_iteration: bool) -> None:
        self.comparison.grant(self.pick(self.comparison.consumers, index).window, credit)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.unacked())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def acknowledge(self, index: int, ends_iteration: bool) -> None:
        unacked = self.pick_unacked(index)
        assert unacked is not None
        self.comparison.acknowledge(*unacked)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.unacked())
    @rule(
        index=indexes,
        count=st.integers(1, 4),
        attempted=st.booleans(),
        spared=st.booleans(),
        ends_iteration=iteration_ends,
    )
    def release(
        self, index: int, count: int, attempted: bool, spared: bool, ends_iteration: bool
    ) -> None:
        unacked = self.pick_unacked(index)
        assert unacked is not None
        pair, _ = unacked
        self.comparison.release(pair, pair.model.held()[:count], attempted, spared)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.unacked())
    @rule(index=indexes, count=st.integers(1, 4), ends_iteration=iteration_ends)
    def time_out(self, index: int, count: int, ends_iteration: bool) -> None:
        unacked = self.pick_unacked(index)
        assert unacked is not None
        pair, _ = unacked
        self.comparison.time_out(pair, pair.model.held()[:count])
        self.finish_step(ends_iteration)

    @rule(tenths=st.sampled_from([1, 1, 2, 5, 12]), ends_iteration=iteration_ends)
    def advance(self, tenths: int, ends_iteration: bool) -> None:
        self.comparison.advance(tenths * 100)
        self.finish_step(ends_iteration)

    @rule(
        is_executed=rarely,
        destination_index=indexes,
        unacked=st.booleans(),
        ends_iteration=iteration_ends,
    )
    def purge(
        self, is_executed: bool, destination_index: int, unacked: bool, ends_iteration: bool
    ) -> None:
        if is_executed:
            self.comparison.purge(self.destination(destination_index), unacked)
        self.finish_step(ends_iteration)

    def entries(self) -> list[model.Entry]:
        """Return all entries an administrator may see, including those in transactions."""
        return [entry for s in self.comparison.model.subscriptions() for entry in s.entries]

    def is_consumable(self, subscription: model.Subscription) -> bool:
        """Return whether the subscription may have consumers. The journal does not record the order
        of the messages that a topic without subscriptions retains."""
        return subscription in self.consumable()

    @precondition(lambda self: self.entries())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def delete_one(self, index: int, ends_iteration: bool) -> None:
        self.comparison.delete(self.pick(self.entries(), index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.entries())
    @rule(index=indexes, target_index=indexes, ends_iteration=iteration_ends)
    def move_one(self, index: int, target_index: int, ends_iteration: bool) -> None:
        self.comparison.move_one(self.pick(self.entries(), index), self.destination(target_index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: 0 < len(self.entries()) < 40)
    @rule(index=indexes, target_index=indexes, ends_iteration=iteration_ends)
    def copy_one(self, index: int, target_index: int, ends_iteration: bool) -> None:
        self.comparison.copy_one(self.pick(self.entries(), index), self.destination(target_index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.entries())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def redeliver_one(self, index: int, ends_iteration: bool) -> None:
        entry = self.pick(self.entries(), index)
        if self.is_consumable(entry.subscription):
            self.comparison.redeliver(entry)
        self.finish_step(ends_iteration)

    def dead_letters(self) -> list[model.Entry]:
        return [entry for entry in self.entries() if entry.model_message.dead]

    @precondition(lambda self: self.dead_letters())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def redrive(self, index: int, ends_iteration: bool) -> None:
        self.comparison.redrive(self.pick(self.dead_letters(), index))
        self.finish_step(ends_iteration)

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

    @rule(name=st.sampled_from("ab"), new_settings=queue_settings, ends_iteration=iteration_ends)
    def declare_queue(
        self, name: str, new_settings: DestinationSettings, ends_iteration: bool
    ) -> None:
        address = Address(Kind.QUEUE, name)
        existing = self.comparison.model.destinations.get(address)
        if existing is None or existing.owner is None:
            self.comparison.declare(address, new_settings)
        self.finish_step(ends_iteration)

    @rule(new_settings=queue_settings, owner=st.sampled_from(["x", "y"]))
    def declare_temporary(self, new_settings: DestinationSettings, owner: str) -> None:
        address = Address(Kind.QUEUE, f"temporary of {owner}")
        if address not in self.comparison.model.destinations:
            self.comparison.declare(address, new_settings, owner)

    @rule(is_executed=rarely, owner=st.sampled_from(["x", "y"]), ends_iteration=iteration_ends)
    def delete_temporary(self, is_executed: bool, owner: str, ends_iteration: bool) -> None:
        if not is_executed:
            return
        for destination in list(self.comparison.model.destinations.values()):
            if destination.owner == owner:
                self.comparison.model.remove(destination)
        self.comparison.broker.delete_temporary(owner)
        self.finish_step(ends_iteration)

    @rule(is_executed=rarely, destination_index=indexes, ends_iteration=iteration_ends)
    def remove_queue(self, is_executed: bool, destination_index: int, ends_iteration: bool) -> None:
        destination = self.destination(destination_index)
        if (
            is_executed
            and destination.queue in self.consumable()
            and destination.address.name != "a"
        ):
            self.comparison.remove(destination)
        self.finish_step(ends_iteration)

    @rule(
        first=indexes,
        second=indexes,
        credit=st.integers(0, 2),
        refill=st.booleans(),
        ends_iteration=iteration_ends,
    )
    def attach_to_several(
        self, first: int, second: int, credit: int, refill: bool, ends_iteration: bool
    ) -> None:
        window = WindowPair(credit, refill)
        for number in (first, second):
            self.comparison.attach(self.pick(self.consumable(), number), window)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(index=indexes, ends_iteration=iteration_ends)
    def revoke(self, index: int, ends_iteration: bool) -> None:
        self.comparison.revoke(self.pick(self.comparison.consumers, index).window)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.comparison.consumers)
    @rule(index=indexes, suspended=st.booleans(), ends_iteration=iteration_ends)
    def suspend(self, index: int, suspended: bool, ends_iteration: bool) -> None:
        self.comparison.suspend(self.pick(self.comparison.consumers, index), suspended)
        self.finish_step(ends_iteration)

    @rule(destination_index=indexes, paused=st.booleans(), ends_iteration=iteration_ends)
    def pause(self, destination_index: int, paused: bool, ends_iteration: bool) -> None:
        self.comparison.pause(self.destination(destination_index), paused)
        self.finish_step(ends_iteration)

    def delivered(self) -> list[model.Entry]:
        """Return the delivered entries, which can be acked, requeued or rejected by sequence."""
        return [
            entry
            for subscription in self.comparison.model.subscriptions()
            for entry in subscription.entries
            if entry.attempts and not isinstance(entry.holder, model.Transaction)
        ]

    @precondition(lambda self: self.delivered())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def acknowledge_any(self, index: int, ends_iteration: bool) -> None:
        self.comparison.acknowledge_any(self.pick(self.delivered(), index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.delivered())
    @rule(index=indexes, ttl=ttls, ends_iteration=iteration_ends)
    def requeue(self, index: int, ttl: int, ends_iteration: bool) -> None:
        self.comparison.requeue(self.pick(self.delivered(), index), ttl)
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.delivered())
    @rule(index=indexes, force=st.booleans(), ends_iteration=iteration_ends)
    def dead_letter(self, index: int, force: bool, ends_iteration: bool) -> None:
        self.comparison.dead_letter(self.pick(self.delivered(), index), force)
        self.finish_step(ends_iteration)


class TopicMachine(Machine):
    """Topics: durable, shared and no-local subscriptions, retained messages, and groups."""

    def __init__(self) -> None:
        super().__init__()
        self.comparison.declare(Address(Kind.TOPIC, "plain"), DestinationSettings())
        self.comparison.declare(
            Address(Kind.TOPIC, "hold"), DestinationSettings(retain_without_subscriptions=True)
        )

    @rule(
        name=st.sampled_from(["plain", "hold"]),
        new_settings=queue_settings,
        ends_iteration=iteration_ends,
    )
    def declare_topic(
        self, name: str, new_settings: DestinationSettings, ends_iteration: bool
    ) -> None:
        fields = {field: getattr(new_settings, field) for field in new_settings.__struct_fields__}
        fields["retain_without_subscriptions"] = name == "hold"
        self.comparison.declare(Address(Kind.TOPIC, name), DestinationSettings(**fields))
        self.finish_step(ends_iteration)

    @rule(
        topic_name=st.sampled_from(["plain", "hold"]),
        name=st.sampled_from(["s", "t", "u"]),
        durable=st.booleans(),
        shared=st.booleans(),
        selector=selectors,
        exclude=st.sampled_from([None, "sender 1", "sender 2"]),
        ends_iteration=iteration_ends,
    )
    def subscribe(
        self,
        topic_name: str,
        name: str,
        durable: bool,
        shared: bool,
        selector: AtLeast | None,
        exclude: str | None,
        ends_iteration: bool,
    ) -> None:
        topic = self.comparison.model.destinations[Address(Kind.TOPIC, topic_name)]
        if topic.settings.retain_without_subscriptions:
            exclude = (
                None  # the journal does not store senders: a held message may have lost its sender
            )
        if name not in topic.subscriptions:
            self.comparison.subscribe(topic, name, durable, shared, selector, exclude)
        self.finish_step(ends_iteration)

    @rule(name=st.sampled_from(["m", "n", "o"]), ends_iteration=iteration_ends)
    def join(self, name: str, ends_iteration: bool) -> None:
        topic = self.comparison.model.destinations[Address(Kind.TOPIC, "hold")]
        if name not in topic.subscriptions:
            self.comparison.join(topic, name)
        self.finish_step(ends_iteration)

    def named_subscriptions(self) -> list[model.Subscription]:
        return [s for s in self.comparison.model.subscriptions() if s.name]

    @precondition(lambda self: any(s.member for s in self.named_subscriptions()))
    @rule(index=indexes, ends_iteration=iteration_ends)
    def leave(self, index: int, ends_iteration: bool) -> None:
        self.comparison.unsubscribe(
            self.pick([s for s in self.named_subscriptions() if s.member], index)
        )
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.named_subscriptions())
    @rule(is_executed=rarely, index=indexes, ends_iteration=iteration_ends)
    def unsubscribe(self, is_executed: bool, index: int, ends_iteration: bool) -> None:
        if is_executed:
            self.comparison.unsubscribe(self.pick(self.named_subscriptions(), index))
        self.finish_step(ends_iteration)

    @rule(is_executed=rarely, topic_name=st.sampled_from(["plain", "hold"]))
    def remove_topic(self, is_executed: bool, topic_name: str) -> None:
        if not is_executed:
            return
        address = Address(Kind.TOPIC, topic_name)
        self.comparison.remove(self.comparison.model.destinations[address])
        self.comparison.declare(
            address, DestinationSettings(retain_without_subscriptions=topic_name == "hold")
        )


class TransactionMachine(Machine):
    """Transactions, local and prepared, among plain sends and acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.comparison.declare(Address(Kind.QUEUE, "a"), DestinationSettings())
        self.comparison.declare(Address(Kind.TOPIC, "t"), DestinationSettings())
        topic = self.comparison.model.destinations[Address(Kind.TOPIC, "t")]
        self.comparison.subscribe(topic, "s", True, True, None, None)

    def open_transactions(self) -> list[TransactionPair]:
        return [pair for pair in self.comparison.transactions if not pair.model.prepared]

    @rule(new_settings=queue_settings)
    def declare_a(self, new_settings: DestinationSettings) -> None:
        self.comparison.declare(Address(Kind.QUEUE, "a"), new_settings)

    @rule(is_executed=rarely)
    def remove_a(self, is_executed: bool) -> None:
        if not is_executed:
            return
        address = Address(Kind.QUEUE, "a")
        self.comparison.remove(self.comparison.model.destinations[address])
        self.comparison.declare(address, DestinationSettings())

    @precondition(lambda self: len(self.comparison.transactions) < 4)
    @rule()
    def begin(self) -> None:
        self.comparison.begin()

    @precondition(lambda self: self.open_transactions())
    @rule(index=indexes, destination_index=indexes, priority=priorities, durability=durabilities)
    def publish_in(
        self, index: int, destination_index: int, priority: int, durability: Durability
    ) -> None:
        model_message = self.comparison.model_message(3, priority, durability)
        self.comparison.publish_in(
            self.pick(self.open_transactions(), index),
            self.destination(destination_index),
            model_message,
        )

    @rule(index=indexes, subscription_index=indexes, ends_iteration=iteration_ends)
    def acknowledge_in(self, index: int, subscription_index: int, ends_iteration: bool) -> None:
        if not self.open_transactions():
            self.comparison.begin()
        if not self.unacked():
            subscription = self.pick(self.consumable(), subscription_index)
            self.comparison.publish(subscription.destination, self.comparison.model_message())
            self.comparison.attach(subscription, WindowPair(2, True))
            self.comparison.flush()
        unacked = self.pick_unacked(subscription_index)
        if unacked is not None:
            self.comparison.acknowledge_in(self.pick(self.open_transactions(), index), *unacked)
        self.finish_step(ends_iteration)

    def acked_in_transactions(self) -> list[tuple[TransactionPair, ConsumerPair, model.Entry]]:
        return [
            (transaction, pair, entry)
            for transaction in self.open_transactions()
            for entry, consumer in transaction.model.acks
            for pair in (*self.comparison.consumers, *self.comparison.retired)
            if pair.model is consumer
        ]

    @precondition(lambda self: self.acked_in_transactions())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def withdraw_ack(self, index: int, ends_iteration: bool) -> None:
        self.comparison.withdraw_ack(*self.pick(self.acked_in_transactions(), index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.open_transactions())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def prepare(self, index: int, ends_iteration: bool) -> None:
        self.comparison.prepare(self.pick(self.open_transactions(), index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.comparison.transactions)
    @rule(index=indexes, ends_iteration=iteration_ends)
    def commit(self, index: int, ends_iteration: bool) -> None:
        self.comparison.commit(self.pick(self.comparison.transactions, index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.open_transactions())
    @rule(index=indexes, ends_iteration=iteration_ends)
    def commit_in_slices(self, index: int, ends_iteration: bool) -> None:
        self.comparison.commit_in_slices(self.pick(self.open_transactions(), index))
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.comparison.committing)
    @rule(slices=st.integers(1, 4))
    def continue_commits(self, slices: int) -> None:
        for _ in range(slices):
            self.comparison.flush()

    @precondition(lambda self: self.comparison.transactions)
    @rule(index=indexes, ends_iteration=iteration_ends)
    def rollback(self, index: int, ends_iteration: bool) -> None:
        self.comparison.rollback(self.pick(self.comparison.transactions, index))
        self.finish_step(ends_iteration)


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

    @rule(new_settings=queue_settings)
    def declare_b(self, new_settings: DestinationSettings) -> None:
        self.comparison.declare(Address(Kind.QUEUE, "b"), new_settings)

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
        batch_step=st.sampled_from([0, 0, 0, 1, 5]),
        partition=st.integers(0, 2),
        final=st.booleans(),
        model_messages=st.lists(st.tuples(indexes, sizes, durabilities), max_size=4),
        ends_iteration=iteration_ends,
    )
    def write_batch(
        self,
        writer: str,
        batch_step: int,
        partition: int,
        final: bool,
        model_messages: list[tuple[int, int, Durability]],
        ends_iteration: bool,
    ) -> None:
        batch = self.latest[writer] + batch_step
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
        self.finish_step(ends_iteration)

    @precondition(lambda self: self.written)
    @rule(index=indexes)
    def repeat(self, index: int) -> None:
        self.comparison.repeat_batch(self.pick(self.written, index))

    @precondition(lambda self: self.open_parts("x"))
    @rule(
        index=indexes,
        changed_fields=st.sampled_from([{"digest": 77}, {"rows": 77}, {"final": True}]),
    )
    def repeat_with_other_rows(self, index: int, changed_fields: dict[str, int]) -> None:
        part = replace(self.pick(self.open_parts("x"), index), **changed_fields)
        with pytest.raises(BatchConflict):
            self.comparison.broker.batches.find(part)
