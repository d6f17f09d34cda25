"""Backlog scenario: fill a queue without consumers, measure the cost of messages meanwhile, drain
the queue, and restart on it after kill -9."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from benchmarks.load.load import Load
from benchmarks.load.meter import Meter, memory_bytes
from benchmarks.load.phpmq import Phpmq
from benchmarks.load.report import COST, Note, cost, name, table
from benchmarks.load.result import LoadSettings, ResultPart, TransferResult
from benchmarks.load.server import BenchmarkBroker, restart, start_broker
from benchmarks.load.sockets import STALLED_SECONDS
from rich.table import Table

from sluicemq.cli.console import size
from sluicemq.model.errors import ConnectionLost

PROTOCOL: Final = "phpmq"
SHALLOW: Final = 1000
"""Number of ready messages in the measurements without a backlog."""
PUBLISHED: Final = 50_000
"""Maximum number of messages sent on top of a backlog to measure their cost: processor time is
counted in steps of 10 ms."""

_SAME_QUEUE_WINDOW: Final = 200
"""Window that is small enough to keep the consumer from overtaking the producer, so that the depth
stays constant."""
_POLL_SECONDS: Final = 0.01


class QueueCosts(ResultPart, frozen=True, kw_only=True):
    """Cost of messages while others are ready in a queue.

    ready         number of ready messages
    other_queue   sent and received through another queue
    same_queue    sent to the end of that queue while as many are received from its head
    publish       sent to the end of that queue without consumers
    """

    ready: int
    other_queue: TransferResult
    same_queue: TransferResult
    publish: TransferResult


class RecoveryResult(ResultPart, frozen=True, kw_only=True):
    """Seconds since the start of the new process after kill -9.

    serving_seconds         until the broker reports on its admin socket that it is ready
    first_message_seconds   until a consumer has a message
    messages                number of recovered messages
    resident_bytes          memory of the broker then
    """

    serving_seconds: float
    first_message_seconds: float
    messages: int
    resident_bytes: int


class BacklogResult(LoadSettings, frozen=True, kw_only=True, tag_field="scenario", tag="backlog"):
    """A queue with a backlog.

    messages             number of messages in the backlog
    live                 flood through an empty broker
    shallow, deep        costs with few and with `messages` ready
    fill                 `messages` sent until all are ready
    bytes_per_message    growth of the broker's memory per message, the body included
    drain                all of them received by one consumer
    drain_ratio          drain.rate / live.rate
    recovery             filled again and killed
    drain_recovered      drained once more, now from the journal
    """

    messages: int
    live: TransferResult
    shallow: QueueCosts
    fill: TransferResult
    bytes_per_message: float
    deep: QueueCosts
    drain: TransferResult
    drain_ratio: float
    recovery: RecoveryResult
    drain_recovered: TransferResult


def backlog(
    *, messages: int, size: int, durability: str, seconds: float, note: Note
) -> BacklogResult:
    """Measure a backlog of `messages`. `seconds` is the length of each run with no other end.

    Raises ConnectionLost, also if a message that was on disk (`sync`) is missing after the kill,
    and OSError.
    """
    with start_broker(PROTOCOL, "tcp", durability) as server:
        scenario = _Scenario(server, messages, size, seconds)
        note("live rate through an empty broker")
        live = scenario.live()
        note(f"{SHALLOW:,} messages ready")
        scenario.fill(b"shallow", SHALLOW)
        shallow = scenario.queue_costs(b"shallow")
        scenario.drain(b"shallow", scenario.ready(b"shallow"))
        before = scenario.resident()
        note(f"filling: {messages:,} messages")
        fill = scenario.fill(b"backlog", messages)
        growth = fill.resident_bytes - before
        note(f"{messages:,} messages ready")
        deep = scenario.queue_costs(b"backlog")
        note("draining")
        drain = scenario.drain(b"backlog", scenario.ready(b"backlog"))
        note(f"filling again: {messages:,} messages")
        scenario.fill(b"backlog", messages)
        note("kill -9, and start again")
        recovery = scenario.recover(b"backlog")
        if durability == "sync" and recovery.messages != messages:
            raise ConnectionLost(
                f"{messages:,} messages were on disk before kill -9, "
                f"{recovery.messages:,} are there"
            )
        note("draining from the journal")
        drain_recovered = scenario.drain(b"backlog", scenario.ready(b"backlog"))
    return BacklogResult(
        protocol=PROTOCOL,
        transport="tcp",
        durability=durability,
        size=size,
        messages=messages,
        live=live,
        shallow=shallow,
        fill=fill,
        bytes_per_message=round(growth / messages, 1),
        deep=deep,
        drain=drain,
        drain_ratio=round(drain.rate / live.rate, 3),
        recovery=recovery,
        drain_recovered=drain_recovered,
    )


class _Scenario:
    """The steps of the scenario on one broker."""

    def __init__(self, server: BenchmarkBroker, messages: int, size: int, seconds: float) -> None:
        self._server = server
        self._published = min(PUBLISHED, messages // 2)
        self._size = size
        self._seconds = seconds

    def resident(self) -> int:
        assert self._server.pid is not None
        return memory_bytes(self._server.pid)[0]

    def ready(self, queue: bytes) -> int:
        """Return the number of messages in the queue once no consumer holds any of them."""
        self._wait_until(lambda: self._server.destination(queue).get("unacked", 0) == 0)
        return int(self._server.destination(queue).get("ready", 0))

    def live(self) -> TransferResult:
        """Flood a separate queue."""
        with self._load(self._server.queue) as load:
            return load.flood(seconds=self._seconds)

    def fill(self, queue: bytes, messages: int) -> TransferResult:
        """Send messages and wait until all of them are ready."""
        expected = int(self._server.destination(queue).get("ready", 0)) + messages
        with self._load(queue, consumers=0) as load:
            meter = Meter(self._server.pid)
            load.flood(messages=messages)
            # the count includes messages that are not on disk yet; the fence message waits for them
            self._wait_until(lambda: self._server.destination(queue).get("ready", 0) >= expected)
            with self._load(b"fence") as fence:
                fence.flood(messages=1)
            return meter.read(messages)

    def drain(self, queue: bytes, messages: int) -> TransferResult:
        """Drain the queue with one consumer, until the broker has its acknowledgements."""
        with self._load(queue, producers=0) as load:
            run = load.drain(messages)
            self._wait_until(lambda: self._message_count(queue) == 0)
            return run

    def queue_costs(self, queue: bytes) -> QueueCosts:
        """Measure the cost of messages with the present backlog of `queue`."""
        ready = self.ready(queue)
        other_queue = self.live()
        with self._load(queue, window=_SAME_QUEUE_WINDOW) as load:
            same_queue = load.flood(seconds=self._seconds)
        self.ready(queue)
        publish = self.fill(queue, self._published)
        return QueueCosts(
            ready=ready, other_queue=other_queue, same_queue=same_queue, publish=publish
        )

    def recover(self, queue: bytes) -> RecoveryResult:
        """Measure kill -9, restart and first message."""
        local = self._server.local
        assert local is not None
        local.kill()
        started = time.perf_counter()
        self._server = restart(self._server, PROTOCOL)
        serving = time.perf_counter() - started
        messages = self._message_count(queue)
        resident = self.resident()
        with self._load(queue, producers=0, window=1) as load:
            load.drain(1)
            first = time.perf_counter() - started
        return RecoveryResult(
            serving_seconds=round(serving, 3),
            first_message_seconds=round(first, 3),
            messages=messages,
            resident_bytes=resident,
        )

    def _load(
        self, queue: bytes, *, producers: int = 1, consumers: int = 1, window: int = 1000
    ) -> Load:
        return Load(
            self._server.target,
            Phpmq(self._size, queue=queue, window=window),
            producers=producers,
            consumers=consumers,
            pid=self._server.pid,
        )

    def _message_count(self, queue: bytes) -> int:
        state = self._server.destination(queue)
        return int(state.get("ready", 0)) + int(state.get("unacked", 0))

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + STALLED_SECONDS * 10
        while not condition():
            if time.monotonic() > end:
                raise ConnectionLost("the broker did not reach the expected state in time")
            time.sleep(_POLL_SECONDS)


def backlog_table(result: BacklogResult) -> Table:
    """Return the table of one result."""
    grid = table(
        f"Backlog: {result.messages:,} messages of {result.size:,} bytes, {name(result)}, "
        f"{result.durability}",
        ("Step",),
        ("Messages", *COST),
    )
    for title, run in (
        ("live, empty broker", result.live),
        *_queue_costs(result, deep=False),
        ("fill", result.fill),
        *_queue_costs(result, deep=True),
        ("drain", result.drain),
        ("drain after the restart", result.drain_recovered),
    ):
        grid.add_row(title, f"{run.messages:,}", *cost(run))
    recovery = result.recovery
    grid.caption_justify = "left"
    grid.caption = (
        f"drain / live: {result.drain_ratio:.2f}; memory per ready message: "
        f"{result.bytes_per_message:,.0f} bytes\n"
        f"after kill -9: serving in {recovery.serving_seconds:.2f} s, first message in "
        f"{recovery.first_message_seconds:.2f} s, {recovery.messages:,} messages, "
        f"{size(recovery.resident_bytes)}"
    )
    return grid


def _queue_costs(result: BacklogResult, *, deep: bool) -> tuple[tuple[str, TransferResult], ...]:
    costs = result.deep if deep else result.shallow
    ready = f"{costs.ready:,} ready"
    return (
        (f"{ready}: another queue", costs.other_queue),
        (f"{ready}: the same queue", costs.same_queue),
        (f"{ready}: sent only", costs.publish),
    )
