"""Handshake, unknown and malformed packets, and the end of a connection."""

from __future__ import annotations

from hashlib import md5

import pytest

from sluicemq.model.access import EVERYBODY, Identity
from sluicemq.model.errors import (
    AccessDenied,
    AccessError,
    AuthenticationFailed,
    LoginBusy,
    TooManyFailures,
)
from sluicemq.protocols.java import Long, loads_map
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.packets import A, GoodbyeReason, P, PacketType, Status
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.transport import Login, SessionInfo
from sluicemq.security.access import Access, Credentials, LoginCallback
from tests.protocols.jmq.harness import Harness, Peer, login, status, string

H = PacketType


# --- HELLO ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "spoken"), [(100, 100), (200, 200), (410, 410), (500, 500), (501, 500), (9999, 500)]
)
def test_every_level_from_100_on_is_answered(asked: int, spoken: int) -> None:
    peer = Harness().connect_without_hello()
    answer = peer.hello(JMQProtocolLevel=asked)
    assert status(answer) == Status.OK
    assert answer.properties["JMQProtocolLevel"] == spoken
    [request] = peer.challenge
    assert request.consumer_id == answer.consumer_id  # the request that waits for HELLO gets it
    assert request.properties["JMQAuthType"] == "basic"
    assert request.properties["JMQChallenge"] is True


@pytest.mark.parametrize("level", [99, 0, -1, "500", True])
def test_an_invalid_protocol_level_ends_the_connection(level: object) -> None:
    peer = Harness().connect_without_hello()
    answer = peer.hello(JMQProtocolLevel=level)
    assert status(answer) == Status.BAD_VERSION
    assert answer.properties["JMQProtocolLevel"] == 100
    assert peer.challenge == []
    assert not peer.transport.open


def test_the_hello_reply_describes_the_broker() -> None:
    harness = Harness()
    options = SessionOptions(
        broker_list="mq://here:7676/", max_packet_size=70_000, service="ssljms"
    )
    first = harness.connect_without_hello(options).hello()
    second = harness.connect_without_hello(options).hello()
    properties = first.properties
    assert properties["JMQService"] == "ssljms"
    assert properties["JMQBrokerList"] == "mq://here:7676/"
    assert properties["JMQMaxMsgBytes"] == 70_000
    assert properties["JMQHA"] is False
    assert properties["JMQBrokerSessionID"] == second.properties["JMQBrokerSessionID"] != 0
    assert properties["JMQConnectionID"] != second.properties["JMQConnectionID"]


def test_hello_with_a_cluster_id_is_refused() -> None:
    peer = Harness().connect_without_hello()
    answer = peer.hello(JMQClusterID="x")
    assert status(answer) == Status.BAD_REQUEST
    assert answer.properties["JMQReason"] == "this broker is not in a cluster"
    assert not peer.transport.open


def test_hello_reply_names_no_cluster() -> None:
    answer = Harness().connect_without_hello().hello()
    assert not {"JMQClusterID", "JMQStoreSession", "JMQStoreOwner"} & set(answer.properties)


def test_a_store_that_is_not_here_is_no_reason_to_go() -> None:
    peer = Harness().connect_without_hello()
    assert status(peer.hello(JMQStoreSession=Long(5))) == Status.NOT_FOUND
    assert len(peer.challenge) == 1
    assert (
        peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("a", "b")) == Status.OK
    )


def test_hello_is_sent_once() -> None:
    peer = Harness().connect()
    assert peer.request_status(H.HELLO, {"JMQProtocolLevel": 500}) == Status.ERROR
    assert peer.transport.open


# --- before the login ----------------------------------------------------------------------------


def test_nothing_works_before_the_login() -> None:
    peer = Harness().connect_without_hello()
    for kind in (H.CREATE_SESSION, H.ADD_PRODUCER, H.BROWSE, H.COMMIT_TRANSACTION, 99):
        assert peer.request_status(kind) == Status.ERROR
    assert peer.request_status(H.AUTHENTICATE, {}, login("a", "b")) == Status.ERROR
    peer.hello()
    assert peer.request_status(H.CREATE_SESSION) == Status.ERROR
    assert peer.request_status(H.PING) == Status.OK
    peer.send("q", "x", expect=Status.ERROR)
    assert peer.harness.find("q") is None
    assert peer.request_status(H.AUTHENTICATE, {}, login("a", "b")) == Status.OK
    assert peer.request_status(H.AUTHENTICATE, {}, login("a", "b")) == Status.ERROR
    assert peer.request_status(H.CREATE_SESSION) == Status.OK


