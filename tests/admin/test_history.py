"""The rings of samples: content, length, and destinations without one."""

from __future__ import annotations

import pytest

from sluicemq.admin.history import DESTINATION_STEPS, RECENT_STEPS, STEP, TOTAL_STEPS, History
from sluicemq.broker import Destination
from sluicemq.model.histogram import Histogram
from tests.support.broker import BrokerFixture, purge


class Scene:
    """A broker with a manual clock."""

    def __init__(self) -> None:
        self.fixture = BrokerFixture()
        self.lag = Histogram()
        self.history = History(self.fixture.broker, self.lag)

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.fixture.clock.advance(1000)
            for _ in self.history.round(1.0):
                pass

    def steps(self, count: int = 1) -> None:
        self.seconds(STEP * count)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_sample_is_taken_each_step(scene: Scene) -> None:
    queue = scene.fixture.queue()
    scene.fixture.send(queue, "a", "b", "c")
    scene.fixture.read(queue, 1)
    scene.seconds(STEP - 1)
    assert scene.history.totals(TOTAL_STEPS) == []
    scene.seconds(1)
    [sample] = scene.history.totals(TOTAL_STEPS)
    assert (sample.publish_rate, sample.deliver_rate) == (3 / STEP, 1 / STEP)
    assert (sample.ready, sample.unacked) == (2, 1)
    assert scene.history.end == scene.fixture.clock.wall
    scene.seconds(1)
    assert scene.history.end == scene.fixture.clock.wall - 1000


def test_messages_of_a_deleted_destination_are_counted(scene: Scene) -> None:
    queue = scene.fixture.queue()
    scene.fixture.send(queue, "a", "b")
    scene.fixture.broker.remove(queue)
    scene.steps(2)
    first, second = scene.history.totals(2)
    assert (first.publish_rate, first.ready, second.publish_rate) == (2 / STEP, 0, 0)


def test_totals_cover_an_hour(scene: Scene) -> None:
    scene.fixture.send(scene.fixture.queue(), "a")
    scene.steps()
    scene.fixture.send(scene.fixture.queue(), "b")
    scene.steps(TOTAL_STEPS - 1)
    assert len(scene.history.totals(10_000)) == TOTAL_STEPS
    assert scene.history.totals(10_000)[0].ready == 1
    scene.steps()
    assert len(scene.history.totals(10_000)) == TOTAL_STEPS
    assert scene.history.totals(10_000)[0].ready == 2
    assert len(scene.history.totals(3)) == 3
    assert scene.history.totals(0) == []


def waiting(scene: Scene, destination: Destination, steps: int = 10_000) -> list[int]:
    return [sample.ready for sample in scene.history.of(destination, steps)]


def test_a_destination_has_its_own_history(scene: Scene) -> None:
    quiet_queue, busy_queue = scene.fixture.queue("quiet"), scene.fixture.queue("busy")
    scene.steps(2)
    scene.fixture.send(busy_queue, "a", "b")
    scene.steps(1)
    scene.fixture.read(busy_queue, 1)
    scene.steps(1)
    series = scene.history.of(busy_queue, 10)
    assert [sample.ready for sample in series] == [0, 0, 2, 1]
    assert [sample.unacked for sample in series] == [0, 0, 0, 1]
    assert [sample.publish_rate for sample in series[:2]] == [0, 0]
    assert series[2].publish_rate > series[3].publish_rate > 0
    assert series[2].deliver_rate == 0 < series[3].deliver_rate
    assert waiting(scene, busy_queue, 2) == [2, 1]
    assert waiting(scene, quiet_queue) == [0, 0, 0, 0]
    assert scene.history.of(busy_queue, 0) == []


def test_a_full_ring_overwrites_the_oldest_sample(scene: Scene) -> None:
    queue = scene.fixture.queue()
    for number in range(DESTINATION_STEPS + 7):
        scene.fixture.send(queue, str(number))
        scene.steps()
    assert waiting(scene, queue) == list(range(8, DESTINATION_STEPS + 8))


def test_only_active_destinations_have_a_ring(scene: Scene) -> None:
    queue = scene.fixture.queue()
    scene.fixture.queue("idle")
    scene.steps()
    assert not scene.history._rings
    scene.fixture.send(queue, "a")
    scene.steps()
    assert list(scene.history._rings) == [queue]
    purge(scene.fixture.broker, queue)
    rate = 1.0
    while rate:  # the moving average decays
        scene.steps()
        rate = queue.statistics.publish_rate
    scene.steps(DESTINATION_STEPS - 3)
    assert queue in scene.history._rings
    scene.steps(3)
    assert not scene.history._rings
    assert set(waiting(scene, queue)) == {0}


def test_a_destination_active_again_starts_with_zeros(scene: Scene) -> None:
    queue = scene.fixture.queue()
    scene.fixture.send(queue, "a")
    scene.steps()
    purge(scene.fixture.broker, queue)
    while queue in scene.history._rings:
        scene.steps()
    scene.fixture.send(queue, "b")
    scene.steps(2)
    assert waiting(scene, queue)[-2:] == [1, 1]
    assert set(waiting(scene, queue)[:-2]) == {0}


def test_a_removed_destination_has_no_ring(scene: Scene) -> None:
    queue = scene.fixture.queue()
    scene.fixture.send(queue, "a")
    scene.steps()
    scene.fixture.broker.remove(queue)
    assert not scene.history._rings
    scene.fixture.send(scene.fixture.queue(), "b")
    scene.steps()
    assert len(scene.history._rings) == 1


def test_delays_of_a_step_and_of_the_last_minute(scene: Scene) -> None:
    scene.lag.record(0.5)
    scene.fixture.journal.syncs.record(0.25)
    scene.steps()
    scene.lag.record(0.001)
    scene.steps()
    first, second = scene.history.totals(2)
    assert first.lag == pytest.approx(500)
    assert first.sync == pytest.approx(250)
    assert second.lag == pytest.approx(1, rel=0.42)
    assert second.sync == 0
    assert scene.history.recent_lag().longest == 0.5
    assert scene.history.recent_lag().count == 2
    scene.lag.record(0.002)
    assert scene.history.recent_lag().count == 3
    scene.steps(RECENT_STEPS)
    assert scene.history.recent_lag().longest < 0.003
    assert scene.history.recent_syncs().count == 0


def test_values_are_capped_at_32_bits(scene: Scene) -> None:
    queue = scene.fixture.queue()
    scene.fixture.send(queue, "a")
    queue.queue.waiting += 1 << 33
    scene.steps()
    assert waiting(scene, queue) == [(1 << 32) - 1]
