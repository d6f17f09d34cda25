"""Threads for work that would hold up the event loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


class BackgroundThread:
    """One thread or a few, so that such work takes as many processors at most; first come, first
    served."""

    def __init__(self, notify: Callable[[Callable[[], object]], object], threads: int = 1) -> None:
        """`notify` has something called on the event loop; it is called in another thread."""
        self._notify = notify
        self._executor = ThreadPoolExecutor(threads, "background")

    def submit(self, work: Callable[[], Result], done: Callable[[Result], None]) -> Future[Result]:
        """See protocols.link.Background. A job that is cancelled is never `done`."""
        future = self._executor.submit(work)

        def finished(future: Future[Result]) -> None:
            if not future.cancelled():
                with suppress(RuntimeError):  # the event loop has been closed
                    self._notify(lambda: done(future.result()))

        future.add_done_callback(finished)
        return future

    def close(self) -> None:
        """Begin nothing more; what has begun ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
