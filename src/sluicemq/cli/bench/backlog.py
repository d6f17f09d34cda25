"""Backlog scenario: fill a queue without consumers, measure the cost of messages meanwhile, drain
the queue, and restart on it after kill -9."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sluicemq.cli.bench.load import Load
from sluicemq.cli.bench.meter import Meter, memory_bytes
from sluicemq.cli.bench.phpmq import Phpmq
from sluicemq.cli.bench.result import AtDepth, BacklogResult, RecoveryResult, TransferResult
from sluicemq.cli.bench.server import BenchmarkBroker, again, fresh
from sluicemq.cli.bench.sockets import STALLED_SECONDS
from sluicemq.model.errors import ConnectionLost

PROTOCOL: Final = "phpmq"
SHALLOW: Final = 1000
"""Number of ready messages in the measurements without a backlog."""
PUBLISHED: Final = 50_000
"""Maximum number of messages sent on top of a backlog to measure their cost: processor time is
counted in steps of 10 ms."""

_THROUGH_WINDOW: Final = 200
"""Window that is small enough to keep the consumer from overtaking the producer, so that the depth
stays constant."""
_LOOK_SECONDS: Final = 0.01

Note = Callable[[str], None]


def backlog(
    *, messages: int, size: int, durability: str, seconds: float, note: Note
) -> BacklogResult:
    """Measure a backlog of `messages`. `seconds` is the length of each run with no other end.

    Raises ConnectionLost, also if a message that was on disk (`sync`) is missing after the kill,
    and OSError.
    """
    with fresh(PROTOCOL, "tcp", durability) as server:
        scene = _Scene(server, messages, size, seconds)
        note("live rate through an empty broker")
        live = scene.live()
        note(f"{SHALLOW:,} messages waiting")
        scene.fill(b"shallow", SHALLOW)
        shallow = scene.at_depth(b"shallow")
        scene.drain(b"shallow", scene.waiting(b"shallow"))
        before = scene.resident()
        note(f"filling: {messages:,} messages")
        fill = scene.fill(b"backlog", messages)
        grown = fill.resident_bytes - before
        note(f"{messages:,} messages waiting")
        deep = scene.at_depth(b"backlog")
        note("draining")
        drain = scene.drain(b"backlog", scene.waiting(b"backlog"))
        note(f"filling again: {messages:,} messages")
        scene.fill(b"backlog", messages)
        note("kill -9, and start again")
        recovery = scene.recover(b"backlog")
        if durability == "sync" and recovery.messages != messages:
            raise ConnectionLost(
                f"{messages:,} messages were on disk before kill -9, "
                f"{recovery.messages:,} are there"
            )
        note("draining from the journal")
        drain_recovered = scene.drain(b"backlog", scene.waiting(b"backlog"))
    return BacklogResult(
        protocol=PROTOCOL,
        transport="tcp",
        durability=durability,
        size=size,
        messages=messages,
        live=live,
        shallow=shallow,
        fill=fill,
        bytes_per_message=round(grown / messages, 1),
        deep=deep,
        drain=drain,
        drain_ratio=round(drain.rate / live.rate, 3),
        recovery=recovery,
        drain_recovered=drain_recovered,
    )


class _Scene:
    """The steps of the scenario on one broker."""

    def __init__(self, server: BenchmarkBroker, messages: int, size: int, seconds: float) -> None:
        self._server = server
        self._published = min(PUBLISHED, messages // 2)
        self._size = size
        self._seconds = seconds

    def resident(self) -> int:
        assert self._server.pid is not None
        return memory_bytes(self._server.pid)[0]

    def waiting(self, queue: bytes) -> int:
        """Return the number of messages in the queue once no consumer holds any of them."""
        self._until(lambda: self._server.destination(queue).get("unacked", 0) == 0)
        return int(self._server.destination(queue).get("ready", 0))

    def live(self) -> TransferResult:
        """Flood a separate queue."""
        with self._load(self._server.queue) as load:
            return load.flood(seconds=self._seconds)

    def fill(self, queue: bytes, messages: int) -> TransferResult:
        """Send messages and wait until all of them are ready."""
        there = int(self._server.destination(queue).get("ready", 0)) + messages
        with self._load(queue, consumers=0) as load:
            meter = Meter(self._server.pid)
            load.flood(messages=messages)
            # the count includes messages that are not on disk yet; the fence message waits for them
            self._until(lambda: self._server.destination(queue).get("ready", 0) >= there)
            with self._load(b"fence") as fence:
                fence.flood(messages=1)
            return meter.read(messages)

    def drain(self, queue: bytes, messages: int) -> TransferResult:
        """Drain the queue with one consumer, until the broker has its acknowledgements."""
        with self._load(queue, producers=0) as load:
            run = load.drain(messages)
            self._until(lambda: self._left(queue) == 0)
            return run

    def at_depth(self, queue: bytes) -> AtDepth:
        """Measure the cost of messages with the present backlog of `queue`."""
        waiting = self.waiting(queue)
        elsewhere = self.live()
        with self._load(queue, window=_THROUGH_WINDOW) as load:
            through = load.flood(seconds=self._seconds)
        self.waiting(queue)
        publish = self.fill(queue, self._published)
        return AtDepth(waiting=waiting, elsewhere=elsewhere, through=through, publish=publish)

    def recover(self, queue: bytes) -> RecoveryResult:
        """Measure kill -9, restart and first message."""
        local = self._server.local
        assert local is not None
        local.kill()
        started = time.perf_counter()
        self._server = again(self._server, PROTOCOL)
        serving = time.perf_counter() - started
        messages = self._left(queue)
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

    def _left(self, queue: bytes) -> int:
        about = self._server.destination(queue)
        return int(about.get("ready", 0)) + int(about.get("unacked", 0))

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + STALLED_SECONDS * 10
        while not holds():
            if time.monotonic() > end:
                raise ConnectionLost("the broker did not reach the expected state in time")
            time.sleep(_LOOK_SECONDS)
