from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluicemq.protocols.phpmq import wire
from tests.protocols.phpmq.harness import Harness, Peer

QUEUES = [b"a", b"b"]
queues = st.sampled_from(QUEUES)
peers = st.integers(0, 2)


class Model(RuleBasedStateMachine):
    """Three connections and two queues, with a model of sent and acknowledged messages.

    Invariants: a message is with at most one connection, no window is exceeded, acknowledged
    messages are not redelivered, and all others are kept.
    """

    @initialize()
    def start(self) -> None:
        self.harness = Harness()
        self.peers = [self.harness.connect() for _ in range(3)]
        self.held: list[dict[bytes, wire.Frame]] = [{}, {}, {}]
        self.windows: list[tuple[bytes, int]] = [(b"", 0)] * 3
        self.alive: dict[bytes, list[bytes]] = {queue: [] for queue in QUEUES}
        self.sent = 0

    def collect(self) -> None:
        for peer, unacked, (queue, _) in zip(self.peers, self.held, self.windows, strict=True):
            for frame in peer.frames():
                assert frame[1] == queue
                assert frame[3] not in unacked, "dispatched twice"
                unacked[frame[3]] = frame

    @rule(
        peer=peers, queue=queues, count=st.integers(1, 4), dispatch_version=st.sampled_from([1, 2])
    )
    def send(self, peer: int, queue: bytes, count: int, dispatch_version: int) -> None:
        data = b""
        for _ in range(count):
            body = b"%d" % self.sent
            self.sent += 1
            self.alive[queue].append(body)
            data += wire.encode_send(queue, body, dispatch_version=dispatch_version)
        self.peers[peer].send_bytes(data)
        self.collect()

    @rule(peer=peers, queue=queues, window=st.integers(0, 4))
    def consume(self, peer: int, queue: bytes, window: int) -> None:
        self.held[peer].clear()
        self.windows[peer] = (queue, window)
        self.peers[peer].consume(queue, window)
        self.collect()

    @rule(holder=peers, by=peers, which=st.integers(0, 9), how=st.sampled_from("ard"))
    def end_delivery(self, holder: int, by: int, which: int, how: str) -> None:
        unacked = self.held[holder]
        if not unacked:
            return
        message_id, frame = list(unacked.items())[which % len(unacked)]
        del unacked[message_id]
        queue, body = frame[1:3]
        self.alive[queue].remove(body)
        if how == "a":
            self.peers[by].send_bytes(wire.encode_acknowledge(queue, message_id))
        elif how == "d":
            self.peers[by].send_bytes(wire.encode_dead_letter(queue, message_id))
        else:
            self.alive[queue].append(body)
            self.peers[by].send_bytes(wire.encode_requeue(queue, message_id))
        self.collect()

    @rule(peer=peers, how=st.sampled_from(["reset", "eof", "garbage", "shutdown"]))
    def reconnect(self, peer: int, how: str) -> None:
        session = self.peers[peer].session
        if how == "eof":
            session.end_of_input()
        elif how == "garbage":
            session.receive(b"H0100102garbage" * 9)
        elif how == "shutdown":
            session.disconnect("the broker stops", stopping=True)
        self.peers[peer].drop()
        self.held[peer].clear()
        self.windows[peer] = (b"", 0)
        self.peers[peer] = self.harness.connect()
        self.collect()

    @rule(peer=peers)
    def stall_and_resume(self, peer: int) -> None:
        self.peers[peer].stop_reading()
        self.harness.run_event_loop(1000)
        self.peers[peer].read_again()
        self.harness.run_event_loop()
        self.collect()

    @rule(peer=peers, data=st.lists(queues, max_size=3))
    def end_unknown_delivery(self, peer: int, data: list[bytes]) -> None:
        for queue in data:
            self.peers[peer].send_bytes(wire.encode_acknowledge(queue, b"0" * 32))
            self.peers[peer].send_bytes(wire.encode_requeue(queue, b"f" * 32, 1))
        self.collect()

    @invariant()
    def no_message_is_lost_or_duplicated(self) -> None:
        everywhere = [frame[1:3] for unacked in self.held for frame in unacked.values()]
        assert len(everywhere) == len(set(everywhere)), "with two connections at once"
        for unacked, (_, window) in zip(self.held, self.windows, strict=True):
            assert len(unacked) <= window
        for queue, bodies in self.alive.items():
            assert self.harness.bodies(queue.decode()) == bodies
            waiting = len(bodies) - sum(
                frame[1] == queue for unacked in self.held for frame in unacked.values()
            )
            has_capacity = any(
                name == queue and len(unacked) < window
                for unacked, (name, window) in zip(self.held, self.windows, strict=True)
            )
            assert not (waiting and has_capacity), (
                "a message waits although a consumer has capacity"
            )


Model.TestCase.settings = settings(stateful_step_count=60)
TestSession = Model.TestCase


chunks = st.one_of(
    st.binary(max_size=30),
    st.builds(wire.encode_send, queues, st.binary(max_size=5), st.integers(0, 9)),
    st.builds(wire.encode_consume, queues, st.integers(0, 9)),
    st.builds(wire.encode_acknowledge, queues, st.binary(min_size=32, max_size=32)),
    st.builds(wire.encode_requeue, queues, st.binary(max_size=64), st.integers(0, 9)),
)


@given(st.lists(chunks, max_size=12), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_any_bytes_leave_the_session_open_or_closed_and_the_broker_alive(
    parts: list[bytes], steps: list[int]
) -> None:
    harness = Harness()
    peer: Peer = harness.connect()
    data = b"".join(parts)
    position = index = 0
    while position < len(data):
        step = steps[index % len(steps)]
        peer.send_bytes(data[position : position + step])
        position += step
        index += 1
    peer.drop()
    other = harness.connect()
    other.send(b"still", b"alive")
    other.consume(b"still", 1)
    assert other.bodies() == [b"alive"]
