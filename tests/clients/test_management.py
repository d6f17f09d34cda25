"""The client of the management API, against a server with predefined answers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.http import HttpRefusal, HttpTarget, request_of
from sluicemq.clients.management import ManagementClient
from sluicemq.management.broker import GET_STATUS, StatusView
from sluicemq.management.clients import LIST_CONSUMERS, ConsumerQuery
from sluicemq.management.destinations import (
    GET_DESTINATION,
    LIST_DESTINATIONS,
    PURGE_DESTINATION,
    DestinationBody,
    DestinationPath,
    DestinationQuery,
    PurgeRequest,
)
from sluicemq.management.journal import GET_SLOT, READ_SEGMENT, SegmentPath
from sluicemq.management.messages import LIST_MESSAGES, MessageQuery, MessageTarget
from sluicemq.management.operation import NamePath, NoParameters
from sluicemq.management.users import (
    DELETE_USER,
    WITHDRAW_ROLE,
    AssignedRole,
    DeleteUser,
)
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError, ConnectionLost
from tests.support.stub_server import StubServer, problem

STATUS = b'{"version": "1", "broker_id": "ab", "pid": 7}'
NONE = NoParameters()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[StubServer]:
    stub = StubServer(tmp_path / "s")
    yield stub
    stub.stop()


@pytest.fixture
def target(stub: StubServer, tmp_path: Path) -> HttpTarget:
    return HttpTarget(path=str(tmp_path / "s"))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "/api/v1/destinations/queue/orders"),
        ("a/b c?d#e%", "/api/v1/destinations/queue/a%2Fb%20c%3Fd%23e%25"),
        ("ü\n", "/api/v1/destinations/queue/%C3%BC%0A"),
        ("~", "/api/v1/destinations/queue/~"),
        ("{kind}", "/api/v1/destinations/queue/%7Bkind%7D"),
        ("..", "/api/v1/destinations/queue/~?name_base64=Li4%3D"),
        ("\udcff", "/api/v1/destinations/queue/~?name_base64=%2Fw%3D%3D"),
    ],
)
def test_every_name_has_path(name: str, path: str) -> None:
    parameters = DestinationPath(address=Address(Kind.QUEUE, name))
    assert request_of(GET_DESTINATION, parameters)[:3] == ("GET", path, [])


def test_empty_name_has_no_path() -> None:
    with pytest.raises(ConfigurationError, match="the name is empty"):
        request_of(GET_SLOT, NamePath(name=""))


def test_body_follows_name_in_query() -> None:
    address = Address(Kind.TOPIC, "\udcff")
    purging = DestinationBody(address=address, body=PurgeRequest())
    method, path, body, headers = request_of(PURGE_DESTINATION, purging)
    assert (method, path) == ("POST", "/api/v1/destinations/topic/~/purge?name_base64=%2Fw%3D%3D")
    assert (body, headers["Content-Type"]) == ([b'{"unacked":false}'], "application/json")
    assert MessageTarget.of(address) == MessageTarget(kind="topic", name_base64="/w==")
    assert MessageTarget.of(Address(Kind.QUEUE, "é")) == MessageTarget(kind="queue", name="é")


def test_query_has_parameters_that_are_no_defaults() -> None:
    query = DestinationQuery(temporary=False, filter="a b", order="desc", limit=7)
    path = request_of(LIST_DESTINATIONS, query)[1]
    assert path == "/api/v1/destinations?limit=7&order=desc&filter=a+b&temporary=false"
    assert request_of(LIST_DESTINATIONS, DestinationQuery())[1] == "/api/v1/destinations"
    assert request_of(LIST_CONSUMERS, ConsumerQuery(destination="\udcff"))[1].endswith("=%FF")
    message_query = MessageQuery(address=Address(Kind.QUEUE, "q"), body=True)
    assert request_of(LIST_MESSAGES, message_query)[1:3] == (
        "/api/v1/destinations/queue/q/messages?body=true",
        [],
    )


def test_every_part_of_path_is_encoded() -> None:
    parameters = AssignedRole(name="{role}", role="a/b")
    assert request_of(WITHDRAW_ROLE, parameters)[1] == "/api/v1/users/%7Brole%7D/roles/a%2Fb"


def test_responses_have_declared_types(stub: StubServer, target: HttpTarget) -> None:
    async def scenario() -> None:
        async with ManagementClient(target) as client:
            stub.responses = [(200, STATUS), (204, b""), (200, b"\x00\xff")]
            assert await client.call(GET_STATUS, NONE) == StatusView("1", "ab", 7)
            assert await client.call(DELETE_USER, DeleteUser(name="a b", force=True)) is None
            assert await client.call(READ_SEGMENT, SegmentPath(first_sequence="1")) == b"\x00\xff"

    asyncio.run(scenario())
    assert stub.paths[1] == "/api/v1/users/a%20b?force=true"


def test_error_has_status_and_code(stub: StubServer, target: HttpTarget) -> None:
    stub.responses = [(409, problem("rejected", "not that"))]
    with (
        BlockingClient(ManagementClient.open, target) as client,
        pytest.raises(HttpRefusal, match="/s: not that") as error,
    ):
        client.call(GET_STATUS, NONE)
    assert (error.value.status, error.value.code) == (409, "rejected")
    assert json.loads(error.value.answer)["detail"] == "not that"


@pytest.mark.parametrize(
    "response",
    [
        *((200, b"<html>"), (200, b"\xff"), (200, b"{}"), (404, b"<html>")),
        *((502, b""), (404, b'{"a": 1}')),
    ],
)
def test_responses_of_another_server_are_errors(
    stub: StubServer, target: HttpTarget, response: tuple[int, bytes]
) -> None:
    stub.responses = [response]
    with (
        BlockingClient(ManagementClient.open, target) as client,
        pytest.raises(ConnectionLost, match="is not a broker's API"),
    ):
        client.call(GET_STATUS, NONE)


def test_closed_keep_alive_connection_is_reopened(stub: StubServer, target: HttpTarget) -> None:
    stub.responses = [(200, STATUS), None, (200, STATUS)]
    with BlockingClient(ManagementClient.open, target) as client:
        assert [client.call(GET_STATUS, NONE).pid for _ in range(2)] == [7, 7]
    assert len(stub.requests) == 3


def test_changing_requests_are_sent_once(stub: StubServer, target: HttpTarget) -> None:
    stub.responses = [(200, STATUS), None, (204, b"")]
    with BlockingClient(ManagementClient.open, target) as client:
        client.call(GET_STATUS, NONE)
        with pytest.raises(ConnectionLost, match="no broker answers"):
            client.call(DELETE_USER, DeleteUser(name="a"))
    assert [method for method, _, _ in stub.requests] == ["GET", "DELETE"]


def test_request_is_not_repeated_if_broker_closes_at_once(
    stub: StubServer, target: HttpTarget
) -> None:
    stub.responses = [None]
    with BlockingClient(ManagementClient.open, target) as client, pytest.raises(ConnectionLost):
        client.call(GET_STATUS, NONE)
    assert len(stub.requests) == 1


def test_requests_of_concurrent_tasks_get_their_own_responses(
    stub: StubServer, target: HttpTarget
) -> None:
    stub.responses = [(200, STATUS.replace(b"7", str(pid).encode())) for pid in range(20)]

    async def scenario() -> list[StatusView]:
        async with ManagementClient(target) as client:
            calls = [client.call(GET_STATUS, NONE) for _ in range(20)]
            return await asyncio.gather(*calls)

    assert [status.pid for status in asyncio.run(scenario())] == list(range(20))


def test_cancelled_call_ends_at_once_and_client_stays_usable(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            server.listen()
            target = HttpTarget(path=str(tmp_path / "s"))
            async with ManagementClient(target) as client:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await client.call(GET_STATUS, NONE)
                server.close()
                (tmp_path / "s").unlink()
                stub = StubServer(tmp_path / "s")
                stub.responses = [(200, STATUS)]
                try:
                    assert (await client.call(GET_STATUS, NONE)).pid == 7
                finally:
                    stub.stop()

    start = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - start < 20
