"""Messages between clients of all four protocols, through a broker process."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from http.client import HTTPConnection

import pytest

from sluicemq.clients.jmq import AckMode, JavaObject, PacketType, Topic
from sluicemq.clients.vibemq.commands import CommandRefused, Conflict, Declaration
from sluicemq.protocols.vibemq.queues import Mode, QueueOptions
from tests.support.polling import wait_until
from tests.transcoding.conftest import Clients

TIMEOUT_SECONDS = 60
BODY = {"item": "pizza", "count": 2, "price": 9.5, "hot": True, "raw": b"\xff", "none": None}
JSON_BODY = {"item": "pizza", "count": 2, "price": 9.5, "hot": True, "raw": "/w==", "none": None}


# --- queues of other protocols ------------------------------------------------------------------


def test_vibemq_cannot_change_queues_of_other_protocols(clients: Clients) -> None:
    """VibeMQ clients can declare such queues, but neither delete them nor lower their limits."""
    clients.phpmq().send("shared.phpmq", b"1")
    clients.jms().session().producer("shared.jms").send("2")
    clients.msglite().send("shared.msglite", b"3", 600)
    names = ("shared.phpmq", "shared.jms", "shared.msglite")
    service = clients.vibemq()
    for name in names:
        service.declare(Declaration(name))
        service.create_queue(name, QueueOptions(max_queue_size=1))
        with pytest.raises(CommandRefused, match=r"FORBIDDEN.*queue shared"):
            service.delete_queue(name)
        with pytest.raises(CommandRefused, match="FORBIDDEN"):
            service.declare(Declaration(name, QueueOptions(Mode.PRIORITY_BASED), Conflict.OVERRIDE))
    worker = clients.phpmq()
    worker.send("shared.phpmq", b"4")
    worker.subscribe("shared.phpmq", 2)
    assert [worker.receive(TIMEOUT_SECONDS).body for _ in range(2)] == [b"1", b"4"]
    assert clients.jms().session().consumer("shared.jms").receive(TIMEOUT_SECONDS).body == "2"
    message = clients.msglite().ready("shared.msglite", timeout=TIMEOUT_SECONDS)
    assert message is not None
    assert message.body == b"3"


def test_owning_protocol_of_queue_survives_kill(restartable_clients: Clients) -> None:
    phpmq_client = restartable_clients.phpmq()
    phpmq_client.send("phpmq", b"1")
    phpmq_client.confirm()
    restartable_clients.vibemq().create_queue("vibemq", QueueOptions(max_queue_size=5))
    restartable_clients.broker.kill()
    restartable_clients.broker.start()
    service = restartable_clients.vibemq()
    with pytest.raises(CommandRefused, match="PHPMQ"):
        service.delete_queue("phpmq")
    service.delete_queue("vibemq")
    assert service.list_queues() == ["phpmq"]


# --- requests by JMS -----------------------------------------------------------------------------


def test_phpmq_replies_to_jms(clients: Clients) -> None:
    def run_worker() -> None:
        worker = clients.phpmq()
        worker.subscribe("requests.phpmq", 2)
        for _ in range(3):
            request = worker.receive(TIMEOUT_SECONDS)
            request.answer(request.body + b"!")
            request.ack()

    clients.run_in_thread(run_worker)
    jms = clients.jms()
    for text in ("one", "two", "größe"):
        reply = jms.request("requests.phpmq", text, timeout=TIMEOUT_SECONDS)
        assert (reply.kind, reply.body) == (PacketType.TEXT_MESSAGE, f"{text}!")


def test_msglite_replies_to_jms(clients: Clients) -> None:
    def run_worker() -> None:
        worker = clients.msglite()
        for _ in range(3):
            request = worker.ready("requests.msglite", timeout=TIMEOUT_SECONDS)
            assert request is not None
            assert request.reply_to is not None
            worker.send(request.reply_to, request.body + b"\xff", 10)

    clients.run_in_thread(run_worker)
    jms = clients.jms()
    for text in ("one", "two", "three"):
        reply = jms.request("requests.msglite", text, timeout=TIMEOUT_SECONDS)
        assert (reply.kind, reply.body) == (PacketType.BYTES_MESSAGE, text.encode() + b"\xff")


def test_vibemq_replies_to_jms(clients: Clients) -> None:
    def run_worker() -> None:
        worker = clients.vibemq()
        subscription = worker.subscribe("requests.vibemq")
        for _ in range(3):
            request = subscription.receive(TIMEOUT_SECONDS)
            worker.publish(
                request.headers["replyTo"],
                [request.json(), "!"],
                {"correlationId": request.headers.get("correlationId", request.id)},
            )
            request.ack()

    clients.run_in_thread(run_worker)
    jms = clients.jms()
    for body in ("one", {"n": 1}, [1, 2]):
        reply = jms.request("requests.vibemq", body, timeout=TIMEOUT_SECONDS)
        assert json.loads(str(reply.body)) == [body, "!"]


def test_reply_of_each_protocol_has_correlation_id(clients: Clients) -> None:
    session = clients.jms().session()
    producer = session.producer("requests.all")
    for number in range(3):
        producer.send("?", reply_to="replies.all", correlation_id=f"c{number}")
    phpmq_client, msglite_client, vibemq_client = (
        clients.phpmq(),
        clients.msglite(),
        clients.vibemq(),
    )
    phpmq_client.subscribe("requests.all", 1)
    phpmq_client.receive(TIMEOUT_SECONDS).answer(b"phpmq")
    request = msglite_client.ready("requests.all", timeout=TIMEOUT_SECONDS)
    assert request is not None
    assert request.reply_to is not None
    msglite_client.send(request.reply_to, b"msglite", 60)
    subscription = vibemq_client.subscribe("requests.all")
    request = subscription.receive(TIMEOUT_SECONDS)
    headers = {"correlationId": request.headers["correlationId"]}
    vibemq_client.publish(request.headers["replyTo"], "vibemq", headers)
    for number, body in ((2, "vibemq"), (1, "msglite"), (0, "phpmq")):
        consumer = session.consumer("replies.all", selector=f"JMSCorrelationID = 'c{number}'")
        assert consumer.receive(TIMEOUT_SECONDS).body == body
        consumer.close()


def test_reply_to_disconnected_requester_is_dropped(clients: Clients) -> None:
    requester = clients.jms()
    session = requester.session()
    queue = session.temporary_queue()
    session.producer("requests.gone").send("?", reply_to=queue)
    worker, phpmq_client = clients.vibemq(), clients.phpmq()
    requester.close()
    subscription = worker.subscribe("requests.gone")
    request = subscription.receive(TIMEOUT_SECONDS)
    assert request.headers["replyTo"] == queue.name
    with pytest.raises(CommandRefused, match="QUEUE_NOT_FOUND"):
        worker.publish(queue.name, "late")
    phpmq_client.send(queue.name, b"late")
    phpmq_client.send("gone.next", b"still here")
    phpmq_client.subscribe("gone.next", 1)
    assert phpmq_client.receive(TIMEOUT_SECONDS).body == b"still here"


# --- requests to JMS -----------------------------------------------------------------------------


def test_jms_replies_to_msglite_and_vibemq(clients: Clients) -> None:
    def run_worker() -> None:
        session = clients.jms().session()
        consumer = session.consumer("requests.jms")
        for _ in range(2):
            request = consumer.receive(TIMEOUT_SECONDS)
            session.reply(request, {"text": request.body})

    clients.run_in_thread(run_worker)
    reply = clients.msglite().query("requests.jms", b"hello", TIMEOUT_SECONDS)
    assert reply is not None
    assert json.loads(reply.body) == {"text": "hello"}
    requester = clients.vibemq()
    subscription = requester.subscribe("replies.vibemq")
    requester.publish("requests.jms", "hi", {"replyTo": "replies.vibemq", "correlationId": "c-1"})
    request = subscription.receive(TIMEOUT_SECONDS)
    assert (request.json(), request.headers["correlationId"]) == ({"text": "hi"}, "c-1")


def test_jms_replies_to_http_gateway(clients: Clients) -> None:
    def run_worker() -> None:
        session = clients.jms().session()
        request = session.consumer("msglite.httpRequests").receive(TIMEOUT_SECONDS)
        http_request = json.loads(str(request.body))
        session.reply(request, '["200", ["Content-Type", "text/plain"]]')
        session.reply(request, f"{http_request['method']} {http_request['url']}".encode())
        session.reply(request)

    clients.run_in_thread(run_worker)
    http = HTTPConnection("127.0.0.1", clients.broker.port("msglite-http"), timeout=TIMEOUT_SECONDS)
    http.request("GET", "/pizza?size=3")
    response = http.getresponse()
    assert (response.status, response.read()) == (200, b"GET /pizza?size=3")
    http.close()


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
def test_bodies_from_jms_are_transcoded(clients: Clients, compress: bool) -> None:
    session = clients.jms().session()
    queue = f"bodies.{compress}"
    producer = session.producer(queue)
    java_object = JavaObject.of("an object")
    expected_bodies = {
        "vibemq": [JSON_BODY, [1, "x", None], "text", {"a": 1}, b64encode(java_object).decode()],
        "bytes": [JSON_BODY, [1, "x", None], b"text", b'{"a": 1}', b64encode(java_object)],
    }
    for reader in ("vibemq", "phpmq", "msglite", "jms"):
        for body in (BODY, [1, "x", None], "text", '{"a": 1}', java_object):
            producer.send(body, compress=compress, properties={"size": 5, "last_DOT_day": True})
        if reader == "vibemq":
            vibemq_client = clients.vibemq()
            subscription = vibemq_client.subscribe(queue)
            for expected in expected_bodies["vibemq"]:
                message = subscription.receive(TIMEOUT_SECONDS)
                assert message.json() == expected
                assert message.headers["size"] == "5"
                assert message.headers["last.day"] == "true"
                assert "JMS_SUN_COMPRESS" not in message.headers
                message.ack()
            subscription.unsubscribe()
        elif reader == "jms":
            consumer = session.consumer(queue)
            bodies = [consumer.receive(TIMEOUT_SECONDS).body for _ in range(5)]
            assert bodies == [BODY, [1, "x", None], "text", '{"a": 1}', java_object]
        else:
            phpmq_client, msglite_client = clients.phpmq(), clients.msglite()
            if reader == "phpmq":
                phpmq_client.subscribe(queue, 1)
            for expected in expected_bodies["bytes"]:
                if reader == "phpmq":
                    phpmq_message = phpmq_client.receive(TIMEOUT_SECONDS)
                    body = phpmq_message.body
                    phpmq_message.ack()
                else:
                    msglite_message = msglite_client.ready(queue, timeout=TIMEOUT_SECONDS)
                    assert msglite_message is not None
                    body = msglite_message.body
                assert (body if isinstance(expected, bytes) else json.loads(body)) == expected
            phpmq_client.close()


def test_bodies_to_jms_are_transcoded(clients: Clients) -> None:
    consumer = clients.jms().session().consumer("for.jms")
    vibemq_client, phpmq_client, msglite_client = (
        clients.vibemq(),
        clients.phpmq(),
        clients.msglite(),
    )
    vibemq_client.publish("for.jms", {"a": [1.0]}, {"content-type": "json", "priority": "High"})
    vibemq_client.publish("for.jms", "a string")
    vibemq_client.publish("for.jms")
    phpmq_client.send("for.jms", b"phpmq", ttl=60)
    phpmq_client.subscribe(
        "nothing", 1
    )  # the broker has read the earlier messages when it reads this
    msglite_client.send("for.jms", b"\xff", 60)
    messages = {}
    for _ in range(5):
        message = consumer.receive(TIMEOUT_SECONDS)
        messages[message.body] = message
        assert message.delivery_count == 1
        assert message.id.startswith("ID:")
    assert set(messages) == {'{"a":[1.0]}', "a string", None, "phpmq", b"\xff"}
    first = messages['{"a":[1.0]}']
    assert (first.properties, first.priority) == ({"content_HYPHEN_type": "json"}, 6)
    remaining = messages["phpmq"].expiration / 1000 - time.time()
    assert 0 < remaining <= 60
    assert messages[None].kind is PacketType.MESSAGE
    assert messages["a string"].priority == 4


def test_names_that_are_not_java_identifiers_are_escaped(clients: Clients) -> None:
    session = clients.jms().session()
    phpmq_client, vibemq_client = clients.phpmq(), clients.vibemq()
    phpmq_client.send("a-b/c", b"phpmq")
    subscription = vibemq_client.subscribe("d-e")
    consumer = session.consumer("a_HYPHEN_b_x002F_c")
    message = consumer.receive(TIMEOUT_SECONDS)
    assert (message.body, message.destination.name) == (
        "phpmq",
        "a-b/c",
    )  # this client uses the broker's name
    session.producer("d_HYPHEN_e").send("jms")
    assert subscription.receive(TIMEOUT_SECONDS).json() == "jms"
    vibemq_client.create_queue("t-1", QueueOptions(mode=Mode.FAN_OUT_WITH_ACK))
    subscription = vibemq_client.subscribe("t-1")
    listener = session.consumer(Topic("t_HYPHEN_1"))
    session.producer(Topic("t_HYPHEN_1")).send("all")
    assert (
        listener.receive(TIMEOUT_SECONDS).body
        == subscription.receive(TIMEOUT_SECONDS).json()
        == "all"
    )
    producer = session.producer("browsed_HYPHEN_1")
    producer.send("x")
    assert [message.body for message in session.browser("browsed_HYPHEN_1")] == ["x"]


# --- delivery: priority, expiration, selectors ---------------------------------------------------


def test_priorities_are_transcoded(clients: Clients) -> None:
    session = clients.jms().session()
    producer = session.producer("by.priority")
    for priority in (4, 0, 9, 5, 8, 3):
        producer.send(f"p{priority}", priority=priority)
    vibemq_client = clients.vibemq()
    vibemq_client.publish("by.priority", "critical", {"priority": "critical"})
    vibemq_client.publish("by.priority", "low", {"priority": "low"})
    subscription = vibemq_client.subscribe("by.priority")
    messages = [subscription.receive(TIMEOUT_SECONDS) for _ in range(8)]
    assert [(message.json(), message.headers.get("priority", "")) for message in messages] == [
        ("p9", "Critical"),
        ("critical", "critical"),
        ("p8", "Critical"),
        ("p5", "High"),
        ("p4", ""),
        ("p3", "Low"),
        ("low", "low"),
        ("p0", "Low"),
    ]


def test_expired_messages_are_not_delivered(clients: Clients) -> None:
    jms = clients.jms().session()
    producer = jms.producer("expiring")
    producer.send("short", ttl=0.3)
    producer.send("long", ttl=3600)
    phpmq_client = clients.phpmq()
    time.sleep(0.4)  # until the first message expires
    phpmq_client.subscribe("expiring", 1)
    message = phpmq_client.receive(TIMEOUT_SECONDS)
    assert (message.body, 3590 < message.ttl <= 3600) == (b"long", True)
    message.ack()
    phpmq_client.send("expiring.too", b"short", ttl=1)
    phpmq_client.send("expiring.too", b"unlimited")
    # the time to live begins when the broker receives the message
    wait_until(lambda: clients.published("expiring.too") == 2, "the messages have not arrived")
    time.sleep(1.1)
    assert jms.consumer("expiring.too").receive(TIMEOUT_SECONDS).body == "unlimited"


def test_selectors_match_headers_of_vibemq(clients: Clients) -> None:
    vibemq_client = clients.vibemq()
    for number, color in enumerate(("red", "blue", "red")):
        headers = {"color": color, "x-number": str(number), "priority": "high"}
        vibemq_client.publish("selected", number, headers)
    session = clients.jms().session()
    consumer = session.consumer(
        "selected", selector="color LIKE 'r%' AND x_HYPHEN_number IN ('1', '2') AND JMSPriority = 6"
    )
    message = consumer.receive(TIMEOUT_SECONDS)
    assert (message.body, message.properties["x_HYPHEN_number"]) == ("2", "2")
    phpmq_client = clients.phpmq()
    phpmq_client.subscribe("selected", 2)
    assert [phpmq_client.receive(TIMEOUT_SECONDS).body for _ in range(2)] == [b"0", b"1"]


def test_jms_topic_is_vibemq_fan_out_queue(clients: Clients) -> None:
    vibemq_client = clients.vibemq()
    vibemq_client.create_queue("news", QueueOptions(mode=Mode.FAN_OUT_WITH_ACK))
    subscription = vibemq_client.subscribe("news")
    session = clients.jms().session()
    listener = session.consumer(Topic("news"), selector="JMSType IS NULL")
    session.producer(Topic("news")).send(BODY, type="order")
    message = subscription.receive(TIMEOUT_SECONDS)
    assert (message.json(), message.headers["JMSType"]) == (JSON_BODY, "order")
    message.ack()
    vibemq_client.publish("news", ["all"])
    assert listener.receive(TIMEOUT_SECONDS).body == '["all"]'
    assert subscription.receive(TIMEOUT_SECONDS).json() == ["all"]


def test_delivery_count_includes_all_protocols(clients: Clients) -> None:
    jms = clients.jms()
    session = jms.session(AckMode.CLIENT)
    session.producer("counted").send("x")
    assert session.consumer("counted").receive(TIMEOUT_SECONDS).delivery_count == 1
    jms.close()
    vibemq_client = clients.vibemq()
    subscription = vibemq_client.subscribe("counted")
    assert subscription.receive(TIMEOUT_SECONDS).attempts == 2
    vibemq_client.close()
    message = clients.jms().session().consumer("counted").receive(TIMEOUT_SECONDS)
    assert (message.delivery_count, message.redelivered) == (3, True)


def test_jms_reads_dead_letter_properties_of_php_message(clients: Clients) -> None:
    clients.jms().session().producer("given.up").send("x", properties={"a_HYPHEN_b": 1})
    phpmq_client = clients.phpmq()
    phpmq_client.subscribe("given.up", 1)
    phpmq_client.receive(TIMEOUT_SECONDS).dead_letter()
    consumer = clients.jms().session().consumer("mq.sys.dmq", selector="originalQueue = 'given.up'")
    message = consumer.receive(TIMEOUT_SECONDS)
    assert message.body == "x"
    assert message.properties["a_HYPHEN_b"] == 1
    assert message.properties["deadLetterReason"] == "client"
    assert message.properties["originalQueue"] == "given.up"


def test_jms_messages_survive_kill(restartable_clients: Clients) -> None:
    session = restartable_clients.jms().session()
    producer = session.producer("kept")
    for _ in range(2):
        producer.send(BODY, compress=True, properties={"n": 1.5})
    restartable_clients.broker.kill()
    restartable_clients.broker.start()
    vibemq_client = restartable_clients.vibemq()
    subscription = vibemq_client.subscribe("kept")
    message = subscription.receive(TIMEOUT_SECONDS)
    assert (message.json(), message.headers["n"]) == (JSON_BODY, "1.5")
    message.ack()
    subscription.unsubscribe()
    assert (
        restartable_clients.jms().session().consumer("kept").receive(TIMEOUT_SECONDS).body == BODY
    )
