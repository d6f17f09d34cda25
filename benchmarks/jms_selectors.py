"""JMS selectors: a topic with a thousand subscribers of different selectors, and a queue with a
million messages that its consumer does not select.

python -m benchmarks.jms_selectors --runs 3 --json benchmarks/results/jms_selectors.json
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from benchmarks.load import machine
from benchmarks.load.jmq import GuestChannel, Jmq
from benchmarks.load.meter import Meter
from benchmarks.load.result import TransferResult
from benchmarks.load.server import BenchmarkBroker, start_broker
from benchmarks.load.sockets import receive, send_some, wait

from sluicemq.broker import compile_selector
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Message
from sluicemq.protocols.jmq.fields import encode_properties

SIZE = 1024
AHEAD = 1000
READ = 1 << 18
SIZE_AT = 8
EQUAL = "a = '{:04}' AND b > 3"
"""Two comparisons: one that excludes most messages, and one that must be evaluated."""
RANGE = "b > {} AND b <= {}"
"""Selector without an equality comparison."""


class Feed:
    """Producer with up to AHEAD messages without a reply."""

    def __init__(self, server: BenchmarkBroker, dialect: Jmq, stack: ExitStack) -> None:
        self.connection = stack.enter_context(server.target.connect())
        dialect.handshake(self.connection)
        self._dialect = dialect
        self._unsent = memoryview(b"")
        self._partial_reply = 0
        self.sent = 0
        self.answered = 0

    def send(self, messages: Iterator[bytes]) -> bool:
        """Send as many messages as the window allows; return whether all are sent and replied
        to."""
        while True:
            if self._unsent:
                self._unsent = send_some(self.connection, self._unsent)
                if self._unsent:
                    return False
            block: list[bytes] = []
            while self.sent - self.answered + len(block) < AHEAD and len(block) < 50:
                message = next(messages, None)
                if message is None:
                    break
                block.append(message)
            if not block:
                return self.sent == self.answered
            self.sent += len(block)
            self._unsent = memoryview(b"".join(block))

    def read_replies(self) -> None:
        """Read replies."""
        size = self._partial_reply + len(receive(self.connection, READ))
        count, self._partial_reply = divmod(size, self._dialect.confirmation_bytes)
        self.answered += count


def distinct(messages: int, selectors: int, text: Callable[[int], str]) -> TransferResult:
    """Measure messages to a topic, each selected by one of its subscribers."""
    with start_broker("jmq", "tcp", "sync") as server, ExitStack() as stack:
        client_dialect = Jmq(SIZE, queue=server.queue, topic=True)
        subscribers: list[socket.socket] = []
        for number in range(selectors):
            subscribers.append(stack.enter_context(server.target.connect()))
            client_dialect.consume(GuestChannel(subscribers[-1]), text(number))
        feed = Feed(server, client_dialect, stack)
        blocks = [
            encode_properties({"a": f"{number:04}", "b": number + 4}) for number in range(selectors)
        ]
        body = bytes(SIZE)
        source = (
            client_dialect.message(number, body, properties=blocks[number % selectors])
            for number in range(messages)
        )
        poll = select.epoll()
        poll.register(feed.connection, select.EPOLLIN)
        by_descriptor = {subscriber.fileno(): subscriber for subscriber in subscribers}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        received = stride = 0
        meter = Meter(server.pid)
        while not (feed.answered == messages and received == messages * stride):
            feed.send(source)
            for descriptor, _ in wait(poll):
                if descriptor == feed.connection.fileno():
                    feed.read_replies()
                    continue
                data = receive(by_descriptor[descriptor], READ)
                stride = stride or int.from_bytes(data[SIZE_AT : SIZE_AT + 4])
                received += len(data)
        poll.close()
        return meter.read(messages)


def selective(messages: int, backlog: int) -> tuple[TransferResult, float]:
    """Measure the messages that a queue's consumer selects, behind `backlog` others, once the
    broker has evaluated its selector on all of them; and the seconds that this took."""
    with start_broker("jmq", "tcp", "sync") as server, ExitStack() as stack:
        client_dialect = Jmq(SIZE, queue=server.queue)
        feed = Feed(server, client_dialect, stack)
        body = bytes(SIZE)
        unmatched, matching = encode_properties({"a": "no"}), encode_properties({"a": "x", "b": 4})
        _fill(
            feed,
            (
                client_dialect.message(n, body, timestamp=1, properties=unmatched)
                for n in range(backlog)
            ),
        )
        receiving = stack.enter_context(server.target.connect())
        consumer = client_dialect.receiver(receiving, "a = 'x' AND b > 3")
        consumer.handshake()
        _fill(feed, iter([client_dialect.message(0, body, timestamp=2, properties=matching)]))
        before = time.perf_counter()
        consumer.start()
        while not consumer.read():
            continue
        selection_seconds = time.perf_counter() - before
        source = (
            client_dialect.message(n, body, timestamp=3, properties=matching)
            for n in range(messages)
        )
        feed.sent = feed.answered = 0
        poll = select.epoll()
        poll.register(feed.connection, select.EPOLLIN)
        poll.register(receiving, select.EPOLLIN)
        received = 0
        meter = Meter(server.pid)
        while received < messages:
            feed.send(source)
            for descriptor, _ in wait(poll):
                if descriptor == receiving.fileno():
                    received += consumer.read()
                else:
                    feed.read_replies()
        poll.close()
        return meter.read(messages), selection_seconds


def _fill(feed: Feed, messages: Iterator[bytes]) -> None:
    while not feed.send(messages):
        feed.read_replies()


def evaluation() -> float:
    """Return the microseconds to evaluate `a = 'x' AND b > 3` on a message that matches."""
    selector = compile_selector("a = 'x' AND b > 3")
    message = Message(Address(Kind.TOPIC, "t"), b"", BodyKind.TEXT, properties={"a": "x", "b": 4})
    times = 200_000
    started = time.perf_counter()
    for _ in range(times):
        selector(message)
    return (time.perf_counter() - started) / times * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--selectors", type=int, default=1000)
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    messages, selectors = arguments.messages, arguments.selectors
    results: dict[str, list[TransferResult]] = {
        "equal": [],
        "range": [],
        "empty": [],
        "backlog": [],
    }
    selection_seconds: list[float] = []
    costs: list[float] = []
    for _ in range(arguments.runs):
        costs.append(evaluation())
        results["equal"].append(distinct(messages, selectors, EQUAL.format))
        results["range"].append(
            distinct(messages // 10, selectors, lambda n: RANGE.format(n + 3, n + 4))
        )
        results["empty"].append(selective(messages, 0)[0])
        run, seconds = selective(messages, arguments.backlog)
        results["backlog"].append(run)
        selection_seconds.append(seconds)
    rates = {name: statistics.median(run.rate for run in runs) for name, runs in results.items()}
    title = f"{selectors:,} subscribers"
    print(f"one evaluation: {statistics.median(costs):.2f} µs")
    for name, description in (
        ("equal", f"{title}, each with its own {EQUAL.format(7)}"),
        ("range", f"{title}, each with its own {RANGE.format(7, 8)}"),
        ("empty", "a selective consumer, nothing else waits"),
        ("backlog", f"a selective consumer, {arguments.backlog:,} others wait"),
    ):
        costs_of = statistics.median(run.broker_us for run in results[name])
        print(f"{description}: {rates[name]:,.0f}/s, {costs_of:.1f} µs of the broker's time each")
    print(
        f"slower with the backlog by {rates['empty'] / rates['backlog']:.2f}; what is wanted and "
        f"waits behind it comes after {statistics.median(selection_seconds) * 1000:.0f} ms"
    )
    if arguments.json:
        document = {
            "schema": 1,
            "machine": msgspec.to_builtins(machine.describe()),
            "messages": messages,
            "selectors": selectors,
            "backlog": arguments.backlog,
            "evaluation_us": costs,
            "tried_seconds": selection_seconds,
            "runs": msgspec.to_builtins(results),
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
