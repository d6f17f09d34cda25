"""Sessions compared with a model of sent, unacked and acknowledged messages, and sessions that
receive arbitrary input."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluicemq.broker import EngineSettings
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import AckMode, C, F, P, PacketType, R, Status
from sluicemq.protocols.jmq.wire import Packet, encode_packet
from tests.protocols.jmq.harness import Harness, Peer, blocks, status

H = PacketType
PREFETCH = 3
FLOW = 4
PEERS = 3
peers = st.integers(0, PEERS - 1)
some = st.integers(0, 7)
numbers = st.lists(some, min_size=1, max_size=4)


class Message:
    """A message in the model: its place in the queue, its delivery attempts, and its last
    delivery."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.place = 0
        self.attempts = 0
        self.packet: Packet | None = None


class Reader:
    """A consumer of the model.

    unacked       in the order of their delivery
    to_redeliver  to be sent again, by number
    """

    def __init__(self, number: int, credit: int) -> None:
        self.number = number
        self.credit = credit
        self.unacked: list[Message] = []
        self.to_redeliver: dict[int, Message] = {}


class Client:
    """A connection of the model. Its transaction is always open."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.session = peer.create_session(AckMode.NONE)
        self.readers: list[Reader] = []
        self.closed: list[Reader] = []
        """Closed consumers that hold something."""
        self.flow_credit = FLOW
        self.started = True
        self.stopped = False
        self.transaction = peer.begin(self.session)
        self.acked: list[tuple[Reader, Message]] = []
        self.sent: list[Message] = []

    @property
    def open(self) -> bool:
        return self.started and not self.stopped and self.flow_credit > 0


class Model(RuleBasedStateMachine):
    """Three connections, one queue.

    Invariants: a message is with at most one consumer; ready messages are delivered in their
    order, messages to redeliver before those behind them; no consumer gets more than its credit,
    and the last of these deliveries carries the flag C; delivery counts are right, and R is set
    from the second on; an acknowledged message is not redelivered, and every other message is ready
    or unacked.
    """

    @initialize(memory_budget=st.sampled_from([0, 1 << 20]))
    def start(self, memory_budget: int) -> None:
        self.harness = Harness(EngineSettings(memory_budget=memory_budget))
        self.ready: dict[int, Message] = {}
        self.count = 0
        self.places = 0
        self.clients: list[Client] = []
        for index in range(PEERS):
            self.clients.append(self.connect())
            self.add_consumer(index, PREFETCH)

    def connect(self) -> Client:
        return Client(self.harness.connect(SessionOptions(prefetch=PREFETCH), JMQSize=FLOW))

    # --- deliveries --------------------------------------------------------------------------

    def collect(self) -> None:
        """Check what has been delivered, on all connections."""
        for client in self.clients:
            for packet in client.peer.delivered():
                [reader] = [r for r in client.readers if r.number == packet.consumer_id]
                assert client.started
                assert not client.stopped
                assert client.flow_credit > 0
                assert reader.credit > 0
                client.flow_credit -= 1
                reader.credit -= 1
                assert bool(packet.flags & F) == (client.flow_credit == 0)
                assert bool(packet.flags & C) == (reader.credit == 0)
                number = int(packet.body)
                message = reader.to_redeliver.pop(number, None)
                if message is None:
                    # dispatched to this consumer before, if others are to be redelivered
                    message = self.ready.pop(number)
                    message.attempts += 1
                places = [other.place for other in reader.to_redeliver.values()]
                assert message.place < min(places, default=self.places + 1)
                assert packet.variable.delivery_count == message.attempts
                assert bool(packet.flags & R) == (message.attempts > 1)
                message.packet = packet
                reader.unacked.append(message)
                self.newly_delivered.append(message)
        self.check_order()

    def check_order(self) -> None:
        """Check that no ready message was skipped that could have been delivered before."""
        fresh = [m.place for m in self.newly_delivered if m.number in self.previously_ready]
        remaining = [m.place for m in self.ready_messages()]
        if fresh and remaining:
            assert max(fresh) < min(remaining), (fresh, remaining)

    def ready_messages(self) -> list[Message]:
        """Return the ready messages, without those pending at a connection without credit."""
        numbers = set(self.ready)
        for session in self.harness.coordinator.connections.values():
            for consumer in session._connection.outbound.consumers.values():
                for delivery in consumer.pending:
                    numbers.discard(int(self.harness.broker.read(delivery).body))
        return [self.ready[number] for number in numbers]

    def add_ready(self, message: Message) -> None:
        """Add a message to the end of the queue."""
        self.places += 1
        message.place = self.places
        self.ready[message.number] = message

    def begin(self) -> None:
        self.newly_delivered: list[Message] = []
        # one that is pending at a connection was dispatched before others came back to the queue
        self.previously_ready = {message.number for message in self.ready_messages()}

    def send_bytes(self, client: Client, data: bytes) -> None:
        self.begin()
        client.peer.send_bytes(data)
        self.collect()

    def requeue(self, messages: list[Message], uncounted: bool = False) -> None:
        for message in messages:
            if uncounted:
                message.attempts -= 1
            self.ready[message.number] = message

    # --- sending -----------------------------------------------------------------------------

    @rule(index=peers, count=st.integers(1, 5), persistent=st.booleans())
    def send(self, index: int, count: int, persistent: bool) -> None:
        client = self.clients[index]
        data = b""
        for _ in range(count):
            self.count += 1
            message = Message(self.count)
            self.add_ready(message)
            text = str(message.number)
            data += client.peer.message("q", text, flags=P if persistent else 0)
        self.begin()
        # a non-persistent message is ready at once and may overtake a persistent one, which must
        # be written first: so only one kind at a time, and an iteration between
        client.peer.send_bytes(data)
        self.collect()

    @rule(index=peers)
    def send_in_transaction(self, index: int) -> None:
        client = self.clients[index]
        self.count += 1
        client.sent.append(Message(self.count))
        client.peer.send("q", str(self.count), transaction_id=client.transaction)
        self.begin()
        self.collect()

    # --- consumers ---------------------------------------------------------------------------

    @rule(index=peers, credit=st.integers(0, PREFETCH))
    def add_consumer(self, index: int, credit: int) -> None:
        client = self.clients[index]
        if len(client.readers) == 2:
            return
        self.begin()
        number = client.peer.consume("q", client.session, size=credit)
        client.readers.append(Reader(number, credit))
        self.collect()

    @rule(index=peers, place=some, size=st.integers(-1, 5))
    def resume(self, index: int, place: int, size: int) -> None:
        client = self.clients[index]
        if client.readers:
            reader = client.readers[place % len(client.readers)]
            reader.credit = PREFETCH if size < 0 else min(size, PREFETCH)
            properties = {"JMQConsumerID": Long(reader.number), "JMQSize": size}
            self.send_bytes(client, encode_packet(H.RESUME_FLOW, properties=properties))

    @rule()
    def resume_all(self) -> None:
        for index, client in enumerate(self.clients):
            client.started, client.stopped = True, False
            self.send_bytes(client, encode_packet(H.START))
            properties: dict[str, object] = {"JMQSessionID": Long(client.session)}
            self.send_bytes(client, encode_packet(H.START, properties=properties))
            for place in range(len(client.readers)):
                self.resume(index, place, PREFETCH)
            self.resume_connection(index)

    @rule(index=peers)
    def resume_connection(self, index: int) -> None:
        client = self.clients[index]
        client.flow_credit = FLOW
        self.send_bytes(client, encode_packet(H.RESUME_FLOW))

    @rule(index=peers, whole=st.booleans(), stop=st.sampled_from([False, False, True]))
    def start_or_stop(self, index: int, whole: bool, stop: bool) -> None:
        client = self.clients[index]
        if whole:
            client.started = not stop
        else:
            client.stopped = stop
        properties = {} if whole else {"JMQSessionID": Long(client.session)}
        kind = H.STOP if stop else H.START
        self.send_bytes(client, encode_packet(kind, properties=properties))

    @rule(index=peers, place=some, last=some, nothing=st.booleans())
    def close_consumer(self, index: int, place: int, last: int, nothing: bool) -> None:
        client = self.clients[index]
        if not client.readers:
            return
        reader = client.readers.pop(place % len(client.readers))
        unacked: list[Message] = []
        packet = None
        if reader.unacked and not nothing:
            unacked = reader.unacked[: last % len(reader.unacked) + 1]
            packet = unacked[-1].packet
        self.requeue([m for m in reader.unacked if m not in unacked], uncounted=True)
        self.requeue(list(reader.to_redeliver.values()), uncounted=True)
        reader.unacked = unacked
        reader.to_redeliver = {}
        client.closed.append(reader)
        self.begin()
        client.peer.close_consumer(reader.number, packet)
        self.collect()

    # --- acknowledgements --------------------------------------------------------------------

    def choose(self, client: Client, places: list[int]) -> list[tuple[Reader, Message]]:
        """Return the first messages of each consumer, as applications acknowledge them."""
        selected = []
        for reader in client.readers + client.closed:
            for message in reader.unacked[: places[0] % 3]:
                selected.append((reader, message))
        return selected

    def take(self, client: Client, places: list[int]) -> list[tuple[Reader, Message]]:
        """Remove and return the messages of `choose`."""
        selected = self.choose(client, places)
        for reader, message in selected:
            reader.unacked.remove(message)
        return selected

    @rule(index=peers, places=numbers)
    def acknowledge(self, index: int, places: list[int]) -> None:
        client = self.clients[index]
        selected = self.take(client, places)
        self.send_bytes(client, encode_packet(H.ACKNOWLEDGE, body=packets(selected)))

    @rule(index=peers, places=numbers)
    def acknowledge_in_transaction(self, index: int, places: list[int]) -> None:
        client = self.clients[index]
        selected = self.take(client, places)
        client.acked += selected
        header = encode_header(transaction_id=client.transaction)
        self.send_bytes(client, encode_packet(H.ACKNOWLEDGE, header=header, body=packets(selected)))

    @rule(index=peers, other=peers, places=numbers)
    def acknowledge_messages_of_other_client(
        self, index: int, other: int, places: list[int]
    ) -> None:
        client = self.clients[index]
        if index != other:
            selected = self.choose(self.clients[other], places)
            self.send_bytes(client, encode_packet(H.ACKNOWLEDGE, body=packets(selected)))

    @rule(index=peers, commit=st.booleans())
    def end_transaction(self, index: int, commit: bool) -> None:
        client = self.clients[index]
        if commit:
            for message in client.sent:
                self.add_ready(message)
        else:
            self.requeue([message for _, message in client.acked])
        client.sent, client.acked = [], []
        self.begin()
        kind = H.COMMIT_TRANSACTION if commit else H.ROLLBACK_TRANSACTION
        reply = client.peer.request(kind, {"JMQTransactionID": Long(client.transaction)})
        assert status(reply) == Status.OK
        client.transaction = client.peer.begin(client.session)
        self.collect()

    # --- redelivery --------------------------------------------------------------------------

    @rule(index=peers, places=numbers, attempted=st.booleans(), acked=st.booleans())
    def redeliver(self, index: int, places: list[int], attempted: bool, acked: bool) -> None:
        """Redeliver unacked messages, and perhaps messages acknowledged in the transaction."""
        client = self.clients[index]
        selected = [
            (reader, message)
            for reader in client.readers + client.closed
            for message in reader.unacked
            if message.number % 8 in places
        ]
        for reader, message in selected:
            reader.unacked.remove(message)
        transaction = 0
        if acked:
            transaction = client.transaction
            acknowledged = [item for item in client.acked if item[1].number % 8 in places]
            client.acked = [item for item in client.acked if item not in acknowledged]
            selected += acknowledged
        for reader, message in selected:
            if reader in client.closed:
                self.requeue([message], uncounted=not attempted)
            else:
                message.attempts += attempted
                reader.to_redeliver[message.number] = message
        properties = {"JMQSetRedelivered": attempted}
        header = encode_header(transaction_id=transaction)
        self.begin()
        client.peer.send_bytes(
            encode_packet(H.REDELIVER, properties=properties, header=header, body=packets(selected))
        )
        self.collect()

    # --- closing -----------------------------------------------------------------------------

    @rule(index=peers, how=st.sampled_from(["reset", "eof", "garbage", "goodbye", "session"]))
    def reconnect(self, index: int, how: str) -> None:
        client = self.clients[index]
        self.requeue([message for _, message in client.acked])
        for reader in client.readers + client.closed:
            self.requeue(reader.unacked)
            self.requeue(list(reader.to_redeliver.values()), uncounted=True)
        self.begin()
        session = client.peer.session
        if how == "session":
            properties = {"JMQSessionID": Long(client.session)}
            client.peer.request(H.DESTROY_SESSION, properties, expect=Status.OK)
        elif how == "eof":
            session.end_of_input()
        elif how == "garbage":
            session.receive(b"garbage")
        elif how == "goodbye":
            session.receive(encode_packet(H.GOODBYE))
        client.peer.drop()
        self.clients[index] = self.connect()
        self.collect()
        self.add_consumer(index, PREFETCH)

    # --- invariants --------------------------------------------------------------------------

    @invariant()
    def no_consumer_waits_for_ready_messages(self) -> None:
        for client in self.clients:
            for reader in client.readers:
                if client.open and reader.credit > 0:
                    assert not reader.to_redeliver
                    assert not self.ready_messages()

    @invariant()
    def every_message_is_ready_or_unacked(self) -> None:
        queue = self.harness.find("q")
        if queue is None:
            return
        unacked = sum(
            len(reader.unacked) + len(reader.to_redeliver)
            for client in self.clients
            for reader in client.readers + client.closed
        )
        acked = sum(len(client.acked) for client in self.clients)
        # deliveries that the connection has not written yet are unknown here
        assert queue.waiting + queue.unacked == len(self.ready) + unacked + acked


def packets(chosen: list[tuple[Reader, Message]]) -> bytes:
    return blocks(*(message.packet for _, message in chosen if message.packet is not None))


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


# --- arbitrary input -------------------------------------------------------------------------

words = st.sampled_from(
    [
        "JMQDestination",
        "JMQDestType",
        "JMQSessionID",
        "JMQConsumerID",
        "JMQProducerID",
        "JMQTransactionID",
        "JMQXAFlags",
        "JMQSize",
        "JMQSelector",
        "JMQDurableName",
        "JMQJMSShare",
        "JMQSharedSubscriptionName",
        "JMQNoLocal",
        "JMQAckType",
        "JMQBodyType",
        "JMQClientID",
        "JMQShare",
        "JMQSetRedelivered",
        "JMQQuantity",
        "JMQAckMode",
        "JMQRedeliver",
        "JMQRedeliverAll",
        "JMQStartNextTransaction",
        "JMQRequestType",
    ]
)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 1, 2, 16, 17, 18, 0x200000, 0x1000000, 0x4000000, 0x40000000]),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.sampled_from(["q", "t", "t.*", "temporary_destination://queue/1", "mq.sys.dmq", "a = 1"]),
    st.text(max_size=5),
    st.floats(),
)
KNOWN = 6
"""Numbers that the broker has given are used for some of the values, in turn."""


@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(list(PacketType)), st.integers(-5, 90)),
            st.dictionaries(words, values, max_size=6),
            st.one_of(st.binary(max_size=8), st.sampled_from([32, 40, 80, 136]).map(bytes)),
            st.integers(0, 0xFFFF),
            st.integers(0, KNOWN - 1),
        ),
        max_size=30,
    )
)
@settings(max_examples=150, deadline=None)
def test_arbitrary_packets_do_not_affect_other_clients(
    script: list[tuple[int, dict[str, object], bytes, int, int]],
) -> None:
    """The broker replies to every request."""
    harness = Harness()
    other = harness.connect()
    reader = other.consume("safe", other.create_session())
    peer = harness.connect()
    given_numbers = [0] * KNOWN
    for number, (kind, properties, body, flags, number_index) in enumerate(script, 1):
        if kind in (H.GOODBYE, H.HELLO):
            continue
        for name in ("JMQSessionID", "JMQConsumerID", "JMQProducerID", "JMQTransactionID"):
            if name in properties and given_numbers[number_index]:
                properties[name] = Long(given_numbers[number_index])
        header = (
            encode_header("q", transaction_id=given_numbers[number_index]) if flags & 1 else b""
        )
        peer.send_bytes(encode_packet(kind, flags, number, properties, header, body))
        assert peer.transport.open
        for packet in peer.receive():
            if packet.is_message or packet.type in (H.RESUME_FLOW, H.PING):
                continue
            assert packet.consumer_id <= number
            assert isinstance(status(packet), int)
            for name in ("JMQSessionID", "JMQConsumerID", "JMQProducerID", "JMQTransactionID"):
                value = packet.properties.get(name)
                if isinstance(value, int):
                    given_numbers[number % KNOWN] = value
    number, data = peer.encode_request(H.PING)
    peer.send_bytes(data)
    assert number in [p.consumer_id for p in peer.receive() if p.type == H.PING_REPLY]
    other.send("safe", "x")
    [message] = other.delivered()
    assert message.consumer_id == reader
    other.acknowledge(message)
    peer.drop()
    harness.run_event_loop(SessionOptions().detached_timeout)  # transactions without a session
    assert harness.broker.transactions.open == {}
    assert all(not d.temporary for d in harness.broker.destinations.values())
    for destination in harness.broker.destinations.values():
        if destination.name != "safe":
            assert destination.consumers == 0
            assert destination.unacked == sum(
                len(t.acks) for t in harness.broker.transactions.prepared.values()
            )


@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_raise_no_error(data: bytes, logged_in: bool) -> None:
    harness = Harness()
    peer = harness.connect() if logged_in else harness.connect_without_hello()
    peer.send_bytes(data)
    peer.drop()
