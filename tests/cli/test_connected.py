"""Connections, consumers, subscriptions and transactions of real clients."""

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


def path_of(url: str) -> str:
    return url.partition("://")[2]


@contextmanager
def phpmq(broker: RunningBroker) -> Iterator[BlockingClient]:
    client = BlockingClient(PhpmqClient.connect, path=path_of(broker.phpmq))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def jmq(broker: RunningBroker, client_id: str = "") -> Iterator[BlockingClient]:
    client = BlockingClient(
        JmqClient.connect, path=path_of(broker.jmq), client_id=client_id, reconnect=None
    )
    try:
        yield client
    finally:
        client.close()


def listed(ask: Run, *command: str) -> Any:
    result = ask(*command, "--json")
    assert result.code == 0, result
    return json.loads(result.out)


def test_a_consumer_and_its_connection(ask: Run, broker: RunningBroker) -> None:
    ask("messages", "publish", "consumed", "one", "two")
    with phpmq(broker) as client:
        client.subscribe("consumed", 1)
        client.receive(10)
        (consumer,) = listed(ask, "consumers", "consumed")
        assert (consumer["unacked"], consumer["protocol"]) == (1, "phpmq")
        assert "consumed" in ask("consumers").out
        (connection,) = [
            item
            for item in listed(ask, "connections", "list", "--protocol", "phpmq")
            if item["id"] == consumer["connection"]
        ]
        assert connection["consumers"] == 1
        rows = ask("connections").out.splitlines()
        assert rows[0].split()[:3] == ["ID", "Protocol", "Peer"]
        result = ask("connections", "close", str(connection["id"]), "--reason", "test", "--yes")
        assert result.code == 0
        with pytest.raises(ConnectionLost):
            client.receive(10)
    # its unacked messages are ready again
    assert listed(ask, "queues", "show", "consumed")["ready"] == 2
    assert "There are no consumers of consumed" in ask("consumers", "consumed").err


def test_missing_connection_is_an_error(ask: Run) -> None:
    result = ask("connections", "close", "999999", "x/y", "--yes")
    assert result.code == 1
    assert result.err.count("the connection does not exist") == 2
    assert "Closed 0 of 2." in result.err


def test_durable_subscriptions(ask: Run, broker: RunningBroker) -> None:
    for client_id in ("first", "second"):
        with jmq(broker, client_id) as client:
            client.session().consumer(Topic("subscribed"), name="board", durable=True)
    subscriptions = listed(ask, "subscriptions", "--topic", "subscribed")
    assert [
        (subscription["client_id"], subscription["display_name"]) for subscription in subscriptions
    ] == [
        ("first", "board"),
        ("second", "board"),
    ]
    ask("messages", "publish", "topic:subscribed", "news")
    assert listed(ask, "subscriptions", "list", "--topic", "topic:subscribed")[0]["ready"] == 1
    assert "board" in ask("subscriptions").out
    subscription_option = ["--subscription", subscriptions[0]["name"]]
    (message,) = listed(ask, "messages", "list", "topic:subscribed", *subscription_option)["items"]
    assert message["subscription"] == subscriptions[0]["name"]
    board = ("--subscription", "board")
    unclear = ask("messages", "list", "topic:subscribed", *board)
    assert unclear.code == 2
    assert subscriptions[1]["name"] in unclear.err
    delete = ["subscriptions", "delete", "subscribed", "board", "--yes"]
    ambiguous = ask(*delete)
    assert ambiguous.code == 2
    assert "name one of durable:first/board, durable:second/board" in ambiguous.err
    assert ask(*delete, "--client-id", "first").code == 0
    assert len(listed(ask, "messages", "list", "topic:subscribed", *board)["items"]) == 1
    assert ask("messages", "delete", "topic:subscribed", "--all", *board, "--yes").code == 0
    assert listed(ask, "messages", "list", "topic:subscribed", *board)["items"] == []
    assert ask(*delete).code == 0
    assert listed(ask, "subscriptions", "--topic", "subscribed") == []
    missing = ask(*delete)
    assert missing.code == 1
    assert "sluicemq subscriptions" in missing.err
    assert ask("subscriptions", "list", "--topic", "queue:x").code == 2


def test_a_prepared_transaction_is_decided_by_hand(ask: Run, broker: RunningBroker) -> None:
    def prepare(number: int) -> str:
        with jmq(broker) as client:
            session = client.session()
            xid = Xid(7, b"global%d" % number, b"branch")
            session.xa.start(xid)
            session.producer("decided").send(f"order {number}")
            session.xa.end(xid)
            session.xa.prepare(xid)
        (transaction,) = listed(ask, "transactions", "list", "--prepared")
        assert transaction["publishes"] == 1
        assert xid.gtrid.hex() in ask("transactions").out
        return str(transaction["id"])

    assert ask("transactions", "rollback", prepare(1), "--yes").code == 0
    assert listed(ask, "transactions", "--prepared") == []
    assert ask("transactions", "commit", prepare(2), "--yes").code == 0
    messages = listed(ask, "messages", "list", "decided", "--body")["items"]
    assert [message["body"]["value"] for message in messages] == ["order 2"]
    missing = ask("transactions", "commit", "p1", "--yes")
    assert missing.code == 1
    assert "sluicemq transactions" in missing.err
    assert "no prepared transactions" in ask("transactions", "--prepared").err
