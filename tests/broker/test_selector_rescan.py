"""Rescans of a long queue for new selectors (broker/selector_rescan.py)."""

from __future__ import annotations

import pytest

from sluicemq.broker import Destination, EngineSettings
from sluicemq.broker.selector_rescan import ENOUGH_READY, IDLE_FACTOR
from sluicemq.model.message import Durability
from tests.support.broker import (
    BrokerFixture,
    TypeSelector,
    bodies,
    delivery_objects,
    move_ready,
    purge,
)

FIRST_SLICE = 500
"""Deliveries evaluated in the first slice."""
RATE = 60
"""Deliveries evaluated per millisecond afterwards."""


def packing_fixture() -> BrokerFixture:
    """Return a broker that keeps no journaled body in memory and packs older deliveries."""
    return BrokerFixture(EngineSettings(memory_budget=0, chunk_deliveries=4))


def test_new_selector_is_evaluated_in_slices_and_in_order() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * (FIRST_SLICE + RATE), durability=Durability.LAZY)
    fixture.send(queue, "first", type="red")
    red = TypeSelector("red")
    reader = fixture.read(queue, selector=red)
    assert (red.calls, reader.got()) == (FIRST_SLICE, [])
    fixture.send(queue, "second", type="red")
    assert (red.calls, reader.got()) == (FIRST_SLICE + 1, [])
    assert fixture.broker.deadline() - fixture.clock.steady == 1
    fixture.send(queue, "others are served meanwhile")
    fixture.wait(1)
    assert (red.calls, reader.got()) == (FIRST_SLICE + RATE + 2, [])
    fixture.wait(1)
    assert (red.calls, reader.got()) == (FIRST_SLICE + RATE + 3, ["first", "second"])
    assert fixture.broker.deadline() > fixture.clock.steady + 1


def test_idle_broker_evaluates_larger_slices() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 3000, durability=Durability.LAZY)
    red = TypeSelector("red")
    fixture.read(queue, selector=red)
    fixture.broker.flush()
    fixture.wait(1)
    assert red.calls == FIRST_SLICE + IDLE_FACTOR * RATE


def test_slice_covers_at_most_ten_milliseconds() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 3000, durability=Durability.LAZY)
    red = TypeSelector("red")
    fixture.read(queue, selector=red)
    for elapsed, evaluations in ((5, 5 * RATE), (100, 10 * RATE)):
        before = red.calls
        fixture.broker.flush()
        fixture.broker.flush()
        fixture.wait(elapsed)
        assert red.calls - before == evaluations


def test_large_bodies_make_slice_shorter() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x" * 80_000] * 100, durability=Durability.LAZY)
    red = TypeSelector("red")
    fixture.read(queue, selector=red)
    assert red.calls == 50


def test_rescan_ends_however_many_messages_arrive() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 1000, durability=Durability.LAZY)
    fixture.send(queue, "old", type="red")
    red = TypeSelector("red")
    reader = fixture.read(queue, selector=red)
    sent = 1001
    for iteration in range(20):
        fixture.send(queue, *["x"] * 2 * RATE, durability=Durability.LAZY)
        fixture.send(queue, f"new {iteration}", type="red")
        sent += 2 * RATE + 1
        fixture.wait(1)
    assert reader.got() == ["old", *(f"new {iteration}" for iteration in range(20))]
    assert red.calls == sent


def test_higher_priority_message_does_not_wait_for_lower_ones() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 1000, durability=Durability.LAZY)
    reader = fixture.read(queue, selector=TypeSelector("red"))
    fixture.send(queue, "same", type="red")
    fixture.send(queue, "higher", type="red", priority=5)
    assert reader.got() == ["higher"]
    fixture.wait(10)
    assert reader.got() == ["same"]


def test_selectors_added_during_rescan_share_next_one() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 1000, durability=Durability.LAZY)
    for type in ("red", "green", "blue"):
        fixture.send(queue, type, type=type)
    selectors = [TypeSelector(type) for type in ("red", "green", "blue")]
    readers = [fixture.read(queue, selector=selector) for selector in selectors]
    assert [selector.calls for selector in selectors] == [FIRST_SLICE, 0, 0]
    fixture.wait(10)
    fixture.send(queue, "green after the first rescan", type="green")
    assert [selector.calls for selector in selectors] == [1004, 1, 1]
    for _ in range(2):
        fixture.wait(10)
    assert [selector.calls for selector in selectors] == [1004, 1003, 1003]
    assert [reader.got() for reader in readers] == [
        ["red"],
        ["green", "green after the first rescan"],
        ["blue"],
    ]


def test_rescan_ends_when_its_consumer_detaches() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 600)
    red, green = TypeSelector("red"), TypeSelector("green")
    reader = fixture.read(queue, selector=red)
    second_reader = fixture.read(queue, selector=green)
    reader.detach()
    for _ in range(3):
        fixture.wait(10)
    fixture.send(queue, "y", type="green")
    assert (red.calls, green.calls) == (FIRST_SLICE, 601)
    assert second_reader.got() == ["y"]
    second_reader.detach()
    assert queue.queue.rescan is None


