"""Handshake, unknown and malformed packets, and the end of a connection."""

from __future__ import annotations

from hashlib import md5

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.access import EVERYBODY, Identity
from sluicemq.model.destination import DestinationSettings
from sluicemq.model.errors import (
    AccessDenied,
    AccessError,
    AuthenticationFailed,
    LoginBusy,
    TooManyFailures,
)
from sluicemq.protocols.java import Long, loads_map
from sluicemq.protocols.jmq.connection import JmqConnection, SessionOptions
from sluicemq.protocols.jmq.destinations import DEFAULTS
from sluicemq.protocols.jmq.packets import A, GoodbyeReason, P, PacketType, Status
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.transport import Login, SessionInfo
from sluicemq.security.access import Access, Credentials, LoginCallback
from tests.protocols.jmq.harness import Harness, Peer, blocks, login, status, string

H = PacketType


# --- HELLO ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "negotiated"),
    [(100, 100), (200, 200), (410, 410), (500, 500), (501, 500), (9999, 500)],
)
def test_every_level_from_100_on_is_answered(requested: int, negotiated: int) -> None:
    peer = Harness().connect_without_hello()
    reply = peer.hello(JMQProtocolLevel=requested)
    assert status(reply) == Status.OK
    assert reply.properties["JMQProtocolLevel"] == negotiated
    [request] = peer.challenge
    assert request.consumer_id == reply.consumer_id  # the request that waits for HELLO gets it
    assert request.properties["JMQAuthType"] == "basic"
    assert request.properties["JMQChallenge"] is True


@pytest.mark.parametrize("level", [99, 0, -1, "500", True])
def test_invalid_protocol_level_ends_connection(level: object) -> None:
    peer = Harness().connect_without_hello()
    reply = peer.hello(JMQProtocolLevel=level)
    assert status(reply) == Status.BAD_VERSION
    assert reply.properties["JMQProtocolLevel"] == 100
    assert peer.challenge == []
    assert not peer.transport.open


def test_hello_reply_describes_broker() -> None:
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


def test_hello_with_cluster_id_is_refused() -> None:
    peer = Harness().connect_without_hello()
    reply = peer.hello(JMQClusterID="x")
    assert status(reply) == Status.BAD_REQUEST
    assert reply.properties["JMQReason"] == "this broker is not in a cluster"
    assert not peer.transport.open


def test_hello_reply_names_no_cluster() -> None:
    reply = Harness().connect_without_hello().hello()
    assert not {"JMQClusterID", "JMQStoreSession", "JMQStoreOwner"} & set(reply.properties)


def test_unknown_store_name_is_accepted() -> None:
    peer = Harness().connect_without_hello()
    assert status(peer.hello(JMQStoreSession=Long(5))) == Status.NOT_FOUND
    assert len(peer.challenge) == 1
    assert (
        peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("a", "b")) == Status.OK
    )


def test_second_hello_is_refused() -> None:
    peer = Harness().connect()
    assert peer.request_status(H.HELLO, {"JMQProtocolLevel": 500}) == Status.ERROR
    assert peer.transport.open


# --- before the login ----------------------------------------------------------------------------


def test_requests_before_login_are_refused() -> None:
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


def test_goodbye_before_login_is_answered() -> None:
    peer = Harness().connect_without_hello()
    peer.send_packet(H.GOODBYE)
    assert not peer.transport.open


# --- logins --------------------------------------------------------------------------------------


class PasswordAccess(Access):
    """Access that admits anna with the password secret, at once or in `complete_login`."""

    def __init__(self, later: bool = False) -> None:
        super().__init__()
        self.guest = None
        self.later = later
        self.attempts: list[Credentials] = []
        self.waiting: list[tuple[Credentials, LoginCallback]] = []
        self.error: AccessError = AuthenticationFailed("wrong")
        self.cancelled = 0

    def cancel_login(self) -> None:
        self.cancelled += 1

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        self.attempts.append(credentials)
        if self.later:
            self.waiting.append((credentials, admitted))
        else:
            admitted(self.check(credentials))

    def check(self, credentials: Credentials) -> Identity | AccessError:
        if (credentials.user, credentials.password) == ("anna", "secret") or credentials.digest:
            return EVERYBODY
        return self.error

    def complete_login(self) -> None:
        credentials, callback = self.waiting.pop(0)
        callback(self.check(credentials))


