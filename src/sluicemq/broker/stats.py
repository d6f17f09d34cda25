"""Counters of destinations and protocols, and the rates derived from them."""

from __future__ import annotations

from math import exp
from typing import Final

SMOOTHING_SECONDS: Final = 5.0
NO_RATE: Final = 0.001
"""Messages/s below which a rate is set to 0."""


def kept(seconds: float) -> float:
    """Return the fraction of a rate that remains after `seconds` (> 0)."""
    return exp(-seconds / SMOOTHING_SECONDS)


class Traffic:
    """Counters and rates of published and delivered messages.

    published      messages accepted                delivered      deliveries, redeliveries included
    rate_in        messages/s, smoothed             rate_out       deliveries/s, smoothed
    """

    __slots__ = (
        "_last_delivered",
        "_last_published",
        "delivered",
        "published",
        "rate_in",
        "rate_out",
    )

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.rate_in = 0.0
        self.rate_out = 0.0
        self._last_published = 0
        self._last_delivered = 0

    def sample(self, seconds: float, keep: float) -> None:
        """Update the rates for the last `seconds` (> 0); `keep` is `kept(seconds)`."""
        arrived = self.published - self._last_published
        left = self.delivered - self._last_delivered
        if arrived or self.rate_in:
            rate = self.rate_in * keep + arrived / seconds * (1 - keep)
            self.rate_in = rate if rate > NO_RATE else 0.0
            self._last_published = self.published
        if left or self.rate_out:
            rate = self.rate_out * keep + left / seconds * (1 - keep)
            self.rate_out = rate if rate > NO_RATE else 0.0
            self._last_delivered = self.delivered


class DestinationStats(Traffic):
    """Totals of a destination since it was created or the broker started.

    redelivered    deliveries after the first       settled        messages acknowledged
    expired        messages past their lifetime     dropped        messages dropped by a limit or
                                                                   rejected, and not dead-lettered
    dead_lettered  moved to a dead-letter queue     rejected       refused to the publisher
    bytes_in       body bytes accepted              bytes_out      body bytes delivered
    """

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "dead_lettered",
        "dropped",
        "expired",
        "redelivered",
        "rejected",
        "settled",
    )

    def __init__(self) -> None:
        super().__init__()
        self.redelivered = 0
        self.settled = 0
        self.expired = 0
        self.dropped = 0
        self.dead_lettered = 0
        self.rejected = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def add(self, other: DestinationStats) -> None:
        """Add the counters and rates of `other`."""
        self.published += other.published
        self.delivered += other.delivered
        self.redelivered += other.redelivered
        self.settled += other.settled
        self.expired += other.expired
        self.dropped += other.dropped
        self.dead_lettered += other.dead_lettered
        self.rejected += other.rejected
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.rate_in += other.rate_in
        self.rate_out += other.rate_out
