"""Replies of clients of other protocols to JMS requests.

Not every protocol can express the name of the temporary destination, and two protocols have no
field for the correlation id."""

from __future__ import annotations

import pytest

from sluicemq.broker import Window
from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.phpmq import wire
from sluicemq.protocols.phpmq.wire import MessageIds
from sluicemq.protocols.vibemq import wire as vibemq
from sluicemq.protocols.vibemq.wire import Frame
from tests.support.sessions import RecordedAccess
from tests.transcoding.harness import TEMPORARY, TEMPORARY_TOPIC, Harness, Requester

INVOICES = Address(Kind.QUEUE, "invoices")


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def requester(harness: Harness) -> Requester:
    return Requester(harness)


# --- PHPMQ ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply_to", [TEMPORARY, TEMPORARY_TOPIC])
def test_phpmq_worker_replies(harness: Harness, requester: Requester, reply_to: Address) -> None:
    requester.send_request(reply_to, "c")
    requester.send_request(reply_to, number=2)
    worker = harness.phpmq()
    worker.consume(b"requests", 2)
    for _, _, body, message_id, _ in worker.frames():
        worker.send(b"reply:" + message_id, body + b" this")
    assert requester.replies() == [(b"request this", "c"), (b"request this", "ID:2")]
    assert worker.transport.open


def test_phpmq_worker_replies_to_paged_out_request(harness: Harness, requester: Requester) -> None:
    harness.broker.core.memory_budget = 0
    requester.send_request(correlation="c")
    worker = harness.phpmq()
    worker.consume(b"requests", 1)
    [frame] = worker.frames()
    assert harness.broker.memory == 0
    worker.send(b"reply:" + frame[3], b"reply")
    assert requester.replies() == [(b"reply", "c")]


def test_phpmq_worker_sends_several_replies_in_any_order(
    harness: Harness, requester: Requester
) -> None:
    requester.send_request(number=1)
    requester.send_request(number=2)
    worker = harness.phpmq()
    worker.consume(b"requests", 2)
    first, second = worker.frames()
    worker.send(b"reply:" + second[3], b"b", b"c")
    worker.send(b"reply:" + first[3], b"a")
    assert requester.replies() == [(b"b", "ID:2"), (b"c", "ID:2"), (b"a", "ID:1")]


def test_phpmq_worker_must_reply_before_acknowledging(
    harness: Harness, requester: Requester
) -> None:
    requester.send_request()
    worker = harness.phpmq()
    worker.consume(b"requests", 1)
    (request,) = worker.frames()
    name = b"reply:" + request[3]
    harness.phpmq().send(name, b"of another connection")
    worker.acknowledge(request)
    worker.send(name, b"too late")
    assert requester.replies() == []
    assert harness.find(name.decode()) is None
    assert worker.transport.open


def test_phpmq_reply_to_message_without_reply_to_is_dropped(
    harness: Harness, requester: Requester
) -> None:
    requester.send_request(reply_to=None)
    worker = harness.phpmq()
    worker.consume(b"requests", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"reply")
    assert harness.find("reply:" + request[3].decode()) is None
    worker.send(b"q", b"after it")
    assert harness.bodies("q") == [b"after it"]


def test_queue_name_may_begin_with_reply(harness: Harness) -> None:
    for name in (b"reply:me", b"reply:" + b"0" * 32, b"reply:"):
        harness.phpmq().send(name, b"x")
        assert harness.bodies(name.decode()) == [b"x"]


def test_phpmq_reply_creates_ordinary_reply_queue(harness: Harness, requester: Requester) -> None:
    requester.send_request(INVOICES, "c")
    worker = harness.phpmq()
    worker.consume(b"requests", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"reply")
    assert harness.bodies("invoices") == [b"reply"]


# --- msglite -------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 60])
@pytest.mark.parametrize("reply_to", [TEMPORARY, TEMPORARY_TOPIC])
def test_msglite_worker_replies(
    harness: Harness, requester: Requester, reply_to: Address, timeout: int
) -> None:
    requester.send_request(reply_to, "c 1")
    requester.send_request(reply_to, number=2)
    worker = harness.msglite()
    for _ in range(2):
        worker.send_bytes(b"< 60 requests\r\n")
        ((_, _, (destination, reply), body),) = worker.frames()
        assert (destination, body) == (b"requests", b"request")
        worker.send_bytes(b"> 4 %d %b\r\nthis\r\n" % (timeout, reply))
    assert requester.replies() == [(b"this", "c 1"), (b"this", "ID:2")]


def test_request_forwarded_by_msglite_keeps_correlation_id(
    harness: Harness, requester: Requester
) -> None:
    requester.send_request()
    msglite_client = harness.msglite()
    msglite_client.send_bytes(b"< 60 requests\r\n")
    ((_, _, (_, reply), body),) = msglite_client.frames()
    msglite_client.send_bytes(b"> %d 60 other %b\r\n%b\r\n" % (len(body), reply, body))
    worker = harness.phpmq()
    worker.consume(b"other", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"this")
    assert requester.replies() == [(b"this", "ID:1")]


