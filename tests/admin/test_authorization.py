"""The authorization matrix: every operation of the API, requested by every kind of caller.

The expected result follows from the access requirement that the endpoint declares; the request is
carried out by a broker. Requests that may change something leave an entry in the audit log.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sluicemq.admin.clients import id_of
from sluicemq.management.clients import ConnectionItem
from sluicemq.management.operation import PREFIX, ApiOperation, Need
from sluicemq.model.access import Operation
from sluicemq.model.message import Durability, Message
from sluicemq.model.rows import encode, row
from sluicemq.protocols.jmq.fields import Xid, encode_xid
from tests.support.api import PASSWORD, ApiFixture, HttpClient, in_event_loop

OWN = "own.jobs"
NEWS = "own.news"
EVERYTHING = " ".join(Operation)
USERS = {
    "no-rights": (),
    "other": (f"other.*: {EVERYTHING}",),
    "owner": (f"own.*: {EVERYTHING}",),
}
CALLERS = ("anonymous", *USERS, "root")
GRANT = {"pattern": "other.*", "operations": ["browse"]}
BODIES: dict[str, Any] = {
    "applyMessageAction": {"action": "delete", "all": True},
    "changePassword": {"current_password": PASSWORD, "new_password": PASSWORD + "!"},
    "createBackup": {"directory": "one"},
    "createSession": {"user": "root", "password": PASSWORD},
    "createToken": {},
    "grantRolePermission": GRANT,
    "grantUserPermission": GRANT,
    "publishMessage": {"body": "x"},
    "purgeDestination": {},
    "putDestination": {"max_messages": 100},
    "putSlot": {"position": 1},
    "putUser": {"superuser": False},
    "writeBatchPart": b"".join(encode([row(OWN, b"1")])),
}
QUERIES = {
    "deleteSubscription": f"name=readers&destination={NEWS}",
    "listJournalDestinations": "ids=1",
    "revokeRolePermission": "pattern=x.*",
    "revokeUserPermission": "pattern=x.*",
    "writeBatchPart": "writer=w&batch=1&partition=0&part=0&bad_rows=dead-letter"
    f"&dead_letter_queue={OWN}",
}
UNAUDITED = {"createSession", "publishMessage", "writeBatchPart"}
"""Operations that the audit log does not record as changes; a login has its own event."""
IN_MEMORY = {"no-journal", "no-backup-directory"}
"""Error codes of permitted requests that need a journal on disk."""


def declared_operations() -> dict[str, ApiOperation[Any, Any]]:
    """Return the operations of the API by operation id."""

    async def operations() -> list[ApiOperation[Any, Any]]:
        with tempfile.TemporaryDirectory() as directory:
            api_fixture = ApiFixture(Path(directory))
            api_fixture.authenticator.close()
            return [endpoint.operation for endpoint in api_fixture.endpoints]

    return {
        operation.operation_id: operation
        for operation in asyncio.run(operations())
        if operation.prefix == PREFIX
    }


OPERATIONS = declared_operations()


async def create_resources(api_fixture: ApiFixture) -> dict[str, str]:
    """Create the resources of the requests; return the values of `{id}` by collection."""
    api_fixture.add("root", superuser=True)
    for name, permissions in USERS.items():
        api_fixture.add(name, *permissions)
    root = await client_of(api_fixture, "root")
    for path, body in (
        ("/roles/unused", None),
        ("/roles/clerk", None),
        ("/roles/clerk/permissions", {**GRANT, "pattern": "x.*"}),
        ("/users/target", {"password": PASSWORD}),
        ("/users/target/permissions", {**GRANT, "pattern": "x.*"}),
        ("/users/target/roles/clerk", None),
    ):
        response = await root.request("PUT", path, body)
        assert response.status in (200, 201), (path, response)
    token = (await root.request("POST", "/users/target/tokens", {})).json()["id"]
    broker = api_fixture.broker
    queue, topic = broker.destinations.queue(OWN), broker.destinations.topic(NEWS)
    broker.subscribe(topic, "readers", durable=True, owner="owner")
    transaction = broker.transactions.begin("owner")
    for number in range(2):
        message = Message(queue.address, b"x", durability=Durability.NONE)
        if number:
            broker.transactions.publish(transaction, queue, message)
        else:
            broker.publish(queue, message)
    broker.transactions.prepare(transaction, encode_xid(Xid(1, b"g", b"b")))
    broker.flush()
    connection = ConnectionItem(
        id=1,
        protocol="phpmq",
        peer="10.0.0.1:1",
        user="owner",
        client_id=OWN,
        listener="phpmq://x:1",
        started=1,
        state="open",
        consumers=0,
        received_bytes=0,
        sent_bytes=0,
        tls=False,
    )
    api_fixture.context.connections.views.append(connection)  # type: ignore[attr-defined]
    [item] = (await root.request("GET", f"/destinations/queue/{OWN}/messages")).json()["items"]
    return {
        "connections": "1",
        "destinations": item["id"],
        "transactions": id_of(transaction),
        "users": token,
    }


async def client_of(api_fixture: ApiFixture, name: str) -> HttpClient:
    """Return a client with a token of the user, or without credentials for `anonymous`."""
    client = api_fixture.http_client()
    if name != "anonymous":
        client.headers["Authorization"] = f"Bearer {api_fixture.token(name)}"
    return client


def request_target(operation: ApiOperation[Any, Any], ids: dict[str, str]) -> str:
    """Return path and query of a valid request."""
    collection = operation.path.split("/")[1]
    names = {"users": "target", "roles": "clerk", "journal": "slot"}
    name = "unused" if operation.operation_id == "deleteRole" else names.get(collection, OWN)
    values = {"{kind}": "queue", "{name}": name, "{role}": "clerk"}
    values |= {"{id}": ids.get(collection, ""), "{first_sequence}": "1"}
    path = "/".join(values.get(part, part) for part in operation.path.split("/"))
    return f"{path}?{QUERIES.get(operation.operation_id, '')}".rstrip("?")


def is_permitted(needs: Any, caller: str) -> bool:
    """Return whether the requirement permits the request for resources of `owner`."""
    if needs is Need.NOTHING:
        return True
    if needs in (Need.USER, Need.VISIBLE):
        return caller != "anonymous"
    if needs is Need.SUPERUSER:
        return caller == "root"
    assert needs is Need.OWNER or (needs and isinstance(needs, tuple)), needs
    return caller in ("owner", "root")


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("operation_id", sorted(OPERATIONS))
def test_operation_is_permitted_as_declared(operation_id: str, caller: str, tmp_path: Path) -> None:
    operation = OPERATIONS[operation_id]

    @in_event_loop
    async def scenario(api_fixture: ApiFixture) -> None:
        ids = await create_resources(api_fixture)
        client = await client_of(api_fixture, caller)

        def stop(chunk: bytes) -> None:
            if b"event: overview" in chunk:
                client.caller.closing.set()

        body = BODIES.get(operation_id)
        watch = stop if operation_id == "streamEvents" else None
        path = request_target(operation, ids)
        response = await client.request(operation.method, path, body, watch=watch)
        if is_permitted(operation.needs, caller):
            assert response.status < 300 or response.code in IN_MEMORY, response
        elif caller == "anonymous":
            assert (response.status, response.code) == (401, "authentication-required")
        elif operation.needs is Need.OWNER:
            assert response.status in (403, 404), response
        else:
            assert (response.status, response.code) == (403, "forbidden")
        if operation.method != "GET" and caller != "anonymous":
            latest_event = next(
                e for e in api_fixture.context.audit.recent() if e.event == "change"
            )
            result = "done" if response.status < 300 else str(response.status)
            audited = (latest_event.action, latest_event.result) == (operation_id, result)
            assert audited is (operation_id not in UNAUDITED), latest_event
        if operation.needs in (Need.USER, Need.VISIBLE) and caller not in ("owner", "root"):
            assert b"own." not in response.body

    scenario(tmp_path)


def test_owner_sees_own_items_in_lists(tmp_path: Path) -> None:
    """Lists without items would pass the matrix."""

    @in_event_loop
    async def scenario(api_fixture: ApiFixture) -> None:
        await create_resources(api_fixture)
        for caller in ("owner", "root"):
            client = await client_of(api_fixture, caller)
            for path in ("/connections", "/destinations", "/subscriptions"):
                assert b"own." in (await client.request("GET", path)).body, path
            assert (await client.request("GET", "/transactions")).json()["total"] == 1

    scenario(tmp_path)
