"""API calls of the commands, with predefined responses of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from sluicemq.cli.api import Api
from sluicemq.cli.console import UsageError
from sluicemq.cli.message_options import run_action, select
from sluicemq.clients.http import HttpRefusal, HttpTarget
from sluicemq.management.broker import (
    GET_STATUS,
    LIST_SETTINGS,
    ConfigurationQuery,
)
from sluicemq.management.journal import CREATE_BACKUP, BackupRequest
from sluicemq.management.operation import Body, NoParameters
from sluicemq.management.users import DELETE_USER, DeleteUser
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationMissing,
    ConnectionLost,
    SluiceError,
)
from tests.support.stub_server import StubServer, problem

BACKUP = Body(body=BackupRequest(directory="monday"))


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[StubServer]:
    stub = StubServer(tmp_path / "s")
    yield stub
    stub.stop()


@pytest.fixture
def api(stub: StubServer, tmp_path: Path) -> Iterator[Api]:
    with Api(HttpTarget(path=str(tmp_path / "s")), timeout=30) as api:
        yield api


def setting(number: int) -> dict[str, object]:
    """Return an item of a list."""
    texts = dict.fromkeys(("unit", "source", "description"), "")
    return {"name": f"s{number}", "value": number, "default": None, **texts}


def page(numbers: range, cursor: str | None) -> tuple[int, bytes]:
    """Return a response with a page of a list."""
    items = [setting(number) for number in numbers]
    return 200, json.dumps({"items": items, "total": None, "next_cursor": cursor}).encode()


def test_items_of_all_pages_are_read(api: Api, stub: StubServer) -> None:
    stub.responses = [
        page(range(500), "500"),
        page(range(500, 1000), "1000"),
        page(range(1000, 1003), None),
    ]
    settings = api.items(LIST_SETTINGS, ConfigurationQuery(filter="s"))
    assert [setting.value for setting in settings] == list(range(1003))
    queries = [parse_qs(urlsplit(path).query) for path in stub.paths]
    assert [query.get("cursor") for query in queries] == [None, ["500"], ["1000"]]
    assert all(query["filter"] == ["s"] for query in queries)


def test_list_ends_if_items_are_removed_meanwhile(api: Api, stub: StubServer) -> None:
    stub.responses = [page(range(500), "500"), page(range(0), None)]
    assert len(list(api.items(LIST_SETTINGS, ConfigurationQuery()))) == 500


def test_limit_reads_only_the_first_items(api: Api, stub: StubServer) -> None:
    stub.responses = [page(range(2), "2")]
    settings = api.items(LIST_SETTINGS, ConfigurationQuery(), 2)
    assert [setting.name for setting in settings] == ["s0", "s1"]
    assert stub.paths == ["/api/v1/configuration?limit=2"]


@pytest.mark.parametrize(
    ("status", "code", "kind", "advice"),
    [
        (401, "authentication-required", AuthenticationMissing, "--user"),
        (401, "authentication-failed", AuthenticationFailed, "--token-file"),
        (403, "forbidden", AccessDenied, "permissions grant"),
        (404, "destination-not-found", HttpRefusal, "sluicemq queues"),
        (409, "rejected", HttpRefusal, ""),
        (500, "internal-error", HttpRefusal, ""),
    ],
)
def test_errors_name_the_cause_the_broker_and_advice(
    api: Api, stub: StubServer, status: int, code: str, kind: type[SluiceError], advice: str
) -> None:
    stub.responses = [(status, problem(code, "shop may not do that"))]
    with pytest.raises(kind) as error:
        api.call(GET_STATUS, NoParameters())
    assert str(error.value).endswith("/s: shop may not do that")
    assert advice in "".join(getattr(error.value, "__notes__", [""]))


def test_lines_are_decoded_one_by_one(api: Api, stub: StubServer) -> None:
    stub.responses = [(200, b'{"n": 1}\n{"n": 2}\n')]
    assert [line["n"] for line in api.lines(CREATE_BACKUP, BACKUP)] == [1, 2]
    assert json.loads(stub.requests[0][2])["directory"] == "monday"
    stub.responses = [(409, problem("rejected", "no"))]
    with pytest.raises(HttpRefusal, match="no"):
        list(api.lines(CREATE_BACKUP, BACKUP))
    stub.responses = [(200, b"<html>")]
    with pytest.raises(ConnectionLost, match="is not a broker's API"):
        list(api.lines(CREATE_BACKUP, BACKUP))


@pytest.mark.parametrize("status", [200, 301, 302, 307])
def test_another_server_does_not_confirm_a_change(api: Api, stub: StubServer, status: int) -> None:
    """A proxy that redirects to https or a login page has not deleted the user."""
    stub.responses = [(status, b"<html>")]
    with pytest.raises(ConnectionLost, match="is not a broker's API"):
        api.call(DELETE_USER, DeleteUser(name="anna"))
    stub.responses = [(204, b"")]
    api.call(DELETE_USER, DeleteUser(name="anna"))


def test_text_that_is_not_utf_8_is_a_usage_error(api: Api) -> None:
    body = BackupRequest(directory="\udcff")
    with pytest.raises(UsageError, match="is not UTF-8"):
        api.call(CREATE_BACKUP, Body(body=body))


def test_unreachable_broker_is_an_error_with_advice(tmp_path: Path) -> None:
    with (
        pytest.raises(ConnectionLost, match=r"no broker answers at .*/none: No such file") as error,
        Api(HttpTarget(path=str(tmp_path / "none"))) as api,
    ):
        api.call(GET_STATUS, NoParameters())
    assert "sluicemq serve" in error.value.__notes__[0]
    with (
        pytest.raises(
            ConnectionLost, match=r"no broker answers at http://127\.0\.0\.1:1: "
        ) as error,
        Api(HttpTarget("127.0.0.1", 1)) as api,
    ):
        api.call(GET_STATUS, NoParameters())
    assert "listener" in error.value.__notes__[0]


def test_partial_actions_are_requested_until_done(api: Api, stub: StubServer) -> None:
    failure_document = {"id": "9", "reason": "in-flight"}
    first = {"processed": 2, "failed": [failure_document], "scanned": 3, "next_cursor": "c1"}
    second = {"processed": 1, "failed": [], "scanned": 1, "next_cursor": "c2"}
    stub.responses = [(200, json.dumps(document).encode()) for document in (first, second)]
    request = select("delete", None, None, True, 3)
    done = run_action(api, Address(Kind.QUEUE, "q"), request)
    assert done.document["processed"] == 3
    assert [failure.id for failure in done.document["failed"]] == ["9"]
    assert done.errors == ["message 9: a consumer holds it unacked; redeliver requeues it"]
    bodies = [json.loads(body) for _, _, body in stub.requests]
    assert [(body["limit"], body.get("cursor")) for body in bodies] == [(3, ""), (1, "c1")]
