"""Connecting, publishing and errors; test_deliveries.py tests deliveries."""

from __future__ import annotations

import json

import pytest

from sluicemq import __version__
from sluicemq.broker import EngineSettings
from sluicemq.model.access import EVERYBODY, Identity, Operation, Permission
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Overflow,
    Provenance,
)
from sluicemq.model.errors import (
    AccessError,
    AuthenticationFailed,
    AuthenticationMissing,
    LoginBusy,
    TooManyFailures,
)
from sluicemq.model.message import Durability
from sluicemq.protocols.channel import MAX_UNCONFIRMED
from sluicemq.protocols.transport import Login
from sluicemq.protocols.vibemq import compression, session, wire
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.session import MAX_UNPACKED_BYTES
from sluicemq.protocols.vibemq.wire import Frame
from sluicemq.security.access import Access, Credentials, LoginCallback, UserDirectory
from tests.protocols.vibemq.harness import Harness


class Authenticator:
    """Access whose login results the test supplies."""

    def __init__(self, guest: Identity | None = None) -> None:
        self.guest = guest
        self.users: UserDirectory | None = None
        self.attempts: list[tuple[Credentials, LoginCallback]] = []
        self.refused: list[str] = []
        self.cancelled = 0

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        self.attempts.append((credentials, admitted))

    def cancel_login(self) -> None:
        self.cancelled += 1

    def log_denied(self, peer: str, identity: Identity, operation: str) -> None:
        self.refused.append(operation)


def harness_with_access(access: Access) -> Harness:
    return Harness(access=access)


def harness_with_permissions(*permissions: tuple[str, Operation]) -> Harness:
    """Return a broker whose guests have these permissions only."""
    grants = [Permission(pattern, frozenset({operation})) for pattern, operation in permissions]
    return harness_with_access(Authenticator(Identity("guest", grants)))


# --- connecting ------------------------------------------------------------------------------


def test_connect_is_answered_with_its_id_and_headers_of_protocol_page(
    harness: Harness,
) -> None:
    peer, other = harness.open_connection(), harness.open_connection()
    [response] = peer.send(Frame(wire.CONNECT, "c"))
    assert response.type == wire.CONNECT_ACK
    assert response.id == "c"
    assert response.headers.keys() == {"connectionId", "serverVersion"}
    assert response.headers["serverVersion"] == __version__
    [another] = other.send(Frame(wire.CONNECT, "c"))
    assert another.headers["connectionId"] != response.headers["connectionId"]


def test_broker_sends_nothing_before_connect(harness: Harness) -> None:
    peer = harness.open_connection()
    harness.run_event_loop(100_000)
    assert peer.frames() == []


@pytest.mark.parametrize("kind", sorted((wire.FROM_CLIENT | {77}) - {wire.CONNECT, wire.PING}))
def test_only_ping_is_accepted_before_connect(harness: Harness, kind: int) -> None:
    peer = harness.open_connection()
    assert peer.error(kind, "q") == "NOT_AUTHENTICATED"
    assert peer.request(wire.PING).type == wire.PONG
    assert harness.find("q") is None
    assert peer.transport.open
    assert peer.request(wire.CONNECT).type == wire.CONNECT_ACK


@pytest.mark.parametrize(
    ("offered", "supported", "agreed"),
    [
        ("brotli,gzip", (Compression.BROTLI, Compression.GZIP), "brotli"),
        ("gzip, BROTLI", (Compression.BROTLI, Compression.GZIP), "gzip"),
        ("brotli,gzip", (Compression.GZIP,), "gzip"),
        ("brotli,gzip", (), None),
        ("zstd", (Compression.GZIP,), None),
        ("", (Compression.GZIP,), None),
    ],
)
def test_compression_is_negotiated_and_used_above_threshold(
    harness: Harness, offered: str, supported: tuple[Compression, ...], agreed: str | None
) -> None:
    peer = harness.open_connection(SessionOptions(compression=supported, threshold=600))
    [response] = peer.send(Frame(wire.CONNECT, "c", headers={"supported-compression": offered}))
    assert response.headers.get("negotiated-compression") == agreed
    flag = {None: 0, "gzip": 1, "brotli": 2}[agreed]
    peer.subscribe("q")
    for size, expected in ((100, 0), (1000, flag)):
        payload = b'"%b"' % (b"x" * size)
        peer.session.receive(wire.encode(Frame(wire.PUBLISH, "m", "q", payload)))
        harness.run_event_loop()
        output = peer.transport.written
        ack = wire.AckTemplate(b"q").fill(b"m")
        assert output.startswith(ack)
        assert output[len(ack) + 4] == expected
        assert [frame.payload for frame in peer.frames()] == [b"", payload]


def test_second_connect_renegotiates_and_keeps_subscriptions(harness: Harness) -> None:
    peer = harness.connect(**{"supported-compression": "gzip"})
    peer.subscribe("q")
    [response] = peer.send(Frame(wire.CONNECT, "again"))
    assert response.id == "again"
    assert "negotiated-compression" not in response.headers
    harness.connect().publish("q", "m")
    assert peer.ids() == ["m"]


def test_thousand_connects_in_one_read_are_answered(harness: Harness) -> None:
    peer = harness.open_connection()
    requests = [Frame(wire.CONNECT, str(n), headers={"authToken": "t"}) for n in range(2000)]
    responses = peer.send(*requests)
    for _ in range(2000):
        harness.run_event_loop()
        responses += peer.frames()
    assert [frame.id for frame in responses] == [frame.id for frame in requests]


