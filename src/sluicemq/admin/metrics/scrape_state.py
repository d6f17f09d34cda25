"""State that is kept between scrapes."""

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
"""Time for which a response is reused for other requests."""


class ScrapeState:
    """State shared by all HTTP listeners of a broker.

    open      True if scraping requires no login
    requests  counts of requests to the HTTP API
    spans     numbers of spans by result; None without tracing
    made      latest response, built at `made_at` (monotonic); `making` is locked during a build
    """

    def __init__(
        self,
        broker: Broker,
        limit: int = 1000,
        *,
        open: bool = False,
        spans: Mapping[str, int] | None = None,
    ) -> None:
        """Create the state; `limit` is the maximum number of exported destinations."""

        self.open = open
        self.exported = ExportedDestinations(broker, limit)
        self.destinations = DestinationMetrics(broker, self.exported)
        self.requests = RequestCounts()
        self.pauses = Pauses()
        self.spans = spans
        self.making = asyncio.Lock()
        self.made = Exposition()
        self.made_at = -FRESH_SECONDS
