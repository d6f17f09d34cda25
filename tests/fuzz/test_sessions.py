"""State machines of well-behaved and hostile sessions on one broker, while time passes and clients
pause and resume reading: the former are not affected, and the latter leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluicemq.model.url import Url
from sluicemq.protocols.msglite import wire as msglite_wire
from sluicemq.protocols.phpmq import wire as phpmq_wire
from sluicemq.protocols.transport import Session, Transport
from sluicemq.security.access import AuthSettings
from sluicemq.security.authenticator import Authenticator
from sluicemq.server.listener_settings import Listener
from sluicemq.server.session_factories import SessionFactories
from tests.fuzz import corpus
from tests.fuzz import jmq as jmq_corpus
from tests.fuzz.mutations import mutate
from tests.support.offload import idle_offload
from tests.support.sessions import RecordedTransport, SessionHarness, SessionPeer

HOSTILE_COUNT = 2
WINDOW = 4
hostile_peers = st.integers(0, HOSTILE_COUNT - 1)


class FixedProcess:
    version = "1"

    def uptime(self) -> float:
        return 1.0

    def memory(self) -> int:
        return 1 << 20

    def clients(self) -> int:
        return 1


AUTHENTICATOR = Authenticator(
    AuthSettings(), Path(__file__).with_name("no-users.json"), lambda call: call()
)
"""An authenticator without users."""


class SessionFixture(SessionHarness):
    """Sessions of all protocols on one broker, created like those of the server."""

    def __init__(self) -> None:
        super().__init__()
        self.session_factories = SessionFactories(
            self.broker, FixedProcess(), AUTHENTICATOR, idle_offload()
        )

    def open(self, transport: Transport) -> Session:
        return self.open_as("auto", transport)

    def open_as(self, protocol: str, transport: Transport) -> Session:
        listener = Listener(url=Url.parse(f"{protocol}://127.0.0.1:0"))
        return self.session_factories.of(listener)(transport, False)

    def connect(self, protocol: str) -> SessionPeer:
        transport = RecordedTransport(self)
        return SessionPeer(self, transport, self.open_as(protocol, transport))


class ConcurrentSessions(RuleBasedStateMachine):
    """Well-behaved and hostile sessions. Subclasses define the protocol of the hostile ones."""

    protocol: str
    conversation: staticmethod[[Random], list[bytes]]

    @initialize()
    def start(self) -> None:
        self.fixture = SessionFixture()
        self.producer, self.consumer = (self.fixture.connect("phpmq") for _ in range(2))
        self.consumer.send_bytes(phpmq_wire.encode_consume(b"steady", WINDOW))
        self.dispatches = phpmq_wire.Decoder(kinds=phpmq_wire.FROM_SERVER)
        self.sent = self.received = 0
        self.unacked: list[bytes] = []
        self.requester, self.worker = (self.fixture.connect("msglite") for _ in range(2))
        self.request_count = 0
        self.hostile = [self.fixture.connect(self.protocol) for _ in range(HOSTILE_COUNT)]

    # --- well-behaved sessions ---------------------------------------------------------------

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        self.produce(count)
        self.collect()

    def produce(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.producer.send_bytes(
            b"".join(phpmq_wire.encode_send(b"steady", b"%d" % n) for n in numbers)
        )
        self.sent += count

    @rule(count=st.integers(1, WINDOW))
    def acknowledge(self, count: int) -> None:
        for message_id in self.unacked[:count]:
            self.consumer.send_bytes(phpmq_wire.encode_acknowledge(b"steady", message_id))
        del self.unacked[:count]
        self.collect()

    @rule()
    def pause_and_resume_reading(self) -> None:
        transport = self.consumer.transport
        self.consumer.stop_reading()
        self.produce(WINDOW + 1)
        assert transport.written == b""
        self.consumer.read_again()
        self.fixture.run_event_loop()
        self.collect()

    def collect(self) -> None:
        """Check that the window is filled with the next messages in order."""
        for frame in self.dispatches.feed(self.consumer.transport.take_written()):
            assert frame[:3] == (phpmq_wire.DISPATCH, b"steady", b"%d" % self.received)
            self.received += 1
            self.unacked.append(frame[3])
        assert self.received == min(self.sent, self.received - len(self.unacked) + WINDOW)

    @rule(worker_waits_first=st.booleans())
    def request(self, worker_waits_first: bool) -> None:
        """The worker waits for the request, or fetches it later."""
        body = b"%d" % self.request_count
        self.request_count += 1
        ready = msglite_wire.encode_ready(100, (b"questions",))
        if worker_waits_first:
            self.worker.send_bytes(ready)
        self.requester.send_bytes(msglite_wire.encode_query(100, b"questions", body))
        if not worker_waits_first:
            self.worker.send_bytes(ready)
        decoder = msglite_wire.Decoder(kinds=msglite_wire.FROM_SERVER)
        ((kind, timeout, (queue, reply), question),) = decoder.feed(
            self.worker.transport.take_written()
        )
        assert (kind, timeout, queue, question) == (msglite_wire.MESSAGE, 100, b"questions", body)
        self.worker.send_bytes(msglite_wire.encode_message(100, reply, body[::-1]))
        answer = msglite_wire.encode_message(100, reply, body[::-1])
        assert self.requester.transport.take_written() == answer

    # --- hostile sessions --------------------------------------------------------------------

    @rule(index=hostile_peers, chance=st.randoms(use_true_random=False))
    def send_damaged_conversation(self, index: int, chance: Random) -> None:
        data = b"".join(mutate(chance, self.conversation(chance)))
        position = chance.randint(0, len(data))
        self.send_hostile(index, data[:position])
        self.send_hostile(index, data[position:])

    @rule(index=hostile_peers, data=st.binary(max_size=60))
    def send_noise(self, index: int, data: bytes) -> None:
        self.send_hostile(index, data)

    def send_hostile(self, index: int, data: bytes) -> None:
        """Pass data to the session like the server: not while it is closed or paused."""
        peer = self.hostile[index]
        if data and peer.transport.open and not peer.transport.paused:
            peer.send_bytes(data)
        if not peer.transport.stalled:
            peer.transport.take_written()

    @rule(index=hostile_peers, ending=st.sampled_from(["end", "break", "shutdown"]))
    def end_hostile_session(self, index: int, ending: str) -> None:
        peer = self.hostile[index]
        if peer.transport.open and not peer.transport.paused:
            if ending == "end":
                peer.session.end_of_input()
            elif ending == "shutdown":
                peer.session.disconnect("the broker stops", stopping=True)
            self.fixture.run_event_loop()
        peer.drop()
        self.hostile[index] = self.fixture.connect(self.protocol)

    @rule(index=hostile_peers, pause_delivery=st.booleans())
    def stop_reading(self, index: int, pause_delivery: bool) -> None:
        peer = self.hostile[index]
        if not peer.transport.stalled and peer.transport.open:
            if pause_delivery:
                peer.stop_reading()
            else:
                peer.transport.stalled = True

    @rule(index=hostile_peers)
    def resume_reading(self, index: int) -> None:
        peer = self.hostile[index]
        if peer.transport.stalled:
            peer.read_again()
            self.fixture.run_event_loop()

    # --- time, and invariants ----------------------------------------------------------------

    @rule(milliseconds=st.integers(0, 3000) | st.sampled_from([60_000, 181_000, 86_500_000]))
    def wait(self, milliseconds: int) -> None:
        self.fixture.run_event_loop(milliseconds)
        self.collect()

    @invariant()
    def steady_sessions_are_open(self) -> None:
        if not hasattr(self, "fixture"):
            return
        for peer in (self.producer, self.consumer, self.requester, self.worker):
            assert peer.transport.open
            assert not peer.transport.paused
        assert self.producer.transport.written == b""

    def teardown(self) -> None:
        if not hasattr(self, "fixture"):
            return
        for peer in self.hostile:
            peer.drop()
        while self.unacked:
            self.acknowledge(WINDOW)
        assert self.received == self.sent
        self.request(True)
        for peer in (self.producer, self.consumer, self.requester, self.worker):
            peer.drop()
        assert all(timer.cancelled for timer in self.fixture.timers), "a timer is still active"
        for destination in self.fixture.broker.destinations.values():
            assert not destination.temporary
            assert (destination.consumers, destination.unacked) == (0, 0)


class ConcurrentPhpmqSessions(ConcurrentSessions):
    protocol = "phpmq"
    conversation = staticmethod(corpus.phpmq)


class ConcurrentMaintenanceSessions(ConcurrentSessions):
    protocol = "phpmq-maintenance"
    conversation = staticmethod(corpus.maintenance)


class ConcurrentMsgliteSessions(ConcurrentSessions):
    protocol = "msglite"
    conversation = staticmethod(corpus.msglite)


class ConcurrentGatewaySessions(ConcurrentSessions):
    protocol = "msglite-http"
    conversation = staticmethod(corpus.http)


class ConcurrentJmqSessions(ConcurrentSessions):
    protocol = "jmq"
    conversation = staticmethod(jmq_corpus.listener)


class ConcurrentAutoSessions(ConcurrentSessions):
    protocol = "auto"
    conversation = staticmethod(corpus.any_first_byte)


TestHostilePhpmqSessions = ConcurrentPhpmqSessions.TestCase
TestHostileMaintenanceSessions = ConcurrentMaintenanceSessions.TestCase
TestHostileMsgliteSessions = ConcurrentMsgliteSessions.TestCase
TestHostileGatewaySessions = ConcurrentGatewaySessions.TestCase
TestHostileJmqSessions = ConcurrentJmqSessions.TestCase
TestHostileAutoSessions = ConcurrentAutoSessions.TestCase

_SETTINGS = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=30)
TestHostilePhpmqSessions.settings = _SETTINGS
TestHostileMaintenanceSessions.settings = _SETTINGS
TestHostileMsgliteSessions.settings = _SETTINGS
TestHostileGatewaySessions.settings = _SETTINGS
TestHostileJmqSessions.settings = _SETTINGS
TestHostileAutoSessions.settings = _SETTINGS
