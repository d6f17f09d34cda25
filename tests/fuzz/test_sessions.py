"""Honest and hostile connections on one broker, in any order, while time passes and peers pause and
resume reading: the honest ones are never affected, and the others leave nothing behind."""

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
from tests.support.sessions import RecordedTransport, SessionHarness, SessionPeer

HOSTILE = 2
WINDOW = 4
hostile_peers = st.integers(0, HOSTILE - 1)


class FixedProcess:
    version = "1"

    def uptime(self) -> float:
        return 1.0

    def memory(self) -> int:
        return 1 << 20

    def clients(self) -> int:
        return 1


AUTHENTICATOR = Authenticator(AuthSettings(), Path("/nonexistent"), lambda call: call())
"""There are no users."""


class SessionFixture(SessionHarness):
    """All protocols on one engine, as the server puts them together."""

    def __init__(self) -> None:
        super().__init__()
        self.session_factories = SessionFactories(self.broker, FixedProcess(), AUTHENTICATOR)

    def open(self, transport: Transport) -> Session:
        return self.open_as("auto", transport)

    def open_as(self, protocol: str, transport: Transport) -> Session:
        listener = Listener(url=Url.parse(f"{protocol}://127.0.0.1:0"))
        return self.session_factories.of(listener)(transport, False)

    def connect(self, protocol: str) -> SessionPeer:
        transport = RecordedTransport(self)
        return SessionPeer(self, transport, self.open_as(protocol, transport))