def test_goodbye_before_the_login() -> None:
    peer = Harness().connect_without_hello()
    peer.send_packet(H.GOODBYE)
    assert not peer.transport.open


# --- logins --------------------------------------------------------------------------------------


class Users(Access):
    """Admits anna/secret, at once or later."""

    def __init__(self, later: bool = False) -> None:
        super().__init__()
        self.guest = None
        self.later = later
        self.asked: list[Credentials] = []
        self.waiting: list[tuple[Credentials, LoginCallback]] = []
        self.error: AccessError = AuthenticationFailed("wrong")
        self.cancelled = 0

    def cancel_login(self) -> None:
        self.cancelled += 1

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        self.asked.append(credentials)
        if self.later:
            self.waiting.append((credentials, admitted))
        else:
            admitted(self.verdict(credentials))

    def verdict(self, credentials: Credentials) -> Identity | AccessError:
        if (credentials.user, credentials.password) == ("anna", "secret") or credentials.digest:
            return EVERYBODY
        return self.error

    def answer(self) -> None:
        credentials, callback = self.waiting.pop(0)
        callback(self.verdict(credentials))


def test_a_wrong_password_is_413_and_the_end() -> None:
    harness = Harness(access=Users())
    peer = harness.connect_without_hello()
    peer.hello()
    answer = peer.ask(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("anna", "guess"))
    assert status(answer) == Status.INVALID_LOGIN
    assert answer.properties["JMQReason"] == "wrong"
    peer.send_bytes(encode_packet(H.CREATE_SESSION, A, 5))
    assert peer.receive() == []
    assert peer.transport.open
    harness.run_event_loop(1000)
    assert not peer.transport.open


def test_logins_may_be_spelled_as_the_protocol_page_does() -> None:
    users = Users()
    harness = Harness(access=users)
    peer = harness.connect_without_hello()
    peer.hello()
    assert peer.challenge[0].properties["JMQAuthType"] == "basic"
    basic = {"JMQAuthType": "jmqbasic"}
    assert peer.request_status(H.AUTHENTICATE, basic, login("anna", "secret")) == Status.OK
    peer = harness.connect_without_hello(SessionOptions(authentication="digest"))
    peer.hello()
    assert peer.challenge[0].properties["JMQAuthType"] == "digest"
    digest = {"JMQAuthType": "jmqdigest"}
    assert peer.request_status(H.AUTHENTICATE, digest, string("anna") + string("5e")) == Status.OK
    assert users.asked[-1].digest == "5e"
    peer = harness.connect_without_hello(SessionOptions(authentication="digest"))
    peer.hello()
    assert (
        peer.request_status(H.AUTHENTICATE, basic, login("anna", "secret")) == Status.INVALID_LOGIN
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AccessDenied("not now"), Status.FORBIDDEN),
        (TooManyFailures("for this user from this address", 8), Status.FORBIDDEN),
        (LoginBusy(), Status.UNAVAILABLE),
    ],
)
def test_login_that_is_not_looked_at_says_when_to_try_again(
    error: AccessError, expected: Status
) -> None:
    users = Users()
    users.error = error
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    answer = peer.ask(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("anna", "guess"))
    assert status(answer) == expected
    assert answer.properties["JMQReason"] == str(error)


def test_closed_connection_withdraws_its_login() -> None:
    users = Users(later=True)
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    peer.send_packet(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("anna", "secret"))
    assert users.cancelled == 0
    peer.session.end_of_input()
    assert users.cancelled == 1
    peer.drop()
    assert users.cancelled == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"\0\x05anna",
        string("anna"),
        string("anna") + b"\0\xff",
        string("anna") + string("!!"),
        string("anna") + string("//////8="),
        b"\0\x01\xff" + string("YQ=="),
    ],
)
def test_malformed_logins_get_status_413(body: bytes) -> None:
    users = Users()
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    assert (
        peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "basic"}, body) == Status.INVALID_LOGIN
    )
    assert users.asked == []


