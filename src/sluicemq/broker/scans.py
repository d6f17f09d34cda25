"""The time that scans may take of each event-loop iteration.

A scan is work whose length depends on how many messages there are: a browse, a new selector tried
on what waits, a purge, a list. All scans of a broker share one deadline per event-loop iteration,
so that a thousand of them delay other connections by no more than one does. What is left goes on
in later iterations, first come, first served.

The engine has no clock. It is given a function that starts a deadline; `flush` ends the iteration.
A scan looks at one message before it asks `over`, so each slice makes progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

Deadline = Callable[[], bool]
"""Return True once the time is used up."""
StartDeadline = Callable[[], Deadline]
"""Start the deadline of an event-loop iteration."""


def unlimited() -> Deadline:
    """Start a deadline that never comes: for programs that serve nobody else meanwhile."""
    return _never


def _never() -> bool:
    return False


class Scans:
    """Scans that wait for their next slice, and the deadline that all of them share."""

    __slots__ = ("_deadline", "_start", "_waiting", "_wake")

    def __init__(self, start: StartDeadline, wake: Callable[[], None]) -> None:
        """`wake` schedules a flush."""
        self._start: Final = start
        self._wake: Final = wake
        self._deadline: Deadline | None = None
        """That of this iteration, once something has asked for it."""
        self._waiting: deque[tuple[Callable[[], object], bool]] = deque()

    @property
    def waiting(self) -> int:
        """Scans that wait for their next slice."""
        return len(self._waiting)

    def over(self) -> bool:
        """Return whether the scans of this iteration have used up their time."""
        if self._deadline is None:
            self._deadline = self._start()
            self._wake()  # the flush ends the iteration
        return self._deadline()

    def begin(self, step: Callable[[], object]) -> None:
        """Run the first slice of a scan at once, or in its turn if there are others or no time.

        A step that has not finished schedules itself again.
        """
        if self._waiting or self.over():
            self.schedule(step)
        else:
            step()

    def schedule(self, step: Callable[[], object], *, outside: bool = False) -> None:
        """Call `step` in a later flush, when its turn comes.

        With `outside` it only resumes work that runs outside the flush, such as a coroutine. That
        work gets the time of its iteration, so no other scan is called after it.
        """
        if not self._waiting:
            self._wake()
        self._waiting.append((step, outside))

    def run(self) -> None:
        """Call the scans that wait, each at most once, until the time is used up."""
        waiting = self._waiting
        for _ in range(len(waiting)):
            if self.over():
                break
            step, outside = waiting.popleft()
            step()
            if outside:
                break

    def end_iteration(self) -> None:
        """The next question starts a new deadline."""
        self._deadline = None
        if self._waiting:
            self._wake()
