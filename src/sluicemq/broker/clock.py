"""Clock of the engine: steady and wall time, read once per iteration by the owner of the event
loop.

Expiry, delays and timeouts use steady time, so that setting the wall clock neither expires nor
revives a message; stored and displayed times are wall time. The engine converts a message's
absolute expiration once when the message arrives, and again when it is read back after a restart:
clocklog.py determines the setting of the wall clock to use.
"""

from __future__ import annotations


class Clock:
    """Times in whole milliseconds, constant until `refresh`.

    `elapsed` measures the engine's own run time only.
    """

    __slots__ = ("steady", "wall")

    def __init__(self, wall: int = 0, steady: int = 0) -> None:
        self.wall = wall
        self.steady = steady

    @property
    def epoch(self) -> int:
        """Difference of wall and steady time in ms; it changes when the wall clock is set."""
        return self.wall - self.steady

    def refresh(self) -> None:
        """Read the time sources again."""

    def elapsed(self) -> float:
        """Return seconds since an arbitrary moment, read now if there is a time source."""
        return self.steady / 1000


class ManualClock(Clock):
    """Clock that advances only by calls, for tests and replays."""

    __slots__ = ()

    def __init__(self, wall: int = 1_700_000_000_000, steady: int = 1_000_000) -> None:
        super().__init__(wall, steady)

    def advance(self, milliseconds: int) -> None:
        """Advance both times by `milliseconds`."""
        self.wall += milliseconds
        self.steady += milliseconds

    def set_wall(self, wall: int) -> None:
        """Set the wall clock, as an administrator or NTP does; steady time is unaffected."""
        self.wall = wall