def test_wrong_password_is_413_and_closes_connection() -> None:
    harness = Harness(access=PasswordAccess())
    peer = harness.connect_without_hello()
    peer.hello()
    reply = peer.request(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("anna", "guess"))
    assert status(reply) == Status.INVALID_LOGIN
    assert reply.properties["JMQReason"] == "wrong"
    peer.send_bytes(encode_packet(H.CREATE_SESSION, A, 5))
    assert peer.receive() == []
    assert peer.transport.open
    harness.run_event_loop(1000)
    assert not peer.transport.open


def test_logins_may_be_spelled_as_protocol_page_does() -> None:
    users = PasswordAccess()
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
    assert users.attempts[-1].digest == "5e"
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
def test_unchecked_login_reports_when_to_retry(error: AccessError, expected: Status) -> None:
    users = PasswordAccess()
    users.error = error
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    reply = peer.request(H.AUTHENTICATE, {"JMQAuthType": "basic"}, login("anna", "guess"))
    assert status(reply) == expected
    assert reply.properties["JMQReason"] == str(error)


def test_closed_connection_withdraws_its_login() -> None:
    users = PasswordAccess(later=True)
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
    users = PasswordAccess()
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    assert (
        peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "basic"}, body) == Status.INVALID_LOGIN
    )
    assert users.attempts == []


def test_login_with_another_authentication_type_is_413() -> None:
    peer = Harness(access=PasswordAccess()).connect_without_hello()
    peer.hello()
    body = login("anna", "secret")
    assert (
        peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "digest"}, body) == Status.INVALID_LOGIN
    )


def test_base64_passwords_may_contain_line_breaks() -> None:
    users = PasswordAccess()
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    body = string("anna") + string("c2Vj\r\ncmV0\r\n")
    assert peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "basic"}, body) == Status.OK
    assert users.attempts == [Credentials("anna", "secret")]


def test_digest_login() -> None:
    users = PasswordAccess()
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
        assert users.attempts[-1] == Credentials("anna", digest=answer_digest, nonce=nonce)
        nonces.add(nonce)
    assert len(nonces) == 2
    assert "" not in nonces


def test_without_users_any_login_succeeds() -> None:
    peer = Harness().connect_without_hello(SessionOptions())
    peer.hello()
    assert peer.request_status(H.AUTHENTICATE, {"JMQAuthType": "digest"}, b"\xff") == Status.OK
    assert peer.request_status(H.CREATE_SESSION) == Status.OK


def test_packets_behind_login_wait_for_its_outcome() -> None:
    users = PasswordAccess(later=True)
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
    users.complete_login()
    harness.run_event_loop()
    replies = peer.receive()
    assert [p.consumer_id for p in replies] == [requests[0][0], requests[1][0], late_request[0]]
    assert [status(p) for p in replies] == [200, 200, 200]
    assert not peer.transport.paused


def test_login_result_after_close_is_ignored() -> None:
    users = PasswordAccess(later=True)
    harness = Harness(access=users)
    peer = harness.connect_without_hello()
    peer.hello()
    peer.send_bytes(peer.encode_request(H.AUTHENTICATE, {}, login("anna", "secret"))[1])
    peer.drop()
    users.complete_login()


# --- reconnecting --------------------------------------------------------------------------------


def test_reconnecting_closes_previous_connection() -> None:
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
    new.request(H.STOP, expect=Status.OK)
    new.send_packet(H.START)
    new.send("q", "y")
    assert new.texts() == ["y"]


def test_reconnected_client_may_send_stop_at_once() -> None:
    harness = Harness()
    peer = harness.connect(JMQConnectionID=Long(5))
    peer.consume("q", peer.create_session())
    peer.send("q", "x")
    peer.request(H.STOP, expect=Status.OK)
    harness.run_event_loop(1000)
    assert peer.delivered() == []
    peer.send_packet(H.START)
    assert peer.texts() == ["x"]


def reconnect(harness: Harness, number: int) -> Peer:
    """Return a client that replaces the connection with that number and has not sent START."""
    peer = harness.connect_without_hello()
    peer.hello(JMQConnectionID=Long(number), JMQReconnectable=True)
    peer.request(H.AUTHENTICATE, {}, login("anna", "secret"), expect=Status.OK)
    return peer


def test_reconnected_client_consumes_from_its_temporary_queue_again() -> None:
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


