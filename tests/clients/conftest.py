"""Servers for client tests. A test file that uses a broker defines its `harness` fixture."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
import trustme

from tests.protocols.sockets import serve
from tests.support.sessions import SessionHarness


@pytest.fixture
def port(harness: SessionHarness) -> Iterator[int]:
    """The port of a broker that runs in another thread."""
    loop = asyncio.new_event_loop()
    server, port = loop.run_until_complete(serve(harness))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield port
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(server.wait_closed())
    loop.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket whose connections the test answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture(scope="module")
def certificates() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of a broker named localhost, and of a client that trusts it."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client