# --- login -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "credentials"),
    [
        ({}, Credentials()),
        ({"authToken": "t"}, Credentials(token="t")),
        ({"authUsername": "u", "authPassword": "p"}, Credentials("u", "p")),
        (
            {"authUsername": "u", "authPassword": "p", "authToken": "t"},
            Credentials("u", "p", "t"),
        ),
    ],
)
def test_frames_after_connect_wait_for_login(
    headers: dict[str, str], credentials: Credentials
) -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection()
    frames = [Frame(wire.CONNECT, "c", headers=headers), Frame(wire.PUBLISH, "1", "q", b"1")]
    assert peer.send(*frames) == []
    assert peer.transport.paused
    assert peer.send(Frame(wire.PUBLISH, "2", "q", b"2")) == []
    [(received, callback)] = authenticator.attempts
    assert received == credentials
    callback(EVERYBODY)
    harness.run_event_loop()
    assert [(f.type, f.id) for f in peer.frames()] == [
        (wire.CONNECT_ACK, "c"),
        (wire.PUBLISH_ACK, "1"),
        (wire.PUBLISH_ACK, "2"),
    ]
    assert not peer.transport.paused


def test_frames_behind_login_count_as_they_were_received() -> None:
    harness = harness_with_access(Authenticator())
    peer = harness.open_connection()
    login = wire.encode(Frame(wire.CONNECT, "c", headers={"authToken": "t"}))
    later = Frame(wire.SUBSCRIBE, "s", "q" * 300, b"1", {"key": "value"}, "code", "message")
    data = wire.encode(later) * 100
    peer.session.receive(login + data)
    assert peer.session.buffered == len(data)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AuthenticationMissing("who are you?"), "AUTH_REQUIRED"),
        (AuthenticationFailed("wrong"), "AUTH_FAILED"),
        (TooManyFailures("for this user from this address", 8), "RATE_LIMITED"),
        (LoginBusy(), "RATE_LIMITED"),
    ],
)
def test_client_may_retry_after_failed_login(error: AccessError, code: str) -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection()
    login = {"authUsername": "u", "authPassword": "p"}
    frames = [Frame(wire.CONNECT, "c", headers=login), Frame(wire.PUBLISH, "1", "q", b"1")]
    assert peer.send(*frames) == []
    authenticator.attempts[0][1](error)
    harness.run_event_loop(60_000)
    responses = peer.frames()
    assert [(response.id, response.error_code) for response in responses] == [
        ("c", code),
        ("1", "NOT_AUTHENTICATED"),
    ]
    assert responses[0].error_message
    assert peer.session.login is Login.DUE
    assert harness.find("q") is None
    assert peer.send(Frame(wire.CONNECT, "c2", headers=login), *frames[1:]) == []
    authenticator.attempts[1][1](EVERYBODY)
    harness.run_event_loop()
    assert [(frame.type, frame.id) for frame in peer.frames()] == [
        (wire.CONNECT_ACK, "c2"),
        (wire.PUBLISH_ACK, "1"),
    ]


@pytest.mark.parametrize("allowed", [1, 2, 5])
def test_too_many_failed_logins_close_connection(allowed: int) -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection(SessionOptions(login_failures=allowed))
    logins = [Frame(wire.CONNECT, str(n)) for n in range(allowed + 1)]
    assert peer.send(*logins, Frame(wire.PUBLISH, "p", "q", b"1")) == []
    for n in range(allowed):
        assert peer.transport.open
        authenticator.attempts[n][1](AuthenticationFailed("wrong"))
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == [str(n) for n in range(allowed)]
    assert peer.send(Frame(wire.CONNECT, "more"), Frame(wire.PING, "p")) == []
    harness.run_event_loop(1000)
    assert not peer.transport.open
    assert len(authenticator.attempts) == allowed
    assert harness.find("q") is None


@pytest.mark.parametrize("checked_at_once", [False, True])
def test_end_for_failed_login_follows_acknowledgements_of_publishes(checked_at_once: bool) -> None:
    """A client that is disconnected without them would publish the messages again."""
    authenticator = Authenticator(EVERYBODY)
    harness = harness_with_access(authenticator)
    peer = harness.connect(SessionOptions(login_failures=1))
    peer.transport.user_limit_reached = checked_at_once
    login = {} if checked_at_once else {"authUsername": "u", "authPassword": "p"}
    frames = [
        Frame(wire.PUBLISH, "1", "q", b"0"),
        Frame(wire.CONNECT, "c", headers=login),
        Frame(wire.PUBLISH, "2", "q", b"0"),
    ]
    peer.session.receive(b"".join(map(wire.encode, frames)))
    for _, callback in authenticator.attempts:
        callback(AuthenticationFailed("wrong"))
    peer.session.receive(wire.encode(Frame(wire.PUBLISH, "3", "q", b"0")))
    harness.run_event_loop()
    assert [(frame.type, frame.id) for frame in peer.frames()] == [
        (wire.ERROR, "c"),
        (wire.PUBLISH_ACK, "1"),
    ]
    assert peer.transport.open
    harness.run_event_loop(1000)
    assert not peer.transport.open
    assert len(harness.bodies("q")) == 1


def test_successful_login_does_not_reset_failure_count() -> None:
    """Otherwise a user could guess passwords of others without limit on one connection."""
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection(SessionOptions(login_failures=2))
    for outcome in (AuthenticationFailed("wrong"), EVERYBODY, AuthenticationFailed("wrong")):
        peer.send(Frame(wire.CONNECT, "c"))
        authenticator.attempts[-1][1](outcome)
    harness.run_event_loop(1000)
    assert not peer.transport.open


def test_failed_second_login_keeps_first() -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection()
    peer.send(Frame(wire.CONNECT, "c"))
    authenticator.attempts[0][1](
        Identity("ann", [Permission("own.*", frozenset({Operation.PRODUCE}))])
    )
    peer.send(Frame(wire.CONNECT, "c2"))
    authenticator.attempts[1][1](AuthenticationFailed("wrong"))
    peer.frames()
    assert peer.session.login is Login.DONE
    peer.publish("own.q", "1")
    assert peer.error(wire.PUBLISH, "q") == "NOT_AUTHORIZED"


