"""Sessions compared with a model of published and acknowledged messages, and sessions that receive
arbitrary input."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.wire import Frame
from tests.protocols.vibemq.harness import Harness, Peer

WINDOW = 3
QUEUES = ["a", "b"]
FAN_OUT = "f"
queues = st.sampled_from(QUEUES)
peers = st.integers(0, 2)


class Model(RuleBasedStateMachine):
    """Three connections, two queues, one fan-out queue.

    Invariants: a message of a queue is with at most one connection, no window is exceeded,
    acknowledged messages are not redelivered, and all others are kept in order; every publish is
    answered once and in order; each subscriber of the fan-out queue receives all its messages.
    """

    @initialize()
    def start(self) -> None:
        self.harness = Harness()
        self.peers = [self.connect() for _ in range(3)]
        self.held: list[dict[str, str]] = [{}, {}, {}]
        """By connection: the queue of each message it holds."""
        self.timed_out: list[set[str]] = [set(), set(), set()]
        """By connection: messages that it may acknowledge late, although others may hold them."""
        self.subscribed: list[set[str]] = [set(), set(), set()]
        self.alive: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        self.due: list[list[str]] = [[], [], []]
        """By connection: messages of the fan-out queue it has to get yet, in order."""
        self.unclaimed: list[str] = []
        """Messages that wait for a first subscriber."""
        self.sent = 0
        for queue in QUEUES:
            self.peers[0].create(queue, maxRetryAttempts=2_000_000)
        self.peers[0].create(FAN_OUT, mode=2)

    def connect(self) -> Peer:
        return self.harness.connect(SessionOptions(window=WINDOW))

    def collect(self, answers: dict[int, list[str]] | None = None) -> None:
        """Check the frames of all connections; `answers`: PublishAcks expected, by connection."""
        for number, peer in enumerate(self.peers):
            acknowledged = []
            for frame in peer.frames():
                if frame.type == wire.PUBLISH_ACK:
                    acknowledged.append(frame.id)
                    continue
                assert frame.type == wire.DELIVER, frame
                assert frame.payload == b'"%b"' % frame.id.encode()
                assert frame.queue in self.subscribed[number]
                if frame.queue == FAN_OUT:
                    assert self.due[number].pop(0) == frame.id
                else:
                    assert frame.id not in self.held[number], "delivered twice"
                    self.held[number][frame.id] = frame.queue
            assert acknowledged == (answers or {}).get(number, [])

    @rule(peer=peers, where=st.lists(st.sampled_from([*QUEUES, FAN_OUT]), min_size=1, max_size=5))
    def publish(self, peer: int, where: list[str]) -> None:
        ids = []
        for queue in where:
            identity = f"m{self.sent}"
            self.sent += 1
            ids.append(identity)
            if queue != FAN_OUT:
                self.alive[queue].append(identity)
                continue
            takers = [n for n in range(3) if FAN_OUT in self.subscribed[n]]
            for taker in takers:
                self.due[taker].append(identity)
            if not takers:
                self.unclaimed.append(identity)
        requests = [
            Frame(wire.PUBLISH, identity, queue, b'"%b"' % identity.encode())
            for identity, queue in zip(ids, where, strict=True)
        ]
        self.peers[peer].send_bytes(b"".join(map(wire.encode, requests)))
        self.collect({peer: ids})

    @rule(peer=peers, queue=st.sampled_from([*QUEUES, FAN_OUT]))
    def subscribe(self, peer: int, queue: str) -> None:
        first = queue == FAN_OUT and not any(FAN_OUT in queues for queues in self.subscribed)
        if first:
            self.due[peer] += self.unclaimed
            self.unclaimed.clear()
        self.subscribed[peer].add(queue)
        self.peers[peer].send_bytes(wire.encode(Frame(wire.SUBSCRIBE, "s", queue)))
        head = wire.encode(
            Frame(
                wire.SUBSCRIBE_ACK, "s", queue, headers={"queueName": queue, "subscriptionId": "s"}
            )
        )
        transport = self.peers[peer].transport
        assert transport.written.startswith(head), "something comes before the answer"
        transport.written = transport.written[len(head) :]
        self.collect()

    @rule(peer=peers, queue=st.sampled_from([*QUEUES, FAN_OUT]))
    def unsubscribe(self, peer: int, queue: str) -> None:
        self.subscribed[peer].discard(queue)
        self.held[peer] = {i: q for i, q in self.held[peer].items() if q != queue}
        [response] = self.peers[peer].send(Frame(wire.UNSUBSCRIBE, "u", queue))
        assert response.type == wire.UNSUBSCRIBE_ACK
        self.collect()

    @rule(peer=peers, which=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def acknowledge(self, peer: int, which: list[int]) -> None:
        frames = []
        for index in which:
            unacked = self.held[peer]
            if not unacked:
                break
            identity = list(unacked)[index % len(unacked)]
            self.alive[unacked.pop(identity)].remove(identity)
            frames.append(Frame(wire.ACK, identity))
        self.peers[peer].send_bytes(b"".join(map(wire.encode, frames)))
        self.collect()

    @rule(peer=peers, number=st.integers(0, 30))
    def acknowledge_unacked_of_another(self, peer: int, number: int) -> None:
        identity = f"m{number}"
        if identity not in self.held[peer] and identity not in self.timed_out[peer]:
            self.peers[peer].send_bytes(wire.encode(Frame(wire.ACK, identity)))
            self.collect()

    @rule(peer=peers, how=st.sampled_from(["reset", "eof", "garbage", "shutdown", "disconnect"]))
    def reconnect(self, peer: int, how: str) -> None:
        session = self.peers[peer].session
        if how == "eof":
            session.end_of_input()
        elif how == "garbage":
            session.receive(b"\0\0\0\0")
        elif how == "shutdown":
            session.disconnect("the broker stops", stopping=True)
        elif how == "disconnect":
            session.receive(wire.encode(Frame(wire.DISCONNECT, "d")))
        self.peers[peer].drop()
        self.held[peer].clear()
        self.timed_out[peer].clear()
        self.subscribed[peer].clear()
        self.due[peer].clear()
        self.peers[peer] = self.connect()
        self.collect()

    @rule(peer=peers)
    def stall_and_resume(self, peer: int) -> None:
        self.peers[peer].stop_reading()
        self.harness.run_event_loop(1000)
        self.peers[peer].read_again()
        self.harness.run_event_loop()
        self.forget_timed_out()
        self.collect()

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        """Let acknowledgement time-outs expire."""
        for _ in range(seconds):
            self.harness.run_event_loop(1000)
            self.forget_timed_out()
            self.collect()

    def forget_timed_out(self) -> None:
        """Forget messages that the broker took back from connections that did not acknowledge."""
        for number in range(3):
            timed_out = [i for i, q in self.held[number].items() if not self.holds(number, q, i)]
            for identity in timed_out:
                del self.held[number][identity]
            self.timed_out[number].update(timed_out)

    def holds(self, number: int, queue: str, identity: str) -> bool:
        session = self.peers[number].session
        for delivery in self.harness.destination(queue).queue.browse():
            message, consumer = delivery.message, delivery.consumer
            if message is not None and message.message_id == identity:
                if consumer is None or delivery.delivered == self.harness.clock.steady:
                    return False
                return consumer in session.consumers()
        return False

    def is_late(self, number: int) -> bool:
        """Return whether the connection has not acknowledged in time: its window is smaller."""
        session = self.peers[number].session
        return session._subscriptions._window_is_reduced  # type: ignore[attr-defined]

    @invariant()
    def no_message_is_lost_or_duplicated(self) -> None:
        everywhere = [identity for unacked in self.held for identity in unacked]
        assert len(everywhere) == len(set(everywhere)), "with two connections at once"
        for number, unacked in enumerate(self.held):
            for queue in QUEUES:
                assert list(unacked.values()).count(queue) <= WINDOW
            assert self.due[number] == [], "the fan-out queue owes something"
        for queue, ids in self.alive.items():
            destination = self.harness.destination(queue)
            assert sorted(self.harness.bodies(queue)) == sorted(
                b'"%b"' % identity.encode() for identity in ids
            )
            ready = destination.waiting - len(destination.queue.scheduled)
            has_capacity = any(
                queue in subscribed and list(unacked.values()).count(queue) < WINDOW
                for number, (unacked, subscribed) in enumerate(
                    zip(self.held, self.subscribed, strict=True)
                )
                if not self.is_late(number)
            )
            assert not (ready and has_capacity), "a message waits although a consumer has capacity"


Model.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestSession = Model.TestCase


texts = st.sampled_from(["", "a", "f", "x y", "q" * 300, "deadLetterReason"])
frames = st.builds(
    Frame,
    st.one_of(st.sampled_from(sorted(wire.FROM_CLIENT)), st.integers(0, 255)),
    st.sampled_from(["1", "2", "\ufffd"]),
    texts,
    st.one_of(
        st.sampled_from([b"", b"null", b"{}", b'{"mode":1}', b'{"mode":9}', b"[", b'"x"']),
        st.binary(max_size=20),
    ),
    st.dictionaries(
        st.sampled_from(
            ["messageId", "priority", "deliveryMode", "authToken", "supported-compression", "x"]
        ),
        st.sampled_from(["1", "2", "FanOutWithAck", "brotli,gzip", "Critical", "y"]),
    ),
)
chunks = st.one_of(
    st.binary(max_size=30),
    frames.map(wire.encode),
    frames.map(lambda frame: wire.compressed(wire.encode(frame), wire.Compression.GZIP, 0)),
    frames.map(lambda frame: wire.encode(frame)[:-5]),
)


@given(
    st.booleans(),
    st.lists(chunks, max_size=15),
    st.lists(st.integers(1, 90), min_size=1, max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_leave_the_session_open_or_closed_and_the_broker_alive(
    hello: bool, parts: list[bytes], steps: list[int]
) -> None:
    harness = Harness()
    peer = harness.connect() if hello else harness.open_connection()
    data = b"".join(parts)
    position = index = 0
    while position < len(data):
        step = steps[index % len(steps)]
        peer.send_bytes(data[position : position + step])
        position += step
        index += 1
    peer.frames()  # every reply can be decoded
    if index % 2:
        peer.session.end_of_input()
        harness.run_event_loop(40_000)
    peer.drop()
    harness.run_event_loop(100_000)
    other = harness.connect()
    other.publish("still", "alive")
    assert other.subscribe("still") == ["alive"]
