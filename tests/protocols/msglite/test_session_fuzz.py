from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluicemq.protocols.msglite import wire
from tests.protocols.msglite.harness import Harness, Peer

ADDRESSES = [b"a", b"b", b"c"]
PEERS = 3
addresses = st.sampled_from(ADDRESSES)
lists = st.lists(addresses, min_size=1, max_size=4).map(tuple)
peers = st.integers(0, PEERS - 1)


class Client:
    """A connection of the model, and its expected output."""

    def __init__(self) -> None:
        self.commands: deque[tuple[str, int, tuple[bytes, ...], bytes]] = deque()
        self.ready: tuple[int, tuple[bytes, ...]] | None = None
        """Deadline and addresses of the ready command it waits in."""
        self.expected = b""


class Model(RuleBasedStateMachine):
    """Three connections and three addresses, compared with a naive model of the broker.

    Every step is a command of one connection in its own event loop iteration and millisecond. The
    model therefore need not know the order within an iteration, and all deadlines differ.
    """

    @initialize()
    def start(self) -> None:
        self.harness = Harness()
        self.peers = [self.harness.connect() for _ in range(PEERS)]
        self.clients = [Client() for _ in range(PEERS)]
        self.now = 0
        """Milliseconds since the beginning."""
        self.queues: dict[bytes, list[tuple[int, bytes, int]]] = {a: [] for a in ADDRESSES}
        self.line: list[Client] = []
        """Waiting connections, the longest wait first."""
        self.sent = 0

    # --- the model ---------------------------------------------------------------------------

    def execute(self, client: Client) -> None:
        while client.commands and client.ready is None:
            command, timeout, names, body = client.commands.popleft()
            if command == "send":
                self.execute_send(names[0], body, timeout)
                continue
            for name in names:
                queue = [m for m in self.queues[name] if m[0] > self.now]
                self.queues[name] = queue
                if queue:
                    _, text, seconds = queue.pop(0)
                    client.expected += wire.encode_message(seconds, name, text)
                    break
            else:
                if timeout:
                    client.ready = (self.now + timeout * 1000, names)
                    self.line.append(client)
                else:
                    client.expected += wire.TIMEOUT_LINE

    def execute_send(self, name: bytes, body: bytes, timeout: int) -> None:
        for client in self.line:
            assert client.ready is not None
            if name in client.ready[1]:
                client.expected += wire.encode_message(timeout, name, body)
                self.leave(client)
                return
        if timeout:
            self.queues[name].append((self.now + timeout * 1000, body, timeout))

    def leave(self, client: Client) -> None:
        self.line.remove(client)
        client.ready = None

    def execute_all(self) -> None:
        while True:
            busy_clients = [c for c in self.clients if c.commands and c.ready is None]
            if not busy_clients:
                return
            for client in busy_clients:
                self.execute(client)

    def compare(self) -> None:
        self.execute_all()
        for peer, client in zip(self.peers, self.clients, strict=True):
            assert peer.take_bytes() == client.expected
            client.expected = b""

    # --- steps -------------------------------------------------------------------------------

    def advance(self) -> None:
        self.now += 1
        self.harness.clock.advance(1)

    def is_blocked(self, peer: int) -> bool:
        return self.clients[peer].ready is not None

    @rule(peer=peers, name=addresses, timeout=st.integers(0, 5))
    def send(self, peer: int, name: bytes, timeout: int) -> None:
        self.advance()
        body = b"%d" % self.sent
        self.sent += 1
        self.clients[peer].commands.append(("send", timeout, (name,), body))
        self.peers[peer].send_bytes(wire.encode_message(timeout, name, body))
        self.compare()

    @rule(peer=peers, names=lists, timeout=st.integers(0, 5))
    def become_ready(self, peer: int, names: tuple[bytes, ...], timeout: int) -> None:
        if self.is_blocked(peer) and self.clients[peer].commands:
            return  # one command behind a waiting one keeps the order within an iteration obvious
        self.advance()
        self.clients[peer].commands.append(("ready", timeout, names, b""))
        self.peers[peer].send_bytes(wire.encode_ready(timeout, names))
        self.compare()

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1001  # so that waits that begin now have other deadlines
            self.harness.run_event_loop(1001)
            while due := [c for c in self.line if c.ready is not None and c.ready[0] <= self.now]:
                client = min(due, key=lambda c: c.ready or ())
                self.leave(client)
                client.expected += wire.TIMEOUT_LINE
                self.execute(client)
            self.compare()

    @rule(peer=peers)
    def disconnect(self, peer: int) -> None:
        client = self.clients[peer]
        if client in self.line:
            self.leave(client)
        for command, timeout, names, body in client.commands:
            if command == "send":
                self.execute_send(names[0], body, timeout)
        self.clients[peer] = Client()
        self.peers[peer].drop()
        self.peers[peer] = self.harness.connect()
        self.compare()

    @rule(peer=peers)
    def half_close(self, peer: int) -> None:
        client, old = self.clients[peer], self.peers[peer]
        if client in self.line:
            self.leave(client)
            client.expected += wire.TIMEOUT_LINE
        client.commands = deque(
            (command, 0 if command == "ready" else timeout, names, body)
            for command, timeout, names, body in client.commands
        )
        old.end()
        self.compare()
        assert not old.open
        old.drop()
        self.clients[peer] = Client()
        self.peers[peer] = self.harness.connect()

    @invariant()
    def queues_equal_model(self) -> None:
        if not hasattr(self, "harness"):
            return
        for name, queue in self.queues.items():
            bodies = [body for expiry, body, _ in queue if expiry > self.now]
            now = self.harness.clock.wall
            destination = self.harness.find(name.decode())
            waiting = [] if destination is None else list(destination.queue.browse())
            assert [
                d.message.body for d in waiting if d.message is not None and d.expiration > now
            ] == bodies


