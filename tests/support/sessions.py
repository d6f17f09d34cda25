"""Session tests without a network: a broker in memory and transports that record calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

from sluicemq.broker import Broker, Destination, EngineSettings, ManualClock
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.access import Identity, Operation, Permission
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import TooManyConnections
from sluicemq.protocols.transport import Session, Transport
from sluicemq.security.access import Access
from tests.support.scan_time import ScanTime


class RecordedTimer:
    """A timer of the clock of the harness."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HarnessTransport(Protocol):
    """Attributes of a transport that the harness uses. `run_event_loop` sends unless `stalled`."""

    session: Session
    unsent: bool
    stalled: bool


class SessionHarness(ABC):
    """A broker in memory, its connections, and a simulated event loop."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.clock = ManualClock()
        self.scan_time = ScanTime()
        self.broker = Broker(
            MemoryJournal(), self.clock, settings, start_deadline=self.scan_time.start
        )
        self.broker.on_flush_needed(self._schedule_flush)
        self.transports: list[HarnessTransport] = []
        self.timers: list[RecordedTimer] = []
        self._flush_scheduled = False

    @abstractmethod
    def open(self, transport: Transport) -> Session:
        """Open a session of the protocol, as a listener without options does."""

    def _schedule_flush(self) -> None:
        self._flush_scheduled = True

    def run_event_loop(self, milliseconds: int = 0) -> None:
        """Advance the clock, call due timers, flush and send until no flush is scheduled."""
        self.clock.advance(milliseconds)
        self.broker.tick()
        self.run_timers()
        iterations = 0
        while True:
            self._flush_scheduled = False
            self.broker.flush()
            for transport in self._transports_to_flush():
                transport.unsent = False
                transport.session.flushed()
            if not self._flush_scheduled and not self._transports_to_flush():
                return
            iterations += 1
            assert iterations < 1000, "the broker schedules flushes endlessly"

    def run_timers(self) -> None:
        """Call due timers, without a flush."""
        now = self.clock.steady
        active = [timer for timer in self.timers if not timer.cancelled]
        due = sorted((t for t in active if t.when <= now), key=lambda timer: timer.when)
        self.timers = [timer for timer in active if timer.when > now]
        for timer in due:
            if not timer.cancelled:
                timer.callback()

    def _transports_to_flush(self) -> list[HarnessTransport]:
        return [
            transport for transport in self.transports if transport.unsent and not transport.stalled
        ]

    def limit(self, queue: str, settings: DestinationSettings) -> None:
        self.broker.destinations.declare(Address(Kind.QUEUE, queue), settings)

    def find(self, queue: str) -> Destination | None:
        return self.broker.destinations.find(Address(Kind.QUEUE, queue))

    def bodies(self, queue: str) -> list[bytes]:
        """Return the bodies of ready and unacked messages in queue order."""
        destination = self.find(queue)
        if destination is None:
            return []
        return [d.message.body for d in destination.queue.browse() if d.message is not None]


class RecordedTransport:
    """A transport that records the calls of its session."""

    session: Session

    def __init__(self, harness: SessionHarness) -> None:
        self.harness = harness
        self.peer = "test"
        self.peer_user = ""
        self.written = b""
        self.unsent = False
        self.stalled = False
        self.close_reason: str | None = None
        self.quick_acks = 0
        self.aborted = False
        self.paused = False
        self.is_suspended = False
        self.users: list[str] = []
        self.user_limit_reached = False

    def write(self, chunks: Iterable[bytes]) -> None:
        assert self.close_reason is None, "written after close"
        self.written += b"".join(chunks)
        self.unsent = True

    def close(self, reason: str = "") -> None:
        assert self.close_reason is None, "closed twice"
        self.close_reason = reason
        self.unsent = True

    def abort(self, reason: str) -> None:
        self.close(reason)
        self.aborted = True
        self.session.closed()

    def quick_ack(self) -> None:
        self.quick_acks += 1

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        assert self.close_reason is None, "resumed after close"
        self.paused = False

    def call_later(self, delay: float, callback: Callable[[], None]) -> RecordedTimer:
        assert delay >= 0
        timer = RecordedTimer(self.harness.clock.steady + delay * 1000, callback)
        self.harness.timers.append(timer)
        return timer

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        callback(*arguments)

    def catch_faults(self) -> list[Exception]:
        """Return the list to which errors of `call` are added from now on, instead of raised."""
        faults: list[Exception] = []

        def call(callback: Callable[..., object], *arguments: object) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                faults.append(error)

        self.call = call  # type: ignore[method-assign]
        return faults

    def replace_session(self, session: Session) -> None:
        self.session = session

    def claim_user(self, user: str) -> None:
        if self.user_limit_reached:
            raise TooManyConnections(f"{user} has 1 connections already, which is the limit")
        self.users.append(user)

    @property
    def open(self) -> bool:
        return self.close_reason is None

    def take_written(self) -> bytes:
        """Return the data written since the last call."""
        output, self.written = self.written, b""
        return output


class SessionPeer:
    """The client's end of a connection. Each call runs one event loop iteration of the broker."""

    def __init__(
        self, harness: SessionHarness, transport: RecordedTransport, session: Session
    ) -> None:
        self.harness = harness
        self.transport = transport
        transport.session = session
        harness.transports.append(transport)

    @property
    def session(self) -> Session:
        """Return the current session; protocol detection replaces it."""
        return self.transport.session

    def send_bytes(self, data: bytes) -> None:
        self.session.receive(data)
        self.harness.run_event_loop()

    def stop_reading(self) -> None:
        """Stop reading, so that the session pauses deliveries."""
        self.transport.stalled = True
        self.session.pause_delivery()

    def read_again(self) -> None:
        """Resume reading, and read all data that the broker has sent."""
        self.transport.stalled = self.transport.unsent = False
        self.session.flushed()

    def drop(self) -> None:
        """Close the connection without a protocol message."""
        self.harness.transports.remove(self.transport)
        self.session.closed()
        self.harness.run_event_loop()


class RecordedAccess(Access):
    """Access of a user with the given permissions, like `orders.*: produce consume`."""

    def __init__(self, *permissions: str, name: str = "anna") -> None:
        rules = []
        for text in permissions:
            pattern, _, words = text.partition(":")
            operations = frozenset(Operation(word) for word in words.split())
            rules.append(Permission(pattern, operations))
        super().__init__(Identity(name, rules))
        self.denials: list[str] = []

    def log_denied(self, peer: str, identity: Identity, operation: str) -> None:
        self.denials.append(f"{peer} {identity.name} {operation}")
