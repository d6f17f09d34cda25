"""Clients that speak TLS to a broker under test, and what they wait for."""

from __future__ import annotations

import socket
import ssl

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from tests.support.polling import wait_until


def dial(port: int, context: ssl.SSLContext | None = None, timeout: float = 30) -> socket.socket:
    """A connection to the broker, over TLS if there is a context."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    return (
        connection
        if context is None
        else context.wrap_socket(connection, server_hostname="localhost")
    )


def echo(client: BlockingClient, queue: str, body: bytes) -> None:
    """A message there and back."""
    client.send(queue, body)
    client.subscribe(queue, 1)
    message = client.receive(30)
    assert message.body == body
    message.ack()


def phpmq(port: int, context: ssl.SSLContext) -> BlockingClient:
    return BlockingClient(PhpmqClient.connect, "localhost", port, ssl_context=context, timeout=30)


def log_of(broker: LocalBroker) -> str:
    """Return the broker's log."""
    return broker.log.read_text()


def says(broker: LocalBroker, text: str) -> None:
    """Wait until the log has it."""
    wait_until(lambda: text in log_of(broker), f"the log does not say {text!r}")
