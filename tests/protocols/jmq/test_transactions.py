"""Local transactions, as a transacted session has them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import transaction_commands, transactions
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import QUEUE_CLASS, encode_blocks, encode_header
from sluicemq.protocols.jmq.packets import A, AckMode, P, PacketType, Q, R, Status
from sluicemq.protocols.jmq.wire import Packet
from tests.protocols.jmq.harness import Harness, Peer, blocks, encode_sysid, status
from tests.support.broker import purge
from tests.support.sessions import RecordedAccess

H = PacketType


def id_property(transaction: int) -> dict[str, object]:
    return {"JMQTransactionID": Long(transaction)}


# --- commit --------------------------------------------------------------------------------------


def test_sent_messages_are_ready_after_commit(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send("q", "a", "b", transaction_id=transaction)
    peer.send("t", "c", topic=True, transaction_id=transaction)
    assert harness.bodies("q") == []
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a", b"b"]


def test_transaction_id_is_not_stored_with_message(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    peer.commit(transaction)
    peer.consume("q", peer.create_session())
    [message] = peer.delivered()
    assert message.variable.transaction_id == 0


def test_consumed_messages_are_removed_after_commit(harness: Harness, peer: Peer) -> None:
    session = peer.create_session(AckMode.NONE)
    peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", "a", "b")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    assert harness.queue("q").unacked == 2
    peer.commit(transaction)
    assert harness.queue("q").unacked == harness.queue("q").waiting == 0


def test_commit_is_answered_when_it_is_on_disk(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    peer.session.receive(peer.encode_request(H.COMMIT_TRANSACTION, id_property(transaction))[1])
    assert peer.receive() == []
    harness.run_event_loop()
    [reply] = peer.receive()
    assert status(reply) == Status.OK
    assert reply.properties["JMQTransactionID"] == transaction


def test_next_transaction_can_be_started_by_commit(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    properties = {**id_property(transaction), "JMQStartNextTransaction": True}
    reply = peer.request(H.COMMIT_TRANSACTION, properties, expect=Status.OK)
    following = reply.properties["JMQNextTransactionID"]
    assert isinstance(following, int)
    peer.send("q", "a", transaction_id=following)
    peer.commit(following)
    assert harness.bodies("q") == [b"a"]


def test_transaction_started_by_commit_is_as_sessionless_as_first(
    harness: Harness, peer: Peer
) -> None:
    reply = peer.request(H.START_TRANSACTION, {"JMQSessionLess": True}, expect=Status.OK)
    properties = {
        "JMQTransactionID": Long(int(str(reply.properties["JMQTransactionID"]))),
        "JMQStartNextTransaction": True,
    }
    reply = peer.request(H.COMMIT_TRANSACTION, properties, expect=Status.OK)
    following = int(str(reply.properties["JMQNextTransactionID"]))
    peer.send("q", "a", transaction_id=following)
    peer.session.closed()
    harness.connect().commit(following)
    assert harness.bodies("q") == [b"a"]


def test_commit_to_removed_destination_fails_and_can_be_rolled_back(
    harness: Harness, peer: Peer
) -> None:
    """The destination cannot be created again, so the commit has no effect."""
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    peer.send("r", "b", transaction_id=transaction)
    harness.broker.remove(harness.queue("q"), force=True)
    harness.broker.core.settings = EngineSettings(auto_create_queues=False)
    peer.commit(transaction, expect=Status.NOT_FOUND)
    assert harness.bodies("r") == []
    peer.request(H.ROLLBACK_TRANSACTION, id_property(transaction), expect=Status.OK)
    assert harness.bodies("r") == []


def test_commit_creates_removed_destination_as_a_message_does(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    settings = harness.queue("q").settings
    harness.broker.remove(harness.queue("q"), force=True)
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a"]
    assert harness.queue("q").settings == settings
    assert settings.dead_letter_queue == "mq.sys.dmq"


def test_limits_apply_in_transactions(harness: Harness, peer: Peer) -> None:
    harness.limit("q", DestinationSettings(max_messages=1))
    peer.send("q", "a")
    transaction = peer.begin()
    peer.send("q", "b", transaction_id=transaction, expect=Status.RESOURCE_FULL)
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a"]


def test_wildcard_message_in_transaction(harness: Harness, peer: Peer) -> None:
    harness.broker.destinations.topic("a.b")
    harness.broker.destinations.topic("a.c")
    session = peer.create_session()
    peer.consume("a.b", session, topic=True)
    peer.consume("a.c", session, topic=True)
    transaction = peer.begin()
    peer.send("a.>", "x", topic=True, transaction_id=transaction)
    assert peer.delivered() == []
    peer.commit(transaction)
    assert peer.texts() == ["x", "x"]


# --- rollback ------------------------------------------------------------------------------------


def test_rollback_of_java_client(harness: Harness, peer: Peer) -> None:
    """Send STOP, REDELIVER, START, ROLLBACK without a reply, and START_TRANSACTION."""
    session = peer.create_session(AckMode.NONE)
    consumer = peer.consume("q", session, size=4)
    transaction = peer.begin(session)
    peer.send("q", *"abcdef")
    peer.send("out", "x", transaction_id=transaction)
    messages = peer.delivered()
    for message in messages[:2]:
        peer.acknowledge(message, transaction=transaction)
    properties = {"JMQSessionID": Long(session)}
    peer.request(H.STOP, properties, expect=Status.OK)
    peer.redeliver(*messages[2:], attempted=False)
    peer.redeliver(*messages[:2], attempted=True, transaction=transaction)
    peer.send_packet(H.START, properties)
    peer.send_packet(H.ROLLBACK_TRANSACTION, id_property(transaction))
    assert peer.receive() == []
    following = peer.begin(session)
    peer.resume(consumer, 4)
    redelivered = peer.delivered()
    assert [m.body for m in redelivered] == [b"a", b"b", b"c", b"d"]
    assert [bool(m.flags & R) for m in redelivered] == [True, True, False, False]
    assert harness.bodies("out") == []
    peer.acknowledge(*redelivered, transaction=following)
    peer.commit(following)
    peer.resume(consumer, 4)
    peer.acknowledge(*peer.delivered())
    assert harness.bodies("q") == []


def test_transaction_of_redeliver_may_be_in_header_alone(harness: Harness, peer: Peer) -> None:
    session = peer.create_session(AckMode.NONE)
    peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.acknowledge(message, transaction=transaction)
    header = encode_header(transaction_id=transaction)
    peer.send_packet(H.REDELIVER, {"JMQSetRedelivered": True}, blocks(message), header=header)
    [redelivered] = peer.delivered()
    assert redelivered.variable.delivery_count == 2


def test_rolled_back_delivery_is_not_reserved_for_its_consumer(
    harness: Harness, peer: Peer
) -> None:
    session = peer.create_session(AckMode.NONE)
    peer.consume("q", session, size=1)
    transaction = peer.begin(session)
    peer.send("q", "a")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    other = harness.connect()
    other.consume("q", other.create_session())
    peer.request(H.ROLLBACK_TRANSACTION, id_property(transaction), expect=Status.OK)
    [message] = other.delivered()
    assert message.flags & R
    assert message.variable.delivery_count == 2


def test_rollback_redelivers_if_requested(harness: Harness, peer: Peer) -> None:
    session = peer.create_session(AckMode.NONE)
    consumer = peer.consume("q", session, size=2)
    transaction = peer.begin(session)
    peer.send("q", *"abc")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    other = harness.connect()
    other.consume("q", other.create_session())
    assert other.texts() == ["c"]
    properties = {**id_property(transaction), "JMQRedeliver": True}
    peer.request(H.ROLLBACK_TRANSACTION, properties, expect=Status.OK)
    assert other.texts() == []
    peer.resume(consumer, 2)
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"a", b"b"]
    assert [m.variable.delivery_count for m in messages] == [2, 2]
    following = peer.begin(session)
    peer.acknowledge(*messages, transaction=following)
    properties = {
        **id_property(following),
        "JMQRedeliver": True,
        "JMQSetRedelivered": False,
    }
    peer.request(H.ROLLBACK_TRANSACTION, properties, expect=Status.OK)
    peer.resume(consumer, 2)
    assert [m.variable.delivery_count for m in peer.delivered()] == [2, 2]


def test_large_rollback_with_redelivery_does_not_delay_other_clients(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_commands, "BATCH", 2)
    consumer = peer.consume("q", peer.create_session(AckMode.NONE), size=5)
    transaction = peer.begin()
    peer.send("q", *"abcde")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    peer.resume(consumer, 5)
    harness.scan_time.limit = 1
    properties = {**id_property(transaction), "JMQRedeliver": True}
    peer.session.receive(peer.encode_request(H.ROLLBACK_TRANSACTION, properties)[1])
    peer.session.receive(peer.encode_request(H.COMMIT_TRANSACTION, id_property(transaction))[1])
    assert peer.texts() == ["a", "b", "c", "d"]  # others have their turn
    harness.run_event_loop()
    [last, rollback, commit] = peer.receive()
    assert last.body == b"e"
    assert (status(rollback), status(commit)) == (Status.OK, Status.NOT_FOUND)


def test_many_rollbacks_with_redelivery_do_not_delay_other_clients(
    harness: Harness, peer: Peer
) -> None:
    consumer = peer.consume("q", peer.create_session(AckMode.NONE), size=5)
    peer.send("q", *"abcde")
    requests = []
    for message in peer.delivered():
        transaction = peer.begin()
        peer.acknowledge(message, transaction=transaction)
        properties = {**id_property(transaction), "JMQRedeliver": True}
        requests.append(peer.encode_request(H.ROLLBACK_TRANSACTION, properties)[1])
    peer.resume(consumer, 5)
    harness.scan_time.limit = 2
    peer.session.receive(b"".join(requests))
    assert [packet.body for packet in peer.receive() if packet.is_message] == [b"a", b"b", b"c"]


def test_session_that_is_closed_in_transaction(harness: Harness, peer: Peer) -> None:
    """Send ROLLBACK, DELETE_CONSUMER and DESTROY_SESSION."""
    session = peer.create_session(AckMode.NONE)
    consumer = peer.consume("q", session, size=3)
    transaction = peer.begin(session)
    peer.send("q", *"abc")
    messages = peer.delivered()
    peer.acknowledge(messages[0], transaction=transaction)
    peer.send_packet(
        H.ROLLBACK_TRANSACTION, {**id_property(transaction), "JMQUpdateConsumed": True}
    )
    peer.close_consumer(consumer, messages[1])
    peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)
    assert harness.queue("q").unacked == 0
    other = harness.connect()
    other.consume("q", other.create_session())
    assert [m.variable.delivery_count for m in other.delivered()] == [2, 2, 1]


def test_transaction_ends_with_its_session(harness: Harness, peer: Peer) -> None:
    session = peer.create_session(AckMode.NONE)
    peer.consume("q", session)
    transaction, other = peer.begin(session), peer.begin()
    peer.send("q", "a")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)
    assert harness.queue("q").unacked == 0
    assert harness.queue("q").waiting == 1
    peer.commit(transaction, expect=Status.NOT_FOUND)
    peer.commit(other)


def test_transaction_ends_with_its_connection(harness: Harness, peer: Peer) -> None:
    session = peer.create_session(AckMode.NONE)
    peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", *"abc")
    peer.send("out", "x", transaction_id=transaction)
    messages = peer.delivered()
    peer.acknowledge(*messages[:2], transaction=transaction)
    peer.drop()
    assert harness.bodies("out") == []
    other = harness.connect()
    other.consume("q", other.create_session())
    redelivered = other.delivered()
    assert [m.body for m in redelivered] == [b"a", b"b", b"c"]
    assert [m.variable.delivery_count for m in redelivered] == [2, 2, 2]


def test_consumer_that_was_closed_in_transaction(harness: Harness, peer: Peer) -> None:
    session = peer.create_session(AckMode.NONE)
    consumer = peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", "a", "b")
    first, second = peer.delivered()
    peer.acknowledge(first, transaction=transaction)
    peer.close_consumer(consumer, second)
    peer.acknowledge(second, transaction=transaction)
    peer.redeliver(first, second, attempted=True, transaction=transaction)
    peer.request(H.ROLLBACK_TRANSACTION, id_property(transaction), expect=Status.OK)
    assert harness.queue("q").unacked == 0
    other = harness.connect()
    other.consume("q", other.create_session())
    redelivered = other.delivered()
    assert [m.body for m in redelivered] == [b"a", b"b"]
    assert all(m.flags & R for m in redelivered)


# --- errors --------------------------------------------------------------------------------------


def test_foreign_and_unknown_transactions_are_404(harness: Harness, peer: Peer) -> None:
    other = harness.connect()
    other.consume("q", other.create_session())
    other_transaction = other.begin()
    other.send("q", "a")
    [message] = other.delivered()
    other.acknowledge(message, transaction=other_transaction)
    other.send("out", "x", transaction_id=other_transaction)
    transaction = peer.begin()
    for number in (other_transaction, 1, -1, transaction + 1000):
        peer.send("q", "x", transaction_id=number, expect=Status.GONE)
        body = blocks(message)
        header = encode_header(transaction_id=number)
        reply = peer.request(H.ACKNOWLEDGE, None, body, header=header)
        assert status(reply) == Status.GONE
        peer.redeliver(message, attempted=True, transaction=number)
        peer.commit(number, expect=Status.NOT_FOUND)
        assert peer.request_status(H.ROLLBACK_TRANSACTION, id_property(number)) == Status.NOT_FOUND
        assert peer.request_status(H.PREPARE_TRANSACTION, id_property(number)) == Status.NOT_FOUND
    other.commit(other_transaction)
    assert harness.bodies("out") == [b"x"]
    assert harness.bodies("q") == []


def test_ended_transaction_is_unknown(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.commit(transaction)
    peer.send("q", "x", transaction_id=transaction, expect=Status.GONE)
    peer.commit(transaction, expect=Status.NOT_FOUND)
    assert peer.request_status(H.COMMIT_TRANSACTION) == Status.BAD_REQUEST
    assert harness.find("q") is None or harness.bodies("q") == []


def test_local_transaction_is_not_prepared(peer: Peer) -> None:
    transaction = peer.begin()
    assert (
        peer.request_status(H.PREPARE_TRANSACTION, id_property(transaction))
        == Status.PRECONDITION_FAILED
    )
    assert (
        peer.request_status(H.END_TRANSACTION, id_property(transaction))
        == Status.PRECONDITION_FAILED
    )
    peer.commit(transaction)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"JMQAutoRollback": 1}, Status.OK),
        ({"JMQAutoRollback": 2}, Status.OK),
        ({"JMQAutoRollback": 3}, Status.NOT_IMPLEMENTED),
        ({"JMQAutoRollback": 4}, Status.BAD_REQUEST),
        ({"JMQLifetime": Long(0)}, Status.OK),
        ({"JMQLifetime": Long(1)}, Status.NOT_IMPLEMENTED),
        ({"JMQXAFlags": 0}, Status.BAD_REQUEST),
    ],
)
def test_transaction_options(peer: Peer, options: dict[str, object], expected: Status) -> None:
    assert peer.request_status(H.START_TRANSACTION, options) == expected


def test_acknowledgement_is_validated_against_transaction(peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    transaction = peer.begin()
    peer.send("q", "a", "b")
    first, second = peer.delivered()
    peer.acknowledge(first, transaction=transaction)
    validate = {"JMQValidate": True}
    peer.acknowledge(first, transaction=transaction, expect=Status.OK, **validate)
    peer.acknowledge(first, second, transaction=transaction, expect=Status.NOT_FOUND, **validate)
    peer.acknowledge(first, expect=Status.BAD_REQUEST, **validate)


def test_forged_acknowledgements_in_transaction(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    transaction = peer.begin()
    peer.send("q", "a")
    [message] = peer.delivered()
    body = message.consumer_id.to_bytes(8, "big") + encode_sysid(9, 9)
    header = encode_header(transaction_id=transaction)
    assert status(peer.request(H.ACKNOWLEDGE, None, body, header=header)) == Status.OK
    peer.acknowledge(message, transaction=transaction)
    peer.acknowledge(message, transaction=transaction)
    peer.commit(transaction)
    assert harness.queue("q").unacked == 0
    assert harness.bodies("q") == []


def test_revoked_messages_are_not_acked_in_transaction(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    transaction = peer.begin()
    peer.send("q", "a", "b")
    messages = peer.delivered()
    purge(harness.broker, harness.queue("q"), unacked=True)
    peer.acknowledge(*messages, transaction=transaction)
    peer.commit(transaction)
    assert harness.queue("q").unacked == 0


# --- timeout -------------------------------------------------------------------------------------


def test_transaction_is_rolled_back_after_its_timeout(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(transaction_timeout=1000))
    peer.consume("q", peer.create_session())
    transaction = peer.begin()
    harness.run_event_loop(5000)  # it has not been used, and most sessions have one all the time
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.acknowledge(message, transaction=transaction)
    harness.run_event_loop(900)
    peer.send("out", "x", transaction_id=transaction)
    harness.run_event_loop(100)
    [redelivered] = peer.delivered()
    assert redelivered.flags & R
    peer.send("out", "x", transaction_id=transaction, expect=Status.TIMEOUT)
    peer.commit(transaction, expect=Status.TIMEOUT)
    peer.acknowledge(redelivered, transaction=transaction, expect=Status.TIMEOUT)
    assert harness.bodies("out") == []


def test_transaction_that_ends_in_time(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(transaction_timeout=1000))
    for kind in (H.COMMIT_TRANSACTION, H.ROLLBACK_TRANSACTION):
        transaction = peer.begin()
        peer.send("q", "a", transaction_id=transaction)
        peer.request(kind, id_property(transaction), expect=Status.OK)
    transaction = peer.begin()
    harness.run_event_loop(5000)
    assert harness.bodies("q") == [b"a"]
    peer.commit(transaction)


def test_ended_transactions_do_not_stay_in_memory_until_their_timeout(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def branches() -> int:
        return sum(type(item) is transactions.Branch for item in gc.get_objects())

    monkeypatch.setattr(transactions, "MAX_ENDED", 5)
    options = SessionOptions(
        authentication="basic", transaction_timeout=1000, max_per_connection=10
    )
    gc.collect()
    before = branches()
    peer = harness.connect(options)
    for _ in range(50):
        transaction = peer.begin()
        peer.send("q", "a", transaction_id=transaction)
        peer.commit(transaction)
    for _ in range(5):
        peer = harness.connect(options)
        for _ in range(10):
            peer.request(H.START_TRANSACTION, {"JMQSessionLess": True}, expect=Status.OK)
        peer.drop()
    assert branches() - before < 30
    harness.run_event_loop(options.detached_timeout)
    assert not harness.broker.transactions.open


def test_number_of_remembered_outcomes_is_limited(harness: Harness) -> None:
    peer = harness.connect()
    for _ in range(50):
        requests = b""
        for _ in range(100):
            requests += peer.encode_request(H.START_TRANSACTION)[1]
        peer.send_bytes(requests)
        commits = b""
        for reply in peer.receive():
            number = reply.properties["JMQTransactionID"]
            assert isinstance(number, int)
            commits += peer.encode_request(H.COMMIT_TRANSACTION, id_property(number))[1]
        peer.send_bytes(commits)
        assert all(status(reply) == Status.OK for reply in peer.receive())
    assert len(harness.coordinator.branches._ended) == 4096


def test_commit_drops_messages_to_deleted_temporary_queue(harness: Harness, peer: Peer) -> None:
    other = harness.connect()
    name = "temporary_destination://queue/x/1/1"
    other.create(name, temporary=True)
    transaction = peer.begin()
    peer.send(name, "a", transaction_id=transaction)
    peer.send("q", "b", transaction_id=transaction)
    other.drop()
    peer.commit(transaction)
    assert harness.bodies("q") == [b"b"]
    assert harness.broker.destinations.find(Address(Kind.QUEUE, name)) is None


def test_non_persistent_message_in_transaction(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send_bytes(peer.message("q", b"a", flags=0, transaction_id=transaction))
    peer.send_bytes(peer.message("q", b"b", flags=P | A, transaction_id=transaction, consumer_id=4))
    [reply] = peer.receive()
    assert reply.consumer_id == 4
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a", b"b"]


# --- without a session ---------------------------------------------------------------------------


def abandon_transaction(peer: Peer, **properties: object) -> int:
    """Begin a local transaction with a message, and end its session and connection."""
    session = peer.create_session(AckMode.NONE)
    reply = peer.request(H.START_TRANSACTION, {"JMQSessionID": Long(session), **properties})
    transaction = reply.properties["JMQTransactionID"]
    assert isinstance(transaction, int)
    peer.send("q", "a", transaction_id=transaction)
    peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)
    peer.drop()
    return transaction


def test_local_transaction_survives_if_it_is_sessionless(harness: Harness, peer: Peer) -> None:
    transaction = abandon_transaction(peer, JMQSessionLess=True)
    other = harness.connect()
    other.send("q", "b", transaction_id=transaction)
    other.commit(transaction)
    assert harness.bodies("q") == [b"a", b"b"]


@pytest.mark.parametrize("wish", [{}, {"JMQSessionLess": False}], ids=["absent", "false"])
def test_local_transaction_ends_with_its_session(
    harness: Harness, peer: Peer, wish: dict[str, object]
) -> None:
    transaction = abandon_transaction(peer, **wish)
    assert not harness.broker.transactions.open
    other = harness.connect()
    other.send("q", "b", transaction_id=transaction, expect=Status.GONE)
    other.commit(transaction, expect=Status.NOT_FOUND)


def test_local_transaction_without_connection_ends_in_time(harness: Harness) -> None:
    options = SessionOptions(authentication="basic", detached_timeout=10_000)
    abandon_transaction(harness.connect(options), JMQSessionLess=True)
    harness.run_event_loop(9_999)
    assert harness.broker.transactions.open
    harness.run_event_loop(2)
    assert not harness.broker.transactions.open


def test_local_transaction_belongs_to_its_connection(harness: Harness, peer: Peer) -> None:
    reply = peer.request(H.START_TRANSACTION, {"JMQSessionLess": True}, expect=Status.OK)
    transaction = reply.properties["JMQTransactionID"]
    assert isinstance(transaction, int)
    harness.connect().send("q", "b", transaction_id=transaction, expect=Status.GONE)


# --- failed transactions -------------------------------------------------------------------------


def limit_transaction_size(harness: Harness) -> None:
    """Let transactions refuse all but small messages."""
    harness.broker.core.settings = EngineSettings(max_transaction_bytes=4000)


def test_message_refused_without_answer_fails_its_transaction(harness: Harness, peer: Peer) -> None:
    limit_transaction_size(harness)
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    assert peer.send_packet(1, **unconfirmed_message(peer, "b" * 4000, transaction)) == []
    peer.send("q", "c", transaction_id=transaction, expect=Status.PRECONDITION_FAILED)
    reply = peer.request(
        H.COMMIT_TRANSACTION,
        {**id_property(transaction), "JMQStartNextTransaction": True},
    )
    assert status(reply) == Status.PRECONDITION_FAILED
    assert "max_transaction_bytes" in str(reply.properties["JMQReason"])
    assert harness.bodies("q") == []
    peer.request(H.ROLLBACK_TRANSACTION, id_property(transaction), expect=Status.OK)
    assert not harness.broker.transactions.open


def unconfirmed_message(peer: Peer, body: str, transaction: int, name: str = "q") -> dict[str, Any]:
    """Return a non-persistent message that requests no reply, for `Peer.send_packet`."""
    header = encode_header(name, destination_class=QUEUE_CLASS, transaction_id=transaction)
    return {"body": body.encode(), "flags": Q, "header": header}


@pytest.mark.parametrize("name", ["mq.sys.dmq", "not allowed"])
def test_message_without_permission_fails_its_transaction(harness: Harness, name: str) -> None:
    peer = harness.connect(access=RecordedAccess("q: produce"))
    transaction = peer.begin()
    peer.send_packet(1, **unconfirmed_message(peer, "a", transaction, name))
    peer.commit(transaction, expect=Status.PRECONDITION_FAILED)


def test_oversized_packet_fails_its_transaction(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(authentication="basic", max_packet_size=1000))
    transaction = peer.begin()
    peer.send_packet(1, **unconfirmed_message(peer, "a" * 2000, transaction))
    peer.commit(transaction, expect=Status.PRECONDITION_FAILED)


def test_refused_message_with_answer_leaves_transaction_usable(
    harness: Harness, peer: Peer
) -> None:
    limit_transaction_size(harness)
    transaction = peer.begin()
    peer.send("q", "b" * 4000, flags=0, transaction_id=transaction, expect=Status.RESOURCE_FULL)
    peer.send("q", "a", transaction_id=transaction)
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a"]


@pytest.mark.parametrize("reply_requested", [False, True], ids=["no answer", "answer"])
def test_acknowledgement_refused_without_answer_fails_its_transaction(
    harness: Harness, peer: Peer, reply_requested: bool
) -> None:
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    body = encode_blocks([(5, encode_sysid(1, 1))])  # there is no such consumer
    header = encode_header(transaction_id=transaction)
    peer.send_packet(H.ACKNOWLEDGE, {}, body, A if reply_requested else 0, header)
    peer.receive()
    peer.commit(transaction, expect=Status.OK if reply_requested else Status.PRECONDITION_FAILED)
    assert harness.bodies("q") == ([b"a"] if reply_requested else [])


@pytest.mark.parametrize("body", [b"x", b""], ids=["refused", "empty"])
def test_sends_of_others_do_not_fail_transaction(harness: Harness, peer: Peer, body: bytes) -> None:
    transaction = peer.begin()
    other = harness.connect()
    other.send_packet(H.ACKNOWLEDGE, {}, body, 0, encode_header(transaction_id=transaction))
    peer.send("q", "a", transaction_id=transaction)
    peer.commit(transaction)


# --- large transactions --------------------------------------------------------------------------


def test_send_above_limit_is_refused_and_rest_can_be_committed(
    harness: Harness, peer: Peer
) -> None:
    harness.broker.core.settings = EngineSettings(max_transaction_bytes=4000)
    transaction = peer.begin()
    peer.send("q", "a" * 1000, "b" * 1000, transaction_id=transaction)
    peer.send("q", "c" * 4000, transaction_id=transaction, expect=Status.RESOURCE_FULL)
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a" * 1000, b"b" * 1000]
    other = peer.begin()
    peer.send("q", "c" * 4000, transaction_id=other, expect=Status.RESOURCE_FULL)
    peer.request(H.ROLLBACK_TRANSACTION, id_property(other), expect=Status.OK)


def test_acknowledgement_above_limit_is_refused_and_rest_can_be_committed(
    harness: Harness, peer: Peer
) -> None:
    harness.broker.core.settings = EngineSettings(max_transaction_bytes=1200)
    peer.consume("q", peer.create_session())
    peer.send("q", "a", "b", "c")
    messages = peer.delivered()
    transaction = peer.begin()
    peer.acknowledge(*messages[:2], transaction=transaction)
    peer.acknowledge(messages[2], transaction=transaction, expect=Status.RESOURCE_FULL)
    peer.send("q", "d", transaction_id=transaction, expect=Status.RESOURCE_FULL)
    peer.commit(transaction)
    assert harness.bodies("q") == [b"c"]
    peer.acknowledge(messages[2])
    assert harness.bodies("q") == []


def begin_large_commit(harness: Harness, peer: Peer, *acked: Packet, **more: object) -> int:
    """Send a COMMIT that takes several event loop iterations, and return its transaction, which
    acknowledges the messages `acked`."""
    commits = harness.broker.transactions
    commits.slice_deliveries = commits.part_deliveries = 1
    transaction = peer.begin()
    peer.acknowledge(*acked, transaction=transaction)
    peer.send("q", *"abcdef", transaction_id=transaction)
    peer.session.receive(
        peer.encode_request(H.COMMIT_TRANSACTION, {**id_property(transaction), **more})[1]
    )
    return transaction


def test_large_commit_is_answered_when_all_of_it_is_applied(harness: Harness, peer: Peer) -> None:
    transaction = begin_large_commit(harness, peer, JMQStartNextTransaction=True)
    replies = peer.receive()
    while not replies:
        assert harness.broker.transactions.open
        harness.run_event_loop()
        replies = peer.receive()
    assert harness.bodies("q") == [b"a", b"b", b"c", b"d", b"e", b"f"]
    [reply] = replies
    assert status(reply) == Status.OK
    assert reply.properties["JMQTransactionID"] == transaction
    following = reply.properties["JMQNextTransactionID"]
    assert isinstance(following, int)
    peer.commit(following)


@pytest.mark.parametrize("flushes", [0, 1, 8])
def test_large_commit_continues_after_its_connection_closes(
    harness: Harness, peer: Peer, flushes: int
) -> None:
    begin_large_commit(harness, peer)
    for _ in range(flushes):
        harness.broker.flush()
    peer.drop()
    for _ in range(30):
        harness.run_event_loop()
    assert harness.bodies("q") == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert not harness.broker.transactions.open


def test_reading_pauses_while_commits_wait_for_disk(harness: Harness, peer: Peer) -> None:
    numbers = [peer.begin() for _ in range(6)]
    for number in numbers:
        peer.send("q", "x" * 3_000_000, transaction_id=number)
    for number in numbers:
        peer.session.receive(peer.encode_request(H.COMMIT_TRANSACTION, id_property(number))[1])
    assert peer.transport.paused
    harness.run_event_loop()
    assert not peer.transport.paused


def test_client_is_disconnected_after_reply_to_large_commit(harness: Harness, peer: Peer) -> None:
    begin_large_commit(harness, peer)
    peer.session.disconnect("the broker stops", stopping=True)
    for _ in range(30):
        harness.run_event_loop()
    reply, goodbye = peer.receive()
    assert (reply.type, status(reply)) == (H.COMMIT_TRANSACTION_REPLY, Status.OK)
    assert goodbye.type == H.GOODBYE
    assert not peer.transport.open


def test_requests_about_transaction_that_is_being_committed(harness: Harness, peer: Peer) -> None:
    transaction = begin_large_commit(harness, peer)
    harness.broker.flush()
    rollback = peer.encode_request(H.ROLLBACK_TRANSACTION, id_property(transaction))[1]
    commit_request = peer.encode_request(H.COMMIT_TRANSACTION, id_property(transaction))[1]
    peer.session.receive(rollback)
    peer.session.receive(commit_request)
    replies: list[int] = []
    for _ in range(30):
        harness.run_event_loop()
        replies += [status(reply) for reply in peer.receive()]
    assert sorted(replies) == [Status.OK, Status.OK, Status.PRECONDITION_FAILED]
    assert harness.bodies("q") == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_rollback_during_commit_does_not_mark_transaction_as_failed(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_commands, "BATCH", 1)
    peer.consume("in", peer.create_session(), size=3)
    peer.send("in", *"xyz")
    transaction = begin_large_commit(harness, peer, *peer.delivered())
    harness.scan_time.limit = 1
    redelivering = {**id_property(transaction), "JMQRedeliver": True}
    peer.session.receive(peer.encode_request(H.ROLLBACK_TRANSACTION, redelivering)[1])
    peer.session.receive(peer.encode_request(H.COMMIT_TRANSACTION, id_property(transaction))[1])
    replies: list[int] = []
    for _ in range(30):
        harness.run_event_loop()
        replies += [status(reply) for reply in peer.receive()]
    assert sorted(replies) == [Status.OK, Status.OK, Status.PRECONDITION_FAILED]


def test_acknowledgement_in_transaction_that_is_being_committed(
    harness: Harness, peer: Peer
) -> None:
    consumer = peer.consume("in", peer.create_session())
    peer.send("in", "x")
    [message] = peer.delivered()
    peer.close_consumer(consumer, message)
    transaction = begin_large_commit(harness, peer)
    header = encode_header(transaction_id=transaction)
    number, data = peer.encode_request(H.ACKNOWLEDGE, {}, blocks(message), header=header)
    peer.session.receive(data)
    [reply] = peer.receive()
    assert (reply.consumer_id, status(reply)) == (number, Status.PRECONDITION_FAILED)
    peer.drop()
    assert harness.bodies("in") == [b"x"]
    assert harness.queue("in").waiting == 1