Model.TestCase.settings = settings(stateful_step_count=30)
TestSession = Model.TestCase


names = st.sampled_from([b"a", b"b", b"6553F100.1", b"6553F100.2", b"6553F100.FF"])
chunks = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"\r\n", b".\r\n", b"> 0 0 a\r\n", b"? 0 0 a\r\n", b"< 0 a a a\r\n"]),
    st.builds(wire.encode_message, st.integers(0, 3), names, st.binary(max_size=5), names),
    st.builds(wire.encode_query, st.integers(0, 3), names, st.binary(max_size=5)),
    st.builds(wire.encode_ready, st.integers(0, 3), st.lists(names, min_size=1).map(tuple)),
)
steps = st.tuples(
    st.integers(0, 2), st.lists(chunks, max_size=6), st.sampled_from(["", "", "", "end", "drop"])
)


@given(st.lists(st.tuples(steps, st.integers(0, 2000)), max_size=12))
def test_any_input_raises_nothing_and_leaves_nothing_behind(
    script: list[tuple[tuple[int, list[bytes], str], int]],
) -> None:
    harness = Harness()
    peers: list[Peer] = [harness.connect() for _ in range(3)]
    for (index, parts, then), milliseconds in script:
        peer = peers[index]
        peer.send_bytes(b"".join(parts))
        if then == "end":
            peer.end()
        elif then == "drop":
            peer.drop()
            peers[index] = harness.connect()
        harness.run_event_loop(milliseconds)
    for peer in peers:
        peer.drop()
    harness.run_event_loop(10_000)
    assert harness.timers == [], "something is still waited for"
    for destination in harness.broker.destinations.values():
        assert not destination.temporary
        assert (destination.consumers, destination.unacked, destination.waiting) == (0, 0, 0)
    other = harness.connect()
    assert other.request(b"> 5 9 still\r\nalive\r\n< 0 still\r\n") == b"> 5 9 still\r\nalive\r\n"
