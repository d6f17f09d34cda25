"""msglite and gateway connections of a user with few permissions."""

from __future__ import annotations

import json

import pytest

from sluicemq.model.access import Operation
from tests.protocols.msglite.harness import Harness
from tests.support.sessions import RecordedAccess


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (b"> 1 9 q\r\nx\r\n", Operation.PRODUCE),
        (b"> 1 0 q\r\nx\r\n", Operation.PRODUCE),
        (b"? 1 9 q\r\nx\r\n", Operation.PRODUCE),
        (b"< 9 q\r\n", Operation.CONSUME),
        (b"< 0 q\r\n", Operation.CONSUME),
    ],
)
@pytest.mark.parametrize("has", Operation)
def test_commands_require_their_permissions(
    harness: Harness, command: bytes, needs: Operation, has: Operation
) -> None:
    access = RecordedAccess(f"q:{has}")
    peer = harness.connect(access=access)
    response = peer.request(command)
    if has is needs:
        assert peer.open
        assert not response.startswith(b"-")
    else:
        assert response == f"- anna may not {needs} 'q'\r\n".encode()
        assert not peer.open
        assert access.denials == [f"test anna {needs} q"]
        assert harness.temporary() == []
        assert harness.find("q") is None


def test_ready_is_refused_for_any_of_its_addresses(harness: Harness) -> None:
    peer = harness.connect(access=RecordedAccess("a: consume"))
    harness.connect().send_bytes(b"> 1 9 a\r\nx\r\n")
    assert peer.request(b"< 9 a b\r\n") == b"- anna may not consume 'b'\r\n"
    assert harness.bodies("a") == [b"x"]
    assert harness.find("b") is None


def test_service_answers_without_permission_for_reply_addresses(harness: Harness) -> None:
    client = harness.connect(access=RecordedAccess("service: produce"))
    service = harness.connect(access=RecordedAccess("service: consume", name="bert"))
    service.send_bytes(b"< 9 service\r\n")
    client.send_bytes(b"? 4 9 service\r\nping\r\n")
    ((_, _, (_, reply), body),) = service.frames()
    assert body == b"ping"
    service.send_bytes(b"> 4 9 %b\r\npong\r\n" % reply)
    assert client.bodies() == [b"pong"]


def test_name_that_only_looks_like_reply_address_is_not_one(harness: Harness) -> None:
    peer = harness.connect(access=RecordedAccess())
    name = harness.replies.create(harness.broker, harness, None).name.rpartition(".")[0] + ".FFFF"
    assert peer.request(b"> 1 9 %b\r\nx\r\n" % name.encode()).startswith(b"- anna may not produce")


def test_messages_sent_before_refused_command_are_kept(harness: Harness) -> None:
    peer = harness.connect(access=RecordedAccess("a: produce"))
    peer.send_bytes(b"> 1 9 a\r\n1\r\n> 1 9 b\r\n2\r\n> 1 9 a\r\n3\r\n")
    assert not peer.open
    assert harness.bodies("a") == [b"1"]


def test_right_to_consume_does_not_permit_sending(harness: Harness) -> None:
    peer = harness.connect(access=RecordedAccess("q: consume"))
    peer.send_bytes(b"< 0 q\r\n")
    assert b"may not produce" in peer.request(b"> 1 9 q\r\nx\r\n")


REQUEST = b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n"


def test_gateway_forwards_requests_with_produce_permission(harness: Harness) -> None:
    service = harness.connect()
    service.send_bytes(b"< 9 msglite.httpRequests\r\n")
    peer = harness.connect_gateway(RecordedAccess("msglite.*: produce"))
    peer.send_bytes(REQUEST)
    ((_, _, _, body),) = service.frames()
    assert json.loads(body)["url"] == "/x"
    assert peer.open


@pytest.mark.parametrize(
    "has", [operation for operation in Operation if operation is not Operation.PRODUCE]
)
def test_gateway_answers_403_without_produce_permission(harness: Harness, has: Operation) -> None:
    access = RecordedAccess(f"msglite.*: {has}")
    peer = harness.connect_gateway(access)
    response = peer.request(REQUEST)
    assert response.startswith(b"HTTP/1.0 403 ") or response.startswith(b"HTTP/1.1 403 ")
    assert b"may not produce" in response
    assert not peer.open
    assert access.denials == ["test anna produce msglite.httpRequests"]
    assert harness.temporary() == []
    assert harness.find("msglite.httpRequests") is None