def test_end_of_input_during_login_that_is_refused_ends_connection() -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection()
    peer.send(Frame(wire.CONNECT, "c"))
    peer.session.end_of_input()
    authenticator.attempts[0][1](AuthenticationFailed("wrong"))
    harness.run_event_loop()
    assert [frame.error_code for frame in peer.frames()] == ["AUTH_REQUIRED"]
    assert not peer.transport.open


def test_connection_beyond_limit_gets_error_at_connect() -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection(SessionOptions(refused=True))
    login = {"authUsername": "u", "authPassword": "p"}
    [error] = peer.send(Frame(wire.CONNECT, "c", headers=login), Frame(wire.PUBLISH, "1", "q"))
    assert (error.id, error.error_code) == ("c", "CONNECTION_LIMIT")
    harness.run_event_loop(1000)
    assert not peer.transport.open
    assert authenticator.attempts == []


def test_closed_connection_withdraws_its_login() -> None:
    authenticator = Authenticator()
    peer = harness_with_access(authenticator).open_connection()
    peer.send(Frame(wire.CONNECT, "c"))
    assert authenticator.cancelled == 0
    peer.session.end_of_input()
    assert authenticator.cancelled == 1
    peer.drop()
    assert authenticator.cancelled == 2


def test_login_result_after_close_is_ignored() -> None:
    for outcome in (EVERYBODY, AuthenticationFailed("wrong")):
        authenticator = Authenticator()
        harness = harness_with_access(authenticator)
        peer = harness.open_connection()
        peer.send(Frame(wire.CONNECT, "c"), Frame(wire.PUBLISH, "1", "q", b"1"))
        peer.drop()
        authenticator.attempts[0][1](outcome)
        harness.run_event_loop(1000)
        assert peer.transport.written == b""
        assert peer.transport.open
        assert harness.find("q") is None


def test_refused_client_that_disconnects_is_not_closed_again() -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection()
    peer.send(Frame(wire.CONNECT, "c"))
    authenticator.attempts[0][1](AuthenticationFailed("wrong"))
    peer.drop()
    harness.run_event_loop(1000)
    assert peer.transport.open  # never closed by us


def test_end_of_input_during_login_is_processed_after_it() -> None:
    authenticator = Authenticator()
    harness = harness_with_access(authenticator)
    peer = harness.open_connection()
    peer.send(Frame(wire.CONNECT, "c"), Frame(wire.PUBLISH, "1", "q", b"1"), Frame(wire.PING, "p"))
    peer.session.end_of_input()
    assert peer.transport.open
    authenticator.attempts[0][1](EVERYBODY)
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["c", "p", "1"]
    assert not peer.transport.open


def test_guest_may_log_in_and_has_permissions_of_that_user() -> None:
    authenticator = Authenticator(Identity("guest"))
    harness = harness_with_access(authenticator)
    peer = harness.connect()
    assert peer.error(wire.PUBLISH, "q") == "NOT_AUTHORIZED"
    assert peer.send(Frame(wire.CONNECT, "c", headers={"authToken": "t"})) == []
    authenticator.attempts[0][1](EVERYBODY)
    assert [frame.type for frame in peer.frames()] == [wire.CONNECT_ACK]
    peer.publish("q", "m")
    # and vice versa: permissions of one user are not kept for the next
    peer.send(Frame(wire.CONNECT, "c", headers={"authToken": "other"}))
    authenticator.attempts[1][1](Identity("unprivileged"))
    peer.frames()
    assert peer.error(wire.PUBLISH, "q") == "NOT_AUTHORIZED"


# --- permissions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        (wire.PUBLISH, Operation.PRODUCE),
        (wire.SUBSCRIBE, Operation.CONSUME),
        (wire.CREATE_QUEUE, Operation.CREATE),
        (wire.DELETE_QUEUE, Operation.DELETE),
        (wire.QUEUE_INFO, Operation.BROWSE),
    ],
)
def test_each_request_requires_its_permission(kind: int, operation: Operation) -> None:
    restricted_harness = harness_with_permissions(
        *(("*", right) for right in Operation if right is not operation)
    )
    restricted_harness.limit("q", DestinationSettings())
    peer = restricted_harness.connect()
    assert peer.error(kind, "q") == "NOT_AUTHORIZED"
    assert isinstance(restricted_harness.access, Authenticator)
    assert restricted_harness.access.refused == [f"{operation.value} q"]
    permitted_harness = harness_with_permissions(("q", operation))
    address = Address(Kind.QUEUE, "q")
    permitted_harness.broker.destinations.declare(address, provenance=Provenance(CreatedBy.VIBEMQ))
    assert permitted_harness.connect().request(kind, "q").error_code == ""


def test_refused_delete_hides_names_that_user_may_not_see() -> None:
    harness = harness_with_permissions(("dead", Operation.DELETE))
    settings = DestinationSettings(dead_letter=True, dead_letter_queue="dead")
    harness.limit("secret", settings)
    harness.broker.destinations.queue("dead", by=CreatedBy.VIBEMQ)
    response = harness.connect().request(wire.DELETE_QUEUE, "dead")
    assert response.error_code == "FORBIDDEN"
    assert "secret" not in response.error_message


def test_dead_letter_queue_requires_produce_permission() -> None:
    harness = harness_with_permissions(("mine", Operation.CREATE), ("letters", Operation.PRODUCE))
    peer = harness.connect()
    options = {"enableDeadLetterQueue": True, "deadLetterQueueName": "others"}
    assert peer.error(wire.CREATE_QUEUE, "mine", options) == "NOT_AUTHORIZED"
    assert not harness.broker.destinations
    response = peer.request(wire.CREATE_QUEUE, "mine", options | {"deadLetterQueueName": "letters"})
    assert response.error_code == ""


