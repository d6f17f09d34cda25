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
from tests.crossing.conftest import Clients
from tests.support.polling import wait_until

PATIENCE = 60
BODY = {"item": "pizza", "count": 2, "price": 9.5, "hot": True, "raw": b"\xff", "none": None}
JSON_BODY = {"item": "pizza", "count": 2, "price": 9.5, "hot": True, "raw": "/w==", "none": None}


# --- queues of others ---------------------------------------------------------------------------


def test_a_net_service_declares_queues_that_others_use(clients: Clients) -> None:
    """The service neither deletes them nor uses up their limits."""
    clients.php().send("shared.php", b"1")
    clients.jms().session().producer("shared.jms").send("2")
    clients.shell().send("shared.shell", b"3", 600)
    names = ("shared.php", "shared.jms", "shared.shell")
    service = clients.dotnet()
    for name in names:
        service.declare(Declaration(name))
        service.create_queue(name, QueueOptions(max_queue_size=1))
        with pytest.raises(CommandRefused, match=r"FORBIDDEN.*queue shared"):
            service.delete_queue(name)
        with pytest.raises(CommandRefused, match="FORBIDDEN"):
            service.declare(Declaration(name, QueueOptions(Mode.PRIORITY_BASED), Conflict.OVERRIDE))
    worker = clients.php()
    worker.send("shared.php", b"4")
    worker.subscribe("shared.php", 2)
    assert [worker.receive(PATIENCE).body for _ in range(2)] == [b"1", b"4"]
    assert clients.jms().session().consumer("shared.jms").receive(PATIENCE).body == "2"
    message = clients.shell().ready("shared.shell", timeout=PATIENCE)
    assert message is not None
    assert message.body == b"3"


def test_the_owning_protocol_of_a_queue_survives_a_kill(start: Clients) -> None:
    php = start.php()
    php.send("php", b"1")
    php.confirm()
    start.dotnet().create_queue("dotnet", QueueOptions(max_queue_size=5))
    start.broker.kill()
    start.broker.start()
    service = start.dotnet()
    with pytest.raises(CommandRefused, match="PHPMQ"):
        service.delete_queue("php")
    service.delete_queue("dotnet")
    assert service.list_queues() == ["php"]


# --- requests by JMS -----------------------------------------------------------------------------


def test_php_answers_jms(clients: Clients) -> None:
    def work() -> None:
        worker = clients.php()
        worker.subscribe("ask.php", 2)
        for _ in range(3):
            question = worker.receive(PATIENCE)
            question.answer(question.body + b"!")
            question.ack()

    clients.beside(work)
    jms = clients.jms()
    for text in ("one", "two", "größe"):
        answer = jms.request("ask.php", text, timeout=PATIENCE)
        assert (answer.kind, answer.body) == (PacketType.TEXT_MESSAGE, f"{text}!")


def test_msglite_answers_jms(clients: Clients) -> None:
    def work() -> None:
        worker = clients.shell()
        for _ in range(3):
            question = worker.ready("ask.shell", timeout=PATIENCE)
            assert question is not None
            assert question.reply_to is not None
            worker.send(question.reply_to, question.body + b"\xff", 10)

    clients.beside(work)
    jms = clients.jms()
    for text in ("one", "two", "three"):
        answer = jms.request("ask.shell", text, timeout=PATIENCE)
        assert (answer.kind, answer.body) == (PacketType.BYTES_MESSAGE, text.encode() + b"\xff")


def test_vibemq_answers_jms(clients: Clients) -> None:
    def work() -> None:
        worker = clients.dotnet()
        subscription = worker.subscribe("ask.dotnet")
        for _ in range(3):
            question = subscription.receive(PATIENCE)
            worker.publish(
                question.headers["replyTo"],
                [question.json(), "!"],
                {"correlationId": question.headers.get("correlationId", question.id)},
            )
            question.ack()

    clients.beside(work)
    jms = clients.jms()
    for body in ("one", {"n": 1}, [1, 2]):
        answer = jms.request("ask.dotnet", body, timeout=PATIENCE)
        assert json.loads(str(answer.body)) == [body, "!"]


