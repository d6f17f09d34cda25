"""Sampling of all destinations: totals, slices, and destinations deleted meanwhile."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.broker import Destination, EngineSettings
from sluicemq.broker.samplers import BATCH
from tests.support.broker import BrokerFixture


def test_totals_are_those_of_last_round() -> None:
    fixture = BrokerFixture()
    orders = fixture.queue("orders")
    news_topic = fixture.topic("news")
    subscription = fixture.broker.subscribe(news_topic, "s")
    fixture.send(orders, "a", "bc")
    fixture.send(news_topic, "def")
    fixture.read(subscription)
    reader = fixture.read(orders, 1)
    fixture.broker.flush()
    assert fixture.broker.stats_sampler.totals.destinations == 0
    fixture.sample_stats()
    totals = fixture.broker.stats_sampler.totals
    assert (totals.destinations, totals.queues, totals.topics, totals.temporary) == (2, 1, 1, 0)
    assert (totals.consumers, totals.waiting, totals.unacked, totals.bytes) == (2, 1, 2, 6)
    statistics = totals.statistics
    assert (statistics.published, statistics.published_bytes) == (3, 6)
    assert (statistics.delivered, statistics.delivered_bytes) == (2, 4)
    assert statistics.publish_rate == pytest.approx(
        orders.statistics.publish_rate + news_topic.statistics.publish_rate
    )
    reader.acknowledge("a")
    assert fixture.broker.stats_sampler.totals is totals
    fixture.sample_stats()
    assert fixture.broker.stats_sampler.totals.statistics.acknowledged == 1


def test_temporary_destinations_are_counted() -> None:
    fixture = BrokerFixture()
    fixture.broker.destinations.declare(fixture.queue("a").address)
    fixture.broker.destinations.declare(
        fixture.topic("b").address._replace(name="t"), owner=object()
    )
    fixture.sample_stats()
    assert fixture.broker.stats_sampler.totals.temporary == 1


def test_counters_never_decrease_when_destinations_are_deleted() -> None:
    fixture = BrokerFixture()
    for name in "abc":
        fixture.send(fixture.queue(name), "1", "2")
    fixture.sample_stats()
    assert fixture.broker.stats_sampler.totals.statistics.published == 6
    fixture.broker.remove(fixture.queue("a"))
    fixture.sample_stats()
    totals = fixture.broker.stats_sampler.totals
    assert (totals.destinations, totals.waiting, totals.statistics.published) == (2, 4, 6)
    fixture.sample_stats()
    assert fixture.broker.stats_sampler.totals.statistics.published == 6


def test_other_work_runs_after_each_share() -> None:
    fixture = BrokerFixture()
    for number in range(3 * BATCH):
        fixture.queue(str(number))
    sampled: list[Destination] = []
    steps = fixture.broker.stats_sampler.sample_all(
        1.0, lambda destination, waiting, unacked: sampled.append(destination)
    )
    sizes = []
    for _ in steps:
        sizes.append(len(sampled))
    assert sizes == [BATCH, 2 * BATCH, 3 * BATCH]
    assert set(sampled) == set(fixture.broker.destinations.values())


def test_callback_receives_depth_of_each_destination() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "a", "b", "c")
    fixture.read(queue, 1)
    samples = []
    for _ in fixture.broker.stats_sampler.sample_all(1.0, lambda *sample: samples.append(sample)):
        pass
    assert samples == [(queue, 2, 1)]


@given(st.data())
def test_changes_within_a_round_count_once(data: st.DataObject) -> None:
    """Destinations are deleted and created, and messages arrive, between slices."""
    fixture = BrokerFixture(EngineSettings(destination_idle_timeout=0))
    names = [str(number) for number in range(2 * BATCH + 5)]
    sent = 0
    for name in names:
        fixture.queue(name)
    for _ in range(3):
        steps = fixture.broker.stats_sampler.sample_all(1.0)
        published = fixture.broker.stats_sampler.totals.statistics.published
        while True:
            for name in data.draw(st.lists(st.sampled_from(names), max_size=4)):
                fixture.send(fixture.queue(name), "x")
                sent += 1
            for name in data.draw(st.lists(st.sampled_from(names), max_size=4)):
                fixture.broker.remove(fixture.queue(name))
            if next(steps, "over") == "over":
                break
        assert published <= fixture.broker.stats_sampler.totals.statistics.published <= sent
    fixture.sample_stats()
    assert fixture.broker.stats_sampler.totals.statistics.published == sent
    assert fixture.broker.stats_sampler.totals.destinations == len(fixture.broker.destinations)


def test_destination_deleted_during_round_is_skipped() -> None:
    fixture = BrokerFixture(EngineSettings(destination_idle_timeout=1000))
    for number in range(BATCH + 2):
        fixture.broker.destinations.queue(str(number))
    fixture.clock.advance(1000)
    steps = fixture.broker.stats_sampler.sample_all(1.0)
    list(islice(steps, 1))
    destinations = list(fixture.broker.destinations.values())
    assert len(destinations) == 2
    fixture.broker.remove(destinations[0])
    for _ in steps:
        pass
    assert not fixture.broker.destinations


def test_rates_of_protocols() -> None:
    fixture = BrokerFixture()
    traffic = fixture.broker.traffic_of("phpmq")
    assert fixture.broker.traffic_of("phpmq") is traffic
    for _ in range(30):
        traffic.published += 10
        traffic.delivered += 5
        fixture.sample_stats()
    assert traffic.publish_rate == pytest.approx(10, rel=0.01)
    assert traffic.deliver_rate == pytest.approx(5, rel=0.01)
    fixture.sample_stats(600.0)
    assert (traffic.publish_rate, traffic.deliver_rate) == (0.0, 0.0)
    assert (traffic.published, traffic.delivered) == (300, 150)


def test_consumers_are_numbered_and_count_their_deliveries() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "a", "b", "c")
    first, second = fixture.read(queue, 2), fixture.read(queue, 100)
    fixture.broker.flush()
    assert first.consumer.number != second.consumer.number
    assert (first.consumer.delivered, second.consumer.delivered) == (2, 1)
    first.release("a")
    fixture.broker.flush()
    assert first.consumer.delivered + second.consumer.delivered == 4