def test_consuming_does_not_create_temporary_queue() -> None:
    harness = Harness()
    peer = harness.connect()
    reconnected = reconnect(harness, 5)
    other = harness.connect()
    properties = peer.destination_properties("temporary_destination://queue/x/1/1", temporary=True)
    session = Long(peer.create_session())
    peer.request(H.ADD_CONSUMER, {**properties, "JMQSessionID": session}, expect=Status.NOT_FOUND)
    assert other.create("temporary_destination://queue/x/1/1", temporary=True) == Status.OK
    session = Long(reconnected.create_session())
    reconnected.request(
        H.ADD_CONSUMER, {**properties, "JMQSessionID": session}, expect=Status.NOT_ALLOWED
    )


def test_reconnecting_does_not_close_connections_of_others() -> None:
    harness = Harness()
    first = harness.connect(JMQReconnectable=False)
    anna = Access(Identity("anna", superuser=True))
    second = harness.connect(JMQReconnectable=True, access=anna)
    for number in list(harness.coordinator.connections):
        harness.connect(JMQConnectionID=Long(number))
    assert first.transport.open
    assert second.transport.open


# --- packets -------------------------------------------------------------------------------------


def test_unknown_packet_type_gets_status_501_if_reply_is_requested() -> None:
    peer = Harness().connect()
    for kind in (7, 30, 74, 82, 1000, -1, 0x7FFE):
        number, data = peer.encode_request(kind)
        peer.send_bytes(data)
        [reply] = peer.receive()
        assert (reply.type, reply.consumer_id) == (kind + 1, number)
        assert status(reply) == Status.NOT_IMPLEMENTED
        peer.send_bytes(encode_packet(kind))
        assert peer.receive() == []
    assert peer.transport.open


def test_packets_without_reply_are_not_answered() -> None:
    peer = Harness().connect()
    for kind in (H.START, H.REDELIVER, H.RESUME_FLOW, H.FLOW_PAUSED, H.PING_REPLY, 0x7FFF):
        peer.send_bytes(encode_packet(kind, A, 1, body=b"xyz"))
    assert peer.receive() == []


def test_malformed_packet_ends_connection_after_earlier_packets() -> None:
    peer = Harness().connect()
    number, data = peer.encode_request(H.PING)
    peer.send_bytes(data + b"GET / HTTP/1.1\r\n\r\n" + data)
    [reply] = peer.receive()
    assert reply.consumer_id == number
    assert not peer.transport.open


def test_packet_above_size_limit_is_423() -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(max_packet_size=10_000))
    peer.send("q", "x" * 20_000, expect=Status.ENTITY_TOO_LARGE)
    peer.send_bytes(peer.message("q", b"y" * 20_000, flags=0))
    assert peer.receive() == []
    _, data = peer.encode_request(H.CREATE_SESSION, body=bytes(20_000))
    peer.send_bytes(data)
    [reply] = peer.receive()
    assert (reply.type, status(reply)) == (H.CREATE_SESSION_REPLY, Status.ENTITY_TOO_LARGE)
    peer.send("q", "x" * 9_000)
    assert [len(body) for body in harness.bodies("q")] == [9_000]


def test_reason_of_423_names_the_limit() -> None:
    peer = Harness().connect_without_hello()
    peer.session.receive(peer.encode_request(H.HELLO, {}, bytes(70_000))[1])
    peer.hello()
    peer.request(H.AUTHENTICATE, {}, login("a", "b"), expect=Status.OK)
    properties = {f"p{index}": "x" * 60_000 for index in range(18)}
    peer.session.receive(peer.encode_request(H.PING, properties)[1])
    peer.session.receive(peer.encode_request(H.PING, header=bytes(262_145))[1])
    replies = peer.receive()
    assert [status(reply) for reply in replies] == [Status.ENTITY_TOO_LARGE] * 3
    assert [reply.properties["JMQReason"] for reply in replies] == [
        "before the login, packets have up to 65536 bytes, this one 70072",
        "properties have up to 1048576 bytes together, these 1080160",
        "variable headers have up to 262144 bytes, this one 262145",
    ]


def test_packets_before_login_have_small_size_limit() -> None:
    peer = Harness().connect_without_hello()
    number, data = peer.encode_request(H.HELLO, {"JMQProtocolLevel": 500}, bytes(70_000))
    peer.send_bytes(data)
    [reply] = peer.receive()
    assert (reply.consumer_id, status(reply)) == (number, Status.ENTITY_TOO_LARGE)
    peer.hello()
    peer.request(H.AUTHENTICATE, {}, login("a", "b"), expect=Status.OK)
    peer.send("q", "x" * 70_000)


