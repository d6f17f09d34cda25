"""What is counted from one scrape to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from sluicemq.admin.metrics.destinations import DestinationMetrics
from sluicemq.admin.metrics.exported_destinations import ExportedDestinations
from sluicemq.admin.metrics.exposition import Exposition
from sluicemq.admin.metrics.process import Pauses
from sluicemq.admin.metrics.requests import RequestCounts
from sluicemq.broker import Broker

FRESH_SECONDS: Final = 0.5
"""How long an answer is good for others who ask."""


class ScrapeState:
    """One for each broker, whatever the number of its listeners.

    open      nobody has to log in to see them
    requests  is told of each request that the HTTP API answers
    spans     what has become of the spans of traces, by words; None if there are none
    made      the last answer, of the time `made_at` (monotonic); `making` is held by who makes one
    """

    def __init__(
        self,
        broker: Broker,
        limit: int = 1000,
        *,
        open: bool = False,
        spans: Mapping[str, int] | None = None,
    ) -> None:
        """`limit`: destinations with figures of their own."""
        self.open = open
        self.shown = ExportedDestinations(broker, limit)
        self.destinations = DestinationMetrics(broker, self.shown)
        self.requests = RequestCounts()
        self.pauses = Pauses()
        self.spans = spans
        self.making = asyncio.Lock()
        self.made = Exposition()
        self.made_at = -FRESH_SECONDS