def test_the_other_way_of_logging_in_is_413() -> None:
    peer = Harness(access=Users()).connect_without_hello()
    peer.hello()
    body = login("anna", "secret")
    assert (
        peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "digest"}, body) == Status.INVALID_LOGIN
    )


def test_passwords_may_be_broken_into_lines() -> None:
    users = Users()
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    body = string("anna") + string("c2Vj\r\ncmV0\r\n")
    assert peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "basic"}, body) == Status.OK
    assert users.asked == [Credentials("anna", "secret")]


def test_digest() -> None:
    users = Users()
    harness = Harness(access=users)
    options = SessionOptions(authentication="digest")
    nonces = set()
    for _ in range(2):
        peer = harness.connect_without_hello(options)
        peer.hello()
        [request] = peer.challenge
        assert request.properties["JMQAuthType"] == "digest"
        nonce = request.body.decode()
        answer_digest = md5(nonce.encode()).hexdigest()
        body = string("anna") + string(answer_digest)
        assert peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "digest"}, body) == Status.OK
        assert users.asked[-1] == Credentials("anna", digest=answer_digest, nonce=nonce)
        nonces.add(nonce)
    assert len(nonces) == 2
    assert "" not in nonces


def test_without_users_everything_is_a_login() -> None:
    peer = Harness().connect_without_hello(SessionOptions())
    peer.hello()
    assert peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "digest"}, b"\xff") == Status.OK
    assert peer.request_status(H.CREATE_SESSION) == Status.OK


def test_packets_behind_a_login_wait_for_its_outcome() -> None:
    users = Users(later=True)
    harness = Harness(access=users)
    peer = harness.connect_without_hello()
    peer.hello()
    requests = [
        peer.encode_request(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("anna", "secret")),
        peer.encode_request(H.CREATE_SESSION, {"JMQAckMode": 1}),
    ]
    peer.send_bytes(b"".join(data for _, data in requests))
    late_request = peer.encode_request(H.PING)
    peer.send_bytes(late_request[1])
    assert peer.receive() == []
    assert peer.transport.paused
    users.answer()
    harness.run_event_loop()
    answers = peer.receive()
    assert [p.consumer_id for p in answers] == [requests[0][0], requests[1][0], late_request[0]]
    assert [status(p) for p in answers] == [200, 200, 200]
    assert not peer.transport.paused


def test_an_outcome_comes_too_late() -> None:
    users = Users(later=True)
    harness = Harness(access=users)
    peer = harness.connect_without_hello()
    peer.hello()
    peer.send_bytes(peer.encode_request(H.AUTHENTICATE, {}, login("anna", "secret"))[1])
    peer.drop()
    users.answer()


# --- reconnecting --------------------------------------------------------------------------------


def test_who_comes_back_ends_the_connection_that_lingers() -> None:
    harness = Harness()
    old = harness.connect(JMQReconnectable=True, client_id="me")
    session = old.create_session()
    old.consume("q", session)
    old.send("q", "x")
    [unacked] = old.delivered()
    [number] = harness.coordinator.connections
    new = harness.connect(JMQConnectionID=Long(number), JMQReconnectable=True, client_id="me")
    assert not old.transport.open
    new.consume("q", new.create_session())
    assert new.delivered() == []  # it may not be able to acknowledge yet
    harness.run_event_loop(100)
    [redelivered] = new.delivered()
    assert redelivered.sysid == unacked.sysid
    new.ask(H.STOP, expect=Status.OK)
    new.send_packet(H.START)
    new.send("q", "y")
    assert new.texts() == ["y"]


def test_a_client_that_has_reconnected_may_stop_at_once() -> None:
    harness = Harness()
    peer = harness.connect(JMQConnectionID=Long(5))
    peer.consume("q", peer.create_session())
    peer.send("q", "x")
    peer.ask(H.STOP, expect=Status.OK)
    harness.run_event_loop(1000)
    assert peer.delivered() == []
    peer.send_packet(H.START)
    assert peer.texts() == ["x"]


def reconnect(harness: Harness, number: int) -> Peer:
    """A client that has lost the connection of this number, and has not said START again."""
    peer = harness.connect_without_hello()
    peer.hello(JMQConnectionID=Long(number), JMQReconnectable=True)
    peer.ask(H.AUTHENTICATE, {}, login("anna", "secret"), expect=Status.OK)
    return peer