def test_an_answer_by_each_is_found_by_its_correlation_id(clients: Clients) -> None:
    session = clients.jms().session()
    producer = session.producer("ask.all")
    for number in range(3):
        producer.send("?", reply_to="answers.all", correlation_id=f"c{number}")
    php, shell, dotnet = clients.php(), clients.shell(), clients.dotnet()
    php.subscribe("ask.all", 1)
    php.receive(PATIENCE).answer(b"php")
    request = shell.ready("ask.all", timeout=PATIENCE)
    assert request is not None
    assert request.reply_to is not None
    shell.send(request.reply_to, b"msglite", 60)
    subscription = dotnet.subscribe("ask.all")
    question = subscription.receive(PATIENCE)
    headers = {"correlationId": question.headers["correlationId"]}
    dotnet.publish(question.headers["replyTo"], "vibemq", headers)
    for number, body in ((2, "vibemq"), (1, "msglite"), (0, "php")):
        consumer = session.consumer("answers.all", selector=f"JMSCorrelationID = 'c{number}'")
        assert consumer.receive(PATIENCE).body == body
        consumer.close()


def test_a_disconnected_requester_gets_no_answer(clients: Clients) -> None:
    asker = clients.jms()
    session = asker.session()
    queue = session.temporary_queue()
    session.producer("ask.gone").send("?", reply_to=queue)
    worker, php = clients.dotnet(), clients.php()
    asker.close()
    subscription = worker.subscribe("ask.gone")
    question = subscription.receive(PATIENCE)
    assert question.headers["replyTo"] == queue.name
    with pytest.raises(CommandRefused, match="QUEUE_NOT_FOUND"):
        worker.publish(queue.name, "late")
    php.send(queue.name, b"late")
    php.send("gone.next", b"still here")
    php.subscribe("gone.next", 1)
    assert php.receive(PATIENCE).body == b"still here"


# --- requests to JMS -----------------------------------------------------------------------------


def test_jms_answers_msglite_and_vibemq(clients: Clients) -> None:
    def work() -> None:
        session = clients.jms().session()
        consumer = session.consumer("ask.jms")
        for _ in range(2):
            question = consumer.receive(PATIENCE)
            session.reply(question, {"text": question.body})

    clients.beside(work)
    answer = clients.shell().query("ask.jms", b"hello", PATIENCE)
    assert answer is not None
    assert json.loads(answer.body) == {"text": "hello"}
    asker = clients.dotnet()
    subscription = asker.subscribe("dotnet.answers")
    asker.publish("ask.jms", "hi", {"replyTo": "dotnet.answers", "correlationId": "c-1"})
    request = subscription.receive(PATIENCE)
    assert (request.json(), request.headers["correlationId"]) == ({"text": "hi"}, "c-1")


def test_jms_answers_the_http_gateway(clients: Clients) -> None:
    def work() -> None:
        session = clients.jms().session()
        request = session.consumer("msglite.httpRequests").receive(PATIENCE)
        http_request = json.loads(str(request.body))
        session.reply(request, '["200", ["Content-Type", "text/plain"]]')
        session.reply(request, f"{http_request['method']} {http_request['url']}".encode())
        session.reply(request)

    clients.beside(work)
    http = HTTPConnection("127.0.0.1", clients.broker.port("msglite-http"), timeout=PATIENCE)
    http.request("GET", "/pizza?size=3")
    response = http.getresponse()
    assert (response.status, response.read()) == (200, b"GET /pizza?size=3")
    http.close()


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
def test_bodies_of_jms(clients: Clients, compress: bool) -> None:
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
            dotnet = clients.dotnet()
            subscription = dotnet.subscribe(queue)
            for expected in expected_bodies["vibemq"]:
                message = subscription.receive(PATIENCE)
                assert message.json() == expected
                assert message.headers["size"] == "5"
                assert message.headers["last.day"] == "true"
                assert "JMS_SUN_COMPRESS" not in message.headers
                message.ack()
            subscription.unsubscribe()
        elif reader == "jms":
            consumer = session.consumer(queue)
            bodies = [consumer.receive(PATIENCE).body for _ in range(5)]
            assert bodies == [BODY, [1, "x", None], "text", '{"a": 1}', java_object]
        else:
            php, shell = clients.php(), clients.shell()
            if reader == "phpmq":
                php.subscribe(queue, 1)
            for expected in expected_bodies["bytes"]:
                if reader == "phpmq":
                    php_message = php.receive(PATIENCE)
                    body = php_message.body
                    php_message.ack()
                else:
                    lite_message = shell.ready(queue, timeout=PATIENCE)
                    assert lite_message is not None
                    body = lite_message.body
                assert (body if isinstance(expected, bytes) else json.loads(body)) == expected
            php.close()


