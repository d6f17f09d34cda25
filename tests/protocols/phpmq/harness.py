"""What several of these test files need: a connection that records, and a broker behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluicemq.broker import Broker, BrokerSettings, Destination, ManualClock
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability
from sluicemq.protocols.phpmq import wire
from sluicemq.protocols.phpmq.session import PhpmqSession


class RecordedTimer:
    """A call that a test makes when it wants to."""

    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self.delay = delay
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class RecordedLink:
    """Remembers what the session did with its connection."""

    def __init__(self) -> None:
        self.peer = "test"
        self.written = b""
        self.closed_because: str | None = None
        self.paused = False
        self.timers: list[RecordedTimer] = []

    def write(self, chunks: Iterable[bytes]) -> None:
        assert self.closed_because is None, "written after close"
        self.written += b"".join(chunks)

    def close(self, reason: str = "") -> None:
        assert self.closed_because is None, "closed twice"
        self.closed_because = reason

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        assert self.closed_because is None, "resumed after close"
        self.paused = False

    def call_later(self, delay: float, callback: Callable[[], None]) -> RecordedTimer:
        timer = RecordedTimer(delay, callback)
        self.timers.append(timer)
        return timer

    @property
    def open(self) -> bool:
        return self.closed_because is None

    def taken(self) -> bytes:
        """What was written since the last call."""
        written, self.written = self.written, b""
        return written


class Harness:
    """A broker in memory, and connections to it."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.clock = ManualClock()
        self.broker = Broker(MemoryJournal(), self.clock, settings)

    def connect(
        self,
        generation: int = 2,
        durability: Durability = Durability.SYNC,
        limits: wire.Limits | None = None,
    ) -> Peer:
        return Peer(self, generation, durability, limits)

    def turn(self, milliseconds: int = 0) -> None:
        """Let time pass, and the broker do what is due."""
        self.clock.advance(milliseconds)
        self.broker.tick()
        self.broker.flush()

    def limit(self, queue: str, settings: DestinationSettings) -> None:
        self.broker.declare(Address(Kind.QUEUE, queue), settings)

    def find(self, queue: str) -> Destination | None:
        return self.broker.find(Address(Kind.QUEUE, queue))

    def bodies(self, queue: str) -> list[bytes]:
        """What the queue holds, dispatched messages included, in order."""
        destination = self.find(queue)
        if destination is None:
            return []
        return [d.message.body for d in destination.queue.browse() if d.message is not None]


class Peer:
    """A client's end of a connection, frame by frame. Each call is one turn of the broker."""

    def __init__(
        self,
        harness: Harness,
        generation: int,
        durability: Durability,
        limits: wire.Limits | None,
    ) -> None:
        self.harness = harness
        self.link = RecordedLink()
        self.session = PhpmqSession(
            self.link, harness.broker, generation=generation, durability=durability, limits=limits
        )
        self.decoder = wire.Decoder(kinds=wire.FROM_SERVER)

    def put(self, data: bytes) -> None:
        self.session.receive(data)
        self.harness.turn()

    def send(self, queue: bytes, *bodies: bytes, ttl: int = 0) -> None:
        self.put(b"".join(wire.encode_send(queue, body, ttl) for body in bodies))

    def consume(self, queue: bytes, count: int) -> None:
        self.put(wire.encode_consume(queue, count))

    def acknowledge(self, frame: wire.Frame) -> None:
        self.put(wire.encode_acknowledge(frame[1], frame[3]))

    def drop(self) -> None:
        """The connection breaks."""
        self.session.closed()
        self.harness.turn()

    def frames(self) -> list[wire.Frame]:
        """Dispatches since the last call."""
        frames = self.decoder.feed(self.link.taken())
        assert self.decoder.error is None
        assert not self.decoder.incomplete
        return frames

    def bodies(self) -> list[bytes]:
        return [frame[2] for frame in self.frames()]