def test_a_client_that_has_reconnected_consumes_from_its_temporary_queue_again() -> None:
    """The Java client does not create it again, and does not reconnect without its consumer."""
    harness = Harness()
    name = "temporary_destination://queue/127.0.0.1/1234/1"
    old = harness.connect(JMQReconnectable=True)
    old.create(name, temporary=True)
    [number] = harness.coordinator.connections
    old.drop()
    assert harness.find(name) is None
    new = reconnect(harness, number)
    new.consume(name, new.create_session())
    new.send_packet(H.START)
    harness.run_event_loop(100)
    harness.connect().send(name, "reply")
    assert new.texts() == ["reply"]
    new.drop()
    assert harness.find(name) is None


def test_a_client_does_not_create_a_temporary_queue_by_consuming_from_it() -> None:
    harness = Harness()
    peer = harness.connect()
    reconnected = reconnect(harness, 5)
    other = harness.connect()
    properties = peer.destination_properties("temporary_destination://queue/x/1/1", temporary=True)
    session = Long(peer.create_session())
    peer.ask(H.ADD_CONSUMER, {**properties, "JMQSessionID": session}, expect=Status.NOT_FOUND)
    assert other.create("temporary_destination://queue/x/1/1", temporary=True) == Status.OK
    session = Long(reconnected.create_session())
    reconnected.ask(
        H.ADD_CONSUMER, {**properties, "JMQSessionID": session}, expect=Status.NOT_ALLOWED
    )


def test_others_are_not_ended() -> None:
    harness = Harness()
    first = harness.connect(JMQReconnectable=False)
    anna = Access(Identity("anna", superuser=True))
    second = harness.connect(JMQReconnectable=True, access=anna)
    for number in list(harness.coordinator.connections):
        harness.connect(JMQConnectionID=Long(number))
    assert first.transport.open
    assert second.transport.open


# --- packets -------------------------------------------------------------------------------------


def test_an_unknown_packet_type_gets_status_501_if_a_reply_is_requested() -> None:
    peer = Harness().connect()
    for kind in (7, 30, 74, 82, 1000, -1, 0x7FFE):
        number, data = peer.encode_request(kind)
        peer.send_bytes(data)
        [answer] = peer.receive()
        assert (answer.type, answer.consumer_id) == (kind + 1, number)
        assert status(answer) == Status.NOT_IMPLEMENTED
        peer.send_bytes(encode_packet(kind))
        assert peer.receive() == []
    assert peer.transport.open


def test_packets_without_a_reply_are_not_answered() -> None:
    peer = Harness().connect()
    for kind in (H.START, H.REDELIVER, H.RESUME_FLOW, H.FLOW_PAUSED, H.PING_REPLY, 0x7FFF):
        peer.send_bytes(encode_packet(kind, A, 1, body=b"xyz"))
    assert peer.receive() == []


def test_a_malformed_packet_ends_the_connection_after_earlier_packets() -> None:
    peer = Harness().connect()
    number, data = peer.encode_request(H.PING)
    peer.send_bytes(data + b"GET / HTTP/1.1\r\n\r\n" + data)
    [answer] = peer.receive()
    assert answer.consumer_id == number
    assert not peer.transport.open


def test_a_packet_that_is_too_large_is_423() -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(max_packet_size=10_000))
    peer.send("q", "x" * 20_000, expect=Status.ENTITY_TOO_LARGE)
    peer.send_bytes(peer.message("q", b"y" * 20_000, flags=0))
    assert peer.receive() == []
    _, data = peer.encode_request(H.CREATE_SESSION, body=bytes(20_000))
    peer.send_bytes(data)
    [answer] = peer.receive()
    assert (answer.type, status(answer)) == (H.CREATE_SESSION_REPLY, Status.ENTITY_TOO_LARGE)
    peer.send("q", "x" * 9_000)
    assert [len(body) for body in harness.bodies("q")] == [9_000]


def test_strangers_are_given_little_memory() -> None:
    peer = Harness().connect_without_hello()
    number, data = peer.encode_request(H.HELLO, {"JMQProtocolLevel": 500}, bytes(70_000))
    peer.send_bytes(data)
    [answer] = peer.receive()
    assert (answer.consumer_id, status(answer)) == (number, Status.ENTITY_TOO_LARGE)
    peer.hello()
    peer.ask(H.AUTHENTICATE, {}, login("a", "b"), expect=Status.OK)
    peer.send("q", "x" * 70_000)


