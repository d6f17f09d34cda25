"""Backups over HTTP: directory, permissions, and cancellation."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from sluicemq.admin import journal
from sluicemq.admin.caller import RequestIdentity
from sluicemq.admin.endpoints import Call, Endpoint
from sluicemq.admin.errors import ApiError
from sluicemq.admin.journal import BackupService, _create_directory, _lines
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.journal.backup import BackupCancelled, CopyProgress
from sluicemq.journal.slots import Slots
from sluicemq.journal.stored_backup import Manifest, read_manifest, verify
from sluicemq.management.journal import CREATE_BACKUP, BackupRequest
from sluicemq.management.operation import Body
from sluicemq.security.authenticator import LOCAL
from tests.server.conftest import Start
from tests.support.api import ApiFixture, in_event_loop
from tests.support.http import HTTP, PHPMQ, TIMEOUT, Client, basic_auth
from tests.support.polling import wait_until

BODY = bytes(1000)


@pytest.fixture
def backup_directory(tmp_path: Path) -> Path:
    backup_directory = tmp_path / "backups"
    backup_directory.mkdir()
    return backup_directory


@pytest.fixture
def broker(start: Start, backup_directory: Path) -> LocalBroker:
    return start(PHPMQ, HTTP, environment={"SLUICEMQ_BROKER__BACKUP_DIR": str(backup_directory)})


def fill(broker: LocalBroker, count: int) -> None:
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        for _ in range(count):
            client.send("orders", BODY)
        client.send("orders", b"the last")
        client.subscribe("orders", 1)
        client.receive(20)  # delivered messages are on disk


def back_up(client: Client, name: str, **more: object) -> list[dict[str, Any]]:
    response = client.request("POST", "/backups", json.dumps({"directory": name, **more}).encode())
    assert response.status == 200, response
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.body.splitlines()]


def backup_error(client: Client, name: str, **more: object) -> tuple[int, str]:
    response = client.request("POST", "/backups", json.dumps({"directory": name, **more}).encode())
    return response.status, response.code


def test_directory_that_cannot_be_created_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=r"cannot create .*gone/one: No such file") as error:
        _create_directory(tmp_path / "gone" / "one")
    assert (error.value.status, error.value.code) == (409, "no-backup-directory")


def test_backup_that_ends_at_once_reports_its_progress() -> None:
    async def lines() -> list[bytes]:
        backup = asyncio.get_running_loop().create_future()
        backup.set_result({"state": "done"})
        return [line async for line in _lines(backup, deque([CopyProgress(7, 7)]), Event())]

    assert [json.loads(line) for line in asyncio.run(lines())] == [
        {"state": "copying", "processed": 7, "total": 7},
        {"state": "done"},
    ]


def test_backup_is_created_reported_and_listed(broker: LocalBroker, backup_directory: Path) -> None:
    fill(broker, 200)
    with Client(broker.port("http")) as client:
        lines = back_up(client, "one")
        assert [line["state"] for line in lines[:-1]] == ["copying"] * (len(lines) - 1)
        assert lines[0]["total"] > 200_000
        assert lines[-1]["state"] == "done"
        backup = lines[-1]["backup"]
        increment = back_up(client, "two", incremental_from="one")[-1]["backup"]
        assert increment["incremental_from"] == "one"
        document = client.get("/backups").json()
    assert document["directory"] == str(backup_directory)
    assert not document["running"]
    assert "[broker]" in document["configuration"]
    assert document["users_file"].endswith("users.json")
    [first, second] = document["items"]
    assert (first["name"], first["complete"]) == ("one", True)
    assert (second["name"], second["incremental_from"]) == ("two", "one")
    assert first["last_sequence"] == backup["last_sequence"]
    for name in ("one", "two"):
        verdict = verify(backup_directory / name)
        assert not verdict.problems
        assert verdict.live == 201
    assert not Slots(broker.directory / "journal").list()


def audited_results(client: Client) -> list[str]:
    """Return the results in the audit log, the latest first."""
    return [line["result"] for line in client.get("/audit").json()["items"]]


INVALID_NAMES = (
    "",
    ".",
    "..",
    "../out",
    "a/b",
    "/tmp/out",
    ".hidden",
    "a\0b",
    "a b",
    "ä",
    "x" * 101,
)


def test_backup_stays_in_its_directory(broker: LocalBroker, backup_directory: Path) -> None:
    expected = (400, "bad-name")
    with Client(broker.port("http")) as client:
        for name in INVALID_NAMES:
            assert backup_error(client, name) == expected, name
            assert backup_error(client, "good", incremental_from=name) == expected, name
            assert not list(backup_directory.iterdir()), name


def test_symbolic_link_in_the_directory_is_rejected(
    broker: LocalBroker, backup_directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (backup_directory / "link").symlink_to(tmp_path / "elsewhere")
    (backup_directory / "dangling").symlink_to(tmp_path / "nowhere")
    with Client(broker.port("http")) as client:
        assert backup_error(client, "link") == (409, "backup-exists")
        assert backup_error(client, "dangling") == (409, "backup-exists")
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not (tmp_path / "nowhere").exists()


def test_invalid_requests_are_rejected(broker: LocalBroker, backup_directory: Path) -> None:
    with Client(broker.port("http")) as client:
        back_up(client, "one")
        assert backup_error(client, "one") == (409, "backup-exists")
        assert backup_error(client, "two", incremental_from="none") == (404, "backup-not-found")
        assert backup_error(client, "two", compress=True) == (400, "bad-body")
        assert backup_error(client, "two", max_rate=-1) == (400, "bad-body")
        assert not (backup_directory / "two").exists()


def test_without_a_directory_there_are_no_backups(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        assert backup_error(client, "one") == (409, "no-backup-directory")
        assert client.get("/backups").json()["items"] == []


def test_missing_directory_for_backups_is_named(start: Start, tmp_path: Path) -> None:
    environment = {"SLUICEMQ_BROKER__BACKUP_DIR": str(tmp_path / "gone")}
    broker = start(HTTP, environment=environment)
    with Client(broker.port("http")) as client:
        response = client.request("POST", "/backups", b'{"directory": "one"}')
    assert (response.status, response.code) == (409, "no-backup-directory")
    assert f"cannot create {tmp_path}/gone/one: No such file" in response.json()["detail"]


def test_without_a_journal_there_are_no_backups(start: Start, backup_directory: Path) -> None:
    environment = {"SLUICEMQ_BROKER__BACKUP_DIR": str(backup_directory)}
    broker = start(HTTP, options=("--ephemeral",), environment=environment)
    with Client(broker.port("http")) as client:
        assert backup_error(client, "one") == (409, "no-journal")


def test_only_a_superuser_may_create_backups(
    broker: LocalBroker, backup_directory: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("a password of one's own\n")
    for name, superuser in (("root", True), ("anna", False)):
        options = ["--superuser"] if superuser else []
        arguments = ["--data-dir", str(broker.directory), "--password-file", str(secret)]
        assert main(["users", "add", name, *arguments, *options]) == 0
    code = "authentication-required"
    with Client(broker.port("http")) as client:
        # the broker reads the users within a second
        wait_until(
            lambda: client.get("/backups").status == 401, "the broker has not read the users"
        )
        assert client.get("/backups").code == code
        assert backup_error(client, "one") == (401, code)
        client.headers["Authorization"] = basic_auth("anna", "a password of one's own")
        assert client.get("/backups").code == "forbidden"
        assert backup_error(client, "one") == (403, "forbidden")
        client.headers["Authorization"] = basic_auth("root", "a password of one's own")
        assert back_up(client, "one")[-1]["state"] == "done"
    user_file = json.loads((backup_directory / "one" / "users.json").read_bytes())
    assert set(user_file["users"]) == {"root", "anna"}


def wait_until_no_backup_runs(client: Client) -> None:
    deadline = time.monotonic() + 30
    while client.get("/backups").json()["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_one_backup_at_a_time_and_a_cancelled_one_leaves_no_files(
    broker: LocalBroker, backup_directory: Path
) -> None:
    fill(broker, 3000)
    connection = http.client.HTTPConnection("127.0.0.1", broker.port("http"), timeout=TIMEOUT)
    body = json.dumps({"directory": "slow", "max_rate": 300_000}).encode()
    connection.request("POST", "/api/v1/backups", body)
    first = json.loads(connection.getresponse().readline())
    assert first["state"] == "copying"
    with Client(broker.port("http")) as client:
        assert client.get("/backups").json()["running"]
        assert backup_error(client, "fast") == (409, "backup-running")
        assert audited_results(client) == ["409"]
        connection.close()
        wait_until_no_backup_runs(client)
        wait_until(
            lambda: audited_results(client) == ["500", "409"], "the backup has not been audited"
        )
        assert not list(backup_directory.iterdir())
        assert not Slots(broker.directory / "journal").list()
        assert back_up(client, "fast")[-1]["state"] == "done"


def test_backup_without_progress_is_cancelled_with_its_connection(
    broker: LocalBroker, backup_directory: Path
) -> None:
    fill(broker, 3000)
    connection = http.client.HTTPConnection("127.0.0.1", broker.port("http"), timeout=TIMEOUT)
    # the next chunk is due after minutes
    body = json.dumps({"directory": "slow", "max_rate": 5_000}).encode()
    connection.request("POST", "/api/v1/backups", body)
    with connection.getresponse() as response:
        assert [json.loads(response.readline())["state"] for _ in range(2)] == ["copying"] * 2
    connection.close()
    with Client(broker.port("http")) as client:
        wait_until_no_backup_runs(client)
    assert not list(backup_directory.iterdir())


@in_event_loop
async def test_backup_is_cancelled_if_the_connection_closes_before_the_response(
    api_fixture: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancellations: list[bool] = []

    def copy(*_: object, cancelled: Callable[[], bool], **options: object) -> Manifest:
        with suppress(AssertionError):
            wait_until(cancelled, "the backup has not been cancelled", seconds=2)
        cancellations.append(cancelled())
        raise BackupCancelled("the backup was cancelled")

    directory = api_fixture.directory / "backups"
    directory.mkdir()
    configuration = SimpleNamespace(directory=directory, sources=dict)
    context: Any = replace(api_fixture.context, configuration=configuration)
    monkeypatch.setattr(journal, "make_backup", copy)
    monkeypatch.setattr(journal, "require_file_journal", lambda _: SimpleNamespace(directory=None))
    caller = api_fixture.http_client(local=True).caller
    scope = {"type": "http", "method": "POST", "raw_path": b"/backups", "headers": []}
    sender = RequestIdentity(LOCAL, lambda: LOCAL)
    service = BackupService(context)
    slices = TimeSlices(api_fixture.broker)
    endpoint = Endpoint(CREATE_BACKUP, service.create)
    call = Call(endpoint, Request(scope), caller, sender, {}, {}, slices)
    await service.create(call, Body(body=BackupRequest(directory="one")))
    caller.is_closed = True
    async with asyncio.timeout(TIMEOUT):
        while not api_fixture.audit_lines():
            await asyncio.sleep(0.01)
    assert cancellations == [True]
    assert api_fixture.audit_lines() == ["change: (local) POST /backups one 500"]
    assert not list(directory.iterdir())


def test_backup_ends_when_the_broker_stops(start: Start, backup_directory: Path) -> None:
    environment = {
        "SLUICEMQ_BROKER__BACKUP_DIR": str(backup_directory),
        "SLUICEMQ_BROKER__SHUTDOWN_TIMEOUT": "1s",
    }
    broker = start(PHPMQ, HTTP, environment=environment)
    fill(broker, 1000)
    body = json.dumps({"directory": "slow", "max_rate": 5_000}).encode()
    port = broker.port("http")
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
        connection.request("POST", "/api/v1/backups", body)
        with connection.getresponse() as response:
            assert json.loads(response.readline())["state"] == "copying"
            stop_time = time.monotonic()
            assert broker.stop() == 0
    assert time.monotonic() - stop_time < 60  # the backup would take minutes
    assert not list(backup_directory.iterdir())


def test_failure_is_reported_in_the_last_line(broker: LocalBroker, backup_directory: Path) -> None:
    fill(broker, 10)
    with Client(broker.port("http")) as client:
        back_up(client, "one")
        path = backup_directory / "one" / "manifest.json"
        manifest = json.loads(path.read_bytes())
        path.write_text(json.dumps({**manifest, "identity": "00" * 16}))
        last = back_up(client, "two", incremental_from="one")[-1]
        assert last["state"] == "failed"
        assert "another journal" in last["error"]["detail"]
        assert not (backup_directory / "two").exists()
        assert audited_results(client) == ["500", "done"]
        assert read_manifest(backup_directory / "one")
