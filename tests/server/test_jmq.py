"""JMQ through a broker process and raw sockets: the port mapper, TLS, logins and permissions."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.access import Operation, Permission
from sluicemq.protocols.java import loads_map
from sluicemq.protocols.jmq.packets import A, DestType, PacketType, Status
from sluicemq.protocols.jmq.wire import encode_head, encode_packet
from sluicemq.security import records
from sluicemq.security.passwords import digest_answer, digest_form, hash_password
from sluicemq.security.records import UserRecord, UserStore
from tests.protocols.jmq.raw import (
    RawJmq,
    ask_port_mapper,
    basic,
    login_body,
    number_of,
    status_of,
)
from tests.server.authority import Authority
from tests.server.conftest import Start
from tests.server.tls_clients import open_socket, wait_for_log
from tests.support.polling import wait_until

JMQ = "jmq://127.0.0.1:0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """The broker of the tests that neither configure nor stop it; each has its own queues."""
    with LocalBroker(tmp_path_factory.mktemp("broker"), [JMQ]) as broker:
        yield broker


# --- the port mapper ----------------------------------------------------------------------------


def test_port_mapper_lists_its_own_port(broker: LocalBroker) -> None:
    port = broker.port("jmq")
    assert ask_port_mapper(port) == [
        "101 sluicemq 301",
        f"portmapper tcp PORTMAPPER {port}",
        f"jms tcp NORMAL {port}",
        ".",
    ]


def test_port_mapper_responds_without_request_after_timeout(start: Start) -> None:
    broker = start(JMQ + "?portmapper_timeout=50ms")
    with socket.create_connection(("127.0.0.1", broker.port("jmq")), 30) as client:
        assert client.recv(4096).startswith(b"101 sluicemq 301\n")
        assert client.recv(4096) == b""


def test_port_mapper_timeout_of_zero_waits_for_request(start: Start) -> None:
    broker = start(JMQ + "?portmapper_timeout=0")
    with socket.create_connection(("127.0.0.1", broker.port("jmq")), 30) as client:
        client.settimeout(0.8)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(30)
        client.sendall(b"101\n")
        assert client.recv(4096).startswith(b"101 ")


def test_port_mapper_leaves_close_to_client(broker: LocalBroker) -> None:
    """Like Open MQ's broker: the side that closes first keeps the port in TIME_WAIT."""
    with socket.create_connection(("127.0.0.1", broker.port("jmq")), 30) as client:
        client.sendall(b"101\n")
        while client.recv(4096):
            pass
        client.sendall(b"more\n")  # no reset: the broker still reads
        time.sleep(0.05)
        client.sendall(b"and more\n")


def test_other_protocols_are_rejected(broker: LocalBroker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port("jmq")), 30) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(100) == b""
    wait_for_log(broker, "no protocol begins with b'GET / HT'")


def test_separate_port_mapper_and_instance_name(start: Start) -> None:
    broker = start(
        JMQ + "?services=portmapper",
        "jmq://127.0.0.1:0?services=jms",
        environment={"SLUICEMQ_JMQ__INSTANCE": "orders-1"},
    )
    response = ask_port_mapper(broker.port("jmq"))
    assert response[0] == "101 orders-1 301"
    port = int(response[2].split()[3])
    assert port != broker.port("jmq")
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(b"101\n")
        assert client.recv(100) == b""


def test_auto_listener_detects_port_mapper_request(start: Start) -> None:
    port = start("auto://127.0.0.1:0").port("auto")
    assert f"jms tcp NORMAL {port}" in ask_port_mapper(port)


# --- the service --------------------------------------------------------------------------------


def test_message_round_trip_on_port_of_port_mapper(broker: LocalBroker) -> None:
    port = broker.port("jmq")
    with RawJmq.login(port) as sender, RawJmq.login(port) as receiver:
        assert status_of(receiver.consume("round-trip")) == Status.OK
        assert sender.send("round-trip", b"hello") == Status.OK
        message = receiver.receive()
        assert message.body == b"hello"
        assert receiver.acknowledge(message) == Status.OK


def test_single_first_byte_is_detected(start: Start) -> None:
    port = start(JMQ + "?portmapper_timeout=50ms").port("jmq")
    with RawJmq(port) as client:
        packet = client.message("q", b"")  # refused before the login, but a packet
        client.socket.sendall(packet[:1])
        time.sleep(0.2)  # more than the port mapper's timeout
        client.socket.sendall(packet[1:])
        reply, request = client.hello()
        assert status_of(reply) == Status.OK
        assert request.type == PacketType.AUTHENTICATE_REQUEST