def test_a_connection_has_only_so_much_of_everything() -> None:
    peer = Harness().connect(SessionOptions(max_per_connection=2))
    for kind, properties, expected in (
        (H.CREATE_SESSION, {}, Status.NOT_ALLOWED),
        (H.ADD_PRODUCER, peer.destination_properties("q"), Status.NOT_ALLOWED),
        (H.ADD_CONSUMER, peer.destination_properties("q"), Status.CONFLICT),
        (H.START_TRANSACTION, {}, Status.ERROR),
    ):
        assert [peer.request_status(kind, properties) for _ in range(3)] == [200, 200, expected]


def test_a_broken_property_block_is_400() -> None:
    peer = Harness().connect()
    packet = encode_packet(H.CREATE_SESSION, A, 77, {"JMQAckMode": 1})
    peer.send_bytes(packet.replace(b"\0\x0aJMQAckMode\0\x04", b"\0\x0aJMQAckMode\0\x44"))
    [answer] = peer.receive()
    assert (answer.consumer_id, status(answer)) == (77, Status.BAD_REQUEST)
    assert peer.transport.open


def test_generate_uid() -> None:
    peer = Harness().connect()
    answer = peer.ask(H.GENERATE_UID, expect=Status.OK)
    assert answer.properties["JMQQuantity"] == 1
    response = peer.ask(H.GENERATE_UID, {"JMQQuantity": 100}, expect=Status.OK)
    ids = [response.body[position : position + 8] for position in range(0, 800, 8)] + [answer.body]
    assert len(set(ids)) == 101
    assert all(int.from_bytes(identifier, "big", signed=True) > 0 for identifier in ids)
    for quantity in (0, -1, 10_001):
        assert peer.request_status(H.GENERATE_UID, {"JMQQuantity": quantity}) == Status.BAD_REQUEST


def test_get_license_and_info() -> None:
    peer = Harness().connect(SessionOptions(broker_list="mq://here:7676/"))
    peer.ask(H.GET_LICENSE, expect=Status.OK)
    answer = peer.ask(H.INFO_REQUEST, {"JMQRequestType": 1}, expect=Status.OK)
    assert answer.type == H.INFO
    assert answer.properties["JMQBrokerList"] == "mq://here:7676/"
    info = loads_map(answer.body)
    assert info["State"] == 1
    assert info["brokerURL"] == "mq://here:7676/"
    cluster = loads_map(peer.ask(H.INFO_REQUEST, {"JMQRequestType": 2}, expect=Status.OK).body)
    assert cluster[str(cluster["BrokerIDs"])] == info
    assert peer.request_status(H.INFO_REQUEST, {"JMQRequestType": 3}) == Status.NOT_IMPLEMENTED
    assert peer.request_status(H.INFO_REQUEST, {"JMQRequestType": 4}) == Status.BAD_REQUEST
    assert peer.request_status(H.INFO_REQUEST) == Status.BAD_REQUEST


def test_an_info_request_has_the_number_of_the_protocol_page_too() -> None:
    peer = Harness().connect()
    answer = peer.ask(78, {"JMQRequestType": 1}, expect=Status.OK)
    assert answer.properties["JMQRequestType"] == 1
    expected = peer.ask(H.INFO_REQUEST, {"JMQRequestType": 1}).body
    assert (answer.type, answer.body) == (79, expected)
    assert peer.request_status(78, {"JMQTransactionID": Long(5)}) == Status.NOT_FOUND


# --- ping ----------------------------------------------------------------------------------------


def test_an_idle_client_is_pinged_and_given_up() -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(ping_interval=10.0))
    harness.run_event_loop(10_000)  # it has been heard of in these
    assert peer.receive() == []
    for _ in range(6):
        harness.run_event_loop(10_000)
        [ping] = peer.receive()
        assert (ping.type, ping.flags & A) == (H.PING, A)
    harness.run_event_loop(10_000)
    assert not peer.transport.open


def test_any_packet_proves_that_a_client_is_alive() -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(ping_interval=10.0))
    for _ in range(4):
        for _ in range(5):
            harness.run_event_loop(10_000)
        peer.send_packet(H.PING_REPLY, {"JMQStatus": 200})
    for _ in range(7):
        harness.run_event_loop(10_000)
    assert peer.transport.open  # all begins anew with each sign of life
    harness.run_event_loop(10_000)
    assert not peer.transport.open


