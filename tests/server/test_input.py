"""The budget for unfinished input: nothing leaks, nothing deadlocks, whatever connections do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.server.input_budget import READ_BYTES, InputBudget

LIMIT = 4 * READ_BYTES


class Holder:
    """A connection that is uploading one frame after the other."""

    def __init__(self, budget: InputBudget) -> None:
        self.budget = budget
        self.held_bytes = 0
        self.awaits_no_input = False
        self.reviews: list[tuple[int, int]] = []
        self.transport_reads = True
        self.refused = False

    @property
    def suspended(self) -> bool:
        return self in self.budget.suspended

    def set_suspended(self, suspended: bool) -> None:
        assert self.transport_reads is suspended
        self.transport_reads = not suspended

    def review_input(self, now: int, exhausted_since: int) -> None:
        self.reviews.append((now, exhausted_since))

    def receive(self, size: int) -> None:
        assert self.transport_reads
        if not self.budget.report(self, self.held_bytes + size):
            self.refused = True
            self.close()

    def complete(self, left: int = 0) -> None:
        """The frame is complete; `left` bytes of the next one have come with it."""
        assert self.budget.report(self, left)

    def close(self) -> None:
        self.budget.release(self)
        self.transport_reads = True

    def pause(self) -> None:
        self.awaits_no_input = True
        if self.held_bytes:
            self.budget.balance()


def connect(budget: InputBudget, count: int) -> list[Holder]:
    return [Holder(budget) for _ in range(count)]


def readable(holders: list[Holder]) -> list[Holder]:
    return [holder for holder in holders if holder.transport_reads and not holder.awaits_no_input]


def test_below_the_limit_everybody_is_read() -> None:
    budget = InputBudget(LIMIT, 30.0)
    holders = connect(budget, 4)
    for holder in holders:
        holder.receive(READ_BYTES)
    assert budget.used == LIMIT
    assert readable(holders) == holders


def test_beyond_the_limit_only_the_oldest_frame_is_read_on() -> None:
    budget = InputBudget(LIMIT, 30.0)
    first, second, third, *_ = holders = connect(budget, 6)
    for holder in holders[:5]:
        holder.receive(READ_BYTES)
    assert len(budget.suspended) == 1
    second.receive(READ_BYTES)
    third.receive(READ_BYTES)
    holders[3].receive(1)
    holders[5].receive(1)
    assert readable(holders) == [first]
    for _ in range(50):
        first.receive(READ_BYTES)  # also far beyond the ceiling
    first.close()
    assert readable(holders[1:]) == [second]
    second.complete()
    assert budget.used > LIMIT
    assert readable(holders[2:]) == [third]
    third.complete()
    assert budget.used <= LIMIT
    assert len(budget.suspended) == 2  # not all at once: each may add a whole read
    budget.review(0)
    budget.review(0)
    assert not budget.suspended


def test_a_reader_that_pauses_itself_makes_way_for_the_next() -> None:
    budget = InputBudget(LIMIT, 30.0)
    first, second = connect(budget, 2)
    first.receive(LIMIT)
    second.receive(READ_BYTES)
    assert second.suspended
    first.pause()
    assert not second.suspended
    second.receive(READ_BYTES)
    assert not second.refused


def test_growth_beyond_the_ceiling_is_refused() -> None:
    budget = InputBudget(LIMIT, 30.0)
    holders = connect(budget, 100)
    for holder in holders:
        holder.receive(READ_BYTES)
    maximum = 1 + budget.ceiling // READ_BYTES  # the reader does not count
    assert sum(connection.refused for connection in holders) == 100 - maximum
    assert budget.used == budget.ceiling + READ_BYTES


def test_a_large_frame_of_the_reader_does_not_close_the_others() -> None:
    budget = InputBudget(LIMIT, 30.0)
    first, second = connect(budget, 2)
    first.receive(10 * LIMIT)
    second.receive(1)
    assert second.suspended
    assert not second.refused


def test_a_review_reports_since_when_the_budget_has_been_exhausted() -> None:
    budget = InputBudget(LIMIT, 30.0)
    [holder] = connect(budget, 1)
    holder.receive(LIMIT)
    budget.review(1000)
    holder.receive(1)
    budget.review(2000)
    budget.review(3000)
    holder.complete(1)
    budget.review(4000)
    assert holder.reviews == [(1000, -1), (2000, 2000), (3000, 2000), (4000, -1)]


@given(st.data())
def test_random_sequences_neither_leak_nor_deadlock(data: st.DataObject) -> None:
    budget = InputBudget(LIMIT, 30.0)
    holders = connect(budget, 8)
    for _ in range(data.draw(st.integers(1, 30))):
        holder = data.draw(st.sampled_from(holders))
        if holder.refused:
            continue
        action = data.draw(st.sampled_from(("receive", "complete", "close", "pause", "resume")))
        if action == "receive" and holder.transport_reads and not holder.awaits_no_input:
            holder.receive(data.draw(st.integers(1, READ_BYTES)))
        elif action == "complete" and holder.held_bytes:
            holder.complete(data.draw(st.integers(0, holder.held_bytes)))
        elif action == "close":
            holder.close()
        elif action == "pause":
            holder.pause()
        elif action == "resume":
            holder.awaits_no_input = False
        assert budget.used == sum(connection.held_bytes for connection in holders)
        assert budget.holders == sum(connection.held_bytes > 0 for connection in holders)
        assert len(budget.suspended) == sum(connection.suspended for connection in holders)
        assert all(connection.transport_reads is not connection.suspended for connection in holders)
        for connection in holders:
            assert connection.held_bytes or not connection.suspended, (
                "suspended without holding anything"
            )
    for holder in holders:
        holder.awaits_no_input = False
    budget.balance()
    steps = 0
    while unfinished := [connection for connection in holders if connection.held_bytes]:
        ready = [connection for connection in unfinished if connection.transport_reads]
        assert ready, "no connection may continue"
        ready[0].complete()
        budget.review(steps)
        steps += 1
        assert steps <= 100
    assert budget.used == len(budget.suspended) == budget.holders == 0


def test_only_the_first_reservation_may_exceed_the_limit() -> None:
    budget = InputBudget(LIMIT, 30)
    assert budget.reserve(3 * LIMIT)
    assert not budget.reserve(1)
    budget.unreserve(3 * LIMIT)
    assert budget.reserve(LIMIT // 2)
    assert budget.reserve(LIMIT // 2)
    assert budget.used == LIMIT


def test_reservation_suspends_connections_and_closes_none() -> None:
    budget = InputBudget(LIMIT, 30)
    oldest, other = Holder(budget), Holder(budget)
    oldest.receive(1)
    assert budget.reserve(3 * LIMIT)
    other.receive(1)
    assert other.suspended
    assert not other.refused
    assert oldest.transport_reads
    budget.unreserve(3 * LIMIT)
    assert not other.suspended
    assert budget.used == 2
