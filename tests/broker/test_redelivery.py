"""What comes back: where to, how often, and who may still end it by its number."""

from __future__ import annotations

from sluicemq.model.message import Durability
from tests.broker.support import Rig, bodies


def test_what_a_consumer_held_goes_back_in_front_of_what_waited() -> None:
    rig = Rig()
    queue = rig.queue()
    gone = rig.read(queue, 2)
    rig.send(queue, "a", "b", "c")
    gone.detach()
    reader = rig.read(queue)
    assert reader.got() == ["a", "b", "c"]
    assert reader.attempts == {"a": 2, "b": 2, "c": 1}


def test_the_order_of_release_does_not_matter() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 3, refill=False)
    rig.send(queue, "a", "b", "c", "d")
    reader.got()
    reader.release("c", "a")
    rig.broker.grant(reader.consumer.window, 3)
    assert reader.got() == ["a", "c", "d"]


def test_what_was_never_shown_does_not_count_as_an_attempt() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=1)
    reader = rig.read(queue, 1)
    rig.send(queue, "a")
    reader.release("a", attempted=False)
    assert reader.got() == ["a", "a"]
    assert reader.attempts == {"a": 1}


def test_only_the_holder_may_settle() -> None:
    rig = Rig()
    queue = rig.queue()
    holder, other = rig.read(queue), rig.read(queue)
    [sequence] = rig.send(queue, "a")
    assert not rig.broker.settle(other.consumer, sequence)
    assert rig.broker.settle(holder.consumer, sequence)
    assert not rig.broker.settle(holder.consumer, sequence)
    assert queue.unacked == 0


def test_each_delivery_is_taken_back_when_its_own_time_is_over() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000)
    reader = rig.read(queue)
    rig.send(queue, "a")
    rig.wait(400)
    rig.send(queue, "b")
    rig.wait(599)
    assert reader.got() == ["a", "b"]
    rig.wait(1)
    assert reader.got() == ["a"]
    rig.wait(400)
    assert reader.got() == ["b"]


def test_the_timeout_goes_on_for_later_deliveries_after_the_first_was_settled() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000)
    reader = rig.read(queue)
    rig.send(queue, "a", "b")
    reader.settle("a")
    rig.wait(1000)
    assert reader.got() == ["a", "b", "b"]


def test_a_consumers_own_timeout_goes_before_that_of_the_queue() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000)
    patient = rig.read(queue, ack_timeout=0)
    rig.send(queue, "a")
    rig.wait(10_000)
    assert patient.got() == ["a"]


def test_the_retry_delay_doubles_up_to_its_limit() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000, retry_delay=100, retry_delay_max=300)
    reader = rig.read(queue)
    rig.send(queue, "a")
    assert reader.got() == ["a"]
    for delay in (100, 200, 300, 300):
        rig.wait(1000)
        rig.wait(delay - 1)
        assert reader.got() == []
        rig.wait(1)
        assert reader.got() == ["a"]


def test_a_delayed_retry_lets_others_pass_and_gives_the_credit_back() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000, retry_delay=500)
    reader = rig.read(queue, 1)
    rig.send(queue, "a", "b")
    rig.wait(1000)
    assert reader.got() == ["a", "b"]


def test_max_attempts_counts_deliveries_of_any_kind_and_then_gives_up() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000, max_attempts=3)
    first = rig.read(queue)
    rig.send(queue, "a")
    rig.wait(1000)
    first.detach()
    last = rig.read(queue)
    assert last.attempts == {"a": 3}
    last.release()
    assert bodies(queue) == []
    assert queue.statistics.dropped == 1


def test_a_message_that_came_back_may_be_settled_by_its_number() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    came_back, never_seen = rig.send(queue, "a", "b")
    reader.detach()
    assert rig.broker.settle_any(queue.queue, came_back)
    assert not rig.broker.settle_any(queue.queue, came_back)
    assert not rig.broker.settle_any(queue.queue, never_seen)
    assert rig.read(queue).got() == ["b"]
    assert queue.statistics.settled == 1


def test_settling_by_number_refills_the_window_of_the_present_holder() -> None:
    rig = Rig()
    queue = rig.queue()
    first = rig.read(queue, 1)
    sequence, _ = rig.send(queue, "a", "b")
    first.detach()
    second = rig.read(queue, 1)
    assert rig.broker.settle_any(queue.queue, sequence)
    rig.broker.flush()
    assert second.got() == ["a", "b"]


def test_a_message_that_waits_for_its_retry_may_be_settled_by_its_number() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000, retry_delay=500)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    rig.wait(1000)
    assert rig.broker.settle_any(queue.queue, sequence)
    rig.wait(500)
    assert reader.got() == ["a"]
    assert queue.waiting == 0


def test_requeue_moves_a_held_message_behind_the_others_and_frees_its_credit() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    sequence, *_ = rig.send(queue, "a", "b", "c")
    assert rig.broker.requeue(queue.queue, sequence, 0)
    rig.broker.flush()
    assert bodies(queue) == ["b", "c", "a"]
    assert reader.got() == ["a", "b"]
    reader.settle()
    reader.settle()
    assert reader.held() == {"a": sequence}
    assert reader.attempts["a"] == 2


def test_requeue_gives_a_message_that_came_back_a_new_life() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a", expiration=rig.clock.wall + 1000)
    rig.send(queue, "b")
    reader.detach()
    assert rig.broker.requeue(queue.queue, sequence, rig.clock.wall + 5000)
    rig.wait(4900)
    assert bodies(queue) == ["b", "a"]
    rig.wait(200)
    assert bodies(queue) == ["b"]


def test_a_requeued_message_comes_back_to_its_new_place() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    sequence, *_ = rig.send(queue, "a", "b", durability=Durability.NONE)
    assert rig.broker.requeue(queue.queue, sequence, 0)
    rig.broker.flush()
    reader.settle("b")
    rig.send(queue, "c")
    reader.detach()
    assert bodies(queue) == ["a", "c"]


def test_a_message_that_came_back_may_be_given_up_by_its_number() -> None:
    rig = Rig()
    queue = rig.queue(dead_letter=True)
    reader = rig.read(queue, 1)
    sequence, never_seen = rig.send(queue, "a", "b")
    reader.detach()
    assert rig.broker.dead_letter(queue.queue, sequence, "poison")
    assert not rig.broker.dead_letter(queue.queue, never_seen, "poison")
    rig.broker.flush()
    assert [message.body for message in rig.dead()] == [b"a"]
    assert rig.read(queue).got() == ["b"]


def test_what_is_spared_counts_but_is_not_given_up() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=1, dead_letter=True)
    rig.send(queue, "a", "b")
    reader = rig.read(queue)
    held = reader.held()
    rig.broker.release(reader.consumer, [held["a"]], spared=True)
    reader.detach()
    assert bodies(queue) == ["a"]
    assert [message.body for message in rig.dead()] == [b"b"]
    again = rig.read(queue)
    again.got()
    assert again.attempts == {"a": 2}


def test_a_time_that_the_engine_does_not_watch() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=3, retry_delay=100)
    rig.send(queue, "a", "b")
    reader = rig.read(queue)
    held = reader.held()
    rig.broker.time_out(reader.consumer, [held["a"], 999])
    rig.wait(99)
    assert reader.got() == ["a", "b"]
    rig.wait(1)
    assert reader.got() == ["a"]
    rig.broker.time_out(reader.consumer, [held["a"]])
    rig.wait(199)
    assert reader.got() == []
    rig.wait(1)
    assert reader.got() == ["a"]
    assert reader.held().keys() == {"a", "b"}