def test_bodies_for_jms(clients: Clients) -> None:
    consumer = clients.jms().session().consumer("for.jms")
    dotnet, php, shell = clients.dotnet(), clients.php(), clients.shell()
    dotnet.publish("for.jms", {"a": [1.0]}, {"content-type": "json", "priority": "High"})
    dotnet.publish("for.jms", "a string")
    dotnet.publish("for.jms")
    php.send("for.jms", b"php", ttl=60)
    php.subscribe("nothing", 1)  # earlier messages have arrived when this has been read
    shell.send("for.jms", b"\xff", 60)
    messages = {}
    for _ in range(5):
        message = consumer.receive(PATIENCE)
        messages[message.body] = message
        assert message.delivery_count == 1
        assert message.id.startswith("ID:")
    assert set(messages) == {'{"a":[1.0]}', "a string", None, "php", b"\xff"}
    first = messages['{"a":[1.0]}']
    assert (first.properties, first.priority) == ({"content_HYPHEN_type": "json"}, 6)
    remaining = messages["php"].expiration / 1000 - time.time()
    assert 0 < remaining <= 60
    assert messages[None].kind is PacketType.MESSAGE
    assert messages["a string"].priority == 4


def test_names_that_java_cannot_say(clients: Clients) -> None:
    session = clients.jms().session()
    php, dotnet = clients.php(), clients.dotnet()
    php.send("a-b/c", b"php")
    subscription = dotnet.subscribe("d-e")
    consumer = session.consumer("a_HYPHEN_b_x002F_c")
    message = consumer.receive(PATIENCE)
    assert (message.body, message.destination.name) == ("php", "a-b/c")  # as this client says it
    session.producer("d_HYPHEN_e").send("jms")
    assert subscription.receive(PATIENCE).json() == "jms"
    dotnet.create_queue("t-1", QueueOptions(mode=Mode.FAN_OUT_WITH_ACK))
    subscription = dotnet.subscribe("t-1")
    listener = session.consumer(Topic("t_HYPHEN_1"))
    session.producer(Topic("t_HYPHEN_1")).send("all")
    assert listener.receive(PATIENCE).body == subscription.receive(PATIENCE).json() == "all"
    producer = session.producer("browsed_HYPHEN_1")
    producer.send("x")
    assert [message.body for message in session.browser("browsed_HYPHEN_1")] == ["x"]


# --- delivery: priority, expiration, selectors ---------------------------------------------------


def test_priorities_cross(clients: Clients) -> None:
    session = clients.jms().session()
    producer = session.producer("by.priority")
    for priority in (4, 0, 9, 5, 8, 3):
        producer.send(f"p{priority}", priority=priority)
    dotnet = clients.dotnet()
    dotnet.publish("by.priority", "critical", {"priority": "critical"})
    dotnet.publish("by.priority", "low", {"priority": "low"})
    subscription = dotnet.subscribe("by.priority")
    messages = [subscription.receive(PATIENCE) for _ in range(8)]
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
    php = clients.php()
    time.sleep(0.4)  # the life of the first
    php.subscribe("expiring", 1)
    message = php.receive(PATIENCE)
    assert (message.body, 3590 < message.ttl <= 3600) == (b"long", True)
    message.ack()
    php.send("expiring.too", b"short", ttl=1)
    php.send("expiring.too", b"for ever")
    # the broker measures the time to live from when it has received the message
    wait_until(lambda: clients.published("expiring.too") == 2, "the messages have not arrived")
    time.sleep(1.1)
    assert jms.consumer("expiring.too").receive(PATIENCE).body == "for ever"


