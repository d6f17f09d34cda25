"""Worker threads that unpack, check and compress large frames.

A broker has one `Offload`. It runs few jobs at a time, in the order of submission, because each may
need twice the largest unpacked frame: 105 bytes of Brotli can unpack to 64 MiB. That memory is
reserved before a job starts. A job waits while other connections' input takes the memory; one job
can always run, so that waiting ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from sluicemq.model.errors import without_traceback
from sluicemq.protocols.transport import Background

LARGE: Final = 256 * 1024
"""Size of a body, in bytes, above which another thread unpacks, checks and compresses it."""
PARALLEL: Final = 2
"""Maximum number of running jobs."""

Result = TypeVar("Result")


class Memory(Protocol):
    """Memory budget of unpacked frames."""

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes. Return False if the budget is exceeded and others have reserved."""

    def unreserve(self, size: int) -> None:
        """Release `size` reserved bytes."""


class OffloadedJob:
    """Submitted job. Created by `Offload.submit`.

    size  bytes of memory that it needs at most
    """

    __slots__ = ("_finish", "_offload", "_run", "size")

    def __init__(
        self, offload: Offload, run: Callable[[], None], finish: Callable[[], None], size: int
    ) -> None:
        self._offload = offload
        self._run: Callable[[], None] | None = run
        self._finish: Callable[[], None] | None = finish
        self.size = size

    @property
    def ended(self) -> bool:
        """True if the job has been reported or cancelled."""
        return self._finish is None

    def cancel(self) -> None:
        """Do not report the result, and do not start the job if it has not started."""
        self._finish = None
        self._offload.withdraw(self)

    def run(self) -> None:
        """Run the job, in any thread. Does not raise."""
        run, self._run = self._run, None
        if run is not None:
            run()

    def finish(self) -> None:
        """Report the result, on the event loop."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class Offload:
    """Runs jobs in worker threads. All methods are called on the event loop."""

    __slots__ = ("_background", "_memory", "_running", "_waiting")

    def __init__(self, background: Background | None = None, memory: Memory | None = None) -> None:
        """Without `background` jobs run at once on the event loop; without `memory` no memory is
        reserved."""
        self._background = background
        self._memory = memory
        self._waiting: dict[OffloadedJob, None] = {}
        self._running = 0

    def submit(
        self,
        work: Callable[[], Result],
        done: Callable[[Result | Exception], None],
        size: int,
    ) -> OffloadedJob:
        """Call `work` in another thread, then `done` on the event loop.

        `done` gets the result, or the exception that `work` raised. `size`: bytes of memory that it
        needs at most.
        """
        results: list[Result | Exception] = []

        def run() -> None:
            try:
                results.append(work())
            except Exception as error:
                results.append(without_traceback(error))

        job = OffloadedJob(self, run, lambda: done(results.pop()), size)
        self._waiting[job] = None
        self._begin()
        return job

    def withdraw(self, job: OffloadedJob) -> None:
        """Remove a job that has not started."""
        self._waiting.pop(job, None)

    def _begin(self) -> None:
        while self._waiting and self._running < PARALLEL:
            job = next(iter(self._waiting))
            if self._memory is not None and not self._memory.reserve(job.size):
                return
            del self._waiting[job]
            self._running += 1
            if self._background is not None:
                self._background.submit(job.run, partial(self._end, job))
            else:
                job.run()
                self._end(job, None)

    def _end(self, job: OffloadedJob, _: None) -> None:
        self._running -= 1
        try:
            job.finish()
        finally:
            if self._memory is not None:
                self._memory.unreserve(job.size)
            self._begin()