def test_phpmq_worker_replies_to_msglite_query(harness: Harness) -> None:
    msglite_client = harness.msglite()
    msglite_client.send_bytes(b"? 7 60 requests\r\nrequest\r\n")
    worker = harness.phpmq()
    worker.consume(b"requests", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"this")
    assert msglite_client.bodies() == [b"this"]


@pytest.mark.parametrize("reply_to", [TEMPORARY, INVOICES])
def test_every_reply_has_correlation_id(
    harness: Harness, requester: Requester, reply_to: Address
) -> None:
    harness.broker.attach(
        harness.broker.destinations.queue("invoices").queue, requester, Window(9, True)
    )
    for number in (1, 2):
        requester.send_request(reply_to, number=number)
    msglite_client, phpmq_client = harness.msglite(), harness.phpmq()
    msglite_client.send_bytes(b"< 60 requests\r\n")
    ((_, _, (_, reply), _),) = msglite_client.frames()
    msglite_client.send_bytes(b"> 1 60 %b\r\na\r\n> 1 60 %b\r\nb\r\n" % (reply, reply))
    phpmq_client.consume(b"requests", 1)
    (request,) = phpmq_client.frames()
    phpmq_client.send(b"reply:" + request[3], b"c", b"d")
    assert requester.replies() == [(b"a", "ID:1"), (b"b", "ID:1"), (b"c", "ID:2"), (b"d", "ID:2")]


# --- VibeMQ --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply_to", [TEMPORARY, TEMPORARY_TOPIC])
def test_vibemq_worker_replies(harness: Harness, requester: Requester, reply_to: Address) -> None:
    requester.send_request(reply_to, "c")
    worker = harness.vibemq()
    worker.subscribe("requests")
    (frame,) = worker.more
    assert frame.payload == b'"request"'
    assert frame.headers["replyTo"] == str(reply_to)
    worker.publish(frame.headers["replyTo"], "this", correlationId=frame.headers["correlationId"])
    assert requester.replies() == [(b'"this"', "c")]


def test_vibemq_publishes_to_existing_queue_with_foreign_name(harness: Harness) -> None:
    harness.broker.destinations.queue("a/b")
    worker = harness.vibemq()
    worker.publish("a/b", "this")
    assert harness.bodies("a/b") == [b'"this"']
    assert worker.error(vibemq.PUBLISH, "a/c") == "INVALID_MESSAGE"
    assert worker.error(vibemq.PUBLISH, "topic:a") == "INVALID_MESSAGE"
    assert worker.error(vibemq.SUBSCRIBE, "a/b") == "INVALID_MESSAGE"


# --- all protocols -------------------------------------------------------------------------------


def test_late_reply_is_dropped(harness: Harness, requester: Requester) -> None:
    requester.send_request()
    phpmq_client, msglite_client, vibemq_client = (
        harness.phpmq(),
        harness.msglite(),
        harness.vibemq(),
    )
    phpmq_client.consume(b"requests", 1)
    (request,) = phpmq_client.frames()
    vibemq_client.publish(TEMPORARY.name, "in time")
    assert requester.replies() == [(b'"in time"', "")]
    requester.close()
    phpmq_client.send(b"reply:" + request[3], b"late")
    phpmq_client.send(TEMPORARY.name.encode(), b"late")
    for address in (TEMPORARY.name, "reply:queue:temporary_destination%3A//queue/1:c"):
        msglite_client.send_bytes(b"> 4 60 %b\r\nlate\r\n" % address.encode())
    assert msglite_client.take_bytes() == b""
    for name in (TEMPORARY.name, str(TEMPORARY_TOPIC)):
        assert vibemq_client.error(vibemq.PUBLISH, name) == "QUEUE_NOT_FOUND"
    assert phpmq_client.transport.open
    assert msglite_client.open
    assert [d.name for d in harness.broker.destinations.values()] == ["requests"]


def test_late_reply_to_msglite_query_is_dropped(harness: Harness) -> None:
    access = RecordedAccess("requests: consume")
    msglite_client, phpmq_client, vibemq_client = (
        harness.msglite(),
        harness.phpmq(access),
        harness.vibemq(access),
    )
    phpmq_client.consume(b"requests", 1)
    msglite_client.send_bytes(b"? 4 1 requests\r\nbody\r\n")
    (request,) = phpmq_client.frames()
    [name] = [d.name for d in harness.broker.destinations.values() if d.temporary]
    harness.run_event_loop(1000)
    assert msglite_client.take_bytes() == b"*\r\n"
    phpmq_client.send(b"reply:" + request[3], b"late")
    phpmq_client.send(name.encode(), b"late")
    assert vibemq_client.error(vibemq.PUBLISH, name) == "QUEUE_NOT_FOUND"
    assert phpmq_client.transport.open
    assert access.denials == []
    assert [d.name for d in harness.broker.destinations.values()] == ["requests"]


