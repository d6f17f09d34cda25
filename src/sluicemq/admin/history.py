"""Samples of the broker's statistics over the last hour, and of each destination's over ten
minutes.

    every second   collection of the engine's statistics, in slices
    every STEP     one sample of the totals, in a ring of TOTAL_STEPS, and one of each destination,
                   in a ring of DESTINATION_STEPS

A destination has a ring from its first message until it has been idle for the whole length of the
ring, so that thousands of idle destinations take no memory. A ring takes about 2 KB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from sluicemq.broker import Broker, Destination
from sluicemq.journal.interface import JournalStats
from sluicemq.model.histogram import Distribution, Histogram

STEP: Final = 5
"""Rounds per sample; a round is about one second."""
TOTAL_STEPS: Final = 720
DESTINATION_STEPS: Final = 120
RECENT_STEPS: Final = 12
"""Samples from which quantiles are computed: one minute."""

_SLOT: Final = Struct("<ffII")
"""Publish rate, deliver rate, ready and unacked messages."""
_MAX_COUNT: Final = (1 << 32) - 1
_QUANTILE: Final = 0.99


class Sample(NamedTuple):
    """State at the end of a step; rates in messages/s over the step, times in ms.

    lag, sync  p99 of the event loop lag and of fdatasync; 0 in samples of a destination
    """

    publish_rate: float
    deliver_rate: float
    ready: int
    unacked: int
    lag: float = 0.0
    sync: float = 0.0


@dataclass(slots=True, eq=False)
class Ring:
    """Samples of one destination, one slot per step; 0 before it was created.

    idle  steps since a value was not 0
    """

    idle: int = 0
    slots: bytearray = field(default_factory=lambda: bytearray(_SLOT.size * DESTINATION_STEPS))


class History:
    """Recorder of samples. `lag` is the histogram of the event loop lag."""

    def __init__(self, broker: Broker, lag: Histogram | None = None) -> None:
        self._broker = broker
        self._lag = lag or Histogram()
        self._syncs = broker.journal.syncs
        self._samples: deque[Sample] = deque(maxlen=TOTAL_STEPS)
        self._rings: dict[Destination, Ring] = {}
        self._step = 0
        self._rounds = 0
        self._seconds = 0.0
        self._published = 0
        self._delivered = 0
        self._lags = deque([self._lag.read()], maxlen=RECENT_STEPS + 1)
        self._sync_times = deque([self._syncs.read()], maxlen=RECENT_STEPS + 1)
        self.end = broker.clock.wall
        """Wall time of the last sample, or of the start, in ms."""
        self.journal: JournalStats = broker.journal.stats()
        """As of the last sample, because counting takes time in proportion to the journal."""
        broker.destinations.removals.append(self._removed)

    def round(self, seconds: float) -> Iterator[None]:
        """Collect one round, in slices; the caller iterates, and yields to others between slices.

        Called every second, `seconds` (> 0) after the previous call, within an event loop
        iteration of the broker.
        """
        self._rounds += 1
        self._seconds += seconds
        last = self._rounds >= STEP
        yield from self._broker.stats_sampler.sample_all(
            seconds, self._record_destination if last else None
        )
        if last:
            self._sample()

    def _record_destination(self, destination: Destination, waiting: int, unacked: int) -> None:
        statistics = destination.statistics
        publish_rate, deliver_rate = statistics.publish_rate, statistics.deliver_rate
        ring = self._rings.get(destination)
        idle = not (waiting or unacked or publish_rate or deliver_rate)
        if ring is None:
            if idle or destination.removed:
                return
            ring = self._rings[destination] = Ring()
        ring.idle = ring.idle + 1 if idle else 0
        if ring.idle >= DESTINATION_STEPS:
            del self._rings[destination]
            return
        depths = min(waiting, _MAX_COUNT), min(unacked, _MAX_COUNT)
        offset = self._step % DESTINATION_STEPS * _SLOT.size
        _SLOT.pack_into(ring.slots, offset, publish_rate, deliver_rate, *depths)

    def _sample(self) -> None:
        totals = self._broker.stats_sampler.totals
        statistics = totals.statistics
        published, self._published = statistics.published - self._published, statistics.published
        delivered, self._delivered = statistics.delivered - self._delivered, statistics.delivered
        self._lags.append(self._lag.read())
        self._sync_times.append(self._syncs.read())
        self._samples.append(
            Sample(
                published / self._seconds,
                delivered / self._seconds,
                totals.waiting,
                totals.unacked,
                1000 * self._lags[-1].since(self._lags[-2]).quantile(_QUANTILE),
                1000 * self._sync_times[-1].since(self._sync_times[-2]).quantile(_QUANTILE),
            )
        )
        self._step += 1
        self._rounds = 0
        self._seconds = 0.0
        self.end = self._broker.clock.wall
        self.journal = self._broker.journal.stats()

    def _removed(self, destination: Destination) -> None:
        self._rings.pop(destination, None)

    # --- reading -----------------------------------------------------------------------------

    def totals(self, steps: int) -> list[Sample]:
        """Return up to `steps` samples, the latest last."""
        return list(self._samples)[-steps:] if steps > 0 else []

    def of(self, destination: Destination, steps: int) -> list[Sample]:
        """Return up to `steps` samples of one destination; zeros for idle steps."""
        steps = max(0, min(steps, self._step, DESTINATION_STEPS))
        ring = self._rings.get(destination)
        if ring is None:
            return [Sample(0.0, 0.0, 0, 0)] * steps
        return [
            Sample(*_SLOT.unpack_from(ring.slots, step % DESTINATION_STEPS * _SLOT.size))
            for step in range(self._step - steps, self._step)
        ]

    def recent_lag(self) -> Distribution:
        """Return the event loop lag of about the last minute."""
        return self._lag.read().since(self._lags[0])

    def recent_syncs(self) -> Distribution:
        """Return the sync durations of about the last minute."""
        return self._syncs.read().since(self._sync_times[0])
