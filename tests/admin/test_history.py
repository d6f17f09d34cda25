"""The rings of samples: content, length, and destinations without one."""

from __future__ import annotations

import pytest

from sluicemq.admin.history import DESTINATION_STEPS, RECENT_STEPS, STEP, TOTAL_STEPS, History
from sluicemq.broker import Destination
from sluicemq.model.histogram import Histogram
from tests.support.broker import BrokerFixture, purge


class HistoryFixture:
    """A broker with a manual clock."""

    def __init__(self) -> None:
        self.fixture = BrokerFixture()
        self.lag = Histogram()
        self.history = History(self.fixture.broker, self.lag)

    def advance_seconds(self, count: int) -> None:
        for _ in range(count):
            self.fixture.clock.advance(1000)
            for _ in self.history.round(1.0):
                pass

    def advance_steps(self, count: int = 1) -> None:
        self.advance_seconds(STEP * count)


@pytest.fixture
def history_fixture() -> HistoryFixture:
    return HistoryFixture()


def test_sample_is_taken_each_step(history_fixture: HistoryFixture) -> None:
    queue = history_fixture.fixture.queue()
    history_fixture.fixture.send(queue, "a", "b", "c")
    history_fixture.fixture.read(queue, 1)
    history_fixture.advance_seconds(STEP - 1)
    assert history_fixture.history.totals(TOTAL_STEPS) == []
    history_fixture.advance_seconds(1)
    [sample] = history_fixture.history.totals(TOTAL_STEPS)
    assert (sample.publish_rate, sample.deliver_rate) == (3 / STEP, 1 / STEP)
    assert (sample.ready, sample.unacked) == (2, 1)
    assert history_fixture.history.end == history_fixture.fixture.clock.wall
    history_fixture.advance_seconds(1)
    assert history_fixture.history.end == history_fixture.fixture.clock.wall - 1000


def test_messages_of_a_deleted_destination_are_counted(history_fixture: HistoryFixture) -> None:
    queue = history_fixture.fixture.queue()
    history_fixture.fixture.send(queue, "a", "b")
    history_fixture.fixture.broker.remove(queue)
    history_fixture.advance_steps(2)
    first, second = history_fixture.history.totals(2)
    assert (first.publish_rate, first.ready, second.publish_rate) == (2 / STEP, 0, 0)


def test_totals_cover_an_hour(history_fixture: HistoryFixture) -> None:
    history_fixture.fixture.send(history_fixture.fixture.queue(), "a")
    history_fixture.advance_steps()
    history_fixture.fixture.send(history_fixture.fixture.queue(), "b")
    history_fixture.advance_steps(TOTAL_STEPS - 1)
    assert len(history_fixture.history.totals(10_000)) == TOTAL_STEPS
    assert history_fixture.history.totals(10_000)[0].ready == 1
    history_fixture.advance_steps()
    assert len(history_fixture.history.totals(10_000)) == TOTAL_STEPS
    assert history_fixture.history.totals(10_000)[0].ready == 2
    assert len(history_fixture.history.totals(3)) == 3
    assert history_fixture.history.totals(0) == []


def ready_counts(
    history_fixture: HistoryFixture, destination: Destination, advance_steps: int = 10_000
) -> list[int]:
    return [sample.ready for sample in history_fixture.history.of(destination, advance_steps)]


def test_destination_has_its_own_history(history_fixture: HistoryFixture) -> None:
    quiet_queue, busy_queue = (
        history_fixture.fixture.queue("quiet"),
        history_fixture.fixture.queue("busy"),
    )
    history_fixture.advance_steps(2)
    history_fixture.fixture.send(busy_queue, "a", "b")
    history_fixture.advance_steps(1)
    history_fixture.fixture.read(busy_queue, 1)
    history_fixture.advance_steps(1)
    series = history_fixture.history.of(busy_queue, 10)
    assert [sample.ready for sample in series] == [0, 0, 2, 1]
    assert [sample.unacked for sample in series] == [0, 0, 0, 1]
    assert [sample.publish_rate for sample in series[:2]] == [0, 0]
    assert series[2].publish_rate > series[3].publish_rate > 0
    assert series[2].deliver_rate == 0 < series[3].deliver_rate
    assert ready_counts(history_fixture, busy_queue, 2) == [2, 1]
    assert ready_counts(history_fixture, quiet_queue) == [0, 0, 0, 0]
    assert history_fixture.history.of(busy_queue, 0) == []


