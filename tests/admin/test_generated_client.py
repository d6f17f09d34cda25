"""A client generated from the OpenAPI document of a running broker carries out every operation.

`openapi-python-client` writes the client into a temporary directory. Requests that fail are parsed
as problem documents.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient, connect
from sluicemq.clients.jmq import Topic, Xid
from sluicemq.model.rows import encode, row
from tests.server.conftest import Start
from tests.support.http import HTTP, Client

PACKAGE = "generated_client"
PASSWORD = "correct horse"
NAME = "orders/new ones"
"""The name of a queue, which contains a slash."""
CONFIGURATION = {
    "post_hooks": [],
    # the generator does not know lines of JSON
    "content_type_overrides": {"application/x-ndjson": "application/octet-stream"},
}


class GeneratedClient:
    """Calls the generated functions by operation id."""

    def __init__(self, package: ModuleType, document: dict[str, Any], client: Any) -> None:
        self.client = client
        self.called: set[str] = set()
        self._models = importlib.import_module(f"{package.__name__}.models")
        self.modules = {
            operation["operationId"]: importlib.import_module(
                f"{package.__name__}.api.{operation['tags'][0].replace('-', '_')}"
                f".{_snake(operation['operationId'])}"
            )
            for path in document["paths"].values()
            for operation in path.values()
        }
        self.queue = self._models.DestinationKind.QUEUE
        self.topic = self._models.DestinationKind.TOPIC

    def model(self, name: str, **fields: Any) -> Any:
        return getattr(self._models, name).from_dict(fields)

    def call(self, operation: str, *path: Any, **arguments: Any) -> Any:
        """Call an operation that succeeds; return the parsed response."""
        response = self.modules[operation].sync_detailed(*path, client=self.client, **arguments)
        assert response.status_code < 300, (operation, response)
        self.called.add(operation)
        return response.parsed

    def call_failing(self, operation: str, *path: Any, **arguments: Any) -> Any:
        """Call an operation that fails; return the problem."""
        response = self.modules[operation].sync(*path, client=self.client, **arguments)
        assert type(response).__name__ == "Problem"
        return response

    def list_all(self, operation: str, *path: Any, **arguments: Any) -> list[Any]:
        """Read all pages of a list, with two items per page."""
        items: list[Any] = []
        cursor = ""
        while cursor is not None:
            page = self.call(operation, *path, limit=2, cursor=cursor, **arguments)
            assert len(page.items) <= 2
            items += page.items
            cursor = page.next_cursor
        return items


def _snake(name: str) -> str:
    return re.sub("([A-Z])", lambda match: "_" + match[0].lower(), name)


@pytest.fixture
def broker(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a broker with a superuser."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    (tmp_path / "backups").mkdir()
    data = ["--data-dir", str(tmp_path / "broker")]
    assert main(["users", "add", "root", "--superuser", "--password-file", "secret", *data]) == 0
    backups = {"SLUICEMQ_BROKER__BACKUP_DIR": str(tmp_path / "backups")}
    return start(HTTP, "jmq://127.0.0.1:0", environment=backups)


@pytest.fixture
def generated(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GeneratedClient]:
    """Generate the client; it logs in as the superuser."""
    with Client(broker.port("http")) as http_client:
        document = http_client.get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "settings.json").write_text(json.dumps(CONFIGURATION))
    package_directory = tmp_path / "generated" / PACKAGE
    package_directory.parent.mkdir()
    generate = [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning"]
    options = ["--path", "openapi.json", "--config", "settings.json", "--meta", "none"]
    subprocess.run(
        [*generate, *options, "--output-path", str(package_directory)],
        check=True,
        cwd=tmp_path,
    )
    monkeypatch.syspath_prepend(str(package_directory.parent))
    package: Any = importlib.import_module(PACKAGE)
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1"
    with package.Client(base_url=url) as client:
        client.get_httpx_client().auth = ("root", PASSWORD)
        yield GeneratedClient(package, document, client)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def connect_jms(broker: Any) -> BlockingClient:
    url = f"jmq://root:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{broker.port('jmq')}"
    return connect(url + "?client_id=desk")


def call_user_operations(api: GeneratedClient) -> None:
    grant = api.model("PermissionRequest", pattern="orders.*", operations=["produce"])
    for name in ("anna", "bert", "carl"):
        request = api.model("UserRequest", password="a long password")
        assert api.call("putUser", name, body=request).name == name
    api.call("putRole", "clerk")
    api.call("grantRolePermission", "clerk", body=grant)
    assert api.call("getRole", "clerk").permissions[0].pattern == "orders.*"
    api.call("assignRole", "anna", "clerk")
    api.call("grantUserPermission", "anna", body=grant)
    token = api.call("createToken", "anna", body=api.model("TokenRequest", label="batch"))
    anna = api.call("getUser", "anna")
    assert (anna.roles, anna.tokens[0].label) == (["clerk"], "batch")
    assert [user.name for user in api.list_all("listUsers")] == ["anna", "bert", "carl", "root"]
    assert [role.name for role in api.list_all("listRoles")] == ["clerk"]
    missing = api.call_failing("getUser", "dora")
    assert (missing.status, missing.code) == (404, "user-not-found")
    assert (missing.type_, missing.title) == ("/problems/user-not-found", "User not found")
    assert "dora" in missing.detail
    api.call("deleteToken", "anna", token.id)
    api.call("revokeUserPermission", "anna", pattern="orders.*")
    api.call("withdrawRole", "anna", "clerk")
    api.call("revokeRolePermission", "clerk", pattern="orders.*")
    api.call("deleteRole", "clerk")
    api.call("deleteUser", "bert")
    assert [user.name for user in api.list_all("listUsers")] == ["anna", "carl", "root"]


def call_session_operations(api: GeneratedClient) -> None:
    # the client does not send the CSRF token that a session requires
    login = api.model("LoginRequest", user="carl", password="a long password")
    assert api.call("createSession", body=login).user == "carl"
    api.client.get_httpx_client().cookies.clear()
    assert api.call("getSession").user == "root"
    change = api.model("PasswordRequest", current_password="wrong", new_password="short")
    assert api.call_failing("changePassword", body=change).status in (400, 401)
    change = api.model("PasswordRequest", current_password=PASSWORD, new_password=PASSWORD)
    api.call("changePassword", body=change)
    api.call("deleteSession")


def call_destination_operations(api: GeneratedClient) -> None:
    path = (api.queue, NAME)
    request = api.model("DestinationRequest", max_messages=100)
    assert api.call("putDestination", *path, body=request).name == NAME
    for number in range(5):
        message = api.model("PublishRequest", body=f"text {number}", properties={"n": number})
        api.call("publishMessage", *path, body=message)
    assert api.call("getDestination", *path).ready == 5
    assert [destination.name for destination in api.list_all("listDestinations", kind=None)] == [
        NAME
    ]
    messages = api.list_all("listMessages", *path)
    assert len(messages) == 5
    assert api.call("getMessage", *path, messages[0].id).body.value == "text 0"
    assert api.call("getMessageBody", *path, messages[1].id).payload.read() == b"text 1"
    action = api.model("MessageActionRequest", action="delete", ids=[messages[0].id])
    assert api.call("applyMessageAction", *path, body=action).processed == 1
    assert api.call("pauseDestination", *path).paused
    assert not api.call("resumeDestination", *path).paused
    assert api.call("purgeDestination", *path, body=api.model("PurgeRequest")).purged == 4
    api.call("deleteDestination", *path)
    assert api.call_failing("getDestination", *path).code == "destination-not-found"
    api.call("listDeadLetterQueues")


def call_pipeline_operations(api: GeneratedClient) -> None:
    part = io.BytesIO(b"".join(encode([row("batched", b"1")])))
    body = importlib.import_module(f"{PACKAGE}.types").File(part)
    position = {"writer": "w", "batch": 1, "partition": 0, "part": 0, "final": True}
    assert api.call("writeBatchPart", body=body, **position).written == 1
    assert [writer.writer for writer in api.list_all("listBatchWriters")] == ["w"]
    segments = api.call("getJournal").segments
    assert api.call("readSegment", segments[0].first_sequence).payload.read()
    api.call("listJournalDestinations", ids="1")
    for name in ("a", "b", "c"):
        api.call("putSlot", name, body=api.model("SlotRequest", position=1))
    assert api.call("getSlot", "b").position == 1
    api.call("deleteSlot", "b")
    assert [slot.name for slot in api.list_all("listSlots")] == ["a", "c"]


def call_client_operations(api: GeneratedClient, broker: Any) -> None:
    with connect_jms(broker) as client:
        session = client.session()
        session.consumer(Topic("news"), name="readers", durable=True)
        [consumer] = api.list_all("listConsumers")
        assert consumer.destination == "news"
        for number in (1, 2):
            xid = Xid(number, b"g", b"b")
            session.xa.start(xid)
            session.producer("paid").send("done")
            session.xa.end(xid)
            session.xa.prepare(xid)
        first, second = api.list_all("listTransactions")
        api.call("commitTransaction", first.id)
        api.call("rollBackTransaction", second.id)
        assert api.call("getDestination", api.queue, "paid").ready == 1
        [connection] = [item for item in api.list_all("listConnections") if item.protocol == "jmq"]
        assert api.call("getConnection", connection.id).user == "root"
        [subscription] = api.list_all("listSubscriptions")
        arguments = {"name": subscription.name, "destination": "news"}
        assert api.call_failing("deleteSubscription", **arguments).code == "subscription-in-use"
        api.call("closeConnection", connection.id)
        api.call("deleteSubscription", **arguments, force=True)
    assert api.list_all("listSubscriptions") == []


def call_status_operations(api: GeneratedClient, tmp_path: Path) -> None:
    assert api.call("getLiveness").state == api.call("getReadiness").state == "serving"
    assert api.call("getStatus").broker_id == api.call("getOverview").broker_id
    assert api.call("getHistory") is not None
    api.call("getOpenApiDocument")
    assert len(api.list_all("listSettings", filter_="journal.")) > 5
    assert "login" in {entry.event for entry in api.list_all("listAuditEntries")}
    api.call("createBackup", body=api.model("BackupRequest", directory="one"))
    [backup] = api.call("listBackups").items
    assert (backup.name, (tmp_path / "backups" / "one").is_dir()) == ("one", True)
    events = api.modules["streamEvents"]._get_kwargs()
    with api.client.get_httpx_client().stream(**events) as response:
        assert response.status_code == 200
        assert next(response.iter_lines())
    api.called.add("streamEvents")


def test_generated_client_carries_out_every_operation(
    generated: GeneratedClient, broker: Any, tmp_path: Path
) -> None:
    call_user_operations(generated)
    call_session_operations(generated)
    call_destination_operations(generated)
    call_pipeline_operations(generated)
    call_client_operations(generated, broker)
    call_status_operations(generated, tmp_path)
    assert set(generated.modules) - generated.called == set()