def test_old_clients_are_pinged_without_a_wish_for_an_answer() -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(ping_interval=10.0), JMQProtocolLevel=360)
    harness.run_event_loop(10_000)
    assert peer.receive() == []
    for _ in range(8):
        harness.run_event_loop(10_000)
        [ping] = peer.receive()
        assert (ping.type, ping.flags & A) == (H.PING, 0)
    assert peer.transport.open  # they never answer, so their silence means nothing


def test_an_old_client_that_does_not_log_in_is_given_up() -> None:
    harness = Harness()
    peer = harness.connect_without_hello(SessionOptions(authentication="basic", ping_interval=10.0))
    peer.hello(JMQProtocolLevel=360)
    for _ in range(8):
        harness.run_event_loop(10_000)
    assert not peer.transport.open


def test_a_ping_without_the_a_bit_is_not_answered() -> None:
    peer = Harness().connect()
    assert peer.send_packet(H.PING) == []
    assert peer.request_status(H.PING) == Status.OK


# --- the end -------------------------------------------------------------------------------------


def test_goodbye_is_answered_when_everything_is_released() -> None:
    harness = Harness()
    peer = harness.connect(client_id="me")
    peer.consume("q", peer.create_session())
    other = harness.connect()
    peer.ask(H.GOODBYE, {"JMQBlock": True}, expect=Status.OK)
    assert not peer.transport.open
    assert harness.queue("q").consumers == 0
    assert other.request_status(H.SET_CLIENTID, {"JMQClientID": "me"}) == Status.OK
    assert len(harness.coordinator.connections) == 1


def test_goodbye_without_a_wish_for_an_answer() -> None:
    peer = Harness().connect()
    peer.send_packet(H.GOODBYE)
    assert peer.receive() == []
    assert not peer.transport.open


def test_requests_before_the_end_of_input_are_answered() -> None:
    harness = Harness()
    peer = harness.connect()
    peer.session.receive(peer.message("q", b"x", flags=P | A, consumer_id=5))
    peer.session.end_of_input()
    assert peer.transport.open  # it is not on disk
    harness.run_event_loop()
    [answer] = peer.receive()
    assert (answer.type, status(answer)) == (H.SEND_REPLY, Status.OK)
    assert not peer.transport.open


def test_the_broker_says_goodbye() -> None:
    harness = Harness()
    peer = harness.connect()
    peer.session.disconnect("the broker stops", stopping=True)
    [goodbye] = peer.receive()
    assert goodbye.type == H.GOODBYE
    assert goodbye.properties["JMQGoodbyeReason"] == 1
    assert goodbye.properties["JMQExit"] is False
    assert not peer.transport.open
    stranger = harness.connect_without_hello()
    stranger.session.disconnect("the broker stops", stopping=True)
    assert stranger.receive() == []
    assert not stranger.transport.open


def test_a_disconnected_client_gets_the_reason_and_may_reconnect() -> None:
    harness = Harness()
    peer = harness.connect(client_id="me")
    peer.consume("q", peer.create_session())
    assert peer.session.session_info() == SessionInfo("jmq", "", "me", "open")
    assert [consumer.number for consumer in peer.session.consumers()]
    peer.session.disconnect("too loud")
    [goodbye] = peer.receive()
    assert goodbye.type == H.GOODBYE
    assert goodbye.properties["JMQGoodbyeReason"] == GoodbyeReason.ADMIN_KILLED
    assert goodbye.properties["JMQGoodbyeReasonString"] == "too loud"
    assert goodbye.properties["JMQExit"] is False
    assert peer.transport.close_reason == "too loud"
    assert not list(peer.session.consumers())
    peer.session.disconnect("again")
    stranger = harness.connect_without_hello()
    assert stranger.session.session_info().state == "connecting"
    stranger.session.disconnect("too loud")
    assert stranger.receive() == []
    assert not stranger.transport.open


