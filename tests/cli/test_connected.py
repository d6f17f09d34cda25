"""Connections, consumers, subscriptions and transactions of running clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient, Topic
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.jmq.fields import Xid
from tests.cli.conftest import Run, RunningBroker


def socket_path(url: str) -> str:
    return url.partition("://")[2]


@contextmanager
def phpmq(broker: RunningBroker) -> Iterator[BlockingClient]:
    client = BlockingClient(PhpmqClient.connect, path=socket_path(broker.phpmq))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def jmq(broker: RunningBroker, client_id: str = "") -> Iterator[BlockingClient]:
    client = BlockingClient(
        JmqClient.connect, path=socket_path(broker.jmq), client_id=client_id, reconnect=None
    )
    try:
        yield client
    finally:
        client.close()


def list_json(run_as_owner: Run, *command: str) -> Any:
    result = run_as_owner(*command, "--json")
    assert result.code == 0, result
    return json.loads(result.out)


def test_consumer_and_its_connection_are_listed_and_closed(
    run_as_owner: Run, broker: RunningBroker
) -> None:
    run_as_owner("messages", "publish", "consumed", "one", "two")
    with phpmq(broker) as client:
        client.subscribe("consumed", 1)
        client.receive(10)
        (consumer,) = list_json(run_as_owner, "consumers", "consumed")
        assert (consumer["unacked"], consumer["protocol"]) == (1, "phpmq")
        assert "consumed" in run_as_owner("consumers").out
        (connection,) = [
            item
            for item in list_json(run_as_owner, "connections", "list", "--protocol", "phpmq")
            if item["id"] == consumer["connection"]
        ]
        assert connection["consumers"] == 1
        rows = run_as_owner("connections").out.splitlines()
        assert rows[0].split()[:3] == ["ID", "Protocol", "Peer"]
        result = run_as_owner(
            "connections", "close", str(connection["id"]), "--reason", "test", "--yes"
        )
        assert result.code == 0
        with pytest.raises(ConnectionLost):
            client.receive(10)
    # its unacked messages are ready again
    assert list_json(run_as_owner, "queues", "show", "consumed")["ready"] == 2
    assert "There are no consumers of consumed" in run_as_owner("consumers", "consumed").err


def test_missing_connection_is_an_error(run_as_owner: Run) -> None:
    result = run_as_owner("connections", "close", "999999", "x/y", "--yes")
    assert result.code == 1
    assert result.err.count("the connection does not exist") == 2
    assert "Closed 0 of 2." in result.err


def test_durable_subscriptions_are_listed_and_deleted(
    run_as_owner: Run, broker: RunningBroker
) -> None:
    for client_id in ("first", "second"):
        with jmq(broker, client_id) as client:
            client.session().consumer(Topic("subscribed"), name="board", durable=True)
    subscriptions = list_json(run_as_owner, "subscriptions", "--topic", "subscribed")
    assert [
        (subscription["client_id"], subscription["display_name"]) for subscription in subscriptions
    ] == [
        ("first", "board"),
        ("second", "board"),
    ]
    run_as_owner("messages", "publish", "topic:subscribed", "news")
    assert (
        list_json(run_as_owner, "subscriptions", "list", "--topic", "topic:subscribed")[0]["ready"]
        == 1
    )
    assert "board" in run_as_owner("subscriptions").out
    subscription_option = ["--subscription", subscriptions[0]["name"]]
    (message,) = list_json(
        run_as_owner, "messages", "list", "topic:subscribed", *subscription_option
    )["items"]
    assert message["subscription"] == subscriptions[0]["name"]
    board_option = ("--subscription", "board")
    ambiguous_list = run_as_owner("messages", "list", "topic:subscribed", *board_option)
    assert ambiguous_list.code == 2
    assert subscriptions[1]["name"] in ambiguous_list.err
    delete = ["subscriptions", "delete", "subscribed", "board", "--yes"]
    ambiguous = run_as_owner(*delete)
    assert ambiguous.code == 2
    assert "name one of durable:first/board, durable:second/board" in ambiguous.err
    assert run_as_owner(*delete, "--client-id", "first").code == 0
    assert (
        len(list_json(run_as_owner, "messages", "list", "topic:subscribed", *board_option)["items"])
        == 1
    )
    assert (
        run_as_owner("messages", "delete", "topic:subscribed", "--all", *board_option, "--yes").code
        == 0
    )
    assert (
        list_json(run_as_owner, "messages", "list", "topic:subscribed", *board_option)["items"]
        == []
    )
    assert run_as_owner(*delete).code == 0
    assert list_json(run_as_owner, "subscriptions", "--topic", "subscribed") == []
    missing = run_as_owner(*delete)
    assert missing.code == 1
    assert "sluicemq subscriptions" in missing.err
    assert run_as_owner("subscriptions", "list", "--topic", "queue:x").code == 2


def test_prepared_transaction_is_committed_or_rolled_back(
    run_as_owner: Run, broker: RunningBroker
) -> None:
    def prepare(number: int) -> str:
        with jmq(broker) as client:
            session = client.session()
            xid = Xid(7, b"global%d" % number, b"branch")
            session.xa.start(xid)
            session.producer("payments").send(f"order {number}")
            session.xa.end(xid)
            session.xa.prepare(xid)
        (transaction,) = list_json(run_as_owner, "transactions", "list", "--prepared")
        assert transaction["publishes"] == 1
        assert xid.gtrid.hex() in run_as_owner("transactions").out
        return str(transaction["id"])

    assert run_as_owner("transactions", "rollback", prepare(1), "--yes").code == 0
    assert list_json(run_as_owner, "transactions", "--prepared") == []
    assert run_as_owner("transactions", "commit", prepare(2), "--yes").code == 0
    messages = list_json(run_as_owner, "messages", "list", "payments", "--body")["items"]
    assert [message["body"]["value"] for message in messages] == ["order 2"]
    missing = run_as_owner("transactions", "commit", "p1", "--yes")
    assert missing.code == 1
    assert "sluicemq transactions" in missing.err
    assert "no prepared transactions" in run_as_owner("transactions", "--prepared").err


@pytest.mark.parametrize(
    ("command", "listing"),
    [
        (("slots", "show", "none"), "sluicemq slots"),
        (("transactions", "commit", "0", "--yes"), "sluicemq transactions"),
    ],
)
def test_error_for_a_missing_item_names_its_list(
    run_as_owner: Run, command: tuple[str, ...], listing: str
) -> None:
    result = run_as_owner(*command)
    assert result.code == 1
    assert f"{listing} lists the existing ones." in result.err
