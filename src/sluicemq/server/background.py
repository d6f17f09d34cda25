"""Threads for work that would block the event loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


class BackgroundThread:
    """Thread pool of fixed size, which limits the processors used. Jobs start in order."""

    def __init__(self, notify: Callable[[Callable[[], object]], object], threads: int = 1) -> None:
        """Use `notify` to call a function on the event loop from a background thread."""
        self._notify = notify
        self._executor = ThreadPoolExecutor(threads, "background")

    def submit(self, work: Callable[[], Result], done: Callable[[Result], None]) -> Future[Result]:
        """Run `work` in a thread, then call `done` with its result on the event loop.

        A cancelled job does not call `done`."""
        future = self._executor.submit(work)

        def finished(future: Future[Result]) -> None:
            if not future.cancelled():
                with suppress(RuntimeError):  # the event loop has been closed
                    self._notify(lambda: done(future.result()))

        future.add_done_callback(finished)
        return future

    def close(self) -> None:
        """Cancel the jobs that have not started, without waiting for running jobs."""
        self._executor.shutdown(wait=False, cancel_futures=True)
