"""Worker threads for large bodies: they unpack, check, convert and compress what would block the
event loop.

A broker has one `Offload`. It runs few jobs at a time, in the order of submission, because each may
need much memory, which is reserved before a job starts. A job waits while other connections' input
takes the memory; one job can always run, so that waiting ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from sluicemq.model.errors import without_traceback
from sluicemq.protocols.transport import Background

LARGE: Final = 256 * 1024
"""Size of a body, in bytes, above which a job handles it; of a body to be converted, its
`transcoding.conversion_work`."""
MAX_RUNNING_JOBS: Final = 2
"""Maximum number of running jobs."""

Result = TypeVar("Result")


class Memory(Protocol):
    """Memory budget of the jobs."""

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes. Return False if the budget is exceeded and others have reserved."""

    def unreserve(self, size: int) -> None:
        """Release `size` reserved bytes."""


@dataclass(slots=True, eq=False)
class OffloadedJob:
    """Submitted job. Created by `Offload.submit`.

    work      function to call in another thread; None once the job has ended
    callback  function to call with the result; None once the job has ended or is cancelled
    size      bytes of memory that it needs at most
    """

    work: Callable[[], Any] | None
    callback: Callable[[Any], None] | None
    size: int

    def cancel(self) -> None:
        """Do not report the result, and do not start the job if it has not started."""
        self.work = self.callback = None

    def run(self) -> object:
        """Return the result or the exception of the work. Called in another thread."""
        work = self.work
        try:
            return None if work is None else work()
        except Exception as error:
            return without_traceback(error)


class Offload:
    """Runs jobs in worker threads. All methods are called on the event loop."""

    __slots__ = ("_background", "_memory", "_running", "_waiting")

    def __init__(self, background: Background, memory: Memory) -> None:
        self._background = background
        self._memory = memory
        self._waiting: deque[OffloadedJob] = deque()
        self._running = 0

    def submit(
        self,
        work: Callable[[], Result],
        callback: Callable[[Result | Exception], None],
        size: int,
    ) -> OffloadedJob:
        """Call `work` in another thread, then `callback` on the event loop.

        `callback` gets the result, or the exception that `work` raised. `size`: bytes of memory
        that it needs at most.
        """
        job = OffloadedJob(work, callback, size)
        self._waiting.append(job)
        self._start_jobs()
        return job

    def _start_jobs(self) -> None:
        while self._waiting and self._running < MAX_RUNNING_JOBS:
            job = self._waiting[0]
            if job.work is None:
                self._waiting.popleft()
                continue
            if not self._memory.reserve(job.size):
                return
            self._waiting.popleft()
            self._running += 1
            self._background.submit(job.run, partial(self._end, job))

    def _end(self, job: OffloadedJob, result: object) -> None:
        self._running -= 1
        callback = job.callback
        job.cancel()
        try:
            if callback is not None:
                callback(result)
        finally:
            self._memory.unreserve(job.size)
            self._start_jobs()