def test_selector_awaiting_its_rescan_may_be_removed() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 600)
    red, green = TypeSelector("red"), TypeSelector("green")
    reader = fixture.read(queue, selector=red)
    fixture.read(queue, selector=green).detach()
    for _ in range(3):
        fixture.wait(10)
    fixture.send(queue, "y", type="red")
    assert (red.calls, green.calls, reader.got()) == (601, 0, ["y"])
    assert queue.queue.rescan is None


def test_messages_removed_during_rescan_are_not_delivered_twice() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    numbers = [str(number) for number in range(1600)]
    fixture.send(queue, *numbers, type="red")
    red_reader = fixture.read(queue, 0, refill=False, selector=TypeSelector("red"))
    other_reader = fixture.read(queue, 1200, refill=False)
    fixture.broker.flush()
    received_bodies = other_reader.got()
    other_reader.acknowledge()
    for _ in range(10):
        fixture.wait(10)
        fixture.broker.grant(red_reader.consumer.window, 100)
    assert received_bodies + red_reader.got() == numbers


def test_messages_requeued_during_rescan_keep_their_order() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "untried", type="red", priority=3)
    fixture.send(queue, *["x"] * 600, durability=Durability.LAZY)
    fixture.send(queue, "came back", type="red", priority=2)
    fixture.send(queue, *["x"] * 600, durability=Durability.LAZY, priority=1)
    holder = fixture.read(queue, 1000, refill=False)
    unacked = holder.unacked_by_body()
    reader = fixture.read(queue, selector=TypeSelector("red"))
    fixture.broker.release(
        holder.consumer, [unacked["untried"], unacked["came back"]], attempted=False
    )
    fixture.broker.flush()
    assert reader.got() == ["untried", "came back"]


def test_messages_requeued_ahead_of_rescan_are_found() -> None:
    fixture = BrokerFixture(EngineSettings(chunk_deliveries=4))
    queue = fixture.queue()
    selector = TypeSelector("red")
    selector.text = "also red"
    holder = fixture.read(queue, 1, selector=selector)
    fixture.send(queue, *["x"] * 600, durability=Durability.LAZY)
    [late_sequence] = fixture.send(queue, "late", type="red")
    fixture.send(queue, *["x"] * 20, durability=Durability.LAZY)
    fixture.send(queue, "later", type="red", durability=Durability.LAZY)
    reader = fixture.read(queue, selector=TypeSelector("red"))
    fixture.broker.suspend(holder.consumer)
    fixture.broker.release(holder.consumer, [late_sequence], attempted=False)
    fixture.broker.flush()
    assert reader.got() == []
    fixture.wait(10)
    assert reader.got() == ["late", "later"]


def test_compacting_queue_keeps_requeued_messages_in_order() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader_of_any = fixture.read(queue, 3)
    fixture.send(queue, "a", "b", "c")
    for _ in range(5):
        fixture.broker.suspend(reader_of_any.consumer)
        reader_of_any.release(attempted=False)
        fixture.broker.resume(reader_of_any.consumer)
        fixture.broker.flush()
    fixture.broker.suspend(reader_of_any.consumer)
    reader_of_any.release(attempted=False)
    red = fixture.read(queue, 1, selector=TypeSelector("red"))
    for _ in range(200):
        fixture.send(queue, "x", type="red")
        red.acknowledge()
    assert delivery_objects(queue) < 100
    reader_of_any.got()
    fixture.broker.resume(reader_of_any.consumer)
    fixture.broker.flush()
    assert reader_of_any.got() == ["a", "b", "c"]


def test_rescan_pauses_while_its_consumer_has_enough() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    numbers = [str(number) for number in range(3 * ENOUGH_READY)]
    fixture.send(queue, *numbers, type="red", durability=Durability.LAZY)
    red = TypeSelector("red")
    reader = fixture.read(queue, 0, refill=False, selector=red)
    for _ in range(5):
        fixture.wait(10)
    assert red.calls == ENOUGH_READY
    received_bodies: list[str] = []
    while len(received_bodies) < len(numbers):
        fixture.broker.grant(reader.consumer.window, 700)
        fixture.wait(10)
        assert red.calls <= len(received_bodies) + 700 + ENOUGH_READY + 50
        new_bodies = reader.got()
        assert new_bodies, "the rescan does not go on"
        received_bodies += new_bodies
    assert received_bodies == numbers


def test_new_consumer_does_not_wait_for_one_that_has_enough() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 3 * ENOUGH_READY, type="red", durability=Durability.LAZY)
    fixture.send(queue, "wanted", type="green")
    fixture.read(queue, 0, selector=TypeSelector("red"))
    for _ in range(5):
        fixture.wait(10)
    reader = fixture.read(queue, selector=TypeSelector("green"))
    for _ in range(20):
        fixture.wait(10)
    assert reader.got() == ["wanted"]


