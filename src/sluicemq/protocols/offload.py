"""Worker threads for large bodies: they unpack, check, convert and compress what would block the
event loop. Sessions use them through `SessionJob` and, for messages of other protocols,
`BodyConversion`.

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

from sluicemq.broker import Consumer, Delivery
from sluicemq.model.errors import ProtocolError, without_traceback
from sluicemq.model.message import Message
from sluicemq.protocols.channel import Channel
from sluicemq.protocols.transcoding import content, conversion_memory
from sluicemq.protocols.transport import Alarm, Background, Transport

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


# --- jobs of one session -------------------------------------------------------------------------


class SessionJob:
    """One job of a session at a time. Its result is reported in a callback of the session's
    connection, so that an unexpected error ends only that connection."""

    __slots__ = ("_job", "_offload", "_timer")

    def __init__(self, transport: Transport, offload: Offload) -> None:
        self._offload = offload
        self._job: OffloadedJob | None = None
        self._timer = Alarm(transport)
        """Scheduled report of the result."""

    @property
    def is_running(self) -> bool:
        """True until the result is reported."""
        return self._job is not None

    def start(
        self,
        work: Callable[[], Result],
        callback: Callable[[Result | ProtocolError], None],
        size: int,
    ) -> None:
        """Call `work` as `Offload.submit` does, then `callback` with its result or the
        ProtocolError that it raised."""
        self._job = self._offload.submit(work, partial(self._end, callback), size)

    def _end(
        self, callback: Callable[[Result | ProtocolError], None], result: Result | Exception
    ) -> None:
        self._timer.set(0, partial(self._report, callback, result))

    def _report(
        self, callback: Callable[[Result | ProtocolError], None], result: Result | Exception
    ) -> None:
        self._job = None
        if isinstance(result, Exception) and not isinstance(result, ProtocolError):
            raise result
        callback(result)

    def cancel(self) -> None:
        """Do not report the result."""
        if self._job is not None:
            self._job.cancel()
            self._job = None
        self._timer.cancel()


class BodyConversion:
    """Conversion of the body of one delivery of a session. The deliveries after it wait.

    blocked  that delivery and those after it, which the session adds; empty if no delivery waits,
             although a conversion may be running for a later delivery of the same message
    """

    __slots__ = ("_job", "_sequence", "blocked")

    def __init__(self, transport: Transport, offload: Offload) -> None:
        self._job = SessionJob(transport, offload)
        self._sequence = 0
        """Sequence of the message that is being converted."""
        self.blocked: list[Delivery] = []

    def start(
        self, message: Message, deliveries: list[Delivery], send: Callable[[bytes], None]
    ) -> None:
        """Convert the body of `message`, that of the first delivery, and call `send` with it."""
        self.blocked = deliveries
        if self._job.is_running and self._sequence == message.sequence:
            return
        self._job.cancel()
        self._sequence = message.sequence
        work = partial(content, message)
        self._job.start(work, partial(self._send, send), conversion_memory(message))

    def _send(self, send: Callable[[bytes], None], body: bytes | ProtocolError) -> None:
        assert isinstance(body, bytes)  # a body that cannot be read stays as it is
        if self.blocked:
            send(body)

    def take_blocked(self, *, cancel: bool = True) -> list[Delivery]:
        """Remove and return the blocked deliveries. Unless `cancel`, their conversion goes on:
        `start` continues it for the same message and an equal `send`."""
        if cancel:
            self._job.cancel()
        blocked, self.blocked = self.blocked, []
        return blocked


def unblock(
    channel: Channel[Any], consumer: Consumer, blocked: list[Delivery], keep: int = 0
) -> list[Delivery]:
    """Return the deliveries to send now that the first is converted: those that are still unacked.

    If the client reads too slowly, only the first `keep` of them; the others are requeued, because
    they would fill the memory.
    """
    unacked = [item for item in blocked if consumer.unacked.get(item.sequence) is item]
    if channel.congested:
        unsent = [delivery.sequence for delivery in unacked[keep:]]
        channel.broker.release(consumer, unsent, attempted=False)
        del unacked[keep:]
    channel.broker.mark_sent(unacked)
    return unacked
