"""Scenarios that provoke every status of every reply; test_statuses.py lists the statuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sluicemq.broker import EngineSettings
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import (
    AccessError,
    AuthenticationFailed,
    LoginBusy,
    TooManyFailures,
)
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import encode_blocks, encode_header
from sluicemq.protocols.jmq.packets import A, I, P, PacketType, Status, XaFlag
from sluicemq.protocols.jmq.wire import Packet
from sluicemq.security.access import Access
from tests.protocols.jmq.harness import Harness, Peer, blocks, encode_sysid, login, status, xid
from tests.protocols.jmq.test_session import PasswordAccess
from tests.support.sessions import RecordedAccess

H = PacketType

Scenario = Callable[[], Packet]
SCENARIOS: dict[tuple[PacketType, int], Scenario] = {}


def provokes(kind: PacketType, expected: int) -> Callable[[Scenario], Scenario]:
    def register(scenario: Scenario) -> Scenario:
        assert (kind, expected) not in SCENARIOS
        SCENARIOS[kind, expected] = scenario
        return scenario

    return register


def connect(
    options: SessionOptions | None = None,
    settings: EngineSettings | None = None,
    access: Access | None = None,
    client_id: str = "",
) -> Peer:
    return Harness(settings).connect(options, client_id, access)


def send(peer: Peer, name: str = "q", flags: int = P | A, **header: Any) -> Packet:
    peer.send_bytes(peer.message(name, b"body", flags=flags, consumer_id=99, **header))
    [reply] = [packet for packet in peer.receive() if packet.consumer_id == 99]
    return reply


def receive_unacked(peer: Peer) -> Packet:
    """Send a message to a consumer, and return it unacked."""
    peer.consume("q", peer.create_session())
    peer.send("q", "body")
    [message] = peer.delivered()
    return message


def send_xa_request(peer: Peer, kind: PacketType, flags: int = 0, bits: int = 0) -> Packet:
    return peer.request(kind, {"JMQXAFlags": flags}, xid("x"), flags=bits)


def time_out_transaction() -> tuple[Peer, int]:
    """Return a distributed transaction that has timed out, and its number."""
    peer = connect(SessionOptions(transaction_timeout=10))
    number = send_xa_request(peer, H.START_TRANSACTION).properties["JMQTransactionID"]
    assert isinstance(number, int)
    peer.send("q", "x", transaction_id=number)
    peer.harness.run_event_loop(10)
    return peer, number


# --- SEND --------------------------------------------------------------------------------------


@provokes(H.SEND_REPLY, 200)
def _() -> Packet:
    return send(connect())


@provokes(H.SEND_REPLY, 304)
def _() -> Packet:
    peer = connect()
    sysid = encode_sysid(1, 1)
    send(peer, sysid=sysid)
    return send(peer, flags=P | A | I, sysid=sysid)


@provokes(H.SEND_REPLY, 403)
def _() -> Packet:
    return send(connect(access=RecordedAccess()))


@provokes(H.SEND_REPLY, 404)
def _() -> Packet:
    return send(connect(), "temporary_destination://queue/1")


@provokes(H.SEND_REPLY, 408)
def _() -> Packet:
    peer, number = time_out_transaction()
    return send(peer, transaction_id=number)


@provokes(H.SEND_REPLY, 410)
def _() -> Packet:
    return send(connect(), transaction_id=5)


@provokes(H.SEND_REPLY, 412)
def _() -> Packet:
    peer = connect()
    number = send_xa_request(peer, H.START_TRANSACTION).properties["JMQTransactionID"]
    send_xa_request(peer, H.END_TRANSACTION, XaFlag.SUCCESS)
    return send(peer, transaction_id=number)


@provokes(H.SEND_REPLY, 414)
def _() -> Packet:
    peer = connect()
    peer.harness.limit("q", DestinationSettings(max_messages=1))
    send(peer)
    return send(peer)


@provokes(H.SEND_REPLY, 423)
def _() -> Packet:
    peer = connect()
    peer.harness.limit("q", DestinationSettings(max_message_bytes=1))
    return send(peer)


@provokes(H.SEND_REPLY, 500)
def _() -> Packet:
    peer = Harness().connect_without_hello()
    peer.hello()
    return send(peer)


# --- ACKNOWLEDGE -------------------------------------------------------------------------------


def acknowledge(peer: Peer, body: bytes, transaction: int = 0, **properties: object) -> Packet:
    header = encode_header(transaction_id=transaction)
    return peer.request(H.ACKNOWLEDGE, properties, body, header=header)


@provokes(H.ACKNOWLEDGE_REPLY, 200)
def _() -> Packet:
    peer = connect()
    return acknowledge(peer, blocks(receive_unacked(peer)))


@provokes(H.ACKNOWLEDGE_REPLY, 400)
def _() -> Packet:
    peer = connect()
    return acknowledge(peer, blocks(receive_unacked(peer)), JMQValidate=True)


@provokes(H.ACKNOWLEDGE_REPLY, 404)
def _() -> Packet:
    return acknowledge(connect(), encode_blocks([(5, encode_sysid(1, 1))]))


@provokes(H.ACKNOWLEDGE_REPLY, 405)
def _() -> Packet:
    peer = connect()
    session = peer.request(H.CREATE_SESSION, {"JMQAckMode": 32768}).properties["JMQSessionID"]
    assert isinstance(session, int)
    peer.consume("q", session)
    peer.send("q", "x")
    return acknowledge(peer, blocks(*peer.delivered()))


@provokes(H.ACKNOWLEDGE_REPLY, 408)
def _() -> Packet:
    peer, number = time_out_transaction()
    return acknowledge(peer, blocks(receive_unacked(peer)), number)


@provokes(H.ACKNOWLEDGE_REPLY, 410)
def _() -> Packet:
    peer = connect()
    return acknowledge(peer, blocks(receive_unacked(peer)), 5)


@provokes(H.ACKNOWLEDGE_REPLY, 412)
def _() -> Packet:
    peer = connect()
    number = send_xa_request(peer, H.START_TRANSACTION).properties["JMQTransactionID"]
    assert isinstance(number, int)
    send_xa_request(peer, H.END_TRANSACTION, XaFlag.SUCCESS)
    return acknowledge(peer, blocks(receive_unacked(peer)), number)


# --- consumers and producers -------------------------------------------------------------------


@provokes(H.ADD_CONSUMER_REPLY, 200)
def _() -> Packet:
    peer = connect()
    return peer.request(H.ADD_CONSUMER, peer.destination_properties("q"))


@provokes(H.ADD_CONSUMER_REPLY, 400)
def _() -> Packet:
    peer = connect()
    return peer.request(H.ADD_CONSUMER, {**peer.destination_properties("q"), "JMQSelector": "="})


@provokes(H.ADD_CONSUMER_REPLY, 403)
def _() -> Packet:
    peer = connect(access=RecordedAccess())
    return peer.request(H.ADD_CONSUMER, peer.destination_properties("q"))


@provokes(H.ADD_CONSUMER_REPLY, 404)
def _() -> Packet:
    peer = connect(settings=EngineSettings(auto_create_queues=False))
    return peer.request(H.ADD_CONSUMER, peer.destination_properties("q"))


@provokes(H.ADD_CONSUMER_REPLY, 405)
def _() -> Packet:
    peer = connect()
    name = "temporary_destination://queue/1"
    peer.harness.connect().create(name, temporary=True)
    return peer.request(H.ADD_CONSUMER, peer.destination_properties(name))


@provokes(H.ADD_CONSUMER_REPLY, 409)
def _() -> Packet:
    peer = connect()
    peer.harness.limit("q", DestinationSettings(max_consumers=1))
    peer.request(H.ADD_CONSUMER, peer.destination_properties("q"))
    return peer.request(H.ADD_CONSUMER, peer.destination_properties("q"))


@provokes(H.ADD_CONSUMER_REPLY, 412)
def _() -> Packet:
    peer = connect()
    return peer.request(
        H.ADD_CONSUMER, {**peer.destination_properties("t", True), "JMQDurableName": "d"}
    )


@provokes(H.ADD_PRODUCER_REPLY, 200)
def _() -> Packet:
    peer = connect()
    return peer.request(H.ADD_PRODUCER, peer.destination_properties("q"))


@provokes(H.ADD_PRODUCER_REPLY, 403)
def _() -> Packet:
    peer = connect(access=RecordedAccess())
    return peer.request(H.ADD_PRODUCER, peer.destination_properties("q"))


@provokes(H.ADD_PRODUCER_REPLY, 404)
def _() -> Packet:
    peer = connect(settings=EngineSettings(auto_create_queues=False))
    return peer.request(H.ADD_PRODUCER, peer.destination_properties("q"))


@provokes(H.ADD_PRODUCER_REPLY, 405)
def _() -> Packet:
    peer = connect(SessionOptions(max_per_connection=1))
    peer.request(H.ADD_PRODUCER, peer.destination_properties("q"))
    return peer.request(H.ADD_PRODUCER, peer.destination_properties("q"))


def wildcard_queue(kind: PacketType) -> Packet:
    peer = connect()
    return peer.request(kind, peer.destination_properties("a.*"))


for _kind in (H.ADD_CONSUMER, H.ADD_PRODUCER, H.CREATE_DESTINATION):
    provokes(PacketType(_kind + 1), 415)(partial(wildcard_queue, _kind))


@provokes(H.ADD_PRODUCER_REPLY, 409)
def _() -> Packet:
    peer = connect()
    return peer.request(H.ADD_PRODUCER, peer.destination_properties("mq.sys.dmq"))


def durable() -> Peer:
    peer = connect(client_id="me")
    properties = {**peer.destination_properties("t", True), "JMQDurableName": "d"}
    peer.request(H.ADD_CONSUMER, properties, expect=Status.OK)
    return peer


@provokes(H.DELETE_CONSUMER_REPLY, 200)
def _() -> Packet:
    peer = connect()
    answer = peer.request(H.ADD_CONSUMER, peer.destination_properties("q"))
    number = {"JMQConsumerID": Long(int(str(answer.properties["JMQConsumerID"])))}
    return peer.request(H.DELETE_CONSUMER, number)


@provokes(H.DELETE_CONSUMER_REPLY, 400)
def _() -> Packet:
    return connect().request(H.DELETE_CONSUMER, {})


@provokes(H.DELETE_CONSUMER_REPLY, 403)
def _() -> Packet:
    harness = durable().harness
    stranger = harness.connect(access=RecordedAccess())
    return stranger.request(H.DELETE_CONSUMER, {"JMQDurableName": "d", "JMQClientID": "me"})


@provokes(H.DELETE_CONSUMER_REPLY, 404)
def _() -> Packet:
    return connect().request(H.DELETE_CONSUMER, {"JMQConsumerID": Long(5)})


@provokes(H.DELETE_CONSUMER_REPLY, 409)
def _() -> Packet:
    return durable().request(H.DELETE_CONSUMER, {"JMQDurableName": "d"})


@provokes(H.DELETE_CONSUMER_REPLY, 412)
def _() -> Packet:
    peer = connect(settings=EngineSettings(auto_create_queues=False))
    peer.harness.broker.destinations.declare(Address(Kind.QUEUE, "q"))
    number = {"JMQConsumerID": Long(peer.consume("q", peer.create_session()))}
    peer.harness.broker.remove(peer.harness.queue("q"), force=True)
    return peer.request(H.DELETE_CONSUMER, number)


@provokes(H.DELETE_PRODUCER_REPLY, 200)
def _() -> Packet:
    peer = connect()
    answer = peer.request(H.ADD_PRODUCER, peer.destination_properties("q"))
    number = {"JMQProducerID": Long(int(str(answer.properties["JMQProducerID"])))}
    return peer.request(H.DELETE_PRODUCER, number)


@provokes(H.DELETE_PRODUCER_REPLY, 404)
def _() -> Packet:
    return connect().request(H.DELETE_PRODUCER, {"JMQProducerID": Long(5)})


# --- HELLO and AUTHENTICATE --------------------------------------------------------------------


@provokes(H.AUTHENTICATE_REPLY, 200)
def _() -> Packet:
    peer = Harness().connect_without_hello()
    peer.hello()
    return peer.request(H.AUTHENTICATE, {}, login("a", "b"))


def login_error(error: AccessError) -> Packet:
    users = PasswordAccess()
    users.error = error
    peer = Harness(access=users).connect_without_hello()
    peer.hello()
    return peer.request(H.AUTHENTICATE, {}, login("a", "b"))


for _error, _status in (
    (TooManyFailures("for this user from this address", 8), 403),
    (AuthenticationFailed("the user name or the password is wrong"), 413),
    (LoginBusy(), 503),
):
    provokes(H.AUTHENTICATE_REPLY, _status)(partial(login_error, _error))


@provokes(H.HELLO_REPLY, 200)
def _() -> Packet:
    return Harness().connect_without_hello().hello()


@provokes(H.HELLO_REPLY, 400)
def _() -> Packet:
    return Harness().connect_without_hello().hello(JMQClusterID="x")


@provokes(H.HELLO_REPLY, 404)
def _() -> Packet:
    return Harness().connect_without_hello().hello(JMQStoreSession=Long(5))


@provokes(H.HELLO_REPLY, 500)
def _() -> Packet:
    return connect().request(H.HELLO, {"JMQProtocolLevel": 500})


@provokes(H.HELLO_REPLY, 415)
def _() -> Packet:
    answer = Harness().connect_without_hello().hello(JMQDestinationProvider="GLASSFISH_MQ")
    assert status(answer) == Status.OK
    return (
        Harness().connect_without_hello().hello(JMQDestinationProvider="COHERENCE_MESSAGE_PATTERN")
    )


@provokes(H.HELLO_REPLY, 503)
def _() -> Packet:
    peer = Harness().connect_without_hello(
        SessionOptions(unavailable_reason="the limit of 5 connections is reached")
    )
    answer = peer.hello()
    assert peer.challenge == []
    assert not peer.transport.open
    return answer


@provokes(H.HELLO_REPLY, 505)
def _() -> Packet:
    return Harness().connect_without_hello().hello(JMQProtocolLevel=1)


# --- destinations ------------------------------------------------------------------------------


@provokes(H.CREATE_DESTINATION_REPLY, 200)
def _() -> Packet:
    peer = connect()
    return peer.request(H.CREATE_DESTINATION, peer.destination_properties("q"))


@provokes(H.CREATE_DESTINATION_REPLY, 400)
def _() -> Packet:
    two_flavours = {"JMQDestination": "q", "JMQDestType": 0x301}
    return connect().request(H.CREATE_DESTINATION, two_flavours)


@provokes(H.CREATE_DESTINATION_REPLY, 403)
def _() -> Packet:
    peer = connect(access=RecordedAccess())
    return peer.request(H.CREATE_DESTINATION, peer.destination_properties("q"))


@provokes(H.CREATE_DESTINATION_REPLY, 409)
def _() -> Packet:
    peer = connect()
    properties = peer.destination_properties("temporary_destination://queue/1", temporary=True)
    peer.request(H.CREATE_DESTINATION, properties)
    return peer.request(H.CREATE_DESTINATION, properties)


@provokes(H.DESTROY_DESTINATION_REPLY, 200)
def _() -> Packet:
    peer = connect()
    peer.create("q")
    return peer.request(H.DESTROY_DESTINATION, peer.destination_properties("q"))


@provokes(H.DESTROY_DESTINATION_REPLY, 403)
def _() -> Packet:
    peer = connect(access=RecordedAccess("*: produce"))
    peer.create("q")
    return peer.request(H.DESTROY_DESTINATION, peer.destination_properties("q"))


@provokes(H.DESTROY_DESTINATION_REPLY, 404)
def _() -> Packet:
    peer = connect()
    return peer.request(H.DESTROY_DESTINATION, peer.destination_properties("q"))


@provokes(H.DESTROY_DESTINATION_REPLY, 409)
def _() -> Packet:
    peer = connect()
    peer.consume("q", peer.create_session())
    return peer.request(H.DESTROY_DESTINATION, peer.destination_properties("q"))


def request_queue(kind: PacketType, exists: bool = True, **more: object) -> Packet:
    access = RecordedAccess("q: browse")
    harness = Harness()
    if exists:
        harness.broker.destinations.queue("q")
        harness.broker.destinations.queue("r")
    peer = harness.connect(access=access)
    return peer.request(kind, {**peer.destination_properties("q"), **more})


for _kind, _reply in (
    (H.BROWSE, H.BROWSE_REPLY),
    (H.VERIFY_DESTINATION, H.VERIFY_DESTINATION_REPLY),
):
    provokes(_reply, 200)(partial(request_queue, _kind))
    provokes(_reply, 400)(partial(request_queue, _kind, JMQSelector="="))
    provokes(_reply, 403)(partial(request_queue, _kind, JMQDestination="r"))
    provokes(_reply, 404)(partial(request_queue, _kind, exists=False))


@provokes(H.DELIVER_REPLY, 200)
def _() -> Packet:
    peer = connect()
    peer.send("q", "x")
    answer = peer.request(H.BROWSE, peer.destination_properties("q"))
    number = {"JMQConsumerID": answer.properties["JMQConsumerID"]}
    return peer.request(H.DELIVER, number, answer.body)


@provokes(H.DELIVER_REPLY, 404)
def _() -> Packet:
    return connect().request(H.DELIVER, {"JMQConsumerID": Long(5)}, encode_sysid(1, 1))


# --- sessions and others -----------------------------------------------------------------------


@provokes(H.CREATE_SESSION_REPLY, 200)
def _() -> Packet:
    return connect().request(H.CREATE_SESSION)


@provokes(H.CREATE_SESSION_REPLY, 400)
def _() -> Packet:
    return connect().request(H.CREATE_SESSION, {"JMQAckMode": 9})


@provokes(H.CREATE_SESSION_REPLY, 405)
def _() -> Packet:
    peer = connect(SessionOptions(max_per_connection=1))
    peer.create_session()
    return peer.request(H.CREATE_SESSION)


@provokes(H.DESTROY_SESSION_REPLY, 200)
def _() -> Packet:
    peer = connect()
    return peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(peer.create_session())})


def request_unknown_session(kind: PacketType) -> Packet:
    return connect().request(kind, {"JMQSessionID": Long(5)})


for _kind in (H.DESTROY_SESSION, H.STOP):
    provokes(PacketType(_kind + 1), 404)(partial(request_unknown_session, _kind))


def request_info(kind: int) -> Packet:
    return connect().request(H.INFO_REQUEST, {"JMQRequestType": kind})


for _request, _status in (1, 200), (4, 400), (3, 501):
    provokes(H.INFO, _status)(partial(request_info, _request))


@provokes(H.GENERATE_UID_REPLY, 200)
def _() -> Packet:
    return connect().request(H.GENERATE_UID)


@provokes(H.GET_LICENSE_REPLY, 200)
def _() -> Packet:
    return connect().request(H.GET_LICENSE)


@provokes(H.GOODBYE_REPLY, 200)
def _() -> Packet:
    return connect().request(H.GOODBYE)


@provokes(H.PING_REPLY, 200)
def _() -> Packet:
    return connect().request(H.PING)


@provokes(H.STOP_REPLY, 200)
def _() -> Packet:
    return connect().request(H.STOP)


@provokes(H.SET_CLIENTID_REPLY, 200)
def _() -> Packet:
    return connect().request(H.SET_CLIENTID, {"JMQClientID": "x"})


@provokes(H.SET_CLIENTID_REPLY, 400)
def _() -> Packet:
    return connect().request(H.SET_CLIENTID, {"JMQClientID": ""})


@provokes(H.SET_CLIENTID_REPLY, 409)
def _() -> Packet:
    peer = connect(client_id="x")
    return peer.harness.connect().request(H.SET_CLIENTID, {"JMQClientID": "x"})


# --- transactions ------------------------------------------------------------------------------


@provokes(H.START_TRANSACTION_REPLY, 200)
def _() -> Packet:
    return connect().request(H.START_TRANSACTION)


@provokes(H.START_TRANSACTION_REPLY, 304)
def _() -> Packet:
    peer = connect()
    send_xa_request(peer, H.START_TRANSACTION)
    return send_xa_request(peer, H.START_TRANSACTION, bits=I)


@provokes(H.START_TRANSACTION_REPLY, 400)
def _() -> Packet:
    return connect().request(H.START_TRANSACTION, None, b"x")


@provokes(H.START_TRANSACTION_REPLY, 404)
def _() -> Packet:
    return send_xa_request(connect(), H.START_TRANSACTION, XaFlag.JOIN)


@provokes(H.START_TRANSACTION_REPLY, 500)
def _() -> Packet:
    return send_xa_request(end_transaction(H.PREPARE_TRANSACTION), H.START_TRANSACTION)


@provokes(H.START_TRANSACTION_REPLY, 501)
def _() -> Packet:
    return connect().request(H.START_TRANSACTION, {"JMQAutoRollback": 3})


def end_transaction(*requests: PacketType) -> Peer:
    """Return a connection on which a distributed transaction received these requests."""
    peer = connect()
    send_xa_request(peer, H.START_TRANSACTION)
    send_xa_request(peer, H.END_TRANSACTION, XaFlag.SUCCESS)
    for kind in requests:
        assert status(send_xa_request(peer, kind)) == Status.OK
    return peer


@provokes(H.END_TRANSACTION_REPLY, 200)
def _() -> Packet:
    return send_xa_request(end_transaction(), H.END_TRANSACTION, XaFlag.SUCCESS)


@provokes(H.END_TRANSACTION_REPLY, 304)
def _() -> Packet:
    return send_xa_request(end_transaction(), H.END_TRANSACTION, XaFlag.SUCCESS, I)


@provokes(H.END_TRANSACTION_REPLY, 412)
def _() -> Packet:
    return send_xa_request(
        end_transaction(H.PREPARE_TRANSACTION), H.END_TRANSACTION, XaFlag.SUCCESS
    )


@provokes(H.PREPARE_TRANSACTION_REPLY, 200)
def _() -> Packet:
    return send_xa_request(end_transaction(), H.PREPARE_TRANSACTION)


@provokes(H.PREPARE_TRANSACTION_REPLY, 304)
def _() -> Packet:
    return send_xa_request(end_transaction(H.PREPARE_TRANSACTION), H.PREPARE_TRANSACTION, bits=I)


@provokes(H.PREPARE_TRANSACTION_REPLY, 412)
def _() -> Packet:
    peer = connect()
    send_xa_request(peer, H.START_TRANSACTION)
    return send_xa_request(peer, H.PREPARE_TRANSACTION)


@provokes(H.COMMIT_TRANSACTION_REPLY, 200)
def _() -> Packet:
    return send_xa_request(end_transaction(H.PREPARE_TRANSACTION), H.COMMIT_TRANSACTION)


@provokes(H.COMMIT_TRANSACTION_REPLY, 412)
def _() -> Packet:
    return send_xa_request(end_transaction(), H.COMMIT_TRANSACTION)


@provokes(H.ROLLBACK_TRANSACTION_REPLY, 200)
def _() -> Packet:
    return send_xa_request(end_transaction(), H.ROLLBACK_TRANSACTION)


@provokes(H.ROLLBACK_TRANSACTION_REPLY, 412)
def _() -> Packet:
    peer = connect()
    send_xa_request(peer, H.START_TRANSACTION)
    return send_xa_request(peer, H.ROLLBACK_TRANSACTION)


def request_without_xid(kind: PacketType) -> Packet:
    return connect().request(kind, None, b"x")


def request_unknown_transaction(kind: PacketType) -> Packet:
    return send_xa_request(connect(), kind)


def request_after_timeout(kind: PacketType, flags: int) -> Packet:
    peer, _ = time_out_transaction()
    return send_xa_request(peer, kind, flags)


for _kind in (
    H.END_TRANSACTION,
    H.PREPARE_TRANSACTION,
    H.COMMIT_TRANSACTION,
    H.ROLLBACK_TRANSACTION,
):
    _reply = PacketType(_kind + 1)
    provokes(_reply, 400)(partial(request_without_xid, _kind))
    provokes(_reply, 404)(partial(request_unknown_transaction, _kind))
    _flags = XaFlag.SUCCESS if _kind == H.END_TRANSACTION else 0
    provokes(_reply, 408)(partial(request_after_timeout, _kind, _flags))


@provokes(H.RECOVER_TRANSACTION_REPLY, 200)
def _() -> Packet:
    flags = {"JMQXAFlags": XaFlag.STARTRSCAN}
    return end_transaction(H.PREPARE_TRANSACTION).request(H.RECOVER_TRANSACTION, flags)


@provokes(H.RECOVER_TRANSACTION_REPLY, 400)
def _() -> Packet:
    return connect().request(H.RECOVER_TRANSACTION, {"JMQTransactionID": "x"})


@provokes(H.RECOVER_TRANSACTION_REPLY, 404)
def _() -> Packet:
    return connect().request(H.RECOVER_TRANSACTION, {"JMQTransactionID": Long(5)})


@provokes(H.VERIFY_TRANSACTION_REPLY, 200)
def _() -> Packet:
    peer = end_transaction(H.PREPARE_TRANSACTION)
    return peer.request(H.VERIFY_TRANSACTION, {"JMQTransactionID": Long(0)}, xid("x"))


@provokes(H.VERIFY_TRANSACTION_REPLY, 400)
def _() -> Packet:
    return connect().request(H.VERIFY_TRANSACTION, {"JMQTransactionID": Long(0)}, b"no Xid")


@provokes(H.VERIFY_TRANSACTION_REPLY, 404)
def _() -> Packet:
    return connect().request(H.VERIFY_TRANSACTION, {"JMQTransactionID": Long(5)})


# --- errors ------------------------------------------------------------------------------------


def request_before_login(kind: int) -> Packet:
    return Harness().connect_without_hello().request(kind)
