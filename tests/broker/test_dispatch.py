"""Choice of the consumer for the next message."""

from __future__ import annotations

import pytest

from sluicemq.broker import Consumer, Delivery, Subscription, Window
from sluicemq.model.errors import JournalFailed, SubscriptionInUse
from tests.support.broker import BrokerFixture, Reader, TypeSelector


def test_consumers_are_served_round_robin() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    first, second = fixture.read(queue), fixture.read(queue)
    fixture.send(queue, "a", "b", "c", "d")
    assert (first.got(), second.got()) == (["a", "c"], ["b", "d"])


def test_round_robin_continues_after_last_flush() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    first, second = fixture.read(queue), fixture.read(queue)
    fixture.send(queue, "a")
    fixture.send(queue, "b")
    assert (first.got(), second.got()) == (["a"], ["b"])


def test_higher_priority_goes_first_and_equal_priority_in_order() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "low 1", "low 2", priority=0)
    fixture.send(queue, "high 1", "high 2", priority=9)
    assert fixture.read(queue).got() == ["high 1", "high 2", "low 1", "low 2"]


def test_ack_refills_refilling_window() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 2)
    fixture.send(queue, "a", "b", "c", "d")
    assert reader.got() == ["a", "b"]
    reader.acknowledge("b")
    assert reader.got() == ["c"]


def test_only_grant_adds_credit_to_window_that_does_not_refill() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1, refill=False)
    fixture.send(queue, "a", "b")
    reader.acknowledge("a")
    assert reader.got() == ["a"]
    fixture.broker.grant(
        reader.consumer.window, 1
    )  # dispatches at once, not only at the end of the iteration
    assert reader.got() == ["b"]


def test_consumers_that_share_window_share_its_credit() -> None:
    fixture = BrokerFixture()
    left_queue, right_queue = fixture.queue("left"), fixture.queue("right")
    window = Window(1, refill=False)
    from_left, from_right = (
        fixture.read(left_queue, window=window),
        fixture.read(right_queue, window=window),
    )
    fixture.send(right_queue, "r1")
    fixture.send(left_queue, "l1")
    fixture.send(right_queue, "r2")
    assert (from_left.got(), from_right.got()) == ([], ["r1"])
    fixture.broker.grant(window, 1)
    assert (from_left.got(), from_right.got()) == (["l1"], [])


def test_credit_returned_on_one_queue_is_used_on_another() -> None:
    fixture = BrokerFixture()
    left_queue, right_queue = fixture.queue("left"), fixture.queue("right")
    window = Window(1, refill=True)
    from_left, from_right = (
        fixture.read(left_queue, window=window),
        fixture.read(right_queue, window=window),
    )
    fixture.send(left_queue, "l")
    fixture.send(right_queue, "r")
    assert from_right.got() == []
    from_left.acknowledge("l")
    assert from_right.got() == ["r"]


def test_consumers_are_ordered_by_grant_and_not_by_attachment() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    first, second = fixture.read(queue, 0, refill=False), fixture.read(queue, 0, refill=False)
    fixture.broker.grant(second.consumer.window, 1)
    fixture.broker.grant(first.consumer.window, 1)
    fixture.send(queue, "a")
    assert (first.got(), second.got()) == ([], ["a"])


def test_grant_moves_waiting_consumer_to_end() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    first, second = fixture.read(queue, 1, refill=False), fixture.read(queue, 1, refill=False)
    fixture.broker.grant(first.consumer.window, 1)
    fixture.send(queue, "a")
    assert (first.got(), second.got()) == ([], ["a"])


def test_revoked_window_keeps_its_deliveries_and_gets_no_more() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 5, refill=False)
    fixture.send(queue, "a")
    fixture.broker.revoke(reader.consumer.window)
    fixture.send(queue, "b", "c")
    assert reader.got() == ["a"]
    reader.acknowledge("a")
    fixture.broker.grant(reader.consumer.window, 1)
    assert reader.got() == ["b"]


def test_long_backlog_is_served_over_several_scheduled_iterations() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    names = [str(number) for number in range(2500)]
    fixture.send(queue, *names)
    flush_requests: list[str] = []
    fixture.broker.on_flush_needed(lambda: flush_requests.append("wake"))
    reader = fixture.read(queue, 5000)
    names_received = reader.got()
    assert len(names_received) == 1000
    fixture.broker.flush()
    names_received += reader.got()
    assert len(names_received) == 2000
    assert flush_requests == ["wake"]
    fixture.broker.flush()
    assert names_received + reader.got() == names


def test_iteration_of_large_bodies_ends_at_one_mebibyte() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    body = "x" * 600_000
    fixture.send(queue, body, body, body)
    reader = fixture.read(queue)
    assert len(reader.got()) == 2
    fixture.broker.flush()
    assert len(reader.got()) == 1