def test_dead_letters_need_permission_for_default_queue_of_another_user() -> None:
    create = ("orders", Operation.CREATE)
    options = {"enableDeadLetterQueue": True}
    address = Address(Kind.QUEUE, "orders.dlq")
    provenance = Provenance(CreatedBy.VIBEMQ)
    for permissions, creator, code in (
        ([create], "other", "NOT_AUTHORIZED"),
        ([create], "guest", ""),
        ([create, ("*.dlq", Operation.PRODUCE)], "other", ""),
    ):
        harness = harness_with_permissions(*permissions)
        harness.broker.destinations.declare(address, creator=creator, provenance=provenance)
        peer = harness.connect()
        assert peer.request(wire.CREATE_QUEUE, "orders", options).error_code == code
    peer = harness_with_permissions(create).connect()
    peer.create("orders", **options)


def test_requests_without_permission_create_no_queue(harness: Harness) -> None:
    limits = harness_with_permissions(("mine", Operation.BROWSE))
    peer = limits.connect()
    peer.error(wire.PUBLISH, "q")
    peer.error(wire.SUBSCRIBE, "q")
    assert not limits.broker.destinations


def test_list_contains_permitted_queues_only() -> None:
    harness = harness_with_permissions(("a*", Operation.PRODUCE), ("b", Operation.DELETE))
    for name in ("a1", "b", "c", "a2"):
        harness.limit(name, DestinationSettings())
    assert json.loads(harness.connect().request(wire.LIST_QUEUES).payload) == ["a1", "b", "a2"]


def test_list_above_one_mebibyte_needs_compression(harness: Harness) -> None:
    for number in range(5000):
        harness.broker.destinations.queue(f"{number:0250}")
    assert harness.connect().error(wire.LIST_QUEUES) == "SERVER_ERROR"
    peer = harness.connect(**{"supported-compression": "brotli"})
    assert peer.send(Frame(wire.LIST_QUEUES, "l")) == []
    harness.run_until_idle()
    [response] = peer.frames()
    assert len(json.loads(response.payload)) == 5000


def test_long_list_is_compressed_off_event_loop_before_later_requests(harness: Harness) -> None:
    for number in range(2000):
        harness.broker.destinations.queue(f"{number:0250}")
    peer = harness.connect(**{"supported-compression": "gzip"})
    requests = [Frame(wire.LIST_QUEUES, "l1"), Frame(wire.LIST_QUEUES, "l2"), Frame(wire.PING, "p")]
    assert peer.send(*requests) == []
    assert len(harness.background.jobs) == 1
    assert peer.transport.paused
    assert peer.send(Frame(wire.PING, "p2")) == []
    peer.session.end_of_input()
    harness.run_until_idle()
    assert [frame.id for frame in peer.frames()] == ["l1", "l2", "p", "p2"]
    assert not peer.transport.open
    assert harness.memory.reserved == 0


def test_connection_may_close_while_its_list_is_compressed(harness: Harness) -> None:
    for number in range(2000):
        harness.broker.destinations.queue(f"{number:0250}")
    peer = harness.connect(**{"supported-compression": "gzip"})
    peer.send(Frame(wire.LIST_QUEUES, "l"))
    peer.drop()
    harness.run_until_idle()
    assert peer.frames() == []
    assert harness.memory.reserved == 0


def test_list_that_is_too_long_even_compressed_is_error(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compression._COMPRESSORS, Compression.BROTLI, (bytes, bytes))
    for number in range(5000):
        harness.broker.destinations.queue(f"{number:0250}")
    peer = harness.connect(**{"supported-compression": "brotli"})
    peer.send(Frame(wire.LIST_QUEUES, "l"))
    harness.run_until_idle()
    [error] = peer.frames()
    assert (error.id, error.error_code) == ("l", "SERVER_ERROR")
    assert peer.request(wire.PING).type == wire.PONG


# --- publishing ------------------------------------------------------------------------------


def test_publish_is_answered_with_id_queue_and_headers(harness: Harness) -> None:
    response = harness.connect().request(wire.PUBLISH, "q", {"a": 1})
    assert response == Frame(
        wire.PUBLISH_ACK, "r1", "q", headers={"messageId": "r1", "queueName": "q"}
    )


def test_publish_is_answered_in_order_when_durable(harness: Harness) -> None:
    peer = harness.connect()
    data = b"".join(wire.encode(Frame(wire.PUBLISH, str(n), f"q{n % 3}", b"0")) for n in range(9))
    peer.session.receive(data[:100])
    peer.session.receive(data[100:])
    assert peer.transport.written == b""
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == [str(n) for n in range(9)]


