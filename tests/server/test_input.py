"""The memory budget for unfinished input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.server.input_budget import READ_BYTES, InputBudget

LIMIT = 4 * READ_BYTES


class Uploader:
    """A connection that uploads one frame after another."""

    def __init__(self, budget: InputBudget) -> None:
        self.budget = budget
        self.held_bytes = 0
        self.awaits_no_input = False
        self.reviews: list[tuple[int, int]] = []
        self.transport_reads = True
        self.rejected = False

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
            self.rejected = True
            self.close()

    def complete(self, left: int = 0) -> None:
        """Complete the frame; `left` bytes of the next frame have been received with it."""
        assert self.budget.report(self, left)

    def close(self) -> None:
        self.budget.release(self)
        self.transport_reads = True

    def pause(self) -> None:
        self.awaits_no_input = True
        if self.held_bytes:
            self.budget.balance()


def connect(budget: InputBudget, count: int) -> list[Uploader]:
    return [Uploader(budget) for _ in range(count)]


def readable(uploaders: list[Uploader]) -> list[Uploader]:
    return [
        uploader
        for uploader in uploaders
        if uploader.transport_reads and not uploader.awaits_no_input
    ]


def test_all_connections_are_read_below_limit() -> None:
    budget = InputBudget(LIMIT, 30.0)
    uploaders = connect(budget, 4)
    for uploader in uploaders:
        uploader.receive(READ_BYTES)
    assert budget.used == LIMIT
    assert readable(uploaders) == uploaders


def test_only_oldest_frame_is_read_over_limit() -> None:
    budget = InputBudget(LIMIT, 30.0)
    first, second, third, *_ = uploaders = connect(budget, 6)
    for uploader in uploaders[:5]:
        uploader.receive(READ_BYTES)
    assert len(budget.suspended) == 1
    second.receive(READ_BYTES)
    third.receive(READ_BYTES)
    uploaders[3].receive(1)
    uploaders[5].receive(1)
    assert readable(uploaders) == [first]
    for _ in range(50):
        first.receive(READ_BYTES)  # also far beyond the ceiling
    first.close()
    assert readable(uploaders[1:]) == [second]
    second.complete()
    assert budget.used > LIMIT
    assert readable(uploaders[2:]) == [third]
    third.complete()
    assert budget.used <= LIMIT
    assert len(budget.suspended) == 2  # not all at once: each may add a whole read
    budget.review(0)
    budget.review(0)
    assert not budget.suspended


def test_pause_of_reader_resumes_next_connection() -> None:
    budget = InputBudget(LIMIT, 30.0)
    first, second = connect(budget, 2)
    first.receive(LIMIT)
    second.receive(READ_BYTES)
    assert second.suspended
    first.pause()
    assert not second.suspended
    second.receive(READ_BYTES)
    assert not second.rejected


def test_growth_over_ceiling_is_rejected() -> None:
    budget = InputBudget(LIMIT, 30.0)
    uploaders = connect(budget, 100)
    for uploader in uploaders:
        uploader.receive(READ_BYTES)
    maximum = 1 + budget.ceiling // READ_BYTES  # the reader does not count
    assert sum(connection.rejected for connection in uploaders) == 100 - maximum
    assert budget.used == budget.ceiling + READ_BYTES


def test_large_frame_of_reader_closes_no_other_connection() -> None:
    budget = InputBudget(LIMIT, 30.0)
    first, second = connect(budget, 2)
    first.receive(10 * LIMIT)
    second.receive(1)
    assert second.suspended
    assert not second.rejected


def test_review_reports_since_when_budget_is_exhausted() -> None:
    budget = InputBudget(LIMIT, 30.0)
    [uploader] = connect(budget, 1)
    uploader.receive(LIMIT)
    budget.review(1000)
    uploader.receive(1)
    budget.review(2000)
    budget.review(3000)
    uploader.complete(1)
    budget.review(4000)
    assert uploader.reviews == [(1000, -1), (2000, 2000), (3000, 2000), (4000, -1)]


@given(st.data())
def test_random_sequences_neither_leak_nor_deadlock(data: st.DataObject) -> None:
    budget = InputBudget(LIMIT, 30.0)
    uploaders = connect(budget, 8)
    for _ in range(data.draw(st.integers(1, 30))):
        uploader = data.draw(st.sampled_from(uploaders))
        if uploader.rejected:
            continue
        action = data.draw(st.sampled_from(("receive", "complete", "close", "pause", "resume")))
        if action == "receive" and uploader.transport_reads and not uploader.awaits_no_input:
            uploader.receive(data.draw(st.integers(1, READ_BYTES)))
        elif action == "complete" and uploader.held_bytes:
            uploader.complete(data.draw(st.integers(0, uploader.held_bytes)))
        elif action == "close":
            uploader.close()
        elif action == "pause":
            uploader.pause()
        elif action == "resume":
            uploader.awaits_no_input = False
        assert budget.used == sum(connection.held_bytes for connection in uploaders)
        assert budget.holders == sum(connection.held_bytes > 0 for connection in uploaders)
        assert len(budget.suspended) == sum(connection.suspended for connection in uploaders)
        assert all(
            connection.transport_reads is not connection.suspended for connection in uploaders
        )
        for connection in uploaders:
            assert connection.held_bytes or not connection.suspended, (
                "suspended without holding anything"
            )
    for uploader in uploaders:
        uploader.awaits_no_input = False
    budget.balance()
    steps = 0
    while unfinished := [connection for connection in uploaders if connection.held_bytes]:
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
    oldest, other = Uploader(budget), Uploader(budget)
    oldest.receive(1)
    assert budget.reserve(3 * LIMIT)
    other.receive(1)
    assert other.suspended
    assert not other.rejected
    assert oldest.transport_reads
    budget.unreserve(3 * LIMIT)
    assert not other.suspended
    assert budget.used == 2
