"""Time limit of scans in each event loop iteration.

A scan is work whose length depends on the number of messages: a browse, the matching of ready
messages against a new selector, a purge, a list. All scans of a broker share one deadline per
iteration, so that a thousand of them delay other connections no more than one does. The rest
continues in later iterations, first come, first served.

The engine has no clock of its own: the caller provides a function that starts a deadline; `flush`
ends the iteration. A scan examines one message before it calls `over`, so each slice makes
progress.
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
    """Start a deadline that never expires, for programs that serve no other clients meanwhile."""
    return _never


def _never() -> bool:
    return False


class Scans:
    """Queue of scans that wait for their next slice, and their common deadline."""

    __slots__ = ("_deadline", "_start", "_waiting", "_wake")

    def __init__(self, start: StartDeadline, wake: Callable[[], None]) -> None:
        """Create an empty queue; `wake` schedules a flush."""
        self._start: Final = start
        self._wake: Final = wake
        self._deadline: Deadline | None = None
        """Deadline of this iteration, once a scan has asked for it."""
        self._waiting: deque[tuple[Callable[[], object], bool]] = deque()

    @property
    def waiting(self) -> int:
        """Number of scans that wait for their next slice."""
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
        """Call `step` in a later flush, in order of scheduling.

        With `outside` it only resumes work outside the flush, such as a coroutine. That work uses
        the time of its iteration, so no other scan is called after it.
        """
        if not self._waiting:
            self._wake()
        self._waiting.append((step, outside))

    def run(self) -> None:
        """Call the waiting scans, each at most once, until the time is used up."""
        waiting = self._waiting
        for _ in range(len(waiting)):
            if self.over():
                break
            step, outside = waiting.popleft()
            step()
            if outside:
                break

    def end_iteration(self) -> None:
        """End the iteration: the next call of `over` starts a new deadline."""
        self._deadline = None
        if self._waiting:
            self._wake()