def test_reading_pauses_while_too_many_frames_of_several_reads_are_not_durable(
    harness: Harness,
) -> None:
    peer = harness.connect()
    publish = wire.encode(Frame(wire.PUBLISH, "m", "q", b'"%b"' % (b"x" * 200_000)))
    for _ in range(MAX_UNCONFIRMED // len(publish)):
        assert not peer.transport.paused
        for start in range(0, len(publish), 1 << 14):
            peer.session.receive(publish[start : start + (1 << 14)])
    peer.session.receive(publish * 6)  # they are counted in steps of 1 MiB
    assert peer.transport.paused
    harness.run_event_loop()
    assert not peer.transport.paused


def test_frame_in_two_reads_and_frames_behind_long_requests_count_once(harness: Harness) -> None:
    peer = harness.connect()
    request = wire.encode(Frame(wire.LIST_QUEUES, "l"))
    publish = wire.encode(Frame(wire.PUBLISH, "m", "q", b'"%b"' % (b"x" * 100_000)))
    unread = b""
    for _ in range(MAX_UNCONFIRMED // len(publish) // 2):
        data = unread + request + publish + request + publish
        peer.session.receive(data[:-90_000])
        unread = data[-90_000:]
        harness.run_timers()
        assert not peer.transport.paused


@pytest.mark.parametrize("first", [wire.SUBSCRIBE, wire.CONNECT])
def test_reading_pauses_while_too_many_bytes_behind_long_requests_are_not_durable(
    first: int,
) -> None:
    authenticator = Authenticator(EVERYBODY)
    harness = harness_with_access(authenticator)
    peer = harness.connect()
    request = wire.encode(Frame(first, "r", "s", headers={"authToken": "t"}))
    publish = wire.encode(Frame(wire.PUBLISH, "m", "q", b'"%b"' % (b"x" * 200_000)))
    for _ in range(MAX_UNCONFIRMED // len(publish) + 6):  # they are counted in steps of 1 MiB
        if peer.transport.paused:
            break
        peer.session.receive(request + publish)
        assert peer.session.buffered >= len(publish)
        if first == wire.CONNECT:
            _, callback = authenticator.attempts.pop()
            callback(EVERYBODY)
        else:
            harness.run_timers()
        assert peer.session.buffered == 0
    assert peer.transport.paused
    harness.run_event_loop()
    assert not peer.transport.paused


def test_frames_behind_several_long_requests_count_as_input_until_they_are_processed(
    harness: Harness,
) -> None:
    peer = harness.connect()
    requests = wire.encode(Frame(wire.LIST_QUEUES, "l")) * 3
    publish = wire.encode(Frame(wire.PUBLISH, "m", "q", b'"%b"' % (b"x" * 10_000)))
    peer.session.receive(requests + publish)
    for _ in range(3):
        assert peer.session.buffered >= len(publish)
        harness.run_timers()
    assert peer.session.buffered == 0


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.NONE])
def test_listener_without_sync_answers_at_once(harness: Harness, durability: Durability) -> None:
    peer = harness.connect(SessionOptions(durability=durability))
    peer.session.receive(wire.encode(Frame(wire.PUBLISH, "m", "q", b"0")))
    assert [frame.id for frame in peer.frames()] == ["m"]
    [delivery] = harness.destination("q").queue.browse()
    assert delivery.message is not None
    assert delivery.message.durability is durability


def test_one_id_may_be_published_again_and_in_other_queues(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "m", "m")
    peer.publish("other", "m")
    assert len(harness.bodies("q")) == 2


@pytest.mark.parametrize(
    "payload",
    [b"{", b"NaN", b"[1,]", b"\xff", b"\xef\xbb\xbf1", b"1 2", b"[" * 65 + b"]" * 65, b"01"],
)
def test_invalid_json_is_refused_without_closing_connection(
    harness: Harness, payload: bytes
) -> None:
    peer = harness.connect()
    [response] = peer.send(Frame(wire.PUBLISH, "m", "q", payload))
    assert (response.type, response.id, response.error_code) == (wire.ERROR, "m", "INVALID_MESSAGE")
    assert harness.find("q") is None
    peer.publish("q", "next")


def test_names_and_headers_have_limits(harness: Harness) -> None:
    peer = harness.connect()
    assert peer.error(wire.PUBLISH, "") == "INVALID_QUEUE"
    assert peer.error(wire.SUBSCRIBE, "") == "INVALID_QUEUE"
    for name in ("a b", "a/b", "x" * 257, "a*", "\ud83d\ude00"):
        for kind in (wire.PUBLISH, wire.SUBSCRIBE, wire.CREATE_QUEUE, wire.QUEUE_INFO):
            assert peer.error(kind, name) == "INVALID_MESSAGE"
    peer.publish("x" * 256, "m")
    peer.publish("Größe-1_2.3", "m")
    headers = {f"h{n}": "v" for n in range(51)}
    assert peer.error(wire.PUBLISH, "q", 1, **headers) == "INVALID_MESSAGE"
    assert peer.error(wire.PUBLISH, "q", 1, h="v" * 4097) == "INVALID_MESSAGE"
    del headers["h0"]
    peer.publish("q", "m", **headers)
    peer.publish("q", "m", h="v" * 4096)


def test_publish_requires_existing_queue_without_automatic_creation() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    peer = harness.connect()
    assert peer.error(wire.PUBLISH, "q") == "QUEUE_NOT_FOUND"
    assert peer.error(wire.SUBSCRIBE, "q") == "QUEUE_NOT_FOUND"
    peer.create("q")
    peer.publish("q", "m")
    assert peer.subscribe("q") == ["m"]


def test_message_size_limit_of_queue(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_message_bytes=4))
    peer = harness.connect()
    assert peer.error(wire.PUBLISH, "q", "long") == "INVALID_MESSAGE"
    peer.publish("q", "ok")


def test_too_many_destinations_are_server_error() -> None:
    harness = Harness(EngineSettings(max_destinations=1))
    peer = harness.connect()
    peer.publish("q", "m")
    assert peer.error(wire.PUBLISH, "other") == "SERVER_ERROR"
    assert peer.error(wire.CREATE_QUEUE, "other") == "SERVER_ERROR"


# --- full queues -----------------------------------------------------------------------------


def test_full_queue_drops_oldest_by_default(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=2)
    peer.publish("q", "1", "2", "3")
    assert peer.subscribe("q") == ["2", "3"]


def test_drop_newest_is_error(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=1)
    responses = peer.send(*(Frame(wire.PUBLISH, str(n), "q", b"0") for n in range(3)))
    assert [(frame.id, frame.error_code) for frame in responses] == [
        ("1", "QUEUE_FULL"),
        ("2", "QUEUE_FULL"),
        ("0", ""),
    ]


