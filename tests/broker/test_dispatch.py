"""Who gets the next message."""

from __future__ import annotations

import pytest

from sluicemq.broker import Window
from sluicemq.model.errors import SubscriptionInUse
from tests.broker.support import Rig


def test_consumers_take_turns() -> None:
    rig = Rig()
    queue = rig.queue()
    first, second = rig.read(queue), rig.read(queue)
    rig.send(queue, "a", "b", "c", "d")
    assert (first.got(), second.got()) == (["a", "c"], ["b", "d"])


def test_turns_go_on_where_the_last_flush_ended() -> None:
    rig = Rig()
    queue = rig.queue()
    first, second = rig.read(queue), rig.read(queue)
    rig.send(queue, "a")
    rig.send(queue, "b")
    assert (first.got(), second.got()) == (["a"], ["b"])


def test_higher_priority_goes_first_and_equal_priority_in_order() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.send(queue, "low 1", "low 2", priority=0)
    rig.send(queue, "high 1", "high 2", priority=9)
    assert rig.read(queue).got() == ["high 1", "high 2", "low 1", "low 2"]


def test_settling_refills_a_window_that_refills() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 2)
    rig.send(queue, "a", "b", "c", "d")
    assert reader.got() == ["a", "b"]
    reader.settle("b")
    assert reader.got() == ["c"]


def test_only_a_grant_adds_credit_to_a_window_that_does_not_refill() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1, refill=False)
    rig.send(queue, "a", "b")
    reader.settle("a")
    assert reader.got() == ["a"]
    rig.broker.grant(reader.consumer.window, 1)  # serves at once: no turn has to end
    assert reader.got() == ["b"]


def test_consumers_that_share_a_window_share_its_credit() -> None:
    rig = Rig()
    left, right = rig.queue("left"), rig.queue("right")
    window = Window(1, refill=False)
    from_left, from_right = rig.read(left, window=window), rig.read(right, window=window)
    rig.send(right, "r1")
    rig.send(left, "l1")
    rig.send(right, "r2")
    assert (from_left.got(), from_right.got()) == ([], ["r1"])
    rig.broker.grant(window, 1)
    assert (from_left.got(), from_right.got()) == (["l1"], [])


def test_credit_that_came_back_on_one_queue_is_used_on_another() -> None:
    rig = Rig()
    left, right = rig.queue("left"), rig.queue("right")
    window = Window(1, refill=True)
    from_left, from_right = rig.read(left, window=window), rig.read(right, window=window)
    rig.send(left, "l")
    rig.send(right, "r")
    assert from_right.got() == []
    from_left.settle("l")
    assert from_right.got() == ["r"]


def test_the_line_is_in_order_of_grants_not_of_attachment() -> None:
    rig = Rig()
    queue = rig.queue()
    first, second = rig.read(queue, 0, refill=False), rig.read(queue, 0, refill=False)
    rig.broker.grant(second.consumer.window, 1)
    rig.broker.grant(first.consumer.window, 1)
    rig.send(queue, "a")
    assert (first.got(), second.got()) == ([], ["a"])


def test_a_grant_moves_a_consumer_in_line_to_its_end() -> None:
    rig = Rig()
    queue = rig.queue()
    first, second = rig.read(queue, 1, refill=False), rig.read(queue, 1, refill=False)
    rig.broker.grant(first.consumer.window, 1)
    rig.send(queue, "a")
    assert (first.got(), second.got()) == ([], ["a"])


def test_a_revoked_window_keeps_what_it_holds_and_gets_no_more() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 5, refill=False)
    rig.send(queue, "a")
    rig.broker.revoke(reader.consumer.window)
    rig.send(queue, "b", "c")
    assert reader.got() == ["a"]
    reader.settle("a")
    rig.broker.grant(reader.consumer.window, 1)
    assert reader.got() == ["b"]


def test_a_long_backlog_is_served_over_several_turns_and_the_broker_asks_for_them() -> None:
    rig = Rig()
    queue = rig.queue()
    names = [str(number) for number in range(2500)]
    rig.send(queue, *names)
    wakes: list[str] = []
    rig.broker.wake = lambda: wakes.append("wake")
    reader = rig.read(queue, 5000)
    got = reader.got()
    assert len(got) == 1000
    rig.broker.flush()
    got += reader.got()
    assert len(got) == 2000
    assert wakes == ["wake"]
    rig.broker.flush()
    assert got + reader.got() == names


def test_a_turn_of_large_bodies_ends_at_one_mebibyte() -> None:
    rig = Rig()
    queue = rig.queue()
    body = "x" * 600_000
    rig.send(queue, body, body, body)
    reader = rig.read(queue)
    assert len(reader.got()) == 2
    rig.broker.flush()
    assert len(reader.got()) == 1


def test_an_exclusive_queue_takes_its_next_consumer_when_the_first_has_gone() -> None:
    rig = Rig()
    queue = rig.queue(max_consumers=1)
    first = rig.read(queue)
    with pytest.raises(SubscriptionInUse):
        rig.read(queue)
    first.detach()
    second = rig.read(queue)
    rig.send(queue, "a")
    assert second.got() == ["a"]


def test_failover_serves_the_highest_rank_and_then_the_next() -> None:
    rig = Rig()
    queue = rig.queue(active_consumers=1)
    standby = rig.read(queue, rank=1)
    last = rig.read(queue, rank=0)
    main = rig.read(queue, 1, rank=2)
    rig.send(queue, "a", "b")
    assert (main.got(), standby.got(), last.got()) == (["a"], [], [])
    main.detach()
    assert (standby.got(), last.got()) == (["a", "b"], [])


def test_a_suspended_consumer_is_passed_over_even_if_granted_more() -> None:
    rig = Rig()
    queue = rig.queue()
    slow, other = rig.read(queue, 1, refill=False), rig.read(queue, 1)
    rig.broker.suspend(slow.consumer)
    rig.broker.grant(slow.consumer.window, 1)
    rig.send(queue, "a", "b", "c")
    assert (slow.got(), other.got()) == ([], ["a"])
    rig.broker.resume(slow.consumer)
    rig.broker.flush()
    assert slow.got() == ["b", "c"]


def test_a_paused_queue_accepts_and_delivers_later() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.broker.pause(queue)
    rig.send(queue, "a", "b")
    late = rig.read(queue)
    assert (reader.got(), late.got()) == ([], [])
    rig.broker.unpause(queue)
    rig.broker.flush()
    assert (reader.got(), late.got()) == (["a"], ["b"])