def test_resources_of_connection_are_limited() -> None:
    peer = Harness().connect(SessionOptions(max_per_connection=2))
    for kind, properties, expected in (
        (H.CREATE_SESSION, {}, Status.NOT_ALLOWED),
        (H.ADD_PRODUCER, peer.destination_properties("q"), Status.NOT_ALLOWED),
        (H.ADD_CONSUMER, peer.destination_properties("q"), Status.CONFLICT),
        (H.START_TRANSACTION, {}, Status.ERROR),
    ):
        assert [peer.request_status(kind, properties) for _ in range(3)] == [200, 200, expected]


def test_malformed_property_block_is_400() -> None:
    peer = Harness().connect()
    packet = encode_packet(H.CREATE_SESSION, A, 77, {"JMQAckMode": 1})
    peer.send_bytes(packet.replace(b"\0\x0aJMQAckMode\0\x04", b"\0\x0aJMQAckMode\0\x44"))
    [reply] = peer.receive()
    assert (reply.consumer_id, status(reply)) == (77, Status.BAD_REQUEST)
    assert peer.transport.open


def test_generate_uid() -> None:
    peer = Harness().connect()
    reply = peer.request(H.GENERATE_UID, expect=Status.OK)
    assert reply.properties["JMQQuantity"] == 1
    response = peer.request(H.GENERATE_UID, {"JMQQuantity": 100}, expect=Status.OK)
    ids = [response.body[position : position + 8] for position in range(0, 800, 8)] + [reply.body]
    assert len(set(ids)) == 101
    assert all(int.from_bytes(identifier, "big", signed=True) > 0 for identifier in ids)
    for quantity in (0, -1, 10_001):
        assert peer.request_status(H.GENERATE_UID, {"JMQQuantity": quantity}) == Status.BAD_REQUEST


def test_get_license_and_info() -> None:
    peer = Harness().connect(SessionOptions(broker_list="mq://here:7676/"))
    peer.request(H.GET_LICENSE, expect=Status.OK)
    reply = peer.request(H.INFO_REQUEST, {"JMQRequestType": 1}, expect=Status.OK)
    assert reply.type == H.INFO
    assert reply.properties["JMQBrokerList"] == "mq://here:7676/"
    info = loads_map(reply.body)
    assert info["State"] == 1
    assert info["brokerURL"] == "mq://here:7676/"
    cluster = loads_map(peer.request(H.INFO_REQUEST, {"JMQRequestType": 2}, expect=Status.OK).body)
    assert cluster[str(cluster["BrokerIDs"])] == info
    assert peer.request_status(H.INFO_REQUEST, {"JMQRequestType": 3}) == Status.NOT_IMPLEMENTED
    assert peer.request_status(H.INFO_REQUEST, {"JMQRequestType": 4}) == Status.BAD_REQUEST
    assert peer.request_status(H.INFO_REQUEST) == Status.BAD_REQUEST


def test_info_request_is_accepted_with_both_packet_numbers() -> None:
    peer = Harness().connect()
    reply = peer.request(78, {"JMQRequestType": 1}, expect=Status.OK)
    assert reply.properties["JMQRequestType"] == 1
    expected = peer.request(H.INFO_REQUEST, {"JMQRequestType": 1}).body
    assert (reply.type, reply.body) == (79, expected)
    assert peer.request_status(78, {"JMQTransactionID": Long(5)}) == Status.NOT_FOUND


# --- ping ----------------------------------------------------------------------------------------


def test_idle_client_is_pinged_and_then_disconnected() -> None:
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


def test_any_packet_proves_that_client_is_alive() -> None:
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


def test_old_clients_are_pinged_without_requesting_reply() -> None:
    harness = Harness()
    peer = harness.connect(SessionOptions(ping_interval=10.0), JMQProtocolLevel=360)
    harness.run_event_loop(10_000)
    assert peer.receive() == []
    for _ in range(8):
        harness.run_event_loop(10_000)
        [ping] = peer.receive()
        assert (ping.type, ping.flags & A) == (H.PING, 0)
    assert peer.transport.open  # they never answer, so their silence means nothing


def test_old_client_that_does_not_log_in_is_disconnected() -> None:
    harness = Harness()
    peer = harness.connect_without_hello(SessionOptions(authentication="basic", ping_interval=10.0))
    peer.hello(JMQProtocolLevel=360)
    for _ in range(8):
        harness.run_event_loop(10_000)
    assert not peer.transport.open