def test_redirect_to_dead_letter_queue(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=3, enableDeadLetterQueue=True)
    peer.create("off", maxQueueSize=1, overflowStrategy=3)
    peer.publish("q", "1", "2")
    peer.subscribe("q.dlq")
    [dead_letter] = peer.more
    assert dead_letter.id == "2"
    assert dead_letter.headers["deadLetterReason"] == "QueueFull"
    assert dead_letter.headers["originalQueue"] == "q"
    peer.publish("off", "1")
    assert peer.error(wire.PUBLISH, "off", 2) == "QUEUE_FULL"


def test_block_publisher_delays_ack_until_there_is_capacity(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(window=1))
    peer.create("q", maxQueueSize=1, overflowStrategy="BlockPublisher")
    assert peer.subscribe("q") == []
    peer.publish("q", "1")
    assert [frame.id for frame in peer.more] == ["1"]
    peer.publish("q", "2")
    assert peer.send(*(Frame(wire.PUBLISH, n, "q", b"0") for n in ("3", "4"))) == []
    assert not peer.transport.paused
    # other queues are not affected
    peer.publish("other", "x")
    # its own acknowledgement makes room
    responses = [(frame.type, frame.id) for frame in peer.acknowledge("1")]
    assert sorted(responses) == [(wire.PUBLISH_ACK, "3"), (wire.DELIVER, "2")]
    responses = [(frame.type, frame.id) for frame in peer.acknowledge("2")]
    assert sorted(responses) == [(wire.PUBLISH_ACK, "4"), (wire.DELIVER, "3")]
    # messages that have waited are counted, too
    traffic = harness.broker.traffic_of("vibemq")
    assert (traffic.published, traffic.delivered) == (5, 3)


def test_block_publisher_times_out_before_client(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=2)
    peer.publish("q", "1")
    assert peer.send(Frame(wire.PUBLISH, "2", "q", b"0")) == []
    harness.run_event_loop(5000)
    assert peer.send(Frame(wire.PUBLISH, "3", "q", b"0")) == []
    harness.run_event_loop(2999)
    assert peer.frames() == []
    harness.run_event_loop(1)
    assert [(frame.id, frame.error_code) for frame in peer.frames()] == [("2", "QUEUE_FULL")]
    # the refused publish stays refused, and the waiting ones continue
    assert peer.subscribe("q") == ["1", "3", "3"]
    assert [frame.type for frame in peer.more] == [wire.DELIVER, wire.PUBLISH_ACK, wire.DELIVER]
    harness.run_event_loop(10_000)
    assert peer.frames() == []


def test_publishes_waiting_for_capacity_end_with_their_connection(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=2)
    peer.publish("q", "1")
    peer.send(Frame(wire.PUBLISH, "2", "q", b"0"))
    peer.drop()
    assert other.subscribe("q") == ["1"]
    assert harness.destination("q").parked == type(harness.destination("q").parked)()


def test_publishes_waiting_for_capacity_are_limited(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=2)
    peer.publish("q", "1")
    responses = peer.send(*(Frame(wire.PUBLISH, f"m{n}", "q", b"0") for n in range(1001)))
    assert [(frame.id, frame.error_code) for frame in responses] == [("m1000", "QUEUE_FULL")]


def test_removed_queue_is_created_again_by_publishes_waiting_for_capacity(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=2)
    peer.publish("q", "1")
    peer.send(Frame(wire.PUBLISH, "2", "q", b"0"))
    responses = peer.send(Frame(wire.DELETE_QUEUE, "d", "q"))
    assert [(frame.type, frame.id) for frame in responses] == [
        (wire.DELETE_QUEUE, "d"),
        (wire.PUBLISH_ACK, "2"),
    ]
    assert peer.subscribe("q") == ["2"]


def test_publishes_waiting_for_capacity_of_removed_queue_are_refused() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    peer = harness.connect()
    peer.create("q", maxQueueSize=1, overflowStrategy=2)
    peer.publish("q", "1")
    peer.send(Frame(wire.PUBLISH, "2", "q", b"0"))
    responses = peer.send(Frame(wire.DELETE_QUEUE, "d", "q"))
    assert [(frame.id, frame.error_code) for frame in responses] == [
        ("2", "QUEUE_NOT_FOUND"),
        ("d", ""),
    ]


# --- other frames ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [1, 3, 11, 21, 23, 25, 26, 50, 56, 99, 255])
def test_unknown_commands_are_answered_with_error(harness: Harness, kind: int) -> None:
    peer = harness.connect()
    assert peer.error(kind, "q") == "UNKNOWN_COMMAND"
    assert peer.request(wire.PING).type == wire.PONG


@pytest.mark.parametrize(
    ("bad", "identity"),
    [
        (b"\0\0\0\1\0", None),
        (b"\xff\xff\xff\xff\0", None),
        (b"\0\x10\0\1\1", None),
        (b"\0\x10\0\1\0\1\x14\0\0", None),
        (b"\0\0\0\x10\3" + bytes(16), None),
        (b"\0\0\0\x10\1" + bytes(16), None),
        (b"\0\0\0\x09\0" + b"\1\x14\0\3abc\0\x09", "abc"),
    ],
)
def test_malformed_frame_is_answered_and_ends_connection(
    harness: Harness, bad: bytes, identity: str | None
) -> None:
    peer = harness.connect()
    peer.send_bytes(wire.encode(Frame(wire.PUBLISH, "m", "q", b"0")) + bad)
    error, response = peer.frames()
    assert response.id == "m"
    assert (error.type, error.error_code) == (wire.ERROR, "INVALID_MESSAGE")
    assert error.error_message
    assert error.id == identity or (identity is None and error.id)
    assert not peer.transport.open
    peer.session.receive(wire.encode(Frame(wire.PUBLISH, "late", "q", b"0")))
    assert len(harness.bodies("q")) == 1