def test_reply_address_grants_permission_to_reply(harness: Harness, requester: Requester) -> None:
    access = RecordedAccess("requests: consume")
    requester.send_request()
    requester.send_request(number=2)
    requester.send_request(number=3)
    phpmq_client = harness.phpmq(access)
    phpmq_client.consume(b"requests", 1)
    (request,) = phpmq_client.frames()
    phpmq_client.send(b"reply:" + request[3], b"phpmq")
    msglite_client = harness.msglite(access)
    msglite_client.send_bytes(b"< 60 requests\r\n")
    ((_, _, (_, reply), _),) = msglite_client.frames()
    msglite_client.send_bytes(b"> 7 60 %b\r\nmsglite\r\n" % reply)
    vibemq_client = harness.vibemq(access)
    vibemq_client.subscribe("requests")
    (frame,) = vibemq_client.more
    vibemq_client.send(Frame(vibemq.PUBLISH, "m", frame.headers["replyTo"], b"1"))
    assert [body for body, _ in requester.replies()] == [b"phpmq", b"msglite", b"1"]
    assert access.denials == []


def test_only_owner_consumes_temporary_queue(harness: Harness, requester: Requester) -> None:
    name = TEMPORARY.name.encode()
    msglite_client = harness.msglite()
    msglite_client.send_bytes(b"? 0 60 requests\r\n")
    worker = harness.msglite()
    worker.send_bytes(b"< 60 requests\r\n")
    ((_, _, (_, reply), _),) = worker.frames()
    for address in (name, reply):
        phpmq_client = harness.phpmq()
        phpmq_client.consume(address, 1)
        assert not phpmq_client.transport.open
        assert b"is temporary" in harness.msglite().request(b"< 60 %b\r\n" % address)
    assert not harness.broker.destinations.queue(TEMPORARY.name).waiting
    vibemq_client = harness.vibemq()
    assert vibemq_client.error(vibemq.SUBSCRIBE, reply.decode()) == "NOT_AUTHORIZED"
    [info] = vibemq_client.send(Frame(vibemq.QUEUE_INFO, "i", reply.decode()))
    assert info.error_code == "QUEUE_NOT_FOUND"
    # the response is that for a missing queue; the queue remains and receives the reply
    assert vibemq_client.request(vibemq.DELETE_QUEUE, reply.decode()).type == vibemq.DELETE_QUEUE
    vibemq_client.publish(reply.decode(), "reply")
    assert b"\r\nreply\r\n" in msglite_client.take_bytes()


def test_messages_of_a_temporary_queue_are_not_acked_by_other_protocols(
    harness: Harness, requester: Requester
) -> None:
    phpmq_client = harness.phpmq()
    phpmq_client.send(TEMPORARY.name.encode(), b"reply")
    [message] = requester.received
    sequence = MessageIds(harness.broker.identity).encode(message.sequence)
    phpmq_client.send_bytes(wire.encode_acknowledge(TEMPORARY.name.encode(), sequence))
    assert phpmq_client.transport.open
    assert harness.broker.destinations.queue(TEMPORARY.name).unacked == 1


def test_name_of_temporary_queue_is_reserved(harness: Harness) -> None:
    phpmq_client = harness.phpmq()
    phpmq_client.consume(TEMPORARY.name.encode(), 1)
    assert not phpmq_client.transport.open
    assert harness.msglite().request(b"< 1 %b\r\n" % TEMPORARY.name.encode()).startswith(b"- ")
    assert not harness.broker.destinations


def test_ordinary_reply_queue_requires_permission(harness: Harness, requester: Requester) -> None:
    for number in (1, 2):
        requester.send_request(INVOICES, "c", number)
    harness.broker.destinations.queue("a/b")
    access = RecordedAccess("requests: consume")
    phpmq_client = harness.phpmq(access)
    phpmq_client.consume(b"requests", 1)
    (request,) = phpmq_client.frames()
    phpmq_client.send(b"reply:" + request[3], b"reply")
    assert not phpmq_client.transport.open
    msglite_client = harness.msglite(access)
    msglite_client.send_bytes(b"< 60 requests\r\n")
    ((_, _, (_, reply), _),) = msglite_client.frames()
    assert b"may not produce" in msglite_client.request(b"> 5 60 %b\r\nreply\r\n" % reply)
    assert harness.vibemq(access).error(vibemq.PUBLISH, "a/b") == "NOT_AUTHORIZED"
    assert len(access.denials) == 3
    assert harness.find("invoices") is None
