"""Local transactions, as a transacted session has them."""

from __future__ import annotations

import pytest

from sluicemq.broker import BrokerSettings
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.header import encode_header
from sluicemq.protocols.jmq.options import Options
from sluicemq.protocols.jmq.packets import A, AckMode, P, PacketType, R, Status
from tests.protocols.jmq.harness import Harness, Peer, blocks, encode_sysid, status

H = PacketType


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def peer(harness: Harness) -> Peer:
    return harness.connect()


def about(transaction: int) -> dict[str, object]:
    return {"JMQTransactionID": Long(transaction)}


# --- commit --------------------------------------------------------------------------------------


def test_what_is_sent_is_there_after_the_commit(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send("q", "a", "b", transaction_id=transaction)
    peer.send("t", "c", topic=True, transaction_id=transaction)
    assert harness.bodies("q") == []
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a", b"b"]


def test_the_transaction_is_no_part_of_the_message(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    peer.commit(transaction)
    peer.consume("q", peer.session_of())
    [message] = peer.delivered()
    assert message.variable.transaction_id == 0


def test_what_is_consumed_is_gone_after_the_commit(harness: Harness, peer: Peer) -> None:
    session = peer.session_of(AckMode.NONE)
    peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", "a", "b")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    assert harness.queue("q").unacked == 2
    peer.commit(transaction)
    assert harness.queue("q").unacked == harness.queue("q").waiting == 0


def test_a_commit_is_answered_when_it_is_on_disk(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    peer.session.receive(peer.request(H.COMMIT_TRANSACTION, about(transaction))[1])
    assert peer.receive() == []
    harness.turn()
    [answer] = peer.receive()
    assert status(answer) == Status.OK
    assert answer.properties["JMQTransactionID"] == transaction


def test_the_next_one_can_be_had_at_once(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    wish = {**about(transaction), "JMQStartNextTransaction": True}
    answer = peer.ask(H.COMMIT_TRANSACTION, wish, expect=Status.OK)
    following = answer.properties["JMQNextTransactionID"]
    assert isinstance(following, int)
    peer.send("q", "a", transaction_id=following)
    peer.commit(following)
    assert harness.bodies("q") == [b"a"]


def test_a_commit_that_cannot_be(harness: Harness, peer: Peer) -> None:
    """Its destination has gone and may not come back: nothing happens, the client may go back."""
    transaction = peer.begin()
    peer.send("q", "a", transaction_id=transaction)
    peer.send("r", "b", transaction_id=transaction)
    harness.broker.remove(harness.queue("q"), force=True)
    harness.broker.settings = BrokerSettings(auto_create_queues=False)
    peer.commit(transaction, expect=Status.NOT_FOUND)
    assert harness.bodies("r") == []
    peer.ask(H.ROLLBACK_TRANSACTION, about(transaction), expect=Status.OK)
    assert harness.bodies("r") == []


def test_limits_hold_in_transactions(harness: Harness, peer: Peer) -> None:
    harness.limit("q", DestinationSettings(max_messages=1))
    peer.send("q", "a")
    transaction = peer.begin()
    peer.send("q", "b", transaction_id=transaction, expect=Status.RESOURCE_FULL)
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a"]


def test_a_wildcard_in_a_transaction(harness: Harness, peer: Peer) -> None:
    harness.broker.topic("a.b")
    harness.broker.topic("a.c")
    session = peer.session_of()
    peer.consume("a.b", session, topic=True)
    peer.consume("a.c", session, topic=True)
    transaction = peer.begin()
    peer.send("a.>", "x", topic=True, transaction_id=transaction)
    assert peer.delivered() == []
    peer.commit(transaction)
    assert peer.texts() == ["x", "x"]


# --- rollback ------------------------------------------------------------------------------------


def test_a_rollback_as_the_java_client_does_it(harness: Harness, peer: Peer) -> None:
    """STOP, REDELIVER, START, ROLLBACK without a wish for an answer, START_TRANSACTION."""
    session = peer.session_of(AckMode.NONE)
    consumer = peer.consume("q", session, size=4)
    transaction = peer.begin(session)
    peer.send("q", *"abcdef")
    peer.send("out", "x", transaction_id=transaction)
    messages = peer.delivered()
    for message in messages[:2]:
        peer.acknowledge(message, transaction=transaction)
    where = {"JMQSessionID": Long(session)}
    peer.ask(H.STOP, where, expect=Status.OK)
    peer.redeliver(*messages[2:], attempted=False)
    peer.redeliver(*messages[:2], attempted=True, transaction=transaction)
    peer.say(H.START, where)
    peer.say(H.ROLLBACK_TRANSACTION, about(transaction))
    assert peer.receive() == []
    following = peer.begin(session)
    peer.resume(consumer, 4)
    again = peer.delivered()
    assert [m.body for m in again] == [b"a", b"b", b"c", b"d"]
    assert [bool(m.flags & R) for m in again] == [True, True, False, False]
    assert harness.bodies("out") == []
    peer.acknowledge(*again, transaction=following)
    peer.commit(following)
    peer.resume(consumer, 4)
    peer.acknowledge(*peer.delivered())
    assert harness.bodies("q") == []


def test_the_transaction_of_redeliver_may_be_in_the_header_alone(
    harness: Harness, peer: Peer
) -> None:
    session = peer.session_of(AckMode.NONE)
    peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.acknowledge(message, transaction=transaction)
    header = encode_header(transaction_id=transaction)
    peer.say(H.REDELIVER, {"JMQSetRedelivered": True}, blocks(message), header=header)
    [again] = peer.delivered()
    assert again.variable.delivery_count == 2


def test_what_nobody_asked_for_again_is_anybodys(harness: Harness, peer: Peer) -> None:
    session = peer.session_of(AckMode.NONE)
    peer.consume("q", session, size=1)
    transaction = peer.begin(session)
    peer.send("q", "a")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    other = harness.connect()
    other.consume("q", other.session_of())
    peer.ask(H.ROLLBACK_TRANSACTION, about(transaction), expect=Status.OK)
    [message] = other.delivered()
    assert message.flags & R
    assert message.variable.delivery_count == 2


def test_the_broker_redelivers_by_itself_if_asked_to(harness: Harness, peer: Peer) -> None:
    session = peer.session_of(AckMode.NONE)
    consumer = peer.consume("q", session, size=2)
    transaction = peer.begin(session)
    peer.send("q", *"abc")
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    other = harness.connect()
    other.consume("q", other.session_of())
    assert other.texts() == ["c"]
    wish = {**about(transaction), "JMQRedeliver": True}
    peer.ask(H.ROLLBACK_TRANSACTION, wish, expect=Status.OK)
    assert other.texts() == []
    peer.resume(consumer, 2)
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"a", b"b"]
    assert [m.variable.delivery_count for m in messages] == [2, 2]
    following = peer.begin(session)
    peer.acknowledge(*messages, transaction=following)
    wish = {**about(following), "JMQRedeliver": True, "JMQSetRedelivered": False}
    peer.ask(H.ROLLBACK_TRANSACTION, wish, expect=Status.OK)
    peer.resume(consumer, 2)
    assert [m.variable.delivery_count for m in peer.delivered()] == [2, 2]


def test_a_session_that_is_closed_in_a_transaction(harness: Harness, peer: Peer) -> None:
    """ROLLBACK, DELETE_CONSUMER, DESTROY_SESSION."""
    session = peer.session_of(AckMode.NONE)
    consumer = peer.consume("q", session, size=3)
    transaction = peer.begin(session)
    peer.send("q", *"abc")
    messages = peer.delivered()
    peer.acknowledge(messages[0], transaction=transaction)
    peer.say(H.ROLLBACK_TRANSACTION, {**about(transaction), "JMQUpdateConsumed": True})
    peer.close_consumer(consumer, messages[1])
    peer.ask(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)
    assert harness.queue("q").unacked == 0
    other = harness.connect()
    other.consume("q", other.session_of())
    assert [m.variable.delivery_count for m in other.delivered()] == [2, 2, 1]


def test_a_transaction_ends_with_its_session(harness: Harness, peer: Peer) -> None:
    session = peer.session_of(AckMode.NONE)
    peer.consume("q", session)
    mine, other = peer.begin(session), peer.begin()
    peer.send("q", "a")
    peer.acknowledge(*peer.delivered(), transaction=mine)
    peer.ask(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)
    assert harness.queue("q").unacked == 0
    assert harness.queue("q").waiting == 1
    peer.commit(mine, expect=Status.NOT_FOUND)
    peer.commit(other)


def test_a_transaction_ends_with_its_connection(harness: Harness, peer: Peer) -> None:
    session = peer.session_of(AckMode.NONE)
    peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", *"abc")
    peer.send("out", "x", transaction_id=transaction)
    messages = peer.delivered()
    peer.acknowledge(*messages[:2], transaction=transaction)
    peer.drop()
    assert harness.bodies("out") == []
    other = harness.connect()
    other.consume("q", other.session_of())
    again = other.delivered()
    assert [m.body for m in again] == [b"a", b"b", b"c"]
    assert [m.variable.delivery_count for m in again] == [2, 2, 2]


def test_a_consumer_that_was_closed_in_the_transaction(harness: Harness, peer: Peer) -> None:
    session = peer.session_of(AckMode.NONE)
    consumer = peer.consume("q", session)
    transaction = peer.begin(session)
    peer.send("q", "a", "b")
    one, two = peer.delivered()
    peer.acknowledge(one, transaction=transaction)
    peer.close_consumer(consumer, two)
    peer.acknowledge(two, transaction=transaction)
    peer.redeliver(one, two, attempted=True, transaction=transaction)
    peer.ask(H.ROLLBACK_TRANSACTION, about(transaction), expect=Status.OK)
    assert harness.queue("q").unacked == 0
    other = harness.connect()
    other.consume("q", other.session_of())
    again = other.delivered()
    assert [m.body for m in again] == [b"a", b"b"]
    assert all(m.flags & R for m in again)


# --- what is refused -----------------------------------------------------------------------------


def test_transactions_of_others_and_of_nobody(harness: Harness, peer: Peer) -> None:
    other = harness.connect()
    other.consume("q", other.session_of())
    theirs = other.begin()
    other.send("q", "a")
    [message] = other.delivered()
    other.acknowledge(message, transaction=theirs)
    other.send("out", "x", transaction_id=theirs)
    mine = peer.begin()
    for forged in (theirs, 1, -1, mine + 1000):
        peer.send("q", "x", transaction_id=forged, expect=Status.GONE)
        body = blocks(message)
        header = encode_header(transaction_id=forged)
        answer = peer.ask(H.ACKNOWLEDGE, None, body, header=header)
        assert status(answer) == Status.GONE
        peer.redeliver(message, attempted=True, transaction=forged)
        peer.commit(forged, expect=Status.NOT_FOUND)
        assert peer.refusal(H.ROLLBACK_TRANSACTION, about(forged)) == Status.NOT_FOUND
        assert peer.refusal(H.PREPARE_TRANSACTION, about(forged)) == Status.NOT_FOUND
    other.commit(theirs)
    assert harness.bodies("out") == [b"x"]
    assert harness.bodies("q") == []


def test_what_has_ended(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.commit(transaction)
    peer.send("q", "x", transaction_id=transaction, expect=Status.GONE)
    peer.commit(transaction, expect=Status.NOT_FOUND)
    assert peer.refusal(H.COMMIT_TRANSACTION) == Status.BAD_REQUEST
    assert harness.find("q") is None or harness.bodies("q") == []


def test_a_local_transaction_is_not_prepared(peer: Peer) -> None:
    transaction = peer.begin()
    assert peer.refusal(H.PREPARE_TRANSACTION, about(transaction)) == Status.PRECONDITION_FAILED
    assert peer.refusal(H.END_TRANSACTION, about(transaction)) == Status.PRECONDITION_FAILED
    peer.commit(transaction)


@pytest.mark.parametrize(
    ("wish", "answer"),
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
def test_wishes_for_a_transaction(peer: Peer, wish: dict[str, object], answer: Status) -> None:
    assert peer.refusal(H.START_TRANSACTION, wish) == answer


def test_was_it_part_of_the_transaction(peer: Peer) -> None:
    peer.consume("q", peer.session_of())
    transaction = peer.begin()
    peer.send("q", "a", "b")
    one, two = peer.delivered()
    peer.acknowledge(one, transaction=transaction)
    validate = {"JMQValidate": True}
    peer.acknowledge(one, transaction=transaction, expect=Status.OK, **validate)
    peer.acknowledge(one, two, transaction=transaction, expect=Status.NOT_FOUND, **validate)
    peer.acknowledge(one, expect=Status.BAD_REQUEST, **validate)


def test_forged_acknowledgements_in_a_transaction(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.session_of())
    transaction = peer.begin()
    peer.send("q", "a")
    [message] = peer.delivered()
    forged = message.consumer_id.to_bytes(8, "big") + encode_sysid(9, 9)
    header = encode_header(transaction_id=transaction)
    assert status(peer.ask(H.ACKNOWLEDGE, None, forged, header=header)) == Status.OK
    peer.acknowledge(message, transaction=transaction)
    peer.acknowledge(message, transaction=transaction)
    peer.commit(transaction)
    assert harness.queue("q").unacked == 0
    assert harness.bodies("q") == []


def test_what_was_taken_away_meanwhile(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.session_of())
    transaction = peer.begin()
    peer.send("q", "a", "b")
    messages = peer.delivered()
    harness.broker.purge(harness.queue("q"), unacked=True)
    peer.acknowledge(*messages, transaction=transaction)
    peer.commit(transaction)
    assert harness.queue("q").unacked == 0


# --- timeout -------------------------------------------------------------------------------------


def test_a_transaction_that_takes_too_long(harness: Harness) -> None:
    peer = harness.connect(Options(transaction_timeout=1000))
    peer.consume("q", peer.session_of())
    transaction = peer.begin()
    harness.turn(5000)  # it has not been used, and most sessions have one all the time
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.acknowledge(message, transaction=transaction)
    harness.turn(900)
    peer.send("out", "x", transaction_id=transaction)
    harness.turn(100)
    [again] = peer.delivered()
    assert again.flags & R
    peer.send("out", "x", transaction_id=transaction, expect=Status.TIMEOUT)
    peer.commit(transaction, expect=Status.TIMEOUT)
    peer.acknowledge(again, transaction=transaction, expect=Status.TIMEOUT)
    assert harness.bodies("out") == []


def test_a_transaction_that_ends_in_time(harness: Harness) -> None:
    peer = harness.connect(Options(transaction_timeout=1000))
    for kind in (H.COMMIT_TRANSACTION, H.ROLLBACK_TRANSACTION):
        transaction = peer.begin()
        peer.send("q", "a", transaction_id=transaction)
        peer.ask(kind, about(transaction), expect=Status.OK)
    transaction = peer.begin()
    harness.turn(5000)
    assert harness.bodies("q") == [b"a"]
    peer.commit(transaction)


def test_only_so_many_endings_are_remembered(harness: Harness) -> None:
    peer = harness.connect()
    for _ in range(50):
        requests = b""
        for _ in range(100):
            requests += peer.request(H.START_TRANSACTION)[1]
        peer.put(requests)
        commits = b""
        for answer in peer.receive():
            number = answer.properties["JMQTransactionID"]
            assert isinstance(number, int)
            commits += peer.request(H.COMMIT_TRANSACTION, about(number))[1]
        peer.put(commits)
        assert all(status(answer) == Status.OK for answer in peer.receive())
    assert len(harness.coordinator.branches._ended) == 4096


def test_messages_to_a_temporary_queue_that_has_gone(harness: Harness, peer: Peer) -> None:
    other = harness.connect()
    name = "temporary_destination://queue/x/1/1"
    other.create(name, temporary=True)
    transaction = peer.begin()
    peer.send(name, "a", transaction_id=transaction)
    other.drop()
    peer.commit(transaction, expect=Status.NOT_FOUND)
    assert harness.broker.find(Address(Kind.QUEUE, name)) is None


def test_a_message_that_is_not_persistent(harness: Harness, peer: Peer) -> None:
    transaction = peer.begin()
    peer.put(peer.message("q", b"a", flags=0, transaction_id=transaction))
    peer.put(peer.message("q", b"b", flags=P | A, transaction_id=transaction, consumer_id=4))
    [answer] = peer.receive()
    assert answer.consumer_id == 4
    peer.commit(transaction)
    assert harness.bodies("q") == [b"a", b"b"]
