"""Every operation of the HTTP API, by every actor."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from sluicemq.admin.app import Application
from sluicemq.admin.clients import id_of
from sluicemq.admin.static_files import load_static_files
from sluicemq.broker import BatchPart, Broker, ManualClock
from sluicemq.broker.recovery import snapshot
from sluicemq.journal import FileJournal, MemoryJournal
from sluicemq.model.access import Operation, Permission
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability, Message
from sluicemq.model.rows import encode
from sluicemq.model.rows import row as rows_of
from sluicemq.protocols.jmq.fields import Xid, encode_xid
from sluicemq.security import records
from tests.admin.context import AttachedConsumer, StubConnectionRegistry, connection_item, context
from tests.admin.destinations import read
from tests.authorization.fixture import (
    QUEUE,
    TOPIC,
    WRONG_TOKEN,
    Users,
    publish,
    reset_broker,
    snapshot_destinations,
    snapshot_transactions,
)
from tests.authorization.matrix import (
    ALL_ACTORS,
    ALLOWED,
    DENIED,
    LOGGED_IN,
    NO_ACTOR,
    OWNER_ONLY,
    PERMITTED,
    SUPERUSER_ONLY,
    Actor,
    Cell,
    Row,
    Table,
    check_cell,
    check_complete,
    parametrize_cells,
)
from tests.support.api import PASSWORD, ApiFixture
from tests.support.broker import purge
from tests.support.http import Response

DEAD: Final = "own.dead"
"""The dead-letter queue of QUEUE."""
CONSUMED: Final = "own.consumed"
"""A queue with a consumer."""
DURABLE: Final = "own-durable"
SLOT: Final = "own-slot"
VICTIM: Final = "victim"
"""A user that is not an actor, with the role ROLE."""
ROLE: Final = "workers"
OWNERS_ADDRESS: Final = "10.0.0.99:7"
WRITER: Final = "own-writer"
XID: Final = Xid(7, b"own", b"")
DENIALS: Final = frozenset({401, 403, 404})
PUBLISHERS: Final = PERMITTED | {Actor.OTHER}
"""Actors that may publish to some destination."""


class HttpFixture:
    """A broker with a journal on disk, the users of the matrix and resources of the owner.

    values  parameters of paths to the resources, by name
    """

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = directory
        self.backups = directory / "backups"
        self.backups.mkdir()
        self.loop.run_until_complete(self._open())
        self.broker = self.api_fixture.broker
        self.users = Users(self.api_fixture)
        self._add_victim()
        self.users_file = directory / "users.json"
        self.database = self.users_file.read_bytes()
        self.values: dict[str, str] = {}
        self.numbers = count(1)
        self._initial: Any = None

    async def _open(self) -> None:
        notify = asyncio.get_running_loop().call_soon_threadsafe
        self.journal = FileJournal.open(self.directory / "journal", notify=notify)
        self.api_fixture = ApiFixture(
            self.directory, journal=self.journal, backup_dir=self.backups, required="always"
        )
        self.journal.set_snapshot_source(lambda: snapshot(self.api_fixture.broker))
        connections: Any = self.api_fixture.context.connections
        self.connections: StubConnectionRegistry = connections
        self.connections.views.append(
            replace(connection_item(1), peer=OWNERS_ADDRESS, user="owner")
        )

    def _add_victim(self) -> None:
        api_fixture = self.api_fixture
        api_fixture.store.change(lambda database: records.add_role(database, ROLE), "a test")
        api_fixture.add(VICTIM, "own.*: produce")
        api_fixture.store.change(
            lambda database: records.assign(database, ROLE, VICTIM, 1), "a test"
        )
        api_fixture.token(VICTIM)
        self.token = api_fixture.store.read().users[VICTIM].tokens[0].id

    def close(self) -> None:
        """Stop the threads, the journal and the event loop."""
        self.api_fixture.authenticator.close()
        self.journal.close()
        self.loop.close()

    async def reset(self) -> None:
        """Restore the resources after a cell.

        Most cells change nothing, and nothing needs to be written to disk for them.
        """
        broker = self.broker
        if self._initial == self.snapshot():
            return
        reset_broker(broker)
        broker.flush()
        if self.users_file.read_bytes() != self.database:
            self.users_file.write_bytes(self.database)
        for slot in self.journal.slots.list():
            self.journal.slots.delete(slot)
        self.journal.slots.create(SLOT, 0, None)
        self.connections.closed.clear()
        self.connections.attached.clear()
        self._declare()
        broker.batches.writers.clear()
        durable = asyncio.Event()
        broker.when_durable(broker.core.last_ack_record, durable.set)
        broker.schedule_flush()
        await durable.wait()
        self._initial = self.snapshot()

    def _declare(self) -> None:
        broker = self.broker
        settings = DestinationSettings(dead_letter=True, dead_letter_queue=DEAD)
        queue = broker.destinations.declare(Address(Kind.QUEUE, QUEUE), settings)
        message = publish(broker, queue)
        publish(broker, broker.destinations.declare(Address(Kind.QUEUE, DEAD)))
        consumed = broker.destinations.declare(Address(Kind.QUEUE, CONSUMED))
        reader = read(broker, consumed)
        self.connections.attached.append(AttachedConsumer(1, reader.consumer))
        topic = broker.destinations.declare(Address(Kind.TOPIC, TOPIC))
        broker.subscribe(topic, DURABLE, durable=True, owner="owner")
        publish(broker, topic)
        transaction = broker.transactions.begin("owner")
        sent = Message(queue.address, b"x", durability=Durability.LAZY)
        broker.transactions.publish(transaction, queue, sent)
        broker.transactions.prepare(transaction, encode_xid(XID))
        broker.core.last_ack_record = transaction.record
        broker.flush()
        self.values = {
            "kind": "queue",
            "name": QUEUE,
            "id": str(message.sequence),
            "first_sequence": str(self.journal.segments[0].first),
            "transaction": id_of(transaction),
        }

    def snapshot(self) -> Any:
        """Return the state that operations without permission must not change."""
        return (
            snapshot_destinations(self.broker),
            snapshot_transactions(self.broker),
            {name: writer.batch for name, writer in self.broker.batches.writers.items()},
            self.journal.slots.list(),
            sorted(backup.name for backup in self.backups.iterdir()),
            list(self.connections.closed),
            self.users_file.read_bytes(),
        )


class HttpCell(Cell):
    """A client of the actor, which sends its token with each request."""

    def __init__(self, fixture: HttpFixture, actor: Actor) -> None:
        super().__init__(actor)
        self.fixture = fixture
        number = next(fixture.numbers)
        self.number = number
        self.client = fixture.api_fixture.http_client(f"10.2.{number // 250}.{number % 250 + 1}:1")
        if actor is not Actor.ANONYMOUS:
            self.client.headers["Authorization"] = f"Bearer {self.token}"

    @property
    def token(self) -> str:
        """Return the token of the actor, or an unknown token."""
        return self.fixture.users.tokens.get(self.actor, WRONG_TOKEN)

    def name(self, rest: str) -> str:
        """Return a name on which the actor has permissions, if it has any."""
        return f"other.{rest}" if self.actor is Actor.OTHER else f"own.{rest}"

    def declare(self, rest: str) -> str:
        """Create a queue of the actor with a message and return its name."""
        name = self.name(rest)
        broker = self.fixture.broker
        publish(broker, broker.destinations.declare(Address(Kind.QUEUE, name)), "x")
        broker.flush()
        return name

    def request(self, method: str, path: str, body: Any = None, **fields: Any) -> None:
        """Issue a request; `path` is the complete path."""
        self.fixture.loop.run_until_complete(self._request(method, path, body, **fields))

    async def _request(self, method: str, path: str, body: Any, **fields: Any) -> None:
        self.before = self.fixture.snapshot()
        async with asyncio.timeout(30):
            response = await self.client.request(method, path, body, prefix="", **fields)
        self.after = self.fixture.snapshot()
        self.received = response.body
        self.outcome = self._outcome_of(response)

    def _outcome_of(self, response: Response) -> str:
        if response.status in DENIALS:
            return DENIED
        return ALLOWED if response.status < 400 else f"{response.status}: {response.body!r}"


# --- rows ----------------------------------------------------------------------------------------

TABLE: Final[Table[HttpCell]] = Table()
row = TABLE.row


def owners_path(cell: HttpCell, path: str) -> str:
    """Replace the parameters of a path by those of the resources of the owner."""
    values = dict(cell.fixture.values)
    if "/users/" in path:
        values |= {"name": VICTIM, "role": ROLE, "id": cell.fixture.token}
    elif "/roles/" in path:
        values["name"] = ROLE
    elif "/slots/" in path:
        values["name"] = SLOT
    elif "/connections/" in path:
        values["id"] = "1"
    elif "/transactions/" in path:
        values["id"] = values["transaction"]
    return re.sub(r"{\*?([a-z_]+)}", lambda match: values.get(match[1], match[0]), path)


def add(
    command: str,
    target: str,
    allowed: frozenset[Actor],
    body: Any = None,
    query: str = "",
    **fields: Any,
) -> None:
    """Add a row for a request for a resource of the owner."""
    method, path = command.split()

    @row(command, target, allowed, **fields)
    def issue(cell: HttpCell) -> None:
        cell.request(method, owners_path(cell, path) + query, body)


API: Final = "/api/v1"
DESTINATION: Final = f"{API}/destinations/{{kind}}/{{name}}"
OWN: Final = {"kind": "queue", "name": QUEUE}

# without a login

for _path in (
    f"{API}/openapi.json",
    f"{API}/health/live",
    f"{API}/health/ready",
    "/health/live",
    "/health/ready",
    "/",
    "/console",
):
    add(f"GET {_path}", "", ALL_ACTORS, reveals=NO_ACTOR, marker=QUEUE)


@row("GET /console/{*rest}", "", ALL_ACTORS, reveals=NO_ACTOR, marker=QUEUE)
def _console(cell: HttpCell) -> None:
    cell.request("GET", f"/console/{load_static_files().version}/app.js")


# sessions


@row(f"POST {API}/session", "", LOGGED_IN, reveals=OWNER_ONLY, marker="own.*")
def _login(cell: HttpCell) -> None:
    cell.client.headers.clear()
    token = "" if cell.actor is Actor.ANONYMOUS else cell.token
    cell.request("POST", f"{API}/session", {"token": token})


add(f"GET {API}/session", "", LOGGED_IN, reveals=OWNER_ONLY, marker="own.*")
add(f"DELETE {API}/session", "", LOGGED_IN)
add(
    f"POST {API}/session/password",
    "",
    LOGGED_IN,
    {"current_password": PASSWORD, "new_password": "another one"},
    changes=True,
)
add(
    f"POST {API}/session/password",
    "with a wrong one",
    NO_ACTOR,
    {"current_password": "wrong", "new_password": "x"},
)

# the broker

add(f"GET {API}/status", "", LOGGED_IN, reveals=NO_ACTOR, marker=QUEUE)
add(f"GET {API}/overview", "", LOGGED_IN, reveals=NO_ACTOR, marker=QUEUE)
add(f"GET {API}/history", "of the broker", LOGGED_IN, reveals=NO_ACTOR, marker=QUEUE)
add(
    f"GET {API}/history",
    "of a queue",
    PERMITTED,
    query=f"?destination={QUEUE}",
    permission=Operation.BROWSE,
)
add("GET /metrics", "", SUPERUSER_ONLY)
add(f"GET {API}/configuration", "", SUPERUSER_ONLY)
add(f"GET {API}/audit", "", SUPERUSER_ONLY, reveals=SUPERUSER_ONLY, marker='"event"')
add(f"GET {API}/backups", "", SUPERUSER_ONLY, reveals=SUPERUSER_ONLY, marker="users.json")


@row(f"GET {API}/events", "", LOGGED_IN, reveals=NO_ACTOR, marker=QUEUE)
def _events(cell: HttpCell) -> None:
    def watch(data: bytes) -> None:
        if b"event: overview" in data:
            cell.client.caller.closing.set()

    cell.request("GET", f"{API}/events", watch=watch)


@row(f"POST {API}/backups", "", SUPERUSER_ONLY, changes=True)
def _back_up(cell: HttpCell) -> None:
    cell.request("POST", f"{API}/backups", {"directory": f"b{cell.number}"})


# connections

add(f"GET {API}/connections", "", LOGGED_IN, reveals=PERMITTED, marker=OWNERS_ADDRESS)
add(f"GET {API}/connections/{{id}}", "", PERMITTED, reveals=PERMITTED, marker=OWNERS_ADDRESS)
add(f"DELETE {API}/connections/{{id}}", "", SUPERUSER_ONLY, changes=True)
add(f"GET {API}/consumers", "", LOGGED_IN, reveals=PERMITTED, marker=CONSUMED)

# destinations

add(f"GET {API}/destinations", "", LOGGED_IN, reveals=PERMITTED, marker=QUEUE)
add(f"GET {DESTINATION}", "", PERMITTED, permission=Operation.BROWSE)
add(
    f"PUT {DESTINATION}",
    "that exists",
    PERMITTED,
    {"max_messages": 7},
    changes=True,
    permission=Operation.MANAGE,
)


@row(f"PUT {DESTINATION}", "that is new", PERMITTED, permission=Operation.CREATE, changes=True)
def _create(cell: HttpCell) -> None:
    cell.request("PUT", f"{API}/destinations/queue/own.new", {})


@row(f"PUT {DESTINATION}", "with the owner's dead-letter queue", PERMITTED, changes=True)
def _create_with_dead_letters(cell: HttpCell) -> None:
    body = {"dead_letter": True, "dead_letter_queue": QUEUE}
    cell.request("PUT", f"{API}/destinations/queue/{cell.name('new')}", body)


@row(f"PUT {DESTINATION}", "that names the owner's dead-letter queue", PERMITTED, changes=True)
def _enable_dead_letters(cell: HttpCell) -> None:
    name = cell.name("new")
    settings = DestinationSettings(dead_letter_queue=QUEUE)
    cell.fixture.broker.destinations.declare(Address(Kind.QUEUE, name), settings)
    cell.request("PUT", f"{API}/destinations/queue/{name}", {"dead_letter": True})


add(
    f"DELETE {DESTINATION}",
    "",
    PERMITTED,
    query="?force=true",
    changes=True,
    permission=Operation.DELETE,
)
add(f"POST {DESTINATION}/purge", "", PERMITTED, {}, changes=True, permission=Operation.MANAGE)
add(f"POST {DESTINATION}/pause", "", PERMITTED, changes=True, permission=Operation.MANAGE)


@row(f"POST {DESTINATION}/resume", "", PERMITTED, permission=Operation.MANAGE, changes=True)
def _resume(cell: HttpCell) -> None:
    broker = cell.fixture.broker
    broker.destinations.set_paused(broker.destinations[Address(Kind.QUEUE, QUEUE)], True)
    cell.request("POST", f"{API}/destinations/queue/{QUEUE}/resume")


add(f"GET {API}/dead-letters", "", LOGGED_IN, reveals=PERMITTED, marker=DEAD)
add(f"GET {API}/subscriptions", "", LOGGED_IN, reveals=PERMITTED, marker=DURABLE)
_ALL = f"?destination={TOPIC}&name={DURABLE}"
add(f"DELETE {API}/subscriptions", "", PERMITTED, query=_ALL, changes=True)

# messages

add(
    f"GET {DESTINATION}/messages",
    "",
    PERMITTED,
    query="?body=true",
    reveals=PERMITTED,
    permission=Operation.BROWSE,
)
add(
    f"GET {DESTINATION}/messages/{{id}}",
    "",
    PERMITTED,
    reveals=PERMITTED,
    permission=Operation.BROWSE,
)
add(
    f"GET {DESTINATION}/messages/{{id}}/body",
    "",
    PERMITTED,
    reveals=PERMITTED,
    permission=Operation.BROWSE,
)
add(
    f"POST {DESTINATION}/messages",
    "",
    PERMITTED,
    {"body": "x"},
    changes=True,
    permission=Operation.PRODUCE,
)


def _action(action: str, permission: Operation | None, right_by_id: Operation | None) -> None:
    """Add rows for an action on all messages and on one message."""

    def issue(cell: HttpCell, chosen: dict[str, Any]) -> None:
        body = {"action": action, **chosen}
        if action != "delete":
            body["target"] = {"kind": "queue", "name": cell.declare("copies")}
        cell.request("POST", owners_path(cell, f"{DESTINATION}/messages/actions"), body)

    command = f"POST {DESTINATION}/messages/actions"

    @row(command, action, PERMITTED, permission=permission, changes=True)
    def with_all(cell: HttpCell) -> None:
        issue(cell, {"all": True})

    @row(command, f"{action} by id", PERMITTED, permission=right_by_id, changes=True)
    def with_one(cell: HttpCell) -> None:
        issue(cell, {"ids": [cell.fixture.values["id"]]})


_action("delete", Operation.MANAGE, Operation.CONSUME)
_action("move", None, None)  # they require a permission on the target, too
_action("copy", None, None)


def _action_to_owners_queue(action: str) -> None:
    @row(
        f"POST {DESTINATION}/messages/actions",
        f"{action} to the owner's queue",
        PERMITTED,
        changes=True,
    )
    def issue(cell: HttpCell) -> None:
        source = cell.declare("source")
        body = {"action": action, "all": True, "target": OWN}
        cell.request("POST", f"{API}/destinations/queue/{source}/messages/actions", body)


for _name in ("move", "copy"):
    _action_to_owners_queue(_name)


def _dead_letter(cell: HttpCell, dead: str) -> None:
    """Dead-letter a message of the owner; it is the only message in the queue `dead`."""
    broker = cell.fixture.broker
    purge(broker, broker.destinations.declare(Address(Kind.QUEUE, dead)))
    settings = DestinationSettings(dead_letter=True, dead_letter_queue=dead)
    source = broker.destinations.declare(Address(Kind.QUEUE, "own.source"), settings)
    message = publish(broker, source)
    broker.flush()
    reader = read(broker, source)
    assert broker.dead_letter(source.queue, message.sequence, "client")
    broker.detach(reader.consumer)
    broker.flush()


@row(f"POST {DESTINATION}/messages/actions", "redrive", PERMITTED, changes=True)
def _redrive(cell: HttpCell) -> None:
    _dead_letter(cell, DEAD)
    body = {"action": "redrive", "all": True}
    cell.request("POST", f"{API}/destinations/queue/{DEAD}/messages/actions", body)


@row(f"POST {DESTINATION}/messages/actions", "origin to the owner's queue", PERMITTED, changes=True)
def _redrive_to_owner(cell: HttpCell) -> None:
    dead_letter_queue = cell.name("dead")
    _dead_letter(cell, dead_letter_queue)
    body = {"action": "redrive", "all": True}
    cell.request("POST", f"{API}/destinations/queue/{dead_letter_queue}/messages/actions", body)
    if b'"reason":"forbidden"' in cell.received:  # message by message
        cell.outcome = DENIED


@row(
    f"POST {DESTINATION}/messages/actions",
    "redeliver of a delayed message",
    PERMITTED,
    permission=Operation.CONSUME,
    changes=True,
)
def _redeliver(cell: HttpCell) -> None:
    broker = cell.fixture.broker
    queue = broker.destinations[Address(Kind.QUEUE, QUEUE)]
    deliver_at = broker.clock.wall + 3_600_000
    broker.publish(
        queue, Message(queue.address, b"x", durability=Durability.LAZY, deliver_at=deliver_at)
    )
    broker.flush()
    body = {"action": "redeliver", "all": True, "state": "scheduled"}
    cell.request("POST", owners_path(cell, f"{DESTINATION}/messages/actions"), body)


def _of_unacked_message(action: str) -> None:
    """Add a row for an action on a message that a consumer of the owner has not acknowledged."""

    @row(f"POST {DESTINATION}/messages/actions", f"{action} unacked", PERMITTED, changes=True)
    def issue(cell: HttpCell) -> None:
        broker = cell.fixture.broker
        message = publish(broker, broker.destinations[Address(Kind.QUEUE, CONSUMED)])
        broker.flush()
        body = {"action": action, "ids": [str(message.sequence)]}
        cell.request("POST", f"{API}/destinations/queue/{CONSUMED}/messages/actions", body)


for _name in ("delete", "redeliver"):
    _of_unacked_message(_name)

# batches

add(f"GET {API}/batches", "", SUPERUSER_ONLY)


def _batch(cell: HttpCell, name: str, query: str = "", batch: int = 1) -> None:
    text = f"writer={WRITER}&batch={batch}&partition=0&part=0&final=true{query}"
    rows = [] if not name else [rows_of(name, b"x")]
    cell.request("POST", f"{API}/batches?{text}", b"".join(encode(rows)))


@row(f"POST {API}/batches", "to a queue", PERMITTED, permission=Operation.PRODUCE, changes=True)
def _write(cell: HttpCell) -> None:
    _batch(cell, QUEUE)
    if b'"code":"rejected"' in cell.received:
        cell.outcome = DENIED


@row(f"POST {API}/batches", "with the owner's dead-letter queue", PERMITTED, changes=True)
def _write_dead_letters(cell: HttpCell) -> None:
    _batch(cell, cell.declare("new"), f"&bad_rows=dead-letter&dead_letter_queue={QUEUE}")


def _write_as(cell: HttpCell, owner: str) -> None:
    """Write batch 1000 of a writer that belongs to `owner`."""
    part = BatchPart(WRITER, 1, 0, 0, True, 0, 0, owner)
    cell.fixture.broker.batches.write(part, [])
    _batch(cell, "", batch=1000)


@row(f"POST {API}/batches", "as the owner's writer", PERMITTED, changes=True)
def _write_as_owners(cell: HttpCell) -> None:
    _write_as(cell, "owner")


@row(f"POST {API}/batches", "as a writer without owner", PUBLISHERS, changes=True)
def _write_without_owner(cell: HttpCell) -> None:
    _write_as(cell, "")


# the journal

for _path in (
    "journal",
    "journal/segments/{first_sequence}",
    "journal/slots",
    "journal/slots/{name}",
):
    add(f"GET {API}/{_path}", "", SUPERUSER_ONLY)
add(f"GET {API}/journal/destinations", "", SUPERUSER_ONLY, query="?ids=1,2,3")
add(f"PUT {API}/journal/slots/{{name}}", "", SUPERUSER_ONLY, {"position": 1}, changes=True)
add(f"DELETE {API}/journal/slots/{{name}}", "", SUPERUSER_ONLY, changes=True)


@row(f"PUT {API}/journal/slots/{{name}}", "that is new", SUPERUSER_ONLY, changes=True)
def _create_slot(cell: HttpCell) -> None:
    cell.request("PUT", f"{API}/journal/slots/new", {"position": 0})


# transactions

add(f"GET {API}/transactions", "", LOGGED_IN, reveals=PERMITTED, marker=b"own".hex())
add(f"POST {API}/transactions/{{id}}/commit", "", PERMITTED, changes=True)
add(f"POST {API}/transactions/{{id}}/rollback", "", PERMITTED, changes=True)

# users and roles

_RIGHT: Final = {"pattern": "own.*", "operations": ["consume"]}
_PATTERN: Final = "?pattern=own.*"
add(f"GET {API}/users", "", SUPERUSER_ONLY, reveals=SUPERUSER_ONLY, marker=VICTIM)
add(f"GET {API}/users/{{name}}", "", SUPERUSER_ONLY)
add(f"PUT {API}/users/{{name}}", "", SUPERUSER_ONLY, {"superuser": True}, changes=True)
add(f"DELETE {API}/users/{{name}}", "", SUPERUSER_ONLY, changes=True)
add(f"PUT {API}/users/{{name}}/permissions", "", SUPERUSER_ONLY, _RIGHT, changes=True)
add(f"DELETE {API}/users/{{name}}/permissions", "", SUPERUSER_ONLY, query=_PATTERN, changes=True)
add(f"DELETE {API}/users/{{name}}/roles/{{role}}", "", SUPERUSER_ONLY, changes=True)
add(f"POST {API}/users/{{name}}/tokens", "", SUPERUSER_ONLY, {"label": "x"}, changes=True)
add(f"DELETE {API}/users/{{name}}/tokens/{{id}}", "", SUPERUSER_ONLY, changes=True)
add(f"GET {API}/roles", "", SUPERUSER_ONLY, reveals=SUPERUSER_ONLY, marker=ROLE)
add(f"GET {API}/roles/{{name}}", "", SUPERUSER_ONLY)
add(f"PUT {API}/roles/{{name}}/permissions", "", SUPERUSER_ONLY, _RIGHT, changes=True)


@row(f"PUT {API}/users/{{name}}", "that is new", SUPERUSER_ONLY, changes=True)
def _add_user(cell: HttpCell) -> None:
    cell.request("PUT", f"{API}/users/new", {"password": PASSWORD})


@row(f"PUT {API}/users/{{name}}", "that is one's own", SUPERUSER_ONLY)
def _promote_oneself(cell: HttpCell) -> None:
    name = {Actor.OWNER: "owner", Actor.OTHER: "other", Actor.NO_PERMISSIONS: "norights"}
    path = f"{API}/users/{name.get(cell.actor, 'root')}"
    cell.request("PUT", path, {"superuser": True})
    if cell.actor is Actor.ROOT:
        cell.after = cell.before  # only the time of the change differs


@row(f"PUT {API}/users/{{name}}/roles/{{role}}", "", SUPERUSER_ONLY, changes=True)
def _assign(cell: HttpCell) -> None:
    cell.request("PUT", f"{API}/users/other/roles/{ROLE}")


@row(f"PUT {API}/roles/{{name}}", "", SUPERUSER_ONLY, changes=True)
def _add_role(cell: HttpCell) -> None:
    cell.request("PUT", f"{API}/roles/new")


@row(f"DELETE {API}/roles/{{name}}", "", SUPERUSER_ONLY, changes=True)
def _remove_role(cell: HttpCell) -> None:
    def change(database: Any) -> Any:
        return records.withdraw(database, ROLE, VICTIM, 1)

    cell.fixture.api_fixture.store.change(change, "a test")
    cell.request("DELETE", f"{API}/roles/{ROLE}")


@row(f"DELETE {API}/roles/{{name}}/permissions", "", SUPERUSER_ONLY, changes=True)
def _revoke_from_role(cell: HttpCell) -> None:
    permission = Permission("own.*", frozenset({Operation.CONSUME}))
    cell.fixture.api_fixture.store.change(
        lambda database: records.grant_role(database, ROLE, permission), "a test"
    )
    cell.request("DELETE", f"{API}/roles/{ROLE}/permissions{_PATTERN}")


# --- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpFixture]:
    http_fixture = HttpFixture(Path(tmp_path_factory.mktemp("http")))
    yield http_fixture
    http_fixture.close()


@parametrize_cells(TABLE.rows)
def test_operation_is_permitted_to_its_actors(
    fixture: HttpFixture, row: Row[HttpCell], actor: Actor
) -> None:
    fixture.loop.run_until_complete(fixture.reset())
    fixture.users.select_permission(row.permission)
    cell = HttpCell(fixture, actor)
    row.issue(cell)
    check_cell(row, cell)


def test_every_operation_has_a_row() -> None:
    application = Application(context(Broker(MemoryJournal(), ManualClock())))
    endpoints = application.table.endpoints
    check_complete(
        TABLE.rows,
        {f"{endpoint.operation.method} {endpoint.operation.full_path}" for endpoint in endpoints},
    )
