"""Unit tests of the call heap and the expiry wheel."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.broker.pending.entry import ENDED, UNACKED, UNJOURNALED
from sluicemq.broker.scheduler import NEVER, ExpiryWheel, Timers, unlimited
from sluicemq.broker.state import Delivery
from sluicemq.broker.subscription import expire_all
from tests.support.broker import BrokerFixture

SLOT = ExpiryWheel.SLOT_MS
START = 1_000_000
MINUTES = 60_000


def delivery_expiring_at(expires: int) -> Delivery:
    return Delivery(BrokerFixture().queue().queue, expires, None, 4, 0, UNJOURNALED, 0, expires)


def test_calls_run_in_order_of_time_and_then_of_registration() -> None:
    timers = Timers(bool)
    calls: list[str] = []
    timers.add(30, calls.append, "last")
    timers.add(10, calls.append, "first")
    timers.add(20, calls.append, "second")
    timers.add(20, calls.append, "third")
    timers.run(9, unlimited())
    assert calls == []
    assert timers.deadline() == 10
    timers.run(20, unlimited())
    assert calls == ["first", "second", "third"]
    timers.run(30, unlimited())
    assert calls[3:] == ["last"]
    assert timers.deadline() == NEVER


def test_call_may_add_another_that_is_due_at_once() -> None:
    timers = Timers(bool)
    calls: list[str] = []
    timers.add(10, lambda _: timers.add(10, calls.append, "inner"), None)
    timers.run(10, unlimited())
    assert calls == ["inner"]


def test_empty_wheel_needs_no_call() -> None:
    assert ExpiryWheel().deadline() == NEVER
    assert ExpiryWheel().due(START) == []


def test_unacked_messages_leave_wheel_when_their_slot_is_due() -> None:
    wheel = ExpiryWheel()
    delivery = delivery_expiring_at(START + 50)
    wheel.add(delivery, START)
    delivery.state = UNACKED
    assert list(expire_all(wheel.due(START + 10 * SLOT))) == []
    assert wheel.deadline() == NEVER


ttls = st.one_of(st.integers(-SLOT, 3 * SLOT), st.integers(0, 10 * MINUTES))
step_lists = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ttls),
        st.tuples(st.just("discard"), st.integers(0, 50)),
        st.tuples(st.just("wait"), st.one_of(st.integers(1, SLOT), st.integers(1, 5 * MINUTES))),
        st.tuples(st.just("sleep until the deadline"), st.just(0)),
    ),
    max_size=60,
)


@given(step_lists)
def test_everything_expires_once_never_early_and_at_most_a_slot_late(
    steps: list[tuple[str, int]],
) -> None:
    wheel = ExpiryWheel()
    now = START
    pending: list[Delivery] = []
    for step, number in steps:
        if step == "add":
            delivery = delivery_expiring_at(now + number)
            wheel.add(delivery, now)
            pending.append(delivery)
        elif step == "discard" and pending:
            delivery = pending.pop(number % len(pending))
            delivery.state = ENDED
            wheel.discard(delivery)
        elif step == "wait":
            now += number
        elif step == "sleep until the deadline":
            deadline = wheel.deadline()
            if pending:
                first = min(delivery.expires for delivery in pending)
                assert deadline <= max(first, START) + SLOT
            now = max(now, deadline) if deadline < NEVER else now
        expired = wheel.due(now)
        assert all(delivery.expires <= now for delivery in expired)
        for delivery in expired:
            pending.remove(delivery)
        assert all(delivery.expires > now - SLOT for delivery in pending)
