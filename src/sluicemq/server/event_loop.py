"""Event loop: the batch of one iteration, work in background threads, and the lag of the loop.

All input of an iteration is handled, then the engine is flushed once, then each connection is
written to once. Work that would block the loop is done in other threads. The lag is the delay
of every timer and connection besides its own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final, Protocol, TypeVar

from sluicemq.broker import NEVER, Broker
from sluicemq.model.histogram import Histogram

LAG_INTERVAL_SECONDS: Final = 0.05
"""Time between two measurements of the lag; twenty per second have no measurable cost."""

Result = TypeVar("Result")


class Output(Protocol):
    """Connection with bytes to write."""

    def flush(self) -> None:
        """Write the bytes."""


class EventLoopBatch:
    """Event loop batches, and the timer that runs the engine at its next deadline.

    If the engine raises, the batch sets `is_halted` and calls `failed` with the exception. From
    then on it sends, acknowledges and requeues nothing.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        failed: Callable[[Exception], None],
    ) -> None:
        self.loop = loop
        self.broker = broker
        self._failed = failed
        self._open = False
        self.is_halted = False
        self._outgoing: dict[Output, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = NEVER
        broker.on_flush_needed(self.begin)

    def begin(self) -> None:
        """Begin a batch, unless one is open, and schedule its end. Refreshes the clock once."""
        if not self._open:
            self._open = True
            self.broker.refresh()
            self.loop.call_soon(self._end)

    def schedule_write(self, connection: Output) -> None:
        """Schedule a write of the connection's bytes at the end of the batch."""
        self._outgoing[connection] = None
        if not self._open:
            self.begin()

    def halt(self) -> None:
        """Stop sending and acknowledging permanently."""
        self.is_halted = True
        self._outgoing.clear()

    def fail(self, error: Exception) -> None:
        """Halt and report the error, unless the batch is halted already."""
        if not self.is_halted:
            self.halt()
            self._failed(error)

    def _end(self) -> None:
        self._open = False
        if self.is_halted:
            return
        try:
            self.broker.flush()
        except Exception as error:
            self.fail(error)
            return
        # Writing may acknowledge deliveries, which adds work to the next batch.
        outgoing, self._outgoing = self._outgoing, {}
        for connection in outgoing:
            connection.flush()
        deadline = self.broker.deadline()
        if deadline < self._alarm_at:
            self._set_alarm(deadline)

    def _set_alarm(self, deadline: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        delay = max(0, deadline - self.broker.clock.steady)
        # The event loop's clock takes a day; a timer that fires early only sets the next one.
        self._alarm = self.loop.call_later(min(delay / 1000, 86_400.0), self._run_due_work)

    def _run_due_work(self) -> None:
        self._alarm = None
        self._alarm_at = NEVER
        if self.is_halted:
            return
        self.begin()
        try:
            self.broker.tick()
        except Exception as error:
            self.fail(error)


class BackgroundThread:
    """Thread pool of fixed size, which limits the processors used. Jobs start in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 1) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(threads, "background")

    def submit(
        self, work: Callable[[], Result], callback: Callable[[Result], None]
    ) -> asyncio.Future[Result]:
        """Run `work` in a thread, then call `callback` with its result on the event loop.

        A cancelled job does not call `callback`."""

        def finished(future: asyncio.Future[Result]) -> None:
            if not future.cancelled():
                callback(future.result())

        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(finished)
        return future

    def close(self) -> None:
        """Cancel the jobs that have not started, without waiting for running jobs."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def record_lag(loop: asyncio.AbstractEventLoop, histogram: Histogram) -> None:
    """Record the delay of a timer in `histogram` every LAG_INTERVAL_SECONDS, until the loop ends.

    Timers of the loop have a resolution of 1 ms, so a delay of 1 ms is not a lag."""
    due = monotonic() + LAG_INTERVAL_SECONDS

    def measure() -> None:
        histogram.record(monotonic() - due)
        record_lag(loop, histogram)

    loop.call_later(LAG_INTERVAL_SECONDS, measure)