class Beside(RuleBasedStateMachine):
    """Honest and hostile connections. Subclasses name the protocol of the hostile ones."""

    protocol: str
    conversation: staticmethod[[Random], list[bytes]]

    @initialize()
    def start(self) -> None:
        self.fixture = SessionFixture()
        self.producer, self.consumer = (self.fixture.connect("phpmq") for _ in range(2))
        self.consumer.put(phpmq_wire.encode_consume(b"honest", WINDOW))
        self.dispatches = phpmq_wire.Decoder(kinds=phpmq_wire.FROM_SERVER)
        self.sent = self.received = 0
        self.unsettled: list[bytes] = []
        self.asker, self.worker = (self.fixture.connect("msglite") for _ in range(2))
        self.asked = 0
        self.hostile = [self.fixture.connect(self.protocol) for _ in range(HOSTILE)]

    # --- the honest --------------------------------------------------------------------------

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        self.produce(count)
        self.collect()

    def produce(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.producer.put(b"".join(phpmq_wire.encode_send(b"honest", b"%d" % n) for n in numbers))
        self.sent += count

    @rule(count=st.integers(1, WINDOW))
    def acknowledge(self, count: int) -> None:
        for message_id in self.unsettled[:count]:
            self.consumer.put(phpmq_wire.encode_acknowledge(b"honest", message_id))
        del self.unsettled[:count]
        self.collect()

    @rule()
    def stop_reading_and_go_on(self) -> None:
        transport = self.consumer.transport
        self.consumer.stop_reading()
        self.produce(WINDOW + 1)
        assert transport.written == b""
        self.consumer.read_again()
        self.fixture.run_event_loop()
        self.collect()

    def collect(self) -> None:
        """All that the window has room for has come, in order."""
        for frame in self.dispatches.feed(self.consumer.transport.take_written()):
            assert frame[:3] == (phpmq_wire.DISPATCH, b"honest", b"%d" % self.received)
            self.received += 1
            self.unsettled.append(frame[3])
        assert self.received == min(self.sent, self.received - len(self.unsettled) + WINDOW)

    @rule(waits=st.booleans())
    def ask(self, waits: bool) -> None:
        """The worker waits already, or comes when the question is there."""
        body = b"%d" % self.asked
        self.asked += 1
        ready = msglite_wire.encode_ready(100, (b"questions",))
        if waits:
            self.worker.put(ready)
        self.asker.put(msglite_wire.encode_query(100, b"questions", body))
        if not waits:
            self.worker.put(ready)
        decoder = msglite_wire.Decoder(kinds=msglite_wire.FROM_SERVER)
        ((kind, timeout, (queue, reply), question),) = decoder.feed(
            self.worker.transport.take_written()
        )
        assert (kind, timeout, queue, question) == (msglite_wire.MESSAGE, 100, b"questions", body)
        self.worker.put(msglite_wire.encode_message(100, reply, body[::-1]))
        answer = msglite_wire.encode_message(100, reply, body[::-1])
        assert self.asker.transport.take_written() == answer

    # --- the hostile -------------------------------------------------------------------------

    @rule(which=hostile_peers, chance=st.randoms(use_true_random=False))
    def say_something_wrong(self, which: int, chance: Random) -> None:
        data = b"".join(mutate(chance, self.conversation(chance)))
        position = chance.randint(0, len(data))
        self.say(which, data[:position])
        self.say(which, data[position:])

    @rule(which=hostile_peers, data=st.binary(max_size=60))
    def say_nonsense(self, which: int, data: bytes) -> None:
        self.say(which, data)

    def say(self, which: int, data: bytes) -> None:
        """Pass data to the session like the server: not while it is closed or paused."""
        peer = self.hostile[which]
        if data and peer.transport.open and not peer.transport.paused:
            peer.put(data)
        if not peer.transport.stalled:
            peer.transport.take_written()

    @rule(which=hostile_peers, how=st.sampled_from(["end", "break", "shutdown"]))
    def leave(self, which: int, how: str) -> None:
        peer = self.hostile[which]
        if peer.transport.open and not peer.transport.paused:
            if how == "end":
                peer.session.end_of_input()
            elif how == "shutdown":
                peer.session.disconnect("the broker stops", stopping=True)
            self.fixture.run_event_loop()
        peer.drop()
        self.hostile[which] = self.fixture.connect(self.protocol)

    @rule(which=hostile_peers, congested=st.booleans())
    def stop_reading(self, which: int, congested: bool) -> None:
        peer = self.hostile[which]
        if not peer.transport.stalled and peer.transport.open:
            if congested:
                peer.stop_reading()
            else:
                peer.transport.stalled = True

    @rule(which=hostile_peers)
    def read_on(self, which: int) -> None:
        peer = self.hostile[which]
        if peer.transport.stalled:
            peer.read_again()
            self.fixture.run_event_loop()

    # --- time, and invariants ----------------------------------------------------------------

    @rule(milliseconds=st.integers(0, 3000) | st.sampled_from([60_000, 181_000, 86_500_000]))
    def wait(self, milliseconds: int) -> None:
        self.fixture.run_event_loop(milliseconds)
        self.collect()

    @invariant()
    def the_honest_are_there(self) -> None:
        if not hasattr(self, "fixture"):
            return
        for peer in (self.producer, self.consumer, self.asker, self.worker):
            assert peer.transport.open
            assert not peer.transport.paused
        assert self.producer.transport.written == b""

    def teardown(self) -> None:
        if not hasattr(self, "fixture"):
            return
        for peer in self.hostile:
            peer.drop()
        while self.unsettled:
            self.acknowledge(WINDOW)
        assert self.received == self.sent
        self.ask(True)
        for peer in (self.producer, self.consumer, self.asker, self.worker):
            peer.drop()
        assert all(timer.cancelled for timer in self.fixture.timers), "something is waited for"
        for destination in self.fixture.broker.destinations.values():
            assert not destination.temporary
            assert (destination.consumers, destination.unacked) == (0, 0)


class BesidePhpmq(Beside):
    protocol = "phpmq"
    conversation = staticmethod(corpus.phpmq)


class BesideMaintenance(Beside):
    protocol = "phpmq-maintenance"
    conversation = staticmethod(corpus.maintenance)


class BesideMsglite(Beside):
    protocol = "msglite"
    conversation = staticmethod(corpus.msglite)


class BesideGateway(Beside):
    protocol = "msglite-http"
    conversation = staticmethod(corpus.http)


class BesideJmq(Beside):
    protocol = "jmq"
    conversation = staticmethod(jmq_corpus.listener)


class BesideAnyProtocol(Beside):
    protocol = "auto"
    conversation = staticmethod(corpus.any_first_byte)


TestBesidePhpmq = BesidePhpmq.TestCase
TestBesideMaintenance = BesideMaintenance.TestCase
TestBesideMsglite = BesideMsglite.TestCase
TestBesideGateway = BesideGateway.TestCase
TestBesideJmq = BesideJmq.TestCase
TestBesideAnyProtocol = BesideAnyProtocol.TestCase

_SETTINGS = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=30)
TestBesidePhpmq.settings = _SETTINGS
TestBesideMaintenance.settings = _SETTINGS
TestBesideMsglite.settings = _SETTINGS
TestBesideGateway.settings = _SETTINGS
TestBesideJmq.settings = _SETTINGS
TestBesideAnyProtocol.settings = _SETTINGS