def test_auto_listener_detects_jmq_packets(start: Start) -> None:
    port = start("auto://127.0.0.1:0").port("auto")
    with RawJmq.login(port) as client:
        assert client.send("q", b"from JMS") == Status.OK
    with BlockingClient(PhpmqClient.connect, port=port) as php:
        php.subscribe("q", 1)
        assert php.receive(30).body == b"from JMS"


def test_persistent_messages_survive_a_kill(start: Start) -> None:
    broker = start(JMQ)
    with RawJmq.login(broker.port("jmq")) as client:
        numbers = client.send_all("q", [b"%d" % n for n in range(100)])
        assert {status_of(client.reply_to(number)) for number in numbers} == {Status.OK}
        client.send_bytes(client.message("q", b"not persistent", persistent=False))
        broker.kill()
    with RawJmq.login(broker.start().port("jmq")) as client:
        client.consume("q")
        assert [client.receive().body for _ in range(100)] == [b"%d" % n for n in range(100)]
        assert client.send("q", b"the end") == Status.OK
        assert client.receive().body == b"the end"


def test_clients_are_notified_of_a_shutdown(start: Start) -> None:
    broker = start(JMQ)
    with RawJmq.login(broker.port("jmq")) as client:
        assert broker.stop() == 0
        assert client.is_closed_by_broker()
        (goodbye,) = client.others
        assert goodbye.type == PacketType.GOODBYE
        assert goodbye.properties["JMQGoodbyeReason"] == 1
        assert goodbye.properties["JMQExit"] is False


