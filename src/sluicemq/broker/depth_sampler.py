"""Sampler of queue depths, recorded in the journal periodically for the pipeline.

All destinations are examined in rounds, a share at a time, and each that has changed since its last
record gets a new one. A round takes `depth_interval`, or longer if there are very many
destinations, so that no iteration is blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluicemq.broker.destinations import Destinations
    from sluicemq.broker.state import Core, Destination

SHARE: Final = 100
"""Destinations examined together if the round has enough time. Each takes about 1 µs."""
LARGEST_SHARE: Final = 500
STEPS: Final = 100
"""Number of shares in a round."""


class DepthSampler:
    """Periodic sampler of the depths of all destinations."""

    __slots__ = ("_core", "_delay", "_destinations", "_interval", "_left", "_share")

    def __init__(self, core: Core, destinations: Destinations) -> None:
        self._core = core
        self._destinations = destinations
        self._left: list[Destination] = []
        self._share = SHARE
        self._delay = self._interval = core.journal.depth_interval
        if self._interval > 0:
            core.timers.add(core.clock.steady + self._delay, self._step, None)

    def _step(self, argument: None) -> None:
        core = self._core
        left = self._left
        if not left:
            left.extend(self._destinations.values())
            steps = min(STEPS, len(left) // SHARE + 1)
            self._share = min(LARGEST_SHARE, len(left) // steps + 1)
            self._delay = max(1, self._interval // steps)
        for destination in left[-self._share :]:
            self.look(destination)
        del left[-self._share :]
        core.timers.add(core.clock.steady + self._delay, self._step, None)

    def look(self, destination: Destination) -> None:
        """Record the depth of a destination if it has changed and the destination is journaled."""
        waiting, flight = destination.waiting, destination.unacked
        self._record(destination, (waiting, flight, destination.consumers))

    def gone(self, destination: Destination) -> None:
        """Record a depth of 0 for a destination that is about to be deleted."""
        if self._interval > 0:
            self._record(destination, (0, 0, 0))

    def finish(self) -> None:
        """Record all changed depths before the broker stops."""
        if self._interval > 0:
            for destination in self._destinations.values():
                self.look(destination)

    def _record(self, destination: Destination, standing: tuple[int, int, int]) -> None:
        if self._core.event_recorder.suspended:
            return  # the first round after the suspension records every change since
        known = destination.number and not destination.temporary and not destination.removed
        if known and destination.recorded_depth != standing:
            destination.recorded_depth = standing
            self._core.event_recorder.record_depth(destination.number, *standing)
