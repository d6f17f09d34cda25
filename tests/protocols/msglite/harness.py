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
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses


class RecordedTimer:
    """A call that is made when the harness's clock gets there."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class RecordedLink:
    """Remembers what the session did with its connection."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.peer = "test"
        self.session: Session | None = None
        self.written = b""
        self.unsent = False
        self.stalled = False
        self.closed_because: str | None = None
        self.paused = False

    def write(self, chunks: Iterable[bytes]) -> None:
        assert self.closed_because is None, "written after close"
        self.written += b"".join(chunks)
        self.unsent = True

    def close(self, reason: str = "") -> None:
        assert self.closed_because is None, "closed twice"
        self.closed_because = reason
        self.unsent = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        assert self.closed_because is None, "resumed after close"
        self.paused = False

    def call_later(self, delay: float, callback: Callable[[], None]) -> RecordedTimer:
        assert delay >= 0
        timer = RecordedTimer(self.harness.clock.steady + delay * 1000, callback)
        self.harness.timers.append(timer)
        return timer


class Harness:
    """A broker in memory, and connections to it; turns as the server has them."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.broker = Broker(self.journal, self.clock, settings)
        self.broker.wake = self._wake
        self.replies = ReplyAddresses(self.clock.wall)
        self.links: list[RecordedLink] = []
        self.timers: list[RecordedTimer] = []
        self._woken = False

    def _wake(self) -> None:
        self._woken = True

    def connect(
        self, durability: Durability = Durability.NONE, limits: wire.Limits | None = None
    ) -> Peer:
        link = RecordedLink(self)
        session = MsgliteSession(
            link, self.broker, self.replies, durability=durability, limits=limits
        )
        return Peer(self, link, session)

    def request(self) -> Peer:
        """A connection to the gateway."""
        link = RecordedLink(self)
        return Peer(self, link, GatewaySession(link, self.broker, self.replies))

    def turn(self, milliseconds: int = 0) -> None:
        """Let time pass, ring what is due, flush, and send, until nobody wants another turn."""
        self.clock.advance(milliseconds)
        self.broker.tick()
        timers, self.timers = self.timers, []
        for timer in timers:
            if timer.cancelled:
                continue
            if timer.when <= self.clock.steady:
                timer.callback()
            else:
                self.timers.append(timer)
        turns = 0
        while True:
            self._woken = False
            self.broker.flush()
            sending = [link for link in self.links if link.unsent and not link.stalled]
            for link in sending:
                link.unsent = False
                assert link.session is not None
                link.session.flushed()
            if not self._woken and not any(link.unsent and not link.stalled for link in self.links):
                return
            turns += 1
            assert turns < 1000, "the broker does not come to rest"

    def limit(self, queue: str, settings: DestinationSettings) -> None:
        self.broker.declare(Address(Kind.QUEUE, queue), settings)

    def find(self, queue: str) -> Destination | None:
        return self.broker.find(Address(Kind.QUEUE, queue))

    def bodies(self, queue: str) -> list[bytes]:
        """What the queue holds, in order."""
        destination = self.find(queue)
        if destination is None:
            return []
        return [d.message.body for d in destination.queue.browse() if d.message is not None]

    def temporary(self) -> list[str]:
        """Names of the reply addresses that exist."""
        return [d.name for d in self.broker.destinations.values() if d.temporary]


class Peer:
    """A client's end of a connection. Each call is one turn of the broker."""

    def __init__(
        self, harness: Harness, link: RecordedLink, session: MsgliteSession | GatewaySession
    ) -> None:
        self.harness = harness
        self.link = link
        self.session = session
        self.decoder = wire.Decoder(kinds=wire.FROM_SERVER)
        link.session = session
        harness.links.append(link)

    @property
    def open(self) -> bool:
        return self.link.closed_because is None

    def put(self, data: bytes) -> None:
        self.session.receive(data)
        self.harness.turn()

    def ask(self, data: bytes) -> bytes:
        """Send, and return what comes back at once."""
        self.put(data)
        return self.got()

    def got(self) -> bytes:
        """What was written since the last call."""
        written, self.link.written = self.link.written, b""
        return written

    def end(self) -> None:
        """Half-close."""
        self.session.end_of_input()
        self.harness.turn()

    def drop(self) -> None:
        """The connection breaks."""
        self.harness.links.remove(self.link)
        self.session.closed()
        self.harness.turn()

    def frames(self) -> list[wire.Frame]:
        """Answers since the last call."""
        frames = self.decoder.feed(self.got())
        assert self.decoder.error is None
        assert not self.decoder.incomplete
        return frames

    def bodies(self) -> list[bytes | None]:
        """The same as bodies; None for a time-out."""
        return [frame[3] if frame[0] == wire.MESSAGE else None for frame in self.frames()]