def test_full_ring_overwrites_the_oldest_sample(history_fixture: HistoryFixture) -> None:
    queue = history_fixture.fixture.queue()
    for number in range(DESTINATION_STEPS + 7):
        history_fixture.fixture.send(queue, str(number))
        history_fixture.advance_steps()
    assert ready_counts(history_fixture, queue) == list(range(8, DESTINATION_STEPS + 8))


def test_only_active_destinations_have_a_ring(history_fixture: HistoryFixture) -> None:
    queue = history_fixture.fixture.queue()
    history_fixture.fixture.queue("idle")
    history_fixture.advance_steps()
    assert not history_fixture.history._rings
    history_fixture.fixture.send(queue, "a")
    history_fixture.advance_steps()
    assert list(history_fixture.history._rings) == [queue]
    purge(history_fixture.fixture.broker, queue)
    rate = 1.0
    while rate:  # the moving average decays
        history_fixture.advance_steps()
        rate = queue.statistics.publish_rate
    history_fixture.advance_steps(DESTINATION_STEPS - 3)
    assert queue in history_fixture.history._rings
    history_fixture.advance_steps(3)
    assert not history_fixture.history._rings
    assert set(ready_counts(history_fixture, queue)) == {0}


def test_destination_active_again_starts_with_zeros(history_fixture: HistoryFixture) -> None:
    queue = history_fixture.fixture.queue()
    history_fixture.fixture.send(queue, "a")
    history_fixture.advance_steps()
    purge(history_fixture.fixture.broker, queue)
    while queue in history_fixture.history._rings:
        history_fixture.advance_steps()
    history_fixture.fixture.send(queue, "b")
    history_fixture.advance_steps(2)
    assert ready_counts(history_fixture, queue)[-2:] == [1, 1]
    assert set(ready_counts(history_fixture, queue)[:-2]) == {0}


def test_removed_destination_has_no_ring(history_fixture: HistoryFixture) -> None:
    queue = history_fixture.fixture.queue()
    history_fixture.fixture.send(queue, "a")
    history_fixture.advance_steps()
    history_fixture.fixture.broker.remove(queue)
    assert not history_fixture.history._rings
    history_fixture.fixture.send(history_fixture.fixture.queue(), "b")
    history_fixture.advance_steps()
    assert len(history_fixture.history._rings) == 1


def test_delays_of_a_step_and_of_the_last_minute(history_fixture: HistoryFixture) -> None:
    history_fixture.lag.record(0.5)
    history_fixture.fixture.journal.syncs.record(0.25)
    history_fixture.advance_steps()
    history_fixture.lag.record(0.001)
    history_fixture.advance_steps()
    first, second = history_fixture.history.totals(2)
    assert first.lag == pytest.approx(500)
    assert first.sync == pytest.approx(250)
    assert second.lag == pytest.approx(1, rel=0.42)
    assert second.sync == 0
    assert history_fixture.history.recent_lag().longest == 0.5
    assert history_fixture.history.recent_lag().count == 2
    history_fixture.lag.record(0.002)
    assert history_fixture.history.recent_lag().count == 3
    history_fixture.advance_steps(RECENT_STEPS)
    assert history_fixture.history.recent_lag().longest < 0.003
    assert history_fixture.history.recent_syncs().count == 0


def test_values_are_capped_at_32_bits(history_fixture: HistoryFixture) -> None:
    queue = history_fixture.fixture.queue()
    history_fixture.fixture.send(queue, "a")
    queue.queue.waiting += 1 << 33
    history_fixture.advance_steps()
    assert ready_counts(history_fixture, queue) == [(1 << 32) - 1]