def test_tls(start: Start, authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    broker = start(JMQ, f"jmq+tls://127.0.0.1:0?certificate={pem}")
    plain_port, secure = broker.port("jmq"), broker.port("jmq+tls")
    assert ask_port_mapper(plain_port)[1:-1] == [
        f"portmapper tcp PORTMAPPER {plain_port}",
        f"jms tcp NORMAL {plain_port}",
        f"ssljms tls NORMAL {secure}",
    ]
    trust = authority.trust()
    with open_socket(secure, trust) as connection:
        connection.sendall(b"101\n")
        response = b""
        while data := connection.recv(4096):
            response += data
    assert f"portmapper tls PORTMAPPER {secure}\n".encode() in response
    body = bytes(range(256)) * 4096
    with RawJmq(secure, trust) as client:
        hello, _ = client.hello()
        assert hello.properties["JMQService"] == "ssljms"
        assert status_of(client.authenticate(basic("guest", "guest"))) == Status.OK
        client.session = client.create_session()
        assert client.send("q", body) == Status.OK
        client.consume("q")
        assert client.receive().body == body


def test_options_of_the_listener_reach_the_session(start: Start) -> None:
    options = "prefetch=7&producer_flow=3&max_frame_bytes=10000"
    environment = {"SLUICEMQ_JMQ__BROKER_LIST": "mq://other:7676/"}
    port = start(f"{JMQ}?{options}", environment=environment).port("jmq")
    with RawJmq(port) as client:
        hello, _ = client.hello()
        assert hello.properties["JMQBrokerList"] == "mq://other:7676/"
        assert hello.properties["JMQService"] == "jms"
        assert number_of(hello, "JMQMaxMsgBytes") == 10_000
        assert status_of(client.authenticate(basic("guest", "guest"))) == Status.OK
        client.session = client.create_session()
        assert number_of(client.produce("q"), "JMQSize") == 3
        assert number_of(client.consume("q"), "JMQSize") == 7
        assert client.send("q", bytes(9000)) == Status.OK
        assert client.send("q", bytes(10_001)) == Status.ENTITY_TOO_LARGE
        assert client.send("q", b"") == Status.OK


def test_idle_client_is_pinged_and_disconnected(start: Start) -> None:
    broker = start(f"{JMQ}?ping_interval=500ms")  # longer than a login may be interrupted
    with RawJmq.login(broker.port("jmq")) as client:
        assert client.is_closed_by_broker()
        assert {packet.type for packet in client.others} >= {PacketType.PING}


# --- metrics ------------------------------------------------------------------------------------


def test_metrics_topic_of_queue(start: Start) -> None:
    broker = start(JMQ, environment={"SLUICEMQ_JMQ__METRICS_INTERVAL": "1s"})
    port = broker.port("jmq")
    with RawJmq.login(port) as client:
        assert client.send("orders", b"1234") == Status.OK
        topic = "mq.metrics.destination.queue.orders"
        assert status_of(client.consume(topic, DestType.TOPIC)) == Status.OK
        numbers: list[Any] = []
        while not numbers or numbers[-1] != 2:
            message = client.receive()
            assert message.type == PacketType.MAP_MESSAGE
            assert message.properties["type"] == topic
            assert message.properties["brokerAddress"] == f"127.0.0.1:{port}"
            assert client.acknowledge(message) == Status.OK
            values: Any = loads_map(message.body)
            if not numbers:
                assert client.send("orders", b"5678") == Status.OK
            numbers.append(values["numMsgs"])
        # how many intervals pass before the second message depends on this process, too
        assert numbers == [1] * (len(numbers) - 1) + [2]
        assert len(numbers) < 30


def test_metrics_destination_list(broker: LocalBroker) -> None:
    """The topic mq.metrics.destination_list publishes immediately."""
    with RawJmq.login(broker.port("jmq")) as client:
        assert client.send("orders", b"1234") == Status.OK
        client.consume("mq.metrics.destination_list", DestType.TOPIC)
        queues: Any = loads_map(client.receive().body)
        assert queues["mq.metrics.destination.queue.orders"] == {
            "name": "orders",
            "type": "queue",
            "isTemporary": False,
        }


# --- logins and permissions ---------------------------------------------------------------------


def add_user(broker: LocalBroker, name: str, password: str, *rules: str, digest: bool) -> None:
    """Add a user like `sluicemq users add`; a rule is like `orders.*: produce consume`."""
    permissions = []
    for rule in rules:
        pattern, _, words = rule.partition(":")
        permissions.append(Permission(pattern, frozenset(map(Operation, words.split()))))
    record = UserRecord(
        password=hash_password(password),
        digest=digest_form(name, password) if digest else "",
        permissions=tuple(permissions),
        created=1,
        updated=1,
    )
    broker.directory.mkdir(parents=True, exist_ok=True)
    store = UserStore(broker.directory / "users.json")
    store.change(lambda database: records.add_user(database, name, record), "the test")


def add_anna_and_bert(broker: LocalBroker) -> None:
    add_user(broker, "anna", "right", "orders.*: produce consume browse", digest=True)
    add_user(broker, "bert", "other", "orders.*: consume", digest=False)


@pytest.fixture(scope="module")
def users_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with users, one listener for each way to log in."""
    broker = LocalBroker(
        tmp_path_factory.mktemp("broker"),
        [JMQ, "auto://127.0.0.1:0?authentication=digest"],
        environment={"SLUICEMQ_AUTH__MAX_LOGIN_FAILURES": "100"},  # the tests share its count
    )
    add_anna_and_bert(broker)
    with broker:
        yield broker


def digest_login(client: RawJmq, user: str, password: str) -> int:
    """Log in by challenge and response, and return the status of the reply."""
    _, request = client.hello()
    assert request.properties["JMQAuthType"] == "digest"
    answer = digest_answer(digest_form(user, password), request.body.decode())
    return status_of(client.authenticate(login_body(user, answer), "digest"))


@pytest.mark.parametrize(
    ("user", "password", "status"),
    [
        ("anna", "right", Status.OK),
        ("bert", "other", Status.OK),
        ("anna", "wrong", Status.INVALID_LOGIN),
        ("anna", "", Status.INVALID_LOGIN),
        ("unknown", "right", Status.INVALID_LOGIN),
        ("", "", Status.INVALID_LOGIN),
    ],
)
def test_basic_logins(start: Start, user: str, password: str, status: Status) -> None:
    broker = start(JMQ)
    add_anna_and_bert(broker)
    with RawJmq(broker.port("jmq")) as client:
        _, request = client.hello()
        assert request.properties["JMQAuthType"] == "basic"
        assert status_of(client.authenticate(basic(user, password))) == status
        if status is not Status.OK:
            assert client.is_closed_by_broker()
    wait_for_log(broker, f"user={user}" if user else "login")


@pytest.mark.parametrize(
    ("user", "password", "status"),
    [
        ("anna", "right", Status.OK),
        ("anna", "wrong", Status.INVALID_LOGIN),
        ("bert", "other", Status.INVALID_LOGIN),  # has no digest form
        ("unknown", "right", Status.INVALID_LOGIN),
    ],
)
def test_digest_logins(users_broker: LocalBroker, user: str, password: str, status: Status) -> None:
    with RawJmq(users_broker.port("auto")) as client:
        assert digest_login(client, user, password) == status
        if status is not Status.OK:
            assert client.is_closed_by_broker()


def test_digest_response_cannot_be_replayed(users_broker: LocalBroker) -> None:
    port = users_broker.port("auto")
    with RawJmq(port) as client:
        _, request = client.hello()
        captured = digest_answer(digest_form("anna", "right"), request.body.decode())
        assert status_of(client.authenticate(login_body("anna", captured), "digest")) == Status.OK
    with RawJmq(port) as attacker:
        _, request = attacker.hello()
        login = login_body("anna", captured)
        assert status_of(attacker.authenticate(login, "digest")) == Status.INVALID_LOGIN


def test_login_of_other_kind_is_rejected(users_broker: LocalBroker) -> None:
    """Also rejects the stored digest form in place of the password."""
    digest = digest_form("anna", "right")
    for scheme, kind, body in (
        ("jmq", "digest", login_body("anna", digest_answer(digest, ""))),
        ("jmq", "basic", basic("anna", digest)),
        ("auto", "basic", basic("anna", "right")),
        ("auto", "digest", login_body("anna", digest)),
    ):
        with RawJmq(users_broker.port(scheme)) as client:
            client.hello()
            assert status_of(client.authenticate(body, kind)) != Status.OK, (scheme, kind)


@pytest.mark.parametrize(
    ("block", "body"),
    [
        ("7fffffff00000000", b""),  # properties that cannot be read
        ("", b""),
        ("", b"\0\4anna"),
        ("", b"\0\4anna\xff\xffx"),
        ("", login_body("anna", "no base64!")),
        ("", login_body("anna", "/w==")),
    ],
)
def test_malformed_login_is_rejected(users_broker: LocalBroker, block: str, body: bytes) -> None:
    with RawJmq(users_broker.port("jmq")) as client:
        client.hello()
        properties = bytes.fromhex(block)
        head = encode_head(PacketType.AUTHENTICATE, A, 9, b"", properties, len(body))
        client.send_bytes(head + body)
        assert status_of(client.reply_to(9)) == Status.INVALID_LOGIN
        assert client.is_closed_by_broker()


def test_repeated_failed_logins_are_blocked(start: Start) -> None:
    broker = start(JMQ, environment={"SLUICEMQ_AUTH__LOGIN_BACKOFF": "1min"})
    add_anna_and_bert(broker)
    port = broker.port("jmq")
    statuses = []
    for _ in range(11):
        with RawJmq(port) as client:
            client.hello()
            statuses.append(status_of(client.authenticate(basic("anna", "wrong"))))
    assert statuses == [Status.INVALID_LOGIN] * 10 + [Status.FORBIDDEN]
    with RawJmq(port) as client:
        client.hello()
        reply = client.authenticate(basic("anna", "right"))
        assert status_of(reply) == Status.FORBIDDEN
        assert "too many failed logins for this user" in str(reply.properties["JMQReason"])


def test_permissions(users_broker: LocalBroker) -> None:
    port = users_broker.port("jmq")
    with RawJmq.login(port, "anna", "right") as anna, RawJmq.login(port, "bert", "other") as bert:
        assert anna.send("orders.new", b"m") == Status.OK
        assert anna.send("bills", b"m") == Status.FORBIDDEN
        assert status_of(anna.produce("bills")) == Status.FORBIDDEN
        assert status_of(anna.consume("bills")) == Status.FORBIDDEN
        assert bert.send("orders.new", b"m") == Status.FORBIDDEN
        destination = {"JMQDestination": "orders.new", "JMQDestType": DestType.QUEUE}
        assert status_of(bert.request(PacketType.BROWSE, destination)) == Status.FORBIDDEN
        assert status_of(anna.request(PacketType.BROWSE, destination)) == Status.OK
        assert status_of(bert.consume("orders.new")) == Status.OK
        assert bert.receive().body == b"m"
    wait_for_log(users_broker, "operation='produce bills'")


def test_commands_before_login_are_rejected(users_broker: LocalBroker) -> None:
    with RawJmq(users_broker.port("jmq")) as client:
        client.hello()
        destination = {"JMQDestination": "orders.new", "JMQDestType": DestType.QUEUE}
        assert status_of(client.request(PacketType.CREATE_DESTINATION, destination)) == Status.ERROR
        assert client.send("orders.new", b"m") != Status.OK
        assert status_of(client.authenticate(basic("anna", "right"))) == Status.OK


def requested_login_kind(port: int) -> str:
    """Return the kind of login that the broker requests."""
    with RawJmq(port) as client:
        _, request = client.hello()
        return str(request.properties["JMQAuthType"])


def test_requested_login_kind_suits_all_users(start: Start) -> None:
    broker = start(JMQ)
    port = broker.port("jmq")
    assert requested_login_kind(port) == "digest"
    with RawJmq.login(port, "guest", "guest") as client:  # with a password all the same
        assert client.send("anything", b"m") == Status.OK
    add_user(broker, "anna", "right", digest=True)
    assert requested_login_kind(port) == "digest"
    add_user(broker, "bert", "other", digest=False)
    assert requested_login_kind(port) == "basic"


def test_passwords_are_requested_if_there_are_tokens(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    environment = {"SLUICEMQ_AUTH__ADMIN_TOKEN_FILE": str(token)}
    broker = start(JMQ, environment=environment)
    add_user(broker, "anna", "right", digest=True)
    assert requested_login_kind(broker.port("jmq")) == "basic"
    with RawJmq.login(broker.port("jmq"), "any", "a-token-of-some-length") as client:
        assert client.send("anything", b"m") == Status.OK


def test_long_selectors_are_compiled_off_the_event_loop(broker: LocalBroker) -> None:
    longest = " OR ".join(["colour = '" + "x" * 200 + f"{n:03}'" for n in range(37)])
    assert 8000 < len(longest) <= 8192
    destination = {"JMQDestination": "selected", "JMQDestType": int(DestType.QUEUE)}
    with RawJmq.login(broker.port("jmq")) as client, RawJmq.login(broker.port("jmq")) as other:
        assert client.send("selected", b"m") == Status.OK
        browse = {**destination, "JMQSelector": longest}
        client.send_bytes(encode_packet(PacketType.BROWSE, A, 901, browse))
        client.send_bytes(encode_packet(PacketType.BROWSE, A, 902, destination))
        assert status_of(other.request(PacketType.BROWSE, destination)) == Status.OK
        assert client.reply_to(901).body == b""
        assert len(client.reply_to(902).body) == 32
        for selector in ("(" * 60_000, longest + " OR n = 1" * 30):
            answer = client.request(PacketType.BROWSE, {**destination, "JMQSelector": selector})
            assert status_of(answer) == Status.BAD_REQUEST
        # a client that goes while its selector is being compiled
        with RawJmq.login(broker.port("jmq")) as third:
            other_request = {**destination, "JMQSelector": longest.replace("colour", "shape")}
            third.send_bytes(encode_packet(PacketType.BROWSE, A, 901, other_request))
        assert status_of(client.request(PacketType.BROWSE, destination)) == Status.OK


# --- connection limit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listener", [f"{JMQ}?portmapper_timeout=0", f"{JMQ}?services=jms", "auto://127.0.0.1:0"]
)
def test_connections_over_limit_get_status_503(start: Start, listener: str) -> None:
    mark = "&" if "?" in listener else "?"
    broker = start(f"{listener}{mark}max_connections=1&max_rejections=2")
    port = broker.port(listener.partition(":")[0])
    with ExitStack() as stack:
        first = stack.enter_context(RawJmq(port))
        assert status_of(first.hello()[0]) == Status.OK
        clients = [stack.enter_context(RawJmq(port)) for _ in range(2)]
        with RawJmq(port) as beyond:
            assert beyond.is_closed_by_broker()
        for client in clients:
            answer = client.request(PacketType.HELLO, {"JMQProtocolLevel": 500})
            assert status_of(answer) == Status.UNAVAILABLE
            assert answer.properties["JMQReason"] == "the limit of 1 connections is reached"
            assert client.is_closed_by_broker()
        status = broker.status()["listeners"][0]
        assert (status["connections"], status["refused"]) == (1, 3)
    wait_until(lambda: not broker.status()["listeners"][0]["connections"], "it is still there")
    with RawJmq(port) as client:
        assert status_of(client.hello()[0]) == Status.OK


def test_port_mapper_responds_over_connection_limit(start: Start) -> None:
    broker = start(f"{JMQ}?max_connections=1")
    port = broker.port("jmq")
    with RawJmq(port) as first:
        first.hello()
        assert f"jms tcp NORMAL {port}" in ask_port_mapper(port)
