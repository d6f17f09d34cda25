"""Limits of dead-letter queues, which refuse dead letters without losing a message."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluicemq.broker import Destination, EngineSettings
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import LimitExceeded
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, bodies, purge

RETRY_MS = 5_000
"""ms, the default of `dead_letter_retry`."""
DEAD = Address(Kind.QUEUE, "q.dlq")
DROPPING = DestinationSettings(max_messages=2, overflow=Overflow.DROP_OLDEST, max_attempts=3)


def fail_all_attempts(fixture: BrokerFixture, queue: Destination, *bodies: str) -> None:
    """Send messages, and requeue them until they have no attempts left."""
    fixture.send(queue, *bodies, durability=Durability.LAZY)
    reader = fixture.read(queue)
    fixture.broker.flush()
    while reader.consumer.unacked:
        reader.release()
    reader.detach()


def dead_letter_bodies(fixture: BrokerFixture) -> list[str]:
    return [message.body.decode() for message in fixture.dead_letters()]


@pytest.mark.parametrize("limit", [{"max_messages": 1}, {"max_bytes": 1}])
@pytest.mark.parametrize("overflow", list(Overflow))
def test_exhausted_messages_stay_until_dead_letter_queue_has_capacity(
    overflow: Overflow, limit: dict[str, int]
) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=2)
    fixture.queue("q.dlq", overflow=overflow, **limit)
    fail_all_attempts(fixture, queue, "a", "b", "c")
    assert (dead_letter_bodies(fixture), queue.waiting, queue.statistics.dropped) == (["a"], 2, 0)
    reader = fixture.read(queue)
    for _ in range(4):
        fixture.wait(RETRY_MS)
    assert reader.got() == []  # they are not delivered again
    assert dead_letter_bodies(fixture) == ["a"]
    assert purge(fixture.broker, fixture.broker.destinations.queue("q.dlq")) == 1
    fixture.wait(RETRY_MS)
    assert (dead_letter_bodies(fixture), queue.waiting) == (["b"], 1)
    fixture.queue("q.dlq")
    fixture.wait(RETRY_MS)
    assert (dead_letter_bodies(fixture), queue.waiting) == (["b", "c"], 0)
    assert queue.statistics.dead_lettered == 3
    assert queue.bytes == 0


def test_queue_that_becomes_dead_letter_queue_accepts_its_blocked_messages() -> None:
    blocking = DestinationSettings(max_messages=1, overflow=Overflow.BLOCK)
    fixture = BrokerFixture(EngineSettings(default_destination=blocking))
    dead_letter_queue = fixture.broker.destinations.queue("q.dlq")
    fixture.send(dead_letter_queue, "a")
    message = fixture.message(dead_letter_queue, "b")
    unblocked: list[str] = []
    assert not fixture.broker.publish(dead_letter_queue, message, lambda: unblocked.append("b"))
    fail_all_attempts(fixture, fixture.queue(dead_letter=True, max_attempts=1), "c")
    fixture.broker.flush()
    assert unblocked == ["b"]
    assert sorted(dead_letter_bodies(fixture)) == ["a", "b", "c"]


def test_message_larger_than_dlq_limit_does_not_block_others() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fixture.queue("q.dlq", max_message_bytes=3, max_messages=1)
    fail_all_attempts(fixture, queue, "long", "x", "y")
    assert dead_letter_bodies(fixture) == ["x"]
    purge(fixture.broker, fixture.broker.destinations.queue("q.dlq"))
    fixture.wait(RETRY_MS)
    assert (dead_letter_bodies(fixture), queue.waiting) == (["y"], 1)


def test_refused_message_that_is_redelivered_is_in_its_queue_once() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True)
    fixture.send(fixture.queue("q.dlq", max_messages=1), "first")
    fixture.send(queue, "a")
    [expiring_sequence] = fixture.send(queue, "b", expiration=fixture.clock.wall + 100)
    fixture.wait(1000)
    delivery = fixture.broker.operations.find(queue.queue, expiring_sequence)
    assert delivery is not None
    assert delivery.scheduled  # expired, and refused by the dead-letter queue
    fixture.broker.operations.redeliver(delivery)
    assert bodies(queue.queue) == ["a", "b"]
    assert queue.queue.all_ready.length == 2
    assert purge(fixture.broker, queue) == 2
    assert queue.waiting == 0


def test_expired_messages_stay_and_are_not_delivered() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True)
    fixture.queue("q.dlq", max_messages=1)
    fixture.send(queue, "a", "b", expiration=fixture.clock.wall + 100)
    fixture.wait(300)
    reader = fixture.read(queue)
    fixture.wait(RETRY_MS)
    assert (dead_letter_bodies(fixture), reader.got(), queue.waiting) == (["a"], [], 1)
    assert queue.statistics.expired == 2
    purge(fixture.broker, fixture.broker.destinations.queue("q.dlq"))
    fixture.wait(RETRY_MS)
    assert (dead_letter_bodies(fixture), queue.waiting, queue.statistics.expired) == (["b"], 0, 2)


def test_paged_out_message_that_arrives_expired_stays() -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0))
    queue = fixture.queue(dead_letter=True)
    fixture.send(fixture.queue("other"), "in memory", durability=Durability.NONE)
    fixture.send(fixture.queue("q.dlq", max_messages=1), "full")
    [sequence] = fixture.send(queue, "a", expiration=fixture.clock.wall)
    assert (queue.queue.refused.keys(), fixture.broker.memory) == ({sequence}, 9)


def test_scheduled_message_that_has_expired_stays_expired_at_its_delivery_time() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True)
    fixture.send(fixture.queue("q.dlq", max_messages=1), "full")
    now = fixture.clock.wall
    fixture.send(queue, "a", expiration=now + 100, deliver_at=now + 2 * RETRY_MS)
    fixture.wait(300)
    fixture.wait(2 * RETRY_MS)
    assert (queue.queue.ready, queue.queue.scheduled.keys()) == (0, queue.queue.refused.keys())
    purge(fixture.broker, fixture.broker.destinations.queue("q.dlq"))
    fixture.wait(RETRY_MS)
    assert (dead_letter_bodies(fixture), queue.waiting, queue.statistics.expired) == (["a"], 0, 1)


def test_refused_message_that_is_redelivered_expires_without_consumer() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fixture.send(fixture.queue("q.dlq", max_messages=1), "full")
    [sequence] = fixture.send(queue, "a", expiration=fixture.clock.wall + RETRY_MS)
    reader = fixture.read(queue)
    fixture.broker.flush()
    reader.release()
    reader.detach()
    fixture.broker.operations.redeliver(queue.queue.scheduled[sequence])
    assert (queue.queue.ready, queue.queue.refused) == (1, {})
    fixture.wait(2 * RETRY_MS)
    assert (queue.queue.ready, queue.queue.refused.keys()) == (0, {sequence})


def test_rejected_messages_stay_while_dlq_is_full() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.queue("q.dlq", max_messages=1)
    reader = fixture.read(queue)
    for sequence in fixture.send(queue, "a", "b"):
        assert fixture.broker.dead_letter(queue.queue, sequence, "rejected", force=True)
        fixture.broker.flush()
    assert (dead_letter_bodies(fixture), queue.waiting, reader.consumer.unacked) == (["a"], 1, {})
    fixture.queue("q.dlq")
    fixture.wait(RETRY_MS)
    assert [(m.properties or {})["deadLetterReason"] for m in fixture.dead_letters()] == [
        "rejected"
    ] * 2


def test_late_acknowledgement_still_counts() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fixture.queue("q.dlq", max_messages=1)
    fail_all_attempts(fixture, queue, "a")
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "b")
    reader.release()
    assert queue.waiting == 1
    assert fixture.broker.acknowledge_any(queue.queue, sequence)
    fixture.queue("q.dlq")
    fixture.wait(RETRY_MS)
    assert (dead_letter_bodies(fixture), queue.waiting) == (["a"], 0)


def test_purging_and_deleting_queue_drops_exhausted_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fixture.queue("q.dlq", max_messages=1)
    fail_all_attempts(fixture, queue, "a", "b")
    assert purge(fixture.broker, queue) == 1
    fail_all_attempts(fixture, queue, "c")
    fixture.broker.remove(queue)
    fixture.queue("q.dlq")
    fixture.wait(RETRY_MS)
    [dead_letter] = fixture.dead_letters("q.dlq")
    assert dead_letter.body == b"a"
    assert fixture.broker.memory == 1 + dead_letter.header_bytes()


def test_displaced_message_is_dropped_when_dlq_is_full() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_messages=1, overflow=Overflow.DROP_OLDEST)
    fixture.queue("q.dlq", max_messages=1)
    fixture.send(queue, "a", "b", "c", durability=Durability.LAZY)
    assert (dead_letter_bodies(fixture), queue.waiting, queue.statistics.dropped) == (["a"], 1, 1)


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST])
def test_refused_messages_make_room_for_new_ones(overflow: Overflow) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=1, max_messages=2, overflow=overflow)
    fixture.queue("q.dlq", max_messages=1)
    fail_all_attempts(fixture, queue, "a", "b")
    fail_all_attempts(fixture, queue, "c")
    assert (dead_letter_bodies(fixture), queue.waiting) == (["a"], 2)
    fixture.send(queue, "new", priority=0)
    assert (bodies(queue), queue.statistics.dropped) == (["new", "c"], 1)
    assert fixture.read(queue).got() == ["new"]


@pytest.mark.parametrize("overflow", list(Overflow))
def test_full_dlq_refuses_redirected_messages(overflow: Overflow) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_messages=1, overflow=Overflow.DEAD_LETTER)
    fixture.queue("q.dlq", max_messages=1, overflow=overflow)
    fixture.send(queue, "a", "b")
    with pytest.raises(LimitExceeded, match=r"q\.dlq"):
        fixture.send(queue, "c")
    assert (dead_letter_bodies(fixture), queue.waiting, queue.statistics.rejected) == (["b"], 1, 1)


def test_messages_published_to_dlq_do_not_displace_dead_letters() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fail_all_attempts(fixture, queue, "a", "b")
    fixture.broker.destinations.declare(DEAD, DROPPING)
    with pytest.raises(LimitExceeded):
        fixture.send(fixture.broker.destinations.queue("q.dlq"), "c")
    assert dead_letter_bodies(fixture) == ["a", "b"]


def test_dlq_without_its_source_queue_is_ordinary_queue() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True)
    dead_letter_queue = fixture.broker.destinations.declare(DEAD, DROPPING)
    fixture.broker.remove(queue)
    fixture.send(dead_letter_queue, "a", "b", "c")
    assert dead_letter_bodies(fixture) == ["b", "c"]


def test_protocol_may_require_that_its_dlq_drops_messages() -> None:
    fixture = BrokerFixture()
    fixture.broker.core.dropping_dead_letter_queues.add(DEAD)
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fixture.broker.destinations.declare(DEAD, DROPPING)
    fail_all_attempts(fixture, queue, "a", "b", "c")
    assert (dead_letter_bodies(fixture), queue.waiting) == (["b", "c"], 0)


def test_dlq_settings_do_not_depend_on_first_user() -> None:
    defaults = DestinationSettings(max_messages=5, overflow=Overflow.DROP_OLDEST)
    fixture = BrokerFixture(EngineSettings(default_destination=defaults))
    early_queue = fixture.broker.destinations.resolve(DEAD, DROPPING)
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fixture.queue("other", dead_letter=True)
    late_queue = fixture.broker.destinations.resolve(
        Address(Kind.QUEUE, "other.dlq"), settings=DROPPING
    )
    fail_all_attempts(fixture, queue, "a", "b", "c")
    assert early_queue.settings == late_queue.settings == DestinationSettings()
    assert dead_letter_bodies(fixture) == ["a", "b", "c"]


def test_dlq_exists_and_stays_without_automatic_creation() -> None:
    fixture = BrokerFixture(EngineSettings(auto_create_queues=False, destination_idle_timeout=1000))
    queue = fixture.queue(dead_letter=True)
    dead_letter_queue = fixture.broker.destinations.resolve(DEAD)
    fixture.wait(10_000)
    fixture.broker.delete_if_idle(dead_letter_queue)
    assert fixture.broker.destinations.find(DEAD) is dead_letter_queue
    fixture.broker.remove(queue)
    fixture.broker.delete_if_idle(dead_letter_queue)
    assert fixture.broker.destinations.find(DEAD) is None


class DeadLetterMachine(RuleBasedStateMachine):
    """Messages and dead letters under changing limits.

    No message is lost or duplicated, and the dead-letter queue never exceeds its limit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fixture = BrokerFixture(EngineSettings(dead_letter_retry=1000))
        self.queue = self.fixture.queue(dead_letter=True, max_attempts=2, retry_delay=300)
        self.reader = self.fixture.read(self.queue, 3)
        self.sent = 0
        self.expected: Counter[str] = Counter()
        self.limit = 0

    @rule(ttl=st.sampled_from([0, 450]), durability=st.sampled_from(Durability))
    def send(self, ttl: int, durability: Durability) -> None:
        if durability is Durability.TRANSIENT:
            durability = Durability.NONE
        self.sent += 1
        expiration = self.fixture.clock.wall + ttl if ttl else 0
        self.fixture.send(self.queue, str(self.sent), expiration=expiration, durability=durability)
        self.expected[str(self.sent)] += 1

    @rule()
    def requeue(self) -> None:
        self.reader.release()

    @rule()
    def time_out(self) -> None:
        unacked = list(self.reader.consumer.unacked)
        self.fixture.broker.release(self.reader.consumer, unacked, timed_out=True)
        self.fixture.broker.flush()

    @rule()
    def acknowledge(self) -> None:
        for body in self.reader.unacked_by_body():
            self.expected[body] -= 1
        self.reader.acknowledge()

    @rule()
    def reject(self) -> None:
        for sequence in self.reader.unacked_by_body().values():
            self.fixture.broker.dead_letter(self.queue.queue, sequence, "rejected")
        self.fixture.broker.flush()

    @rule(limit=st.integers(0, 3), overflow=st.sampled_from(Overflow))
    def limit_dead_letters(self, limit: int, overflow: Overflow) -> None:
        self.limit = limit
        self.fixture.queue("q.dlq", max_messages=limit, overflow=overflow)

    @rule()
    def consume_dead_letter(self) -> None:
        reader = self.fixture.read(self.fixture.broker.destinations.queue("q.dlq"), 1, refill=False)
        for body in reader.unacked_by_body():
            self.expected[body] -= 1
        reader.acknowledge()
        reader.detach()

    @rule(milliseconds=st.sampled_from([100, 500, 1500]))
    def wait(self, milliseconds: int) -> None:
        before = self.fixture.broker.destinations.queue("q.dlq").waiting
        self.fixture.wait(milliseconds)
        if self.limit:
            assert self.fixture.broker.destinations.queue("q.dlq").waiting <= max(
                self.limit, before
            )

    @invariant()
    def no_message_is_lost_or_duplicated(self) -> None:
        counts: Counter[str] = Counter()
        for destination in self.fixture.broker.destinations.values():
            for delivery in destination.queue.browse():
                counts[self.fixture.broker.core.read(delivery).body.decode()] += 1
        assert counts == +self.expected

    def teardown(self) -> None:
        """Check that messages without attempts become dead letters when there is capacity."""
        self.fixture.queue("q.dlq")
        self.reader.detach()
        self.fixture.wait(60_000)
        assert self.queue.queue.refused == {}


TestDeadLetterLimits = DeadLetterMachine.TestCase
TestDeadLetterLimits.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
