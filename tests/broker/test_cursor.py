"""Cursors that skip unmatched messages of a queue, and requeued deliveries."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.broker import Delivery, Destination, EngineSettings
from sluicemq.broker.pending.backlog import CHUNK, Chunks
from sluicemq.broker.pending.cursor import CHUNK_COST, Cursor
from sluicemq.broker.pending.entry import READY, UNACKED
from sluicemq.broker.subscription import remove_waiting, withdraw
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, TypeSelector

NO_END = 1 << 62
UNLIMITED = 1 << 30


def sequences(deliveries: list[Delivery]) -> list[int]:
    return [delivery.sequence for delivery in deliveries]


def ready_in(queue: Destination) -> list[Delivery]:
    """Return the ready deliveries in order, read from the parts of the pending queue."""
    pending = queue.queue.all_ready
    deliveries: list[Delivery] = []
    for priority in range(10):
        for part in (
            pending.backlogs[priority],
            pending.fifos[priority],
            pending.requeued[priority],
        ):
            deliveries += part or ()
    deliveries = [delivery for delivery in deliveries if delivery.state == READY]
    return sorted(deliveries, key=lambda delivery: (-delivery.priority, delivery.order))


def cursor_after(queue: Destination, count: int, until: int, budget: int) -> Cursor:
    """Return a cursor that has skipped `count` deliveries, within the budget of each step."""
    cursor = Cursor(queue.queue.all_ready, until)
    remaining = count
    while remaining and cursor.priority >= 0:
        remaining -= cursor.skip(remaining, budget)
        assert remaining >= 0
    return cursor


action_lists = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(1, 9),
            st.sampled_from([4, 4, 4, 9, 0]),
            st.sampled_from([Durability.LAZY, Durability.LAZY, Durability.NONE]),
        ),
        st.tuples(st.just("take"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("withdraw"), st.integers(0, 40)),
        st.tuples(st.just("pin"), st.integers(0, 40)),
        st.tuples(st.just("remove"), st.integers(0, 40), st.integers(1, 9)),
        st.tuples(st.just("compact")),
    ),
    min_size=1,
    max_size=25,
)


def queue_after(
    actions: list[tuple[Any, ...]], chunk_deliveries: int
) -> tuple[BrokerFixture, Destination]:
    """Perform the actions, and return a queue with gaps, requeued messages, and chunks."""
    fixture = BrokerFixture(EngineSettings(memory_budget=0, chunk_deliveries=chunk_deliveries))
    queue = fixture.queue()
    reader_of_any = fixture.read(queue, 0, refill=False)
    reader_of_red = fixture.read(queue, 0, refill=False, selector=TypeSelector("red"))
    number = 0
    for action, *arguments in actions:
        if action == "send":
            count, priority, durability = arguments
            for _ in range(count):
                number += 1
                colour = "red" if number % 3 == 0 else "blue"
                fixture.send(queue, "x", priority=priority, durability=durability, type=colour)
        elif action == "take":
            count, selected = arguments
            fixture.broker.grant(
                (reader_of_red if selected else reader_of_any).consumer.window, count
            )
            fixture.broker.flush()
            for reader in (reader_of_red, reader_of_any):
                fixture.broker.revoke(reader.consumer.window)
        elif action == "release":
            for reader in (reader_of_any, reader_of_red):
                unacked = list(reader.consumer.unacked)
                fixture.broker.release(reader.consumer, unacked[arguments[0] :])
        elif action in ("withdraw", "pin"):
            ready = ready_in(queue)
            if ready:
                delivery = ready[arguments[0] % len(ready)]
                queue.queue.all_ready.pin_unpacked(delivery)
                if action == "withdraw":
                    withdraw(delivery)
        elif action == "remove":
            for delivery in ready_in(queue)[arguments[0] : arguments[0] + arguments[1]]:
                remove_waiting(delivery)
        else:
            queue.queue.all_ready.compact()
    return fixture, queue


@given(
    actions=action_lists,
    chunk_deliveries=st.integers(1, 4),
    budget=st.sampled_from([1, CHUNK_COST + 3, UNLIMITED]),
)
@settings(max_examples=300, deadline=None)
def test_every_position_is_found_in_any_representation_of_the_queue(
    actions: list[tuple[Any, ...]], chunk_deliveries: int, budget: int
) -> None:
    _, queue = queue_after(actions, chunk_deliveries)
    subscription = queue.queue
    pending = subscription.all_ready
    ready = sequences(ready_in(queue))
    assert len(ready) == subscription.waiting
    assert pending.length >= len(ready)
    for priority in range(10):
        is_occupied = bool(pending.mask >> priority & 1)
        assert is_occupied == bool(pending.after(priority, 0, 1)), f"after() of priority {priority}"
    assert len(set(ready)) == len(ready)
    for offset in range(len(ready) + 2):
        cursor = cursor_after(queue, offset, NO_END, budget)
        remaining: list[int] = []
        while cursor.priority >= 0:
            remaining += sequences(cursor.examine(3))
        assert remaining == ready[offset:], f"from offset {offset}"


@given(actions=action_lists, chunk_deliveries=st.integers(1, 4), data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_cursor_stops_at_its_end_and_another_resumes_there(
    actions: list[tuple[Any, ...]], chunk_deliveries: int, data: st.DataObject
) -> None:
    _, queue = queue_after(actions, chunk_deliveries)
    pending = queue.queue.all_ready
    end = data.draw(st.integers(0, max((d.order for d in ready_in(queue)), default=0) + 1))
    ready = [d.sequence for d in ready_in(queue) if d.order <= end]
    offset = data.draw(st.integers(0, len(ready)))
    first = cursor_after(queue, offset, end, UNLIMITED)
    assert first.skip(0, UNLIMITED) == 0
    cursor = Cursor(pending, end, first.priority, first.last)
    remaining: list[int] = []
    while step := cursor.step(2):
        remaining += sequences(step)
    assert remaining == ready[offset:]
    assert cursor.priority == -1


@given(actions=action_lists, chunk_deliveries=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_every_delivery_is_found_by_its_order(
    actions: list[tuple[Any, ...]], chunk_deliveries: int
) -> None:
    _, queue = queue_after(actions, chunk_deliveries)
    pending = queue.queue.all_ready
    expected = {(d.priority, d.order): d.sequence for d in ready_in(queue)}
    for (priority, order), sequence in expected.items():
        delivery = pending.find(priority, order)
        assert delivery is not None
        assert (delivery.sequence, delivery.state) == (sequence, READY)
    for priority in range(10):
        for order in range(1, 60):
            if (priority, order) not in expected:
                missing = pending.find(priority, order)
                assert missing is None or missing.state != READY


def test_packed_backlog_is_skipped_chunk_by_chunk() -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0, chunk_deliveries=100))
    queue = fixture.queue()
    for _ in range(20):
        fixture.send(queue, *["x"] * 100, durability=Durability.LAZY)
    cursor = Cursor(queue.queue.all_ready, NO_END)
    # 18 chunks, the newest deliveries, however many deliveries the chunks hold
    assert cursor.skip(1950, 18 * CHUNK_COST + 200) == 1950
    assert len(cursor.step(100)) == 50


def test_last_delivery_of_packed_chunk_is_skipped_only_if_it_counts() -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0, chunk_deliveries=2))
    queue = fixture.queue()
    sent = [fixture.send(queue, body, durability=Durability.LAZY)[0] for body in "abcdefgh"]
    pending = queue.queue.all_ready
    pending.pin_unpacked(ready_in(queue)[1])  # the last one of the first chunk
    cursor = Cursor(pending, NO_END)
    assert cursor.skip(3, UNLIMITED) == 3
    assert sequences(list(cursor)) == sent[3:]


def test_delivery_requeued_from_another_pending_queue_keeps_its_position() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1, refill=False, selector=TypeSelector("red"))
    sent = fixture.send(queue, "a", type="red") + fixture.send(queue, "b")
    pending = queue.queue.all_ready
    length = pending.length
    for _ in range(3):
        reader.release()
        fixture.broker.grant(reader.consumer.window, 1)
    reader.release()
    assert reader.got() == ["a"] * 4
    assert pending.length == length
    assert sequences(ready_in(queue)) == sent


@given(orders=st.lists(st.integers(1, 5000), unique=True), pops=st.integers(0, 50))
def test_requeued_deliveries_are_kept_in_order(orders: list[int], pops: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue().queue
    requeued = Chunks()
    expected = []
    for order in orders:
        delivery = Delivery(queue, order, None, 4, 1, 1, 0, 0)
        requeued.insert(delivery)
        expected.append(order)
    expected.sort()
    for _ in range(min(pops, len(expected))):
        assert requeued.front().popleft().order == expected.pop(0)
        assert requeued.trim() == (not expected)
    assert [d.order for d in requeued] == expected
    for order in (0, 1, 2500, 5000):
        later_orders = [value for value in expected if value > order]
        assert [d.order for d in requeued.after(order, 7)] == later_orders[:7]


def test_many_requeued_deliveries_are_kept_in_chunks_and_released() -> None:
    queue = BrokerFixture().queue().queue
    requeued = Chunks()
    orders = list(range(1, 6 * CHUNK))
    random.Random(7).shuffle(orders)
    for order in orders:
        requeued.insert(Delivery(queue, order, None, 4, 1, 1, 0, 0))
    assert [d.order for d in requeued] == sorted(orders)
    for delivery in requeued:
        delivery.state = UNACKED if delivery.order % 2 else READY
    assert requeued.compact() == 3 * CHUNK - 1
    assert [d.order for d in requeued] == list(range(2, 6 * CHUNK, 2))
    assert requeued.find(4) is not None
    assert requeued.find(5) is None


def test_late_durable_message_precedes_chunks_of_later_messages() -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0, chunk_deliveries=1))
    queue = fixture.queue()
    late_message = fixture.message(queue, "late", durability=Durability.SYNC)
    fixture.broker.publish(queue, late_message)
    lazy_messages = [fixture.message(queue, "quick", durability=Durability.LAZY) for _ in range(6)]
    for message in lazy_messages:
        fixture.broker.publish(queue, message)
    pending = queue.queue.all_ready
    for delivery in ready_in(queue)[-2:]:
        remove_waiting(delivery)
    pending.compact()
    assert not pending.fifos[4]
    fixture.broker.flush()
    assert sequences(ready_in(queue)) == [
        late_message.sequence,
        *[message.sequence for message in lazy_messages[:4]],
    ]
    assert pending.find(4, late_message.sequence) is not None
    assert sequences(pending.after(4, 0, 9)) == sequences(ready_in(queue))
