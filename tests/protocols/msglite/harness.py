"""What several of these test files need: a connection that records, and a broker behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluicemq.broker import Broker, BrokerSettings, Destination, ManualClock
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability
from sluicemq.protocols.link import Session
from sluicemq.protocols.msglite import wire
from sluicemq.protocols.msglite.gateway import GatewaySession
from sluicemq.protocols.msglite.http import HttpLimits
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses


class RecordedTimer:
    """A call that is made when the harness's clock gets there."""

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.over = False

    def cancel(self) -> None:
        self.over = True


class RecordedLink:
    """Remembers what the session did with its connection."""

    def __init__(self, harness: Harness) -> None:
        self.peer = "test"
        self.harness = harness
        self.written = b""
        self.unsent = False
        self.stalled = False
        self.closed_because: str | None = None
        self.paused = False
        self.ended = False

    def write(self, chunks: Iterable[bytes]) -> None:
        assert self.closed_because is None, "written after close"
        assert not self.ended, "written to a connection that has gone"
        self.written += b"".join(chunks)
        self.unsent = True

    def close(self, reason: str = "") -> None:
        assert self.closed_because is None, "closed twice"
        assert not self.ended, "closed a connection that has gone"
        self.closed_because = reason

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def call_later(self, delay: float, callback: Callable[[], None]) -> RecordedTimer:
        assert delay >= 0
        timer = RecordedTimer(self.harness.clock.steady + delay * 1000, callback)
        self.harness.timers.append(timer)
        return timer


class Harness:
    """A broker in memory, and connections to it."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.clock = ManualClock()
        self.broker = Broker(MemoryJournal(), self.clock, settings)
        self.replies = ReplyAddresses(self.clock.wall)
        self.timers: list[RecordedTimer] = []
        self.peers: list[Peer] = []
        self.waking = False
        self.broker.wake = self.wake

    def wake(self) -> None:
        self.waking = True

    def connect(
        self, durability: Durability = Durability.NONE, limits: wire.Limits | None = None
    ) -> Peer:
        link = RecordedLink(self)
        session = MsgliteSession(
            link, self.broker, self.replies, durability=durability, limits=limits
        )
        return Peer(self, link, session)

    def browser(self, limits: HttpLimits | None = None) -> Peer:
        link = RecordedLink(self)
        return Peer(self, link, GatewaySession(link, self.broker, self.replies, limits=limits))

    def turn(self, milliseconds: int = 0) -> None:
        """Let time pass, the timers ring, the broker do what is due, and the bytes leave."""
        until = self.clock.steady + milliseconds
        while True:
            self.timers = [timer for timer in self.timers if not timer.over]
            due = [timer for timer in self.timers if timer.due <= until]
            if not due:
                break
            timer = min(due, key=lambda timer: timer.due)
            self.clock.advance(max(0, int(timer.due) - self.clock.steady))
            timer.over = True
            timer.callback()
            self.settle()
        self.clock.advance(until - self.clock.steady)
        self.settle()

    def settle(self) -> None:
        """Turns until nothing more happens."""
        while True:
            self.waking = False
            self.broker.tick()
            self.broker.flush()
            busy = self.waking
            for peer in list(self.peers):
                busy = peer.flush() or busy
            if not busy:
                return

    def limit(self, queue: str, settings: DestinationSettings) -> Destination:
        return self.broker.declare(Address(Kind.QUEUE, queue), settings)

    def find(self, queue: str) -> Destination | None:
        return self.broker.find(Address(Kind.QUEUE, queue))

    def bodies(self, queue: str) -> list[bytes]:
        """What the queue holds, messages that are being sent included, in order."""
        destination = self.find(queue)
        if destination is None:
            return []
        return [d.message.body for d in destination.queue.browse() if d.message is not None]


class Peer:
    """A client's end of a connection. Each call is one turn of the broker."""

    def __init__(self, harness: Harness, link: RecordedLink, session: Session) -> None:
        self.harness = harness
        self.link = link
        self.session = session
        harness.peers.append(self)

    def flush(self) -> bool:
        """What the connection does at the end of a turn."""
        if not self.link.unsent or self.link.stalled or self.link.ended:
            return False
        self.link.unsent = False
        self.session.flushed()
        return True

    def put(self, data: bytes) -> None:
        if self.link.closed_because is None:
            self.session.receive(data)
        self.harness.turn()

    def end(self) -> None:
        """The peer half-closes."""
        if self.link.closed_because is None:
            self.session.end_of_input()
        self.harness.turn()

    def drop(self) -> None:
        """The connection breaks."""
        if not self.link.ended:
            self.link.ended = True
            self.session.closed()
            self.harness.peers.remove(self)
            self.harness.turn()

    def got(self) -> bytes:
        """What was written since the last call."""
        written, self.link.written = self.link.written, b""
        return written

    def ask(self, data: bytes) -> bytes:
        """`put`, and what was written since the last call."""
        self.put(data)
        return self.got()

    @property
    def open(self) -> bool:
        return self.link.closed_because is None