def test_ping_without_bit_is_not_answered() -> None:
    peer = Harness().connect()
    assert peer.send_packet(H.PING) == []
    assert peer.request_status(H.PING) == Status.OK


# --- closing -------------------------------------------------------------------------------------


def test_goodbye_is_answered_when_everything_is_released() -> None:
    harness = Harness()
    peer = harness.connect(client_id="me")
    peer.consume("q", peer.create_session())
    other = harness.connect()
    peer.request(H.GOODBYE, {"JMQBlock": True}, expect=Status.OK)
    assert not peer.transport.open
    assert harness.queue("q").consumers == 0
    assert other.request_status(H.SET_CLIENTID, {"JMQClientID": "me"}) == Status.OK
    assert len(harness.coordinator.connections) == 1


def test_goodbye_without_reply_requested() -> None:
    peer = Harness().connect()
    peer.send_packet(H.GOODBYE)
    assert peer.receive() == []
    assert not peer.transport.open


def test_requests_before_end_of_input_are_answered() -> None:
    harness = Harness()
    peer = harness.connect()
    peer.session.receive(peer.message("q", b"x", flags=P | A, consumer_id=5))
    peer.session.end_of_input()
    assert peer.transport.open  # it is not on disk
    harness.run_event_loop()
    [reply] = peer.receive()
    assert (reply.type, status(reply)) == (H.SEND_REPLY, Status.OK)
    assert not peer.transport.open


def test_broker_sends_goodbye_on_shutdown() -> None:
    harness = Harness()
    peer = harness.connect()
    peer.session.disconnect("the broker stops", stopping=True)
    harness.run_event_loop()
    [goodbye] = peer.receive()
    assert goodbye.type == H.GOODBYE
    assert goodbye.properties["JMQGoodbyeReason"] == 1
    assert goodbye.properties["JMQExit"] is False
    assert not peer.transport.open
    stranger = harness.connect_without_hello()
    stranger.session.disconnect("the broker stops", stopping=True)
    harness.run_event_loop()
    assert stranger.receive() == []
    assert not stranger.transport.open


def test_disconnected_client_gets_reason_and_may_reconnect() -> None:
    harness = Harness()
    peer = harness.connect(client_id="me")
    peer.consume("q", peer.create_session())
    assert peer.session.session_info() == SessionInfo("jmq", "", "me", "open")
    assert [consumer.number for consumer in peer.session.consumers()]
    peer.session.disconnect("too loud")
    harness.run_event_loop()
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
    harness.run_event_loop()
    assert stranger.receive() == []
    assert not stranger.transport.open


def test_goodbye_follows_replies_to_messages() -> None:
    """A client that is disconnected without them would send the messages again."""
    harness = Harness()
    peer = harness.connect()
    peer.session.receive(peer.message("q", b"x", flags=P | A, consumer_id=5))
    peer.session.disconnect("too loud")
    assert peer.transport.open  # the message is not on disk
    peer.session.receive(peer.message("q", b"y", flags=P | A, consumer_id=6))
    harness.run_event_loop()
    reply, goodbye = peer.receive()
    assert (reply.type, reply.consumer_id, status(reply)) == (H.SEND_REPLY, 5, Status.OK)
    assert goodbye.type == H.GOODBYE
    assert not peer.transport.open
    assert len(harness.bodies("q")) == 1


@pytest.mark.parametrize("end", ["goodbye", "end of input", "disconnect"])
@pytest.mark.parametrize("kind", [H.COMMIT_TRANSACTION, H.ADD_CONSUMER, H.ACKNOWLEDGE])
def test_connection_ends_after_replies_that_wait_for_journal(kind: int, end: str) -> None:
    harness = Harness()
    peer = harness.connect(client_id="me")
    session = peer.create_session()
    transaction = peer.begin(session)
    peer.send("q", "x", transaction_id=transaction)
    peer.consume("r", session)
    peer.send("r", "y")
    properties: dict[int, dict[str, object]] = {
        H.COMMIT_TRANSACTION: {"JMQTransactionID": Long(transaction)},
        H.ADD_CONSUMER: {**peer.destination_properties("t", True), "JMQDurableName": "d"},
        H.ACKNOWLEDGE: {},
    }
    acks = blocks(*peer.delivered())
    body = acks if kind == H.ACKNOWLEDGE else b""
    number, data = peer.encode_request(kind, properties[kind], body)
    if end == "goodbye":
        data += peer.encode_request(H.GOODBYE)[1]
    peer.session.receive(data)
    if end == "end of input":
        peer.session.end_of_input()
    elif end == "disconnect":
        peer.session.disconnect("too loud")
    harness.run_event_loop()
    reply, *others = peer.receive()
    assert (reply.type, reply.consumer_id, status(reply)) == (kind + 1, number, Status.OK)
    assert len(others) == (end != "end of input")
    assert not peer.transport.open


