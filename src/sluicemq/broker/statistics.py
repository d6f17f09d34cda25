"""Counters of a destination and the rates made from them."""

from __future__ import annotations

from math import exp
from typing import Final

SMOOTHING_SECONDS: Final = 5.0


class Statistics:
    """Totals since the destination was created or the broker started.

    published      messages accepted                delivered      deliveries, redeliveries included
    redelivered    deliveries after the first       settled        acknowledged
    expired        by their time to live            dropped        by a limit, or given up, and not
                                                                   moved to a dead-letter queue
    dead_lettered  moved to a dead-letter queue     rejected       refused to the producer
    bytes_in       body bytes accepted              bytes_out      body bytes delivered
    rate_in        messages/s, smoothed             rate_out       deliveries/s, smoothed
    """

    __slots__ = (
        "_last_delivered",
        "_last_published",
        "bytes_in",
        "bytes_out",
        "dead_lettered",
        "delivered",
        "dropped",
        "expired",
        "published",
        "rate_in",
        "rate_out",
        "redelivered",
        "rejected",
        "settled",
    )

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.settled = 0
        self.expired = 0
        self.dropped = 0
        self.dead_lettered = 0
        self.rejected = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.rate_in = 0.0
        self.rate_out = 0.0
        self._last_published = 0
        self._last_delivered = 0

    def sample(self, seconds: float) -> None:
        """Take in what happened during the last `seconds` (> 0)."""
        keep = exp(-seconds / SMOOTHING_SECONDS)
        arrived = (self.published - self._last_published) / seconds
        left = (self.delivered - self._last_delivered) / seconds
        self.rate_in = self.rate_in * keep + arrived * (1 - keep)
        self.rate_out = self.rate_out * keep + left * (1 - keep)
        self._last_published = self.published
        self._last_delivered = self.delivered