@pytest.mark.parametrize("selector", [None, TypeSelector("a")])
def test_iteration_of_large_headers_ends_at_one_mebibyte(selector: TypeSelector | None) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "1", "2", "3", type="a", properties={"name": "x" * 600_000})
    reader = fixture.read(queue, selector=selector)
    batches = [reader.got()]
    for _ in range(3):
        fixture.broker.flush()
        batches.append(reader.got())
    assert list(filter(None, batches)) == [["1", "2"], ["3"]]


def test_exclusive_queue_activates_its_next_consumer_when_first_detaches() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_consumers=1)
    first = fixture.read(queue)
    with pytest.raises(SubscriptionInUse):
        fixture.read(queue)
    first.detach()
    second = fixture.read(queue)
    fixture.send(queue, "a")
    assert second.got() == ["a"]


def test_failover_serves_longest_attached_consumer() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(active_consumers=1)
    main = fixture.read(queue, 1)
    standby = fixture.read(queue)
    last = fixture.read(queue)
    fixture.send(queue, "a", "b")
    assert (main.got(), standby.got(), last.got()) == (["a"], [], [])
    main.detach()
    assert (standby.got(), last.got()) == (["a", "b"], [])


def test_suspended_consumer_is_skipped_even_if_granted_more() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    slow_reader, other_reader = fixture.read(queue, 1, refill=False), fixture.read(queue, 1)
    fixture.broker.suspend(slow_reader.consumer)
    fixture.broker.grant(slow_reader.consumer.window, 1)
    fixture.send(queue, "a", "b", "c")
    assert (slow_reader.got(), other_reader.got()) == ([], ["a"])
    fixture.broker.resume(slow_reader.consumer)
    fixture.broker.flush()
    assert slow_reader.got() == ["b", "c"]


def test_paused_queue_accepts_and_delivers_later() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.broker.destinations.set_paused(queue, True)
    fixture.send(queue, "a", "b")
    late_reader = fixture.read(queue)
    assert (reader.got(), late_reader.got()) == ([], [])
    fixture.broker.destinations.set_paused(queue, False)
    fixture.broker.flush()
    assert (reader.got(), late_reader.got()) == (["a"], ["b"])


class FailingReader(Reader):
    """A consumer whose session can process neither its deliveries nor its detachment."""

    error: Exception = ValueError("a defect")

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        super().deliver(consumer, deliveries)
        raise self.error

    def detached(self, consumer: Consumer) -> None:
        raise self.error


def attach_failing(
    fixture: BrokerFixture, subscription: Subscription, credit: int
) -> FailingReader:
    reader = FailingReader(fixture.broker)
    reader.consumer = fixture.broker.attach(subscription, reader, Window(credit, True))
    return reader


@pytest.mark.parametrize("credit", [1, 100])
def test_session_that_cannot_process_its_deliveries_affects_no_other(credit: int) -> None:
    fixture = BrokerFixture()
    faults: list[tuple[Consumer, Exception]] = []
    fixture.broker.on_fault(lambda consumer, error: faults.append((consumer, error)))
    queue = fixture.queue()
    failing = attach_failing(fixture, queue.queue, credit)
    reader = fixture.read(queue)
    fixture.send(queue, "a", "b", "c")
    fixture.send(queue, "d")
    assert faults == [(failing.consumer, FailingReader.error)]
    failing.detach()  # as at the end of its connection
    assert sorted(reader.got()) == ["a", "b", "c", "d"]
    assert queue.queue.unacked == 4


@pytest.mark.parametrize("deleted", ["queue", "subscription"])
def test_session_that_cannot_process_a_deletion_affects_no_other(deleted: str) -> None:
    fixture = BrokerFixture()
    faults: list[tuple[Consumer, Exception]] = []
    fixture.broker.on_fault(lambda consumer, error: faults.append((consumer, error)))
    destination = fixture.queue() if deleted == "queue" else fixture.topic()
    subscription = destination.queue
    if destination.topic:
        subscription = fixture.broker.subscribe(destination, "s", shared=True)
    failing = attach_failing(fixture, subscription, 1)
    reader = fixture.read(subscription)
    if destination.topic:
        fixture.broker.unsubscribe(subscription)
    else:
        fixture.broker.remove(destination, force=True)
    assert faults == [(failing.consumer, FailingReader.error)]
    assert reader.detachments == 1


def test_error_of_journal_in_session_is_raised() -> None:
    fixture = BrokerFixture()
    fixture.broker.on_fault(lambda consumer, error: None)
    queue = fixture.queue()
    attach_failing(fixture, queue.queue, 100).error = JournalFailed("no space")
    with pytest.raises(JournalFailed):
        fixture.send(queue, "a")
