"""JMS requests that clients of other protocols reply to.

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
from tests.crossing.harness import TEMPORARY, TEMPORARY_TOPIC, Harness, Requester
from tests.support.sessions import RecordedAccess

INVOICES = Address(Kind.QUEUE, "bills")


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def requester(harness: Harness) -> Requester:
    return Requester(harness)


# --- PHPMQ ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply_to", [TEMPORARY, TEMPORARY_TOPIC])
def test_php_worker_replies(harness: Harness, requester: Requester, reply_to: Address) -> None:
    requester.ask(reply_to, "c")
    requester.ask(reply_to, number=2)
    worker = harness.php()
    worker.consume(b"questions", 2)
    for _, _, body, message_id, _ in worker.frames():
        worker.send(b"reply:" + message_id, body + b" this")
    assert requester.replies() == [(b"request this", "c"), (b"request this", "ID:2")]
    assert worker.transport.open


def test_php_worker_replies_to_paged_out_request(harness: Harness, requester: Requester) -> None:
    harness.broker.core.memory_budget = 0
    requester.ask(correlation="c")
    worker = harness.php()
    worker.consume(b"questions", 1)
    [frame] = worker.frames()
    assert harness.broker.memory == 0
    worker.send(b"reply:" + frame[3], b"answer")
    assert requester.replies() == [(b"answer", "c")]


def test_php_worker_sends_several_replies_in_any_order(
    harness: Harness, requester: Requester
) -> None:
    requester.ask(number=1)
    requester.ask(number=2)
    worker = harness.php()
    worker.consume(b"questions", 2)
    first, second = worker.frames()
    worker.send(b"reply:" + second[3], b"b", b"c")
    worker.send(b"reply:" + first[3], b"a")
    assert requester.replies() == [(b"b", "ID:2"), (b"c", "ID:2"), (b"a", "ID:1")]


def test_php_worker_must_reply_before_acknowledging(harness: Harness, requester: Requester) -> None:
    requester.ask()
    worker = harness.php()
    worker.consume(b"questions", 1)
    (request,) = worker.frames()
    name = b"reply:" + request[3]
    harness.php().send(name, b"of another connection")
    worker.acknowledge(request)
    worker.send(name, b"too late")
    assert requester.replies() == []
    assert harness.find(name.decode()) is None
    assert worker.transport.open


def test_php_reply_to_message_without_reply_to_is_dropped(
    harness: Harness, requester: Requester
) -> None:
    requester.ask(reply_to=None)
    worker = harness.php()
    worker.consume(b"questions", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"answer")
    assert harness.find("reply:" + request[3].decode()) is None
    worker.send(b"q", b"after it")
    assert harness.bodies("q") == [b"after it"]


def test_queue_name_may_begin_with_reply(harness: Harness) -> None:
    for name in (b"reply:me", b"reply:" + b"0" * 32, b"reply:"):
        harness.php().send(name, b"x")
        assert harness.bodies(name.decode()) == [b"x"]


def test_php_reply_creates_ordinary_reply_queue(harness: Harness, requester: Requester) -> None:
    requester.ask(INVOICES, "c")
    worker = harness.php()
    worker.consume(b"questions", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"answer")
    assert harness.bodies("bills") == [b"answer"]


# --- msglite -------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 60])
@pytest.mark.parametrize("reply_to", [TEMPORARY, TEMPORARY_TOPIC])
def test_msglite_worker_replies(
    harness: Harness, requester: Requester, reply_to: Address, timeout: int
) -> None:
    requester.ask(reply_to, "c 1")
    requester.ask(reply_to, number=2)
    worker = harness.shell()
    for _ in range(2):
        worker.send_bytes(b"< 60 questions\r\n")
        ((_, _, (destination, reply), body),) = worker.frames()
        assert (destination, body) == (b"questions", b"request")
        worker.send_bytes(b"> 4 %d %b\r\nthis\r\n" % (timeout, reply))
    assert requester.replies() == [(b"this", "c 1"), (b"this", "ID:2")]


def test_request_forwarded_by_msglite_keeps_correlation_id(
    harness: Harness, requester: Requester
) -> None:
    requester.ask()
    shell = harness.shell()
    shell.send_bytes(b"< 60 questions\r\n")
    ((_, _, (_, reply), body),) = shell.frames()
    shell.send_bytes(b"> %d 60 elsewhere %b\r\n%b\r\n" % (len(body), reply, body))
    worker = harness.php()
    worker.consume(b"elsewhere", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"this")
    assert requester.replies() == [(b"this", "ID:1")]


def test_php_worker_replies_to_msglite_query(harness: Harness) -> None:
    shell = harness.shell()
    shell.send_bytes(b"? 7 60 questions\r\nrequest\r\n")
    worker = harness.php()
    worker.consume(b"questions", 1)
    (request,) = worker.frames()
    worker.send(b"reply:" + request[3], b"this")
    assert shell.bodies() == [b"this"]


@pytest.mark.parametrize("reply_to", [TEMPORARY, INVOICES])
def test_every_reply_has_correlation_id(
    harness: Harness, requester: Requester, reply_to: Address
) -> None:
    harness.broker.attach(
        harness.broker.destinations.queue("bills").queue, requester, Window(9, True)
    )
    for number in (1, 2):
        requester.ask(reply_to, number=number)
    shell, php = harness.shell(), harness.php()
    shell.send_bytes(b"< 60 questions\r\n")
    ((_, _, (_, reply), _),) = shell.frames()
    shell.send_bytes(b"> 1 60 %b\r\na\r\n> 1 60 %b\r\nb\r\n" % (reply, reply))
    php.consume(b"questions", 1)
    (request,) = php.frames()
    php.send(b"reply:" + request[3], b"c", b"d")
    assert requester.replies() == [(b"a", "ID:1"), (b"b", "ID:1"), (b"c", "ID:2"), (b"d", "ID:2")]


# --- VibeMQ --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply_to", [TEMPORARY, TEMPORARY_TOPIC])
def test_vibemq_worker_replies(harness: Harness, requester: Requester, reply_to: Address) -> None:
    requester.ask(reply_to, "c")
    worker = harness.dotnet()
    worker.subscribe("questions")
    (frame,) = worker.more
    assert frame.payload == b'"request"'
    assert frame.headers["replyTo"] == str(reply_to)
    worker.publish(frame.headers["replyTo"], "this", correlationId=frame.headers["correlationId"])
    assert requester.replies() == [(b'"this"', "c")]


def test_vibemq_publishes_to_existing_queue_with_foreign_name(harness: Harness) -> None:
    harness.broker.destinations.queue("a/b")
    worker = harness.dotnet()
    worker.publish("a/b", "this")
    assert harness.bodies("a/b") == [b'"this"']
    assert worker.error(vibemq.PUBLISH, "a/c") == "INVALID_MESSAGE"
    assert worker.error(vibemq.PUBLISH, "topic:a") == "INVALID_MESSAGE"
    assert worker.error(vibemq.SUBSCRIBE, "a/b") == "INVALID_MESSAGE"


# --- all protocols -------------------------------------------------------------------------------


def test_late_reply_is_dropped(harness: Harness, requester: Requester) -> None:
    requester.ask()
    php, shell, dotnet = harness.php(), harness.shell(), harness.dotnet()
    php.consume(b"questions", 1)
    (request,) = php.frames()
    dotnet.publish(TEMPORARY.name, "in time")
    assert requester.replies() == [(b'"in time"', "")]
    requester.close()
    php.send(b"reply:" + request[3], b"late")
    php.send(TEMPORARY.name.encode(), b"late")
    for address in (TEMPORARY.name, "reply:queue:temporary_destination%3A//queue/1:c"):
        shell.send_bytes(b"> 4 60 %b\r\nlate\r\n" % address.encode())
    assert shell.got() == b""
    for name in (TEMPORARY.name, str(TEMPORARY_TOPIC)):
        assert dotnet.error(vibemq.PUBLISH, name) == "QUEUE_NOT_FOUND"
    assert php.transport.open
    assert shell.open
    assert [d.name for d in harness.broker.destinations.values()] == ["questions"]


def test_late_reply_to_msglite_query_is_dropped(harness: Harness) -> None:
    access = RecordedAccess("questions: consume")
    shell, php, dotnet = harness.shell(), harness.php(access), harness.dotnet(access)
    php.consume(b"questions", 1)
    shell.send_bytes(b"? 4 1 questions\r\nbody\r\n")
    (request,) = php.frames()
    [name] = [d.name for d in harness.broker.destinations.values() if d.temporary]
    harness.run_event_loop(1000)
    assert shell.got() == b"*\r\n"
    php.send(b"reply:" + request[3], b"late")
    php.send(name.encode(), b"late")
    assert dotnet.error(vibemq.PUBLISH, name) == "QUEUE_NOT_FOUND"
    assert php.transport.open
    assert access.denials == []
    assert [d.name for d in harness.broker.destinations.values()] == ["questions"]


def test_reply_address_grants_permission_to_reply(harness: Harness, requester: Requester) -> None:
    access = RecordedAccess("questions: consume")
    requester.ask()
    requester.ask(number=2)
    requester.ask(number=3)
    php = harness.php(access)
    php.consume(b"questions", 1)
    (request,) = php.frames()
    php.send(b"reply:" + request[3], b"php")
    shell = harness.shell(access)
    shell.send_bytes(b"< 60 questions\r\n")
    ((_, _, (_, reply), _),) = shell.frames()
    shell.send_bytes(b"> 7 60 %b\r\nmsglite\r\n" % reply)
    dotnet = harness.dotnet(access)
    dotnet.subscribe("questions")
    (frame,) = dotnet.more
    dotnet.send(Frame(vibemq.PUBLISH, "m", frame.headers["replyTo"], b"1"))
    assert [body for body, _ in requester.replies()] == [b"php", b"msglite", b"1"]
    assert access.denials == []


def test_only_owner_consumes_temporary_queue(harness: Harness, requester: Requester) -> None:
    name = TEMPORARY.name.encode()
    shell = harness.shell()
    shell.send_bytes(b"? 0 60 questions\r\n")
    worker = harness.shell()
    worker.send_bytes(b"< 60 questions\r\n")
    ((_, _, (_, reply), _),) = worker.frames()
    for address in (name, reply):
        php = harness.php()
        php.consume(address, 1)
        assert not php.transport.open
        assert b"is temporary" in harness.shell().ask(b"< 60 %b\r\n" % address)
    assert not harness.broker.destinations.queue(TEMPORARY.name).waiting
    dotnet = harness.dotnet()
    assert dotnet.error(vibemq.SUBSCRIBE, reply.decode()) == "NOT_AUTHORIZED"
    [info] = dotnet.send(Frame(vibemq.QUEUE_INFO, "i", reply.decode()))
    assert info.error_code == "QUEUE_NOT_FOUND"
    # as if there were none: it stays, and takes the answer
    assert dotnet.ask(vibemq.DELETE_QUEUE, reply.decode()).type == vibemq.DELETE_QUEUE
    dotnet.publish(reply.decode(), "answer")
    assert b"\r\nanswer\r\n" in shell.got()


def test_messages_of_a_temporary_queue_are_not_acked_by_other_protocols(
    harness: Harness, requester: Requester
) -> None:
    php = harness.php()
    php.send(TEMPORARY.name.encode(), b"answer")
    [message] = requester.received
    sequence = MessageIds(harness.broker.identity).encode(message.sequence)
    php.send_bytes(wire.encode_acknowledge(TEMPORARY.name.encode(), sequence))
    assert php.transport.open
    assert harness.broker.destinations.queue(TEMPORARY.name).unacked == 1


def test_name_of_temporary_queue_is_reserved(harness: Harness) -> None:
    php = harness.php()
    php.consume(TEMPORARY.name.encode(), 1)
    assert not php.transport.open
    assert harness.shell().ask(b"< 1 %b\r\n" % TEMPORARY.name.encode()).startswith(b"- ")
    assert not harness.broker.destinations


def test_ordinary_reply_queue_requires_permission(harness: Harness, requester: Requester) -> None:
    for number in (1, 2):
        requester.ask(INVOICES, "c", number)
    harness.broker.destinations.queue("a/b")
    access = RecordedAccess("questions: consume")
    php = harness.php(access)
    php.consume(b"questions", 1)
    (request,) = php.frames()
    php.send(b"reply:" + request[3], b"answer")
    assert not php.transport.open
    shell = harness.shell(access)
    shell.send_bytes(b"< 60 questions\r\n")
    ((_, _, (_, reply), _),) = shell.frames()
    assert b"may not produce" in shell.ask(b"> 6 60 %b\r\nanswer\r\n" % reply)
    assert harness.dotnet(access).error(vibemq.PUBLISH, "a/b") == "NOT_AUTHORIZED"
    assert len(access.denials) == 3
    assert harness.find("bills") is None