def test_accepts_frames_in_fragments(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    data = wire.encode(Frame(wire.PUBLISH, "m", "q", b'"x"', {"h": "v"}))
    for position in range(len(data)):
        peer.send_bytes(data[position : position + 1])
    assert [frame.type for frame in peer.frames()] == [wire.PUBLISH_ACK, wire.DELIVER]


def test_disconnect_is_not_answered_but_earlier_requests_are(harness: Harness) -> None:
    peer = harness.connect()
    peer.send_bytes(
        b"".join(
            map(
                wire.encode,
                [
                    Frame(wire.PUBLISH, "1", "q", b"0"),
                    Frame(wire.DISCONNECT, "d"),
                    Frame(wire.PUBLISH, "2", "q", b"0"),
                ],
            )
        )
    )
    assert [frame.id for frame in peer.frames()] == ["1"]
    assert peer.transport.close_reason == ""
    assert len(harness.bodies("q")) == 1


def test_end_of_input_waits_for_pending_responses(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.session.receive(wire.encode(Frame(wire.PUBLISH, "1", "q", b"0")))
    peer.session.end_of_input()
    assert peer.transport.open
    harness.run_event_loop()
    assert [(frame.type, frame.id) for frame in peer.frames()] == [(wire.PUBLISH_ACK, "1")]
    assert not peer.transport.open
    peer.drop()
    assert harness.connect().subscribe("q") == ["1"]


def test_shutdown_sends_disconnect(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.disconnect("the broker stops", stopping=True)
    [goodbye] = peer.frames()
    assert goodbye.type == wire.DISCONNECT
    assert goodbye.headers == {"reason": "server_shutdown"}
    assert not peer.transport.open


@pytest.mark.parametrize("stopping", [False, True])
def test_disconnect_follows_acknowledgements_of_publishes(harness: Harness, stopping: bool) -> None:
    """A client that is disconnected without them would publish the messages again."""
    peer = harness.connect()
    peer.session.receive(wire.encode(Frame(wire.PUBLISH, "1", "q", b"0")))
    peer.session.disconnect("enough", stopping=stopping)
    assert peer.transport.open
    peer.session.receive(wire.encode(Frame(wire.PUBLISH, "2", "q", b"0")))
    harness.run_event_loop()
    assert [frame.type for frame in peer.frames()] == [wire.PUBLISH_ACK, wire.DISCONNECT]
    assert not peer.transport.open
    assert len(harness.bodies("q")) == 1


def test_rate_limit_spares_pings_and_acknowledgements(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(rate_limit=3))
    peer.subscribe("q")
    peer.publish("q", "1")
    responses = peer.send(
        Frame(wire.PUBLISH, "2", "q", b"0"), Frame(wire.PING, "p"), Frame(wire.ACK, "1")
    )
    assert [(frame.id, frame.error_code) for frame in responses] == [
        ("2", "RATE_LIMITED"),
        ("p", ""),
    ]
    assert harness.bodies("q") == []
    harness.run_event_loop(1000)
    peer.publish("q", "3")


# --- back-pressure ---------------------------------------------------------------------------


def test_reading_pauses_while_client_does_not_read(harness: Harness) -> None:
    peer = harness.connect()
    peer.stop_reading()
    pings = wire.encode(Frame(wire.PING, "p" * 1000)) * 1000
    peer.send_bytes(pings)
    assert not peer.transport.paused
    peer.send_bytes(pings)
    assert peer.transport.paused
    peer.read_again()
    assert not peer.transport.paused
    assert len(peer.frames()) == 2000


def test_one_list_is_sent_in_iteration(harness: Harness) -> None:
    peer = harness.connect()
    requests = [Frame(wire.LIST_QUEUES, "1"), Frame(wire.LIST_QUEUES, "2"), Frame(wire.PING, "3")]
    peer.session.receive(b"".join(map(wire.encode, requests)))
    assert [frame.id for frame in peer.frames()] == ["1"]
    assert peer.transport.paused
    peer.session.receive(wire.encode(Frame(wire.PING, "4")))
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["2"]
    peer.session.end_of_input()
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["3", "4"]
    assert not peer.transport.open


def test_backlog_is_sent_once_in_iteration(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("q", "m")
    requests = [Frame(wire.SUBSCRIBE, "s", "q"), Frame(wire.UNSUBSCRIBE, "u", "q")] * 2
    peer.session.receive(b"".join(map(wire.encode, requests)))
    assert [frame.id for frame in peer.frames()] == ["s", "m"]
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["u"]
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["s", "m"]


@pytest.mark.parametrize(
    "kind", [wire.UNSUBSCRIBE, wire.CREATE_QUEUE, wire.DELETE_QUEUE, wire.QUEUE_INFO]
)
def test_one_infrequent_request_is_processed_in_iteration(harness: Harness, kind: int) -> None:
    peer = harness.connect()
    requests = [Frame(kind, "1", "a"), Frame(kind, "2", "b")]
    peer.session.receive(b"".join(map(wire.encode, requests)))
    assert [frame.id for frame in peer.frames()] == ["1"]
    harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["2"]


def test_waiting_requests_are_measured_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Frame] = []

    def size(frames: list[Frame]) -> int:
        measured.extend(frames)
        return len(frames)

    monkeypatch.setattr(session, "_size", size)
    peer = harness.connect()
    peer.session.receive(wire.encode(Frame(wire.QUEUE_INFO, "1", "a")) * 20)
    for _ in range(19):
        assert peer.session.buffered == 19
        harness.run_event_loop()
    assert peer.session.buffered == 0
    assert len(peer.frames()) == 20
    assert len(measured) < 40


def test_no_list_is_sent_to_client_that_has_not_read_those_before(harness: Harness) -> None:
    for number in range(3000):
        harness.broker.destinations.queue(f"{number:0250}")
    peer = harness.connect()
    peer.stop_reading()
    peer.session.receive(wire.encode(Frame(wire.LIST_QUEUES, "l")) * 4)
    for _ in range(4):
        harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["l", "l"]
    peer.read_again()
    for _ in range(2):
        harness.run_event_loop()
    assert [frame.id for frame in peer.frames()] == ["l", "l"]
    assert not peer.transport.paused


def test_reading_pauses_while_disk_is_slow(harness: Harness) -> None:
    peer = harness.connect()
    message = wire.encode(Frame(wire.PUBLISH, "m", "q", b'"%b"' % (b"x" * 250_000)))
    for _ in range(70):
        peer.session.receive(message)
    assert peer.transport.paused
    harness.run_event_loop()
    assert not peer.transport.paused
    assert len(peer.frames()) == 70


def test_fan_out_and_queue_of_one_name(harness: Harness) -> None:
    harness.broker.destinations.declare(Address(Kind.TOPIC, "t"))
    subscriber, peer = harness.connect(), harness.connect()
    subscriber.subscribe("t")
    peer.publish("t", "1")
    assert subscriber.ids() == ["1"]
    assert harness.find("t") is None
    harness.limit("both", DestinationSettings(overflow=Overflow.REJECT))
    harness.broker.destinations.declare(Address(Kind.TOPIC, "both"))
    peer.publish("both", "2")
    assert len(harness.bodies("both")) == 1


# --- memory of unfinished input --------------------------------------------------------------


def test_frame_above_limit_before_login_is_refused_by_its_header(
    harness: Harness,
) -> None:
    peer = harness.open_connection(SessionOptions(login_bytes=1000))
    peer.send_bytes((1001).to_bytes(4, "big") + b"\0")
    [error] = peer.frames()
    assert (error.type, error.error_code) == (wire.ERROR, "INVALID_MESSAGE")
    assert not peer.transport.open
    peer = harness.connect(SessionOptions(login_bytes=1000))
    peer.publish("q", "x" * 2000)


def test_session_info_reports_login_state() -> None:
    authenticator = Authenticator()
    peer = harness_with_access(authenticator).open_connection()
    assert peer.session.login is Login.DUE
    peer.send(Frame(wire.PING, "p"))
    assert peer.session.login is Login.DUE
    peer.send(Frame(wire.CONNECT, "c"), Frame(wire.PUBLISH, "1", "q", b'"%b"' % bytes(500)))
    assert peer.session.login is Login.CHECKING
    assert peer.session.buffered >= 500
    authenticator.attempts[0][1](EVERYBODY)
    assert peer.session.login is Login.DONE
    assert peer.session.buffered == 0
    assert peer.transport.users == [""]


def test_login_beyond_connection_limit_is_refused(harness: Harness) -> None:
    peer = harness.open_connection()
    peer.transport.user_limit_reached = True
    [error] = peer.send(Frame(wire.CONNECT, "c"), Frame(wire.PUBLISH, "1", "q", b"1"))
    assert error.error_code == "CONNECTION_LIMIT"
    assert error.error_message == "Maximum connections reached."
    harness.run_event_loop(1000)
    assert not peer.transport.open
    assert harness.find("q") is None


def test_login_as_user_with_too_many_connections_leaves_client_logged_in(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.transport.user_limit_reached = True
    assert peer.error(wire.CONNECT) == "CONNECTION_LIMIT"
    harness.run_event_loop(1000)
    assert peer.transport.open
    assert peer.subscribe("q") == []


def compressed_frames(count: int) -> bytes:
    """Return small compressed frames that unpack to 250 kB each."""
    payload = b'"%b"' % (b"x" * 250_000)
    return b"".join(
        wire.compressed(
            wire.encode(Frame(wire.PUBLISH, str(n), "q", payload)), Compression.BROTLI, 0
        )
        for n in range(count)
    )


def test_compressed_frames_are_unpacked_when_there_is_capacity(harness: Harness) -> None:
    peer = harness.connect()
    data = compressed_frames(90)
    assert len(data) < 10_000
    peer.session.receive(data)
    assert len(harness.bodies("q")) <= MAX_UNPACKED_BYTES // 250_000 + 1
    assert peer.transport.paused
    assert peer.session.buffered > 0
    assert not peer.session.incomplete
    for _ in range(30):
        harness.run_event_loop(1)
    assert [frame.id for frame in peer.frames()] == [str(n) for n in range(90)]
    assert len(harness.bodies("q")) == 90
    assert not peer.transport.paused
    assert peer.session.buffered == 0


def test_end_of_input_waits_for_compressed_frames(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.receive(compressed_frames(40))
    peer.session.end_of_input()
    for _ in range(12):
        harness.run_event_loop(1)
    assert len(peer.frames()) == 40
    assert peer.transport.close_reason == ""


def test_blocked_messages_count_as_buffered(harness: Harness) -> None:
    harness.limit("full", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    peer = harness.connect()
    peer.publish("full", "first")
    peer.send(Frame(wire.PUBLISH, "second", "full", b'"%b"' % (b"x" * 1000)))
    assert peer.session.buffered == 1002
    harness.run_event_loop(9000)
    assert peer.session.buffered == 0
    assert peer.frames()[0].error_code == "QUEUE_FULL"


def test_user_at_quota_creates_no_queue() -> None:
    harness = Harness(EngineSettings(max_destinations_per_user=1))
    peer = harness.connect()
    peer.publish("q", "m")
    assert peer.error(wire.PUBLISH, "other") == "SERVER_ERROR"
    assert peer.error(wire.SUBSCRIBE, "other") == "SERVER_ERROR"
    assert peer.error(wire.CREATE_QUEUE, "other") == "SERVER_ERROR"
    assert peer.subscribe("q") == ["m"]
