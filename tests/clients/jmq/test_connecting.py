"""Connecting: the port mapper, TLS and Unix sockets."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.jmq.connection import choose_service
from sluicemq.model.errors import ConfigurationError, ConnectionLost, RequestTimeout
from sluicemq.protocols.jmq.wire import Service, read_services
from tests.clients.jmq.scripted_broker import ScriptedBroker
from tests.protocols.jmq.harness import Harness
from tests.protocols.sockets import port_of, serve, unused_port

RESPONSE = b"""101 broker 301
cluster_discovery tcp CLUSTER_DISCOVERY 0
portmapper tcp PORTMAPPER 17676 [sessionid=8950519415696763904]
admin tcp ADMIN 35899 [hostname=127.0.0.1]
jms tcp NORMAL 43973 [hostname=127.0.0.1]
ssljms tls NORMAL 43974
paused tcp NORMAL 0
.
jms tcp NORMAL 1
"""


def test_port_mapper_response_is_parsed() -> None:
    services = read_services(RESPONSE)
    assert len(services) == 6
    assert choose_service(services, "jms") == Service("jms", "tcp", "NORMAL", 43973)
    assert choose_service(services, "ssljms") == Service("ssljms", "tls", "NORMAL", 43974)
    with pytest.raises(ConnectionLost, match="no service admin; it has jms, ssljms, paused"):
        choose_service(services, "admin")
    with pytest.raises(ConnectionLost, match="paused"):
        choose_service(services, "paused")
    assert [len(read_services(RESPONSE[:size])) for size in (3, 14, 40, 60)] == [0, 0, 0, 1]
    for answer in (b"", b"HTTP/1.1 200 OK\r\n\r\n", b"102 broker 301\n.\n", b"\x1b\xff\xe3\xc2"):
        with pytest.raises(ConnectionLost, match="not one of a port mapper"):
            read_services(answer)


async def _mapper(
    answer: bytes, *, hang: bool = False, ssl_context: ssl.SSLContext | None = None
) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            assert await reader.readline() == b"101\n"
            writer.write(answer)
            if hang:
                await reader.read()

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ssl_context)


def test_port_mapper_returns_port_of_service() -> None:
    async def main() -> None:
        broker = ScriptedBroker()
        async with broker.listen() as port:
            # it may wait for the client to close
            mapper = await _mapper(b"101 x 301\njms tcp NORMAL %d\n.\n" % port, hang=True)
            async with mapper:
                mapper_port = port_of(mapper.sockets[0])
                async with await JmqClient.open(f"mq://127.0.0.1:{mapper_port}/jms") as client:
                    await client.ping()
                async with await JmqClient.open(f"mqtcp://127.0.0.1:{port}/jms") as client:
                    await client.ping()
                with pytest.raises(ConnectionLost, match="no service other"):
                    await JmqClient.connect(port=mapper_port, service="other")
            silent_server = await _mapper(b"101 x 301\n", hang=True)
            async with silent_server:
                silent_port = port_of(silent_server.sockets[0])
                with pytest.raises(RequestTimeout, match="port mapper"):
                    await JmqClient.connect(port=silent_port, timeout=1)
            # the service instead of its port mapper
            with pytest.raises((ConnectionLost, RequestTimeout)):
                await JmqClient.connect(port=port, timeout=0.2)
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await JmqClient.connect(port=unused_port())

    asyncio.run(main())


def test_connects_over_tls_and_unix_sockets(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    path = str(tmp_path / "socket")

    async def main() -> None:
        tls, port = await serve(Harness(), ssl_context=context)
        local, _ = await serve(Harness(), path)
        mapper = await _mapper(b"101 x 301\nssljms tls NORMAL %d\n.\n" % port)
        async with asyncio.timeout(30), tls, local, mapper:
            mapper_port = port_of(mapper.sockets[0])
            for where in (
                f"jmq+tls://localhost:{port}?direct=true&ca={ca}",
                f"jmq+tls://127.0.0.1:{port}?direct=true&insecure=true",
                f"jmq://localhost:{mapper_port}?service=ssljms&ca={ca}",
                f"jmq+unix://{path}",
            ):
                async with await JmqClient.open(where) as client:
                    session = await client.session()
                    await (await session.producer("q")).send("x")
                    await session.temporary_queue()

                def blocking(where: str = where) -> None:
                    with BlockingClient(JmqClient.open, where) as client:
                        client.session().producer("q").send("x")

                await asyncio.to_thread(blocking)
            trusted = ssl.create_default_context(cafile=str(ca))
            for connecting in (
                JmqClient.connect("localhost", port, direct=True, ssl_context=trusted),
                JmqClient.connect("localhost", mapper_port, ssl_context=trusted),
            ):
                async with await connecting as client:
                    assert client._connection is not None
                    assert client._connection._transport is not None
                    assert client._connection._transport.get_extra_info("ssl_object")
            with pytest.raises(ConnectionLost, match="certificate"):
                await JmqClient.open(f"jmq+tls://localhost:{port}?direct=true")
            server, plain_port = await serve(Harness())
            answer = b"101 x 301\njms tcp NORMAL %d\n.\n" % plain_port
            async with server, await _mapper(answer, ssl_context=context) as mapper:
                mapper_port = port_of(mapper.sockets[0])
                with pytest.raises(ConnectionLost, match="TLS"):
                    await JmqClient.open(f"jmq+tls://localhost:{mapper_port}?service=jms&ca={ca}")
            with pytest.raises(ConfigurationError, match="ca"):
                await JmqClient.open("jmq://localhost?ca=/nowhere")

    asyncio.run(main())
