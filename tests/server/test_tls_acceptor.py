"""TLS listeners: failed and slow handshakes, and the end of connections."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from sluicemq.protocols.phpmq.wire import encode_consume, encode_send
from tests.server.authority import Authority
from tests.server.conftest import Start
from tests.server.test_pressure import closed_by_peer
from tests.server.tls_clients import open_socket, phpmq, read_log, send_and_receive, wait_for_log
from tests.support.polling import wait_until


def test_clients_without_tls_are_rejected_immediately(start: Start, authority: Authority) -> None:
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={authority.pem(authority.issue())}")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    with phpmq(port, trust) as other_client:
        other_client.subscribe("w", 1)
        for count, first in enumerate(
            (b"H0100102" * 10, b"GET / HTTP/1.0\r\n\r\n", b"\x80\x2e\x01", b"\x16\x02"), 1
        ):
            before = time.monotonic()
            with open_socket(port) as client:
                client.sendall(first)
                assert closed_by_peer(client)
            assert time.monotonic() - before < 9  # the time for a handshake is 10 s
            wait_until(lambda n=count: read_log(broker).count("does not speak TLS") == n, "no line")
        # noise that begins as TLS does
        for length in (0, 1, 5, 100, 20_000):
            with open_socket(port) as client, suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(b"\x16\x03\x01" + os.urandom(length))
                client.shutdown(socket.SHUT_WR)
                assert closed_by_peer(client)
            other_client.send("w", b"there")
            other_client.receive(30).ack()
    assert "Traceback" not in read_log(broker)
    assert "internal error" not in read_log(broker)


@pytest.mark.parametrize("protocol", ["phpmq", "msglite", "auto", "phpmq-maintenance"])
def test_tls_client_on_plain_listener_is_rejected(
    start: Start, authority: Authority, protocol: str
) -> None:
    broker = start(f"{protocol}://127.0.0.1:0")
    port = broker.port(protocol)
    before = time.monotonic()
    with pytest.raises(OSError, match=r"SSL|reset"):
        open_socket(port, authority.trust())
    assert time.monotonic() - before < 10
    wait_until(lambda: not broker.status()["listeners"][0]["connections"], "it is still there")
    if protocol != "phpmq-maintenance":  # that waits for the end of a line, and the client leaves
        wait_for_log(broker, "closing")
    assert "Traceback" not in read_log(broker)


def test_handshake_timeout_closes_counted_connections(start: Start, authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={pem}&max_connections=3")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    with ExitStack() as stack:
        client = stack.enter_context(phpmq(port, trust))
        idle_clients = [stack.enter_context(open_socket(port)) for _ in range(2)]
        idle_clients[1].sendall(b"\x16\x03\x01\x02\x00")  # the header of a record, and no more
        with pytest.raises(OSError, match=r"SSL|reset"):
            open_socket(port, trust)
        before = time.monotonic()
        assert closed_by_peer(idle_clients[0])
        assert closed_by_peer(idle_clients[1])
        assert 5 < time.monotonic() - before < 20
        send_and_receive(client, "a", b"x")
        with phpmq(port, trust) as other:
            other.send("b", b"y")
    wait_until(lambda: read_log(broker).count("no handshake within 10 s") == 2, "no two lines")


def test_connections_in_handshake_count_for_their_address(
    start: Start, authority: Authority
) -> None:
    pem = authority.pem(authority.issue())
    limits = "max_connections=3&max_connections_per_address=2"
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={pem}&{limits}")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    other_client = socket.socket()
    with (
        other_client,
        open_socket(port) as idle_client,
        open_socket(port),
        open_socket(port) as third,
    ):
        assert closed_by_peer(third)
        other_client.settimeout(30)
        other_client.bind(("127.0.0.2", 0))
        other_client.connect(("127.0.0.1", port))
        trust.wrap_socket(other_client, server_hostname="localhost").close()
        idle_client.sendall(b"no TLS")
        assert closed_by_peer(idle_client)
        with phpmq(port, trust) as client:
            send_and_receive(client, "a", b"x")
    for _ in range(3):
        with phpmq(port, trust) as first, phpmq(port, trust) as second:
            send_and_receive(first, "a", b"x")
            send_and_receive(second, "b", b"x")
        wait_until(lambda: not broker.status()["listeners"][0]["connections"], "still there")


def test_many_unfinished_handshakes(start: Start, authority: Authority) -> None:
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={authority.pem(authority.issue())}")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    with ExitStack() as stack:
        idle_clients = [stack.enter_context(open_socket(port)) for _ in range(200)]
        hello = ssl.MemoryBIO(), ssl.MemoryBIO()
        handshake = trust.wrap_bio(*hello, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            handshake.do_handshake()
        data = hello[1].read()
        for idle_client in idle_clients:
            idle_client.sendall(data)
        with phpmq(port, trust) as client:
            send_and_receive(client, "a", b"x")
        for idle_client in idle_clients:
            assert idle_client.recv(3)[:2] == b"\x16\x03"
    wait_until(lambda: not broker.status()["listeners"][0]["connections"], "they are still there")
    assert "Traceback" not in read_log(broker)


def test_shutdown_aborts_handshakes(start: Start, authority: Authority) -> None:
    """A handshake that began before the shutdown is not completed during it."""
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={authority.pem(authority.issue())}")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    with (
        open_socket(port, trust) as slow_client,
        open_socket(port) as idle_client,
        open_socket(port) as handshaking_client,
    ):
        slow_client.sendall(encode_consume(b"a", 1))
        handshaking_client.sendall(b"\x16\x03\x01\x02\x00")
        with phpmq(port, trust) as client:
            send_and_receive(client, "b", b"everybody above has arrived")
        os.kill(broker.pid, signal.SIGTERM)
        assert closed_by_peer(idle_client)
        assert closed_by_peer(handshaking_client)
        wait_until(
            lambda: broker.status()["listeners"][0]["connections"] == 1,
            "others than the one with a consumer are still there",
        )
        slow_client.close()
        assert broker.wait() == 0
    assert "Traceback" not in read_log(broker)


# --- the end of a connection, and slow readers -----------------------------------------------


def test_data_sent_before_close_is_processed(start: Start, authority: Authority) -> None:
    """The client closes TLS at once after sending, and never reads."""
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={authority.pem(authority.issue())}")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    with open_socket(port, trust) as client:
        client.sendall(b"".join(encode_send(b"a", b"%d" % number, 0) for number in range(1000)))
        with suppress(OSError):
            client.unwrap()
    with phpmq(port, trust) as client:
        client.subscribe("a", 1000)
        for number in range(1000):
            message = client.receive(30)
            assert message.body == b"%d" % number
            message.ack()


def test_response_is_sent_after_client_closes_tls(start: Start, authority: Authority) -> None:
    """A close_notify of the client ends only its own direction."""
    broker = start(f"msglite+tls://127.0.0.1:0?certificate={authority.pem(authority.issue())}")
    port, trust = broker.port("msglite+tls"), authority.trust()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with open_socket(port) as connection:

        def drive(step: Callable[[], object]) -> object:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    if data := connection.recv(1 << 16):
                        incoming.write(data)
                    else:
                        incoming.write_eof()

        # the last of the handshake, a command and the end of TLS leave together
        drive(client.do_handshake)
        client.write(b"< 0 a\r\n")
        with suppress(ssl.SSLWantReadError):
            client.unwrap()
        assert drive(lambda: client.read(100)) == b"*\r\n"
    wait_until(lambda: not broker.status()["listeners"][0]["connections"], "it is still there")


def test_slow_consumer_does_not_block_others(start: Start, authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={pem}&output_high_watermark=65536")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    with phpmq(port, trust) as client, open_socket(port, trust) as slow_consumer:
        slow_consumer.sendall(encode_consume(b"shared", 1_000_000))
        for _ in range(300):
            client.send("shared", bytes(65536))
        client.subscribe("shared", 10)
        for _ in range(100):
            client.receive(30).ack()
        assert broker.status()["resident_memory_bytes"] < 1 << 30
        slow_consumer.close()
        for _ in range(200):
            client.receive(30).ack()


def test_output_timeout_closes_client_that_does_not_read(
    start: Start, authority: Authority
) -> None:
    pem = authority.pem(authority.issue())
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={pem}&output_timeout=2")
    port, trust = broker.port("phpmq+tls"), authority.trust()
    with phpmq(port, trust) as client, open_socket(port, trust) as slow_consumer:
        for _ in range(200):
            client.send("a", bytes(65536))
        slow_consumer.sendall(encode_consume(b"a", 1_000_000))
        wait_for_log(broker, "slow connection closed")
        client.subscribe("a", 4)  # so few that this client, too, is not cut off when it is slow
        for _ in range(200):
            client.receive(30).ack()


def test_shutdown_sends_close_notify(start: Start, authority: Authority) -> None:
    broker = start(f"phpmq+tls://127.0.0.1:0?certificate={authority.pem(authority.issue())}")
    with open_socket(broker.port("phpmq+tls"), authority.trust()) as client:
        client.sendall(encode_consume(b"a", 1))
        wait_until(  # the broker may have to finish the handshake first
            lambda: (
                [destination["consumers"] for destination in broker.status()["destinations"]] == [1]
            ),
            "the consumer has not arrived",
        )
        os.kill(broker.pid, signal.SIGTERM)
        # the end of TLS, not a broken connection
        assert client.recv(100) == b""
    assert broker.wait() == 0