def test_selectors_on_headers_of_vibemq(clients: Clients) -> None:
    dotnet = clients.dotnet()
    for number, color in enumerate(("red", "blue", "red")):
        headers = {"color": color, "x-number": str(number), "priority": "high"}
        dotnet.publish("selected", number, headers)
    session = clients.jms().session()
    consumer = session.consumer(
        "selected", selector="color LIKE 'r%' AND x_HYPHEN_number IN ('1', '2') AND JMSPriority = 6"
    )
    message = consumer.receive(PATIENCE)
    assert (message.body, message.properties["x_HYPHEN_number"]) == ("2", "2")
    php = clients.php()
    php.subscribe("selected", 2)
    assert [php.receive(PATIENCE).body for _ in range(2)] == [b"0", b"1"]


def test_a_topic_of_jms_is_a_fan_out_queue_of_vibemq(clients: Clients) -> None:
    dotnet = clients.dotnet()
    dotnet.create_queue("news", QueueOptions(mode=Mode.FAN_OUT_WITH_ACK))
    subscription = dotnet.subscribe("news")
    session = clients.jms().session()
    listener = session.consumer(Topic("news"), selector="JMSType IS NULL")
    session.producer(Topic("news")).send(BODY, type="order")
    message = subscription.receive(PATIENCE)
    assert (message.json(), message.headers["JMSType"]) == (JSON_BODY, "order")
    message.ack()
    dotnet.publish("news", ["all"])
    assert listener.receive(PATIENCE).body == '["all"]'
    assert subscription.receive(PATIENCE).json() == ["all"]


def test_deliveries_are_counted_across(clients: Clients) -> None:
    jms = clients.jms()
    session = jms.session(AckMode.CLIENT)
    session.producer("counted").send("x")
    assert session.consumer("counted").receive(PATIENCE).delivery_count == 1
    jms.close()
    dotnet = clients.dotnet()
    subscription = dotnet.subscribe("counted")
    assert subscription.receive(PATIENCE).attempts == 2
    dotnet.close()
    message = clients.jms().session().consumer("counted").receive(PATIENCE)
    assert (message.delivery_count, message.redelivered) == (3, True)


def test_a_dead_letter_of_php_has_its_history_in_jms(clients: Clients) -> None:
    clients.jms().session().producer("given.up").send("x", properties={"a_HYPHEN_b": 1})
    php = clients.php()
    php.subscribe("given.up", 1)
    php.receive(PATIENCE).dead_letter()
    consumer = clients.jms().session().consumer("mq.sys.dmq", selector="originalQueue = 'given.up'")
    message = consumer.receive(PATIENCE)
    assert message.body == "x"
    assert message.properties["a_HYPHEN_b"] == 1
    assert message.properties["deadLetterReason"] == "client"
    assert message.properties["originalQueue"] == "given.up"


def test_messages_sent_by_jms_survive_a_kill(start: Clients) -> None:
    session = start.jms().session()
    producer = session.producer("kept")
    for _ in range(2):
        producer.send(BODY, compress=True, properties={"n": 1.5})
    start.broker.kill()
    start.broker.start()
    dotnet = start.dotnet()
    subscription = dotnet.subscribe("kept")
    message = subscription.receive(PATIENCE)
    assert (message.json(), message.headers["n"]) == (JSON_BODY, "1.5")
    message.ack()
    subscription.unsubscribe()
    assert start.jms().session().consumer("kept").receive(PATIENCE).body == BODY