def test_lost_connection_releases_its_resources() -> None:
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


def test_broker_does_not_read_from_client_that_does_not_read() -> None:
    harness = Harness()
    peer = harness.connect()
    peer.stop_reading()
    request = encode_packet(H.GENERATE_UID, A, 1, {"JMQQuantity": 10_000})
    for _ in range(20):
        peer.session.receive(request)
    assert peer.transport.paused
    peer.read_again()
    assert not peer.transport.paused


# --- memory of unfinished input ------------------------------------------------------------------


def test_input_buffered_before_login_is_limited() -> None:
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


def test_login_beyond_connection_limit_is_refused() -> None:
    peer = Harness().connect_without_hello()
    peer.hello()
    peer.transport.user_limit_reached = True
    assert peer.request_status(H.AUTHENTICATE, {}, login("a", "b")) == Status.UNAVAILABLE
    peer.harness.run_event_loop(1000)
    assert not peer.transport.open


def test_pending_packets_behind_login_count_as_buffered() -> None:
    access = PasswordAccess(later=True)
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


# --- long requests -------------------------------------------------------------------------------


def test_long_requests_do_not_delay_other_clients() -> None:
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


def test_many_requests_for_unique_ids_do_not_delay_other_clients() -> None:
    harness = Harness()
    peer = harness.connect()
    harness.scan_time.limit = 2
    request = encode_packet(H.GENERATE_UID, A, 0, {"JMQQuantity": 10_000})
    peer.session.receive(request * 8)
    assert len(peer.receive()) == 3
    harness.run_event_loop()
    assert len(peer.receive()) == 5


@pytest.mark.parametrize("kind", [H.ADD_PRODUCER, H.CREATE_DESTINATION, H.TEXT_MESSAGE])
@pytest.mark.parametrize("max_message_bytes", [0, 1])
def test_many_new_topics_do_not_delay_other_clients(kind: int, max_message_bytes: int) -> None:
    defaults = DestinationSettings(max_message_bytes=max_message_bytes)
    harness = Harness(EngineSettings(default_destination=defaults))
    peer = harness.connect()
    harness.scan_time.limit = 2
    for number in range(8):
        name = f"t{number}"
        data = encode_packet(kind, A, 0, peer.destination_properties(name, topic=True))
        if kind == H.TEXT_MESSAGE:
            data = peer.message(name, "body", True, A)
        peer.session.receive(data)
    assert len(harness.broker.destinations) == 4  # with the dead message queue
    harness.run_event_loop()
    assert len(peer.receive()) == 8
    assert len(harness.broker.destinations) == 9


def test_error_in_request_that_continues_later_ends_only_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    peer = harness.connect()
    faults = peer.transport.catch_faults()
    harness.scan_time.limit = 2
    peer.session.receive(b"".join([peer.encode_request(H.STOP)[1] for _ in range(8)]))
    monkeypatch.setattr(JmqConnection, "reply", None)
    harness.run_event_loop()
    assert [type(fault) for fault in faults] == [TypeError]


def test_long_requests_wait_while_client_does_not_read() -> None:
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


def test_deleted_dead_message_queue_is_created_for_next_client() -> None:
    harness = Harness()
    harness.connect()
    harness.broker.remove(harness.queue("mq.sys.dmq"))
    harness.connect()
    assert harness.queue("mq.sys.dmq").settings.max_messages == 1000


def test_client_logs_in_while_dead_message_queue_cannot_be_created() -> None:
    harness = Harness(EngineSettings(max_destinations=1))
    harness.limit("q", DEFAULTS)
    harness.connect().send("q", "a", expiration=harness.clock.wall + 1)
    harness.run_event_loop(1000)
    assert harness.bodies("mq.sys.dmq") == [b"a"]
    harness.connect()
    assert harness.queue("mq.sys.dmq").settings.max_messages == 1000
