"""Parse scrapes with the client library of Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from sluicemq.admin.collectors import DestinationMetrics
from sluicemq.admin.metrics import Exposition
from tests.support.broker import BrokerFixture

Labels = frozenset[tuple[str, str]]


class Scrape(NamedTuple):
    """Families by their name in the format, and all samples."""

    families: dict[str, Metric]
    samples: dict[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a sample, or None."""
        return self.samples.get((name, frozenset(labels.items())))

    def names(self, name: str, label: str = "destination") -> set[str]:
        """Return the values of a label in the samples of a metric."""
        return {
            value
            for sample, labels in self.samples
            for key, value in labels
            if sample == name and key == label
        }


def parse(text: bytes) -> Scrape:
    """Parse a scrape; fails for invalid text and for duplicate samples."""
    return scrape_of(text_string_to_metric_families(text.decode()))


def scrape_of(families: Iterable[Metric]) -> Scrape:
    scrape = Scrape({}, {})
    for family in families:
        assert family.name not in scrape.families
        scrape.families[family.name] = family
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in scrape.samples, key
            scrape.samples[key] = sample.value
    return scrape


class DestinationMetricsFixture:
    """Scrapes the metrics of the destinations of a broker."""

    def __init__(self, fixture: BrokerFixture, limit: int = 1000) -> None:
        self.fixture = fixture
        self.destinations = DestinationMetrics(fixture.broker, limit)

    def scrape(self) -> Scrape:
        exposition = Exposition()
        asyncio.run(self.destinations.collect(exposition, self.fixture.clock.wall))
        return parse(exposition.text())
