"""Time as the engine sees it: two readings, refreshed once per turn by whoever owns the loop.

Expiry, delays and timeouts run on the steady reading, so that a clock set forwards or back
neither expires nor revives a message; what is stored or shown is wall time. A message that
carries an absolute expiration is converted once, when the engine first sees it, and once more when
it is read back after a restart: clocklog.py says by which setting of the wall clock.
"""

from __future__ import annotations


class Clock:
    """Readings in whole milliseconds. `refresh` is the only place where time passes; `elapsed` is
    for measuring how long the engine itself takes, and for nothing else."""

    __slots__ = ("steady", "wall")

    def __init__(self, wall: int = 0, steady: int = 0) -> None:
        self.wall = wall
        self.steady = steady

    @property
    def epoch(self) -> int:
        """What the wall clock is ahead of the steady one; it changes when that is set."""
        return self.wall - self.steady

    def refresh(self) -> None:
        """Read the sources of time again."""

    def elapsed(self) -> float:
        """Return seconds since some moment, read now where there is a source of time."""
        return self.steady / 1000


class ManualClock(Clock):
    """A clock that moves only when told to: for tests and replays."""

    __slots__ = ()

    def __init__(self, wall: int = 1_700_000_000_000, steady: int = 1_000_000) -> None:
        super().__init__(wall, steady)

    def advance(self, milliseconds: int) -> None:
        """Let both readings pass `milliseconds`."""
        self.wall += milliseconds
        self.steady += milliseconds

    def set_wall(self, wall: int) -> None:
        """Set the wall clock, as an administrator or NTP would; the steady clock goes on."""
        self.wall = wall
