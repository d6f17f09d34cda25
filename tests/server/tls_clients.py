"""Clients over TLS for tests of a broker process."""

from __future__ import annotations

import socket
import ssl

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from tests.support.polling import wait_until


def open_socket(
    port: int, context: ssl.SSLContext | None = None, timeout: float = 30
) -> socket.socket:
    """Open a connection to the broker, over TLS if `context` is given."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    return (
        connection
        if context is None
        else context.wrap_socket(connection, server_hostname="localhost")
    )


def send_and_receive(client: BlockingClient, queue: str, body: bytes) -> None:
    """Send a message to a queue, receive it from there and acknowledge it."""
    client.send(queue, body)
    client.subscribe(queue, 1)
    message = client.receive(30)
    assert message.body == body
    message.ack()


def phpmq(port: int, context: ssl.SSLContext) -> BlockingClient:
    return BlockingClient(PhpmqClient.connect, "localhost", port, ssl_context=context, timeout=30)


def read_log(broker: LocalBroker) -> str:
    """Return the broker's log."""
    return broker.log.read_text()


def wait_for_log(broker: LocalBroker, text: str) -> None:
    """Wait until the broker's log contains a text."""
    wait_until(lambda: text in read_log(broker), f"the log does not contain {text!r}")