def test_packed_backlog_unpacks_only_messages_that_match_selector() -> None:
    fixture = packing_fixture()
    queue = fixture.queue()
    for number in range(100):
        fixture.send(queue, str(number), type="red" if number % 20 == 0 else "")
    packed_count = delivery_objects(queue)
    assert packed_count < 15
    red = fixture.read(queue, 2, refill=False, selector=TypeSelector("red"))
    assert red.got() == ["0", "20"]
    assert delivery_objects(queue) <= packed_count + 5
    assert bodies_in_order(fixture, queue) == [str(number) for number in range(100)]
    red.acknowledge("0")
    red.release("20")
    reader_of_any = fixture.read(queue, 70, refill=False)
    first = reader_of_any.got()
    assert first == [str(number) for number in range(1, 71)]
    assert reader_of_any.attempts["20"] == 2
    fixture.broker.grant(red.consumer.window, 10)
    assert red.got() == ["80"]
    reader_of_any.acknowledge()
    fixture.broker.grant(reader_of_any.consumer.window, 100)
    fixture.broker.flush()
    assert reader_of_any.got() == [str(number) for number in range(71, 100) if number != 80]
    reader_of_any.acknowledge()
    red.acknowledge()
    assert (queue.waiting, queue.unacked, fixture.journal.stats().live) == (0, 0, 0)


def bodies_in_order(fixture: BrokerFixture, queue: Destination) -> list[str]:
    return [fixture.broker.read(delivery).body.decode() for delivery in queue.queue.browse()]


def test_queue_is_still_packed_beside_selective_consumer() -> None:
    fixture = packing_fixture()
    queue = fixture.queue()
    red = fixture.read(queue, 0, refill=False, selector=TypeSelector("red"))
    for number in range(200):
        fixture.send(queue, str(number), type="red" if number % 20 == 0 else "")
    assert delivery_objects(queue) < 30
    fixture.broker.grant(red.consumer.window, 100)
    assert red.got() == [str(number) for number in range(0, 200, 20)]
    red.acknowledge()
    rest = fixture.read(queue, 1000)
    assert rest.got() == [str(number) for number in range(200) if number % 20]


def test_messages_received_through_selector_are_released() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 50)
    reader = fixture.read(queue, 1, selector=TypeSelector("red"))
    for _ in range(3000):
        fixture.send(queue, "a", type="red", durability=Durability.LAZY)
        reader.acknowledge()
    assert delivery_objects(queue) < 300


def test_messages_pending_for_selector_and_received_by_others_are_released() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    waiting_count = 2 * ENOUGH_READY
    fixture.send(queue, *["x"] * waiting_count, type="red", durability=Durability.LAZY)
    fixture.read(queue, 0, selector=TypeSelector("red"))
    for _ in range(5):
        fixture.wait(10)
    reader = fixture.read(queue, 1)
    for _ in range(4000):
        fixture.send(queue, "a", type="red", durability=Durability.LAZY)
        reader.acknowledge()
    assert queue.queue.rescan is not None
    assert queue.waiting + queue.unacked == waiting_count
    assert delivery_objects(queue) < waiting_count + 3000


@pytest.mark.parametrize("chosen", [None, TypeSelector("red")], ids=["all", "some"])
def test_packed_backlog_is_moved_in_order(chosen: TypeSelector | None) -> None:
    fixture = packing_fixture()
    source, target = fixture.queue("source"), fixture.queue("target")
    for number in range(100):
        fixture.send(source, str(number), type="red" if number % 3 else "", priority=number % 2)
    count = move_ready(fixture.broker, source.queue, target, chosen)
    fixture.broker.flush()
    numbers = [*range(1, 100, 2), *range(0, 100, 2)]
    expected = [str(n) for n in numbers if chosen is None or n % 3]
    remaining = [str(n) for n in numbers if chosen is not None and not n % 3]
    assert count == len(expected)
    assert bodies_in_order(fixture, target) == expected
    assert bodies_in_order(fixture, source) == remaining


def test_moving_to_same_queue_ends() -> None:
    fixture = packing_fixture()
    queue = fixture.queue()
    numbers = [str(number) for number in range(50)]
    fixture.send(queue, *numbers)
    assert move_ready(fixture.broker, queue.queue, queue) == 50
    fixture.broker.flush()
    assert bodies_in_order(fixture, queue) == numbers
    assert fixture.journal.stats().live == 50


def test_purge_during_rescan_leaves_nothing() -> None:
    fixture = packing_fixture()
    queue = fixture.queue()
    fixture.send(queue, *["x"] * 700)
    reader = fixture.read(queue, selector=TypeSelector("red"))
    fixture.send(queue, "kept back", type="red")
    assert purge(fixture.broker, queue) == 701
    for _ in range(3):
        fixture.wait(10)
    fixture.send(queue, "after", type="red")
    assert reader.got() == ["after"]
    reader.acknowledge()
    assert (queue.waiting, fixture.journal.stats().live, fixture.broker.core.memory) == (0, 0, 0)
    assert bodies(queue) == []
