"""Load over msglite: a flood to several receivers, and query/reply round trips."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import Final

from sluicemq.cli.bench.result import Latency, Result
from sluicemq.cli.bench.sockets import STALLED_SECONDS, connect, receive, send_some, wait
from sluicemq.model.errors import ConnectionLost

ADDRESS: Final = b"bench"
BLOCK: Final = 50

_READ: Final = 1 << 16
_READY: Final = b"< 60 " + ADDRESS + b"\r\n"


def flood(
    host: str, port: int, *, messages: int, size: int, receivers: int, outstanding: int
) -> Result:
    """One sender; each receiver says that it is ready again as soon as it has been served."""
    command = b"> %d 60 %b\r\n%b\r\n" % (size, ADDRESS, bytes(size))
    block = command * BLOCK
    length = len(command)
    sender = connect(host, port)
    ready = [connect(host, port) for _ in range(receivers)]
    by_descriptor = {connection.fileno(): connection for connection in ready}
    waiting = dict.fromkeys(by_descriptor, 0)
    poll = select.poll()
    for connection in ready:
        connection.sendall(_READY)
        poll.register(connection, select.POLLIN)
    poll.register(sender, select.POLLOUT)
    sent, received = 0, 0
    rest = memoryview(b"")
    writing = True
    started = time.perf_counter()
    while received < messages:
        for descriptor, _ in wait(poll):
            receiver = by_descriptor.get(descriptor)
            if receiver is not None:
                waiting[descriptor] += len(receive(receiver, _READ))
                if waiting[descriptor] == length:
                    waiting[descriptor] = 0
                    received += 1
                    receiver.sendall(_READY)
            elif rest or (sent < messages and sent - received < outstanding):
                if not rest:
                    rest = memoryview(block)
                    sent += BLOCK
                rest = send_some(sender, rest)
        wanted = bool(rest) or (sent < messages and sent - received < outstanding)
        if wanted is not writing:
            writing = wanted
            poll.modify(sender, select.POLLOUT if wanted else 0)
    seconds = time.perf_counter() - started
    for connection in (sender, *ready):
        connection.close()
    return Result(
        "msglite",
        received,
        size,
        round(seconds, 3),
        round(received / seconds),
        consumers=receivers,
    )


def query(host: str, port: int, *, queries: int, size: int) -> Result:
    """One client asks and waits, one worker answers with two writes, as the Perl client does:
    over TCP a server that delays its acknowledgements costs such a worker 40 ms each time."""
    client = connect(host, port, no_delay=False)
    worker = connect(host, port, no_delay=False)
    body = bytes(size)
    ask = b"? %d 60 %b\r\n%b\r\n" % (size, ADDRESS, body)
    answered = threading.Event()
    thread = threading.Thread(target=_answer, args=(worker, body, queries, answered), daemon=True)
    thread.start()
    latencies = []
    reader = client.makefile("rb")
    started = time.perf_counter()
    for _ in range(queries):
        before = time.perf_counter_ns()
        client.sendall(ask)
        line = reader.readline()
        if not line.startswith(b"> "):
            raise ConnectionLost(f"no reply to a query: {line!r}")
        reader.read(size + 2)
        latencies.append(time.perf_counter_ns() - before)
    seconds = time.perf_counter() - started
    answered.wait(STALLED_SECONDS)
    client.close()
    worker.close()
    return Result(
        "msglite query",
        queries,
        size,
        round(seconds, 3),
        round(queries / seconds),
        latency=Latency.of(latencies),
    )


def _answer(worker: socket.socket, body: bytes, queries: int, done: threading.Event) -> None:
    reader = worker.makefile("rb")
    worker.sendall(_READY)
    for number in range(queries):
        line = reader.readline()
        reader.read(len(body) + 2)
        reply = line.split()[4]
        worker.sendall(b"> %d 60 %b\r\n%b\r\n" % (len(body), reply, body))
        if number < queries - 1:
            worker.sendall(_READY)
    done.set()
