"""Counters of destinations and protocols, and the rates derived from them."""

from __future__ import annotations

from math import exp
from typing import Final

SMOOTHING_SECONDS: Final = 5.0
NO_RATE: Final = 0.001
"""Messages/s below which a rate is set to 0."""


def decay_factor(seconds: float) -> float:
    """Return the fraction of a rate that remains after `seconds` (> 0)."""
    return exp(-seconds / SMOOTHING_SECONDS)


class Traffic:
    """Counters and rates of published and delivered messages.

    published      messages accepted                delivered      deliveries, redeliveries included
    publish_rate   messages/s, smoothed             deliver_rate   deliveries/s, smoothed
    """

    __slots__ = (
        "_last_delivered",
        "_last_published",
        "deliver_rate",
        "delivered",
        "publish_rate",
        "published",
    )

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.publish_rate = 0.0
        self.deliver_rate = 0.0
        self._last_published = 0
        self._last_delivered = 0

    def sample(self, seconds: float, decay: float) -> None:
        """Update the rates for the last `seconds` (> 0); `decay` is `decay_factor(seconds)`."""
        publications = self.published - self._last_published
        deliveries = self.delivered - self._last_delivered
        self.publish_rate = _smoothed(self.publish_rate, publications / seconds, decay)
        self.deliver_rate = _smoothed(self.deliver_rate, deliveries / seconds, decay)
        self._last_published = self.published
        self._last_delivered = self.delivered


def _smoothed(rate: float, latest: float, decay: float) -> float:
    """Return the rate after an interval with the rate `latest`."""
    rate = rate * decay + latest * (1 - decay)
    return rate if rate > NO_RATE else 0.0


class DestinationStats(Traffic):
    """Totals of a destination since it was created or the broker started.

    redelivered    deliveries after the first       acknowledged   messages acknowledged
    expired        messages past their lifetime     dropped        messages dropped by a limit or
                                                                   rejected, and not dead-lettered
    dead_lettered  moved to a dead-letter queue     rejected       refused to the publisher
    published_bytes, delivered_bytes  bytes of bodies
    """

    __slots__ = (
        "acknowledged",
        "dead_lettered",
        "delivered_bytes",
        "dropped",
        "expired",
        "published_bytes",
        "redelivered",
        "rejected",
    )

    def __init__(self) -> None:
        super().__init__()
        self.redelivered = 0
        self.acknowledged = 0
        self.expired = 0
        self.dropped = 0
        self.dead_lettered = 0
        self.rejected = 0
        self.published_bytes = 0
        self.delivered_bytes = 0

    def add(self, other: DestinationStats) -> None:
        """Add the counters and rates of `other`."""
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_ADDED: Final = (
    "published",
    "delivered",
    "redelivered",
    "acknowledged",
    "expired",
    "dropped",
    "dead_lettered",
    "rejected",
    "published_bytes",
    "delivered_bytes",
    "publish_rate",
    "deliver_rate",
)
