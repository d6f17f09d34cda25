"""VibeMQ: effect of a stalled subscriber on 99 others, and messages compressed by brotli.

python -m benchmarks.vibemq --runs 3
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time

from benchmarks.load.load import Load
from benchmarks.load.result import TransferResult
from benchmarks.load.server import dialect, start_broker

from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.wire import (
    ACK,
    CONNECT,
    DELIVER,
    PUBLISH,
    PUBLISH_ACK,
    SUBSCRIBE,
    Decoder,
    Frame,
    encode,
)

OTHERS = 99
OUTSTANDING = 256
READ = 1 << 18


def flood_with_stalled_subscriber(messages: int, stalled: bool) -> TransferResult:
    """Measure a flood to 99 subscribers; with `stalled`, beside a hundredth that holds a full
    window and reads nothing."""
    with start_broker("vibemq", "tcp", "sync") as server, socket.socket() as silent:
        if stalled:
            queue = server.queue.decode()
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", server.target.port))
            silent.sendall(encode(Frame(CONNECT, "silent")) + encode(Frame(SUBSCRIBE, "s", queue)))
            payload = b'"%b"' % bytes(1022).replace(b"\0", b"x")
            for number in range(OUTSTANDING):
                silent.sendall(encode(Frame(PUBLISH, f"{number:032x}", queue, payload)))
            time.sleep(1)
        client_dialect = dialect("vibemq", 1024, queue=server.queue, window=OUTSTANDING)
        with Load(server.target, client_dialect, consumers=OTHERS, pid=server.pid) as load:
            return load.flood(messages=messages)


def compressed(messages: int) -> float:
    """Return the messages/s of 4 KB JSON end to end, brotli from the producer and to the
    consumer."""
    rows = ",".join(f'{{"id":{number},"name":"item {number}"}}' for number in range(128))
    payload = f"[{rows}]".encode()[:4096].rpartition(b",{")[0] + b"]"
    hello = encode(Frame(CONNECT, "c", headers={"supported-compression": "brotli"}))
    with start_broker("vibemq", "tcp", "sync") as server:
        address = ("127.0.0.1", server.target.port)
        consumer, producer = (socket.create_connection(address) for _ in range(2))
        with consumer, producer:
            for connection in (consumer, producer):
                connection.sendall(hello)
            queue = server.queue.decode()
            consumer.sendall(encode(Frame(SUBSCRIBE, "s", queue)))
            time.sleep(0.3)
            window = threading.Semaphore(OUTSTANDING)

            def confirmations() -> None:
                decoder = Decoder()
                remaining = messages
                while remaining:
                    for frame in decoder.feed(producer.recv(READ)):
                        if frame.type == PUBLISH_ACK:
                            window.release()
                            remaining -= 1

            frames = [
                wire.compressed(
                    encode(Frame(PUBLISH, f"{n:032x}", queue, payload)), Compression.BROTLI, 0
                )
                for n in range(2000)
            ]
            reader = threading.Thread(target=confirmations)
            reader.start()
            started = time.perf_counter()
            receiver = threading.Thread(target=_receive, args=(consumer, messages, payload))
            receiver.start()
            for number in range(messages):
                window.acquire()
                producer.sendall(frames[number % len(frames)])
            receiver.join()
            seconds = time.perf_counter() - started
            reader.join()
    return messages / seconds


def _receive(connection: socket.socket, messages: int, payload: bytes) -> None:
    decoder = Decoder()
    remaining = messages
    while remaining:
        acks = []
        for frame in decoder.feed(connection.recv(READ)):
            if frame.type == DELIVER:
                assert frame.payload == payload
                acks.append(encode(Frame(ACK, frame.id)))
        remaining -= len(acks)
        if acks:
            connection.sendall(b"".join(acks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=40_000)
    arguments = parser.parse_args()
    alone_rates: list[int] = []
    stalled_rates: list[int] = []
    compressed_rates: list[float] = []
    for _ in range(arguments.runs):
        alone_rates.append(flood_with_stalled_subscriber(arguments.messages, False).rate)
        stalled_rates.append(flood_with_stalled_subscriber(arguments.messages, True).rate)
        compressed_rates.append(compressed(arguments.messages // 4))
    ratio = statistics.median(stalled_rates) / statistics.median(alone_rates)
    print(f"99 subscribers {alone_rates}/s, beside a stalled one {stalled_rates}/s: {ratio:.2f}")
    print(f"4 KB of JSON, brotli both ways: {[round(rate) for rate in compressed_rates]}/s")


if __name__ == "__main__":
    main()