def test_a_connection_that_breaks_leaves_nothing_behind() -> None:
    harness = Harness()
    peer = harness.connect(client_id="me")
    session = peer.create_session()
    peer.create("temporary_destination://queue/1", temporary=True)
    peer.consume("temporary_destination://queue/1", session)
    peer.consume("t", session, topic=True)
    peer.consume("t", session, topic=True, JMQDurableName="d")
    peer.begin(session)
    peer.drop()
    assert harness.find("temporary_destination://queue/1") is None
    topic = harness.topic("t")
    assert [s.name for s in topic.subscriptions.values()] == ["durable:me/d"]
    assert topic.consumers == 0
    assert harness.broker.transactions.open == {}
    assert harness.coordinator.connections == {}


def test_the_broker_does_not_read_from_a_client_that_does_not_read() -> None:
    harness = Harness()
    peer = harness.connect()
    peer.stop_reading()
    ask = encode_packet(H.GENERATE_UID, A, 1, {"JMQQuantity": 10_000})
    for _ in range(20):
        peer.session.receive(ask)
    assert peer.transport.paused
    peer.read_again()
    assert not peer.transport.paused


# --- memory of unfinished input ------------------------------------------------------------------


def test_little_is_kept_before_the_login() -> None:
    peer = Harness().connect_without_hello(SessionOptions(login_bytes=4096, authentication="basic"))
    peer.hello()
    assert peer.session.login is Login.DUE
    assert peer.request_status(H.AUTHENTICATE, {}, bytes(5000)) == Status.ENTITY_TOO_LARGE
    # also of a header that is large
    packet = encode_packet(H.AUTHENTICATE, A, 7, body=b"", header=bytes(200_000))
    peer.session.receive(packet[:100_000])
    assert peer.session.buffered < 4096
    peer.session.receive(packet[100_000:])
    assert peer.session.buffered == 0
    assert peer.request_status(H.AUTHENTICATE, {}, login("a", "b")) == Status.OK
    assert peer.session.login is Login.DONE
    peer.send("q", "x" * 10_000)


def test_a_user_with_too_many_connections_may_not_log_in() -> None:
    peer = Harness().connect_without_hello()
    peer.hello()
    peer.transport.user_limit_reached = True
    assert peer.request_status(H.AUTHENTICATE, {}, login("a", "b")) == Status.UNAVAILABLE
    peer.harness.run_event_loop(1000)
    assert not peer.transport.open


def test_what_waits_behind_a_login_counts_until_it_is_answered() -> None:
    access = Users(later=True)
    peer = Harness().connect_without_hello(access=access)
    peer.hello()
    peer.send_bytes(
        encode_packet(H.AUTHENTICATE, A, 2, body=login("anna", "secret"))
        + encode_packet(H.PING, A, 3, body=bytes(1000))
    )
    assert peer.session.login is Login.CHECKING
    assert peer.session.buffered > 1000
    access.waiting[0][1](EVERYBODY)
    assert peer.session.buffered == 0


# --- requests that take long ---------------------------------------------------------------------


def test_long_requests_leave_time_for_other_clients() -> None:
    harness = Harness()
    peer = harness.connect()
    session = peer.create_session()
    peer.consume("q", session)
    harness.run_event_loop()
    harness.scan_time.limit = 2
    requests = [peer.encode_request(H.STOP, {"JMQSessionID": Long(session)}) for _ in range(8)]
    requests.append(peer.encode_request(H.GOODBYE))
    peer.session.receive(b"".join(data for _, data in requests))
    peer.session.receive(peer.encode_request(H.PING)[1])  # behind GOODBYE
    numbers = []
    for _ in range(10):
        packets = peer.receive()
        assert len(packets) <= 4
        numbers += [packet.consumer_id for packet in packets]
        harness.broker.flush()
    assert numbers == [number for number, _ in requests]


def test_long_requests_wait_while_the_client_does_not_read() -> None:
    harness = Harness()
    peer = harness.connect()
    harness.scan_time.limit = 1
    peer.session.receive(b"".join([peer.encode_request(H.STOP)[1] for _ in range(3)]))
    answer_count = len(peer.receive())
    assert answer_count < 3
    peer.stop_reading()
    harness.run_event_loop()
    assert peer.receive() == []
    peer.read_again()
    harness.run_event_loop()
    assert len(peer.receive()) == 3 - answer_count


def test_a_deleted_dead_message_queue_is_created_for_the_next_client() -> None:
    harness = Harness()
    harness.connect()
    harness.broker.remove(harness.queue("mq.sys.dmq"))
    harness.connect()
    assert harness.queue("mq.sys.dmq").settings.max_messages == 1000
