"""Response times of the HTTP API for pages of messages of a queue with a million messages.

    python -m benchmarks.message_pages [--messages 1000000] [--size 1024] [--rounds 30]

Fills a queue of a new broker with batches, then requests the first page, a page in the middle, the
last page, a page by cursor, and pages by selector, and prints the median and the maximum of each in
ms. Repeats this after a consumer has requeued many messages, and after a restart. Meanwhile another
connection requests `/health/live` continuously: its longest response time beyond the median shows
how long the event loop was blocked. At the end messages are moved, and the queue is purged.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.rows import encode, row

QUEUE = "/api/v1/destinations/queue/pages"
PART = 20_000
RETURNED = 20_000


class Api:
    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        self.connection.request(method, path, body)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {content.decode()}")
        return json.loads(content) if content else None


class Probe:
    """Sends cheap requests continuously to measure how long the event loop is blocked."""

    def __init__(self, port: int) -> None:
        self._api = Api(port)
        self._end = False
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end:
            start = time.perf_counter()
            self._api.ask("GET", "/api/v1/health/live")
            self.times.append(time.perf_counter() - start)
            time.sleep(0.0005)

    def take(self) -> float:
        """Return the longest delay beyond the median since the last call, ms."""
        times, self.times = self.times, []
        return 1000 * (max(times) - statistics.median(times)) if times else 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end = True
        self._thread.join()


def fill(api: Api, count: int, size: int) -> None:
    body = bytes(size)
    for batch, start in enumerate(range(0, count, PART)):
        rows = [
            row("pages", body, properties={"n": number, "rare": number % 10_000 == 7})
            for number in range(start, min(start + PART, count))
        ]
        path = f"/api/v1/batches?writer=fill&batch={batch}&partition=0&part=0&final=true"
        api.ask("POST", path, b"".join(encode(rows)))


def measure(api: Api, probe: Probe, what: str, paths: list[str]) -> None:
    probe.take()
    times = []
    items = 0
    for path in paths:
        start = time.perf_counter()
        items = len(api.ask("GET", path)["items"])
        times.append(1000 * (time.perf_counter() - start))
    median, slowest = statistics.median(times), max(times)
    stall = probe.take()
    print(
        f"{what:28} median {median:7.1f} ms  slowest {slowest:7.1f} ms"
        f"  loop held up {stall:5.1f} ms  ({items} items)",
        flush=True,
    )


def pages(api: Api, probe: Probe, count: int, rounds: int, title: str) -> None:
    print(title, flush=True)
    page = f"{QUEUE}/messages?limit=50&offset="
    for label, offset in (("first", 0), ("middle", count // 2), ("last", count - 50)):
        measure(api, probe, label, [f"{page}{offset + number}" for number in range(rounds)])
    cursor = api.ask("GET", f"{page}{count // 2}")["next"]
    measure(api, probe, "by cursor", [f"{QUEUE}/messages?limit=50&after={cursor}"] * rounds)
    long_page = f"{QUEUE}/messages?limit=500&body=true&offset={count // 3}"
    measure(api, probe, "500 messages, with bodies", [long_page] * rounds)
    frequent_page = f"{QUEUE}/messages?limit=50&selector=n%20%3E%20500"
    measure(api, probe, "selector, soon found", [frequent_page] * rounds)
    rare_page = f"{QUEUE}/messages?limit=50&selector=rare"
    measure(api, probe, "selector, to its limit", [rare_page] * 5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    count, rounds = arguments.messages, arguments.rounds
    listen = ("http://127.0.0.1:0", "phpmq://127.0.0.1:0")
    with tempfile.TemporaryDirectory() as directory:
        broker = LocalBroker(Path(directory), listen)
        with broker, Probe(broker.port("http")) as probe:
            api = Api(broker.port("http"))
            start = time.perf_counter()
            fill(api, count, arguments.size)
            print(f"filled in {time.perf_counter() - start:.0f} s", flush=True)
            pages(api, probe, count, rounds, f"{count:,} messages of {arguments.size} B")
            requeue_by_disconnect(api, broker.port("phpmq"))
            pages(api, probe, count, rounds, f"{RETURNED:,} of them were given back")
        with broker, Probe(broker.port("http")) as probe:
            api = Api(broker.port("http"))
            pages(api, probe, count, rounds, "after a restart")
            change(api, probe)


def requeue_by_disconnect(api: Api, port: int) -> None:
    """Deliver many messages to a consumer and disconnect it."""

    async def receive() -> None:
        async with await PhpmqClient.connect(port=port) as client:
            await client.subscribe("pages", RETURNED)
            for _ in range(RETURNED):
                await client.receive(10)

    asyncio.run(receive())
    while api.ask("GET", QUEUE)["unacked"]:
        time.sleep(0.05)


def change(api: Api, probe: Probe) -> None:
    """Move the messages of one selector, then all others; then purge."""
    probe.take()
    start = time.perf_counter()
    for body in (
        {"action": "move", "selector": "rare", "target": {"kind": "queue", "name": "rare"}},
        {"action": "move", "all": True, "limit": 100_000, "target": {"kind": "queue", "name": "t"}},
    ):
        processed = 0
        after: str | None = ""
        while after is not None:
            request = json.dumps({**body, "after": after}).encode()
            answer = api.ask("POST", f"{QUEUE}/messages/actions", request)
            processed += answer["processed"]
            after = answer["next"] if processed < body.get("limit", 1 << 60) else None
        print(
            f"moved {processed:,} in {time.perf_counter() - start:.1f} s"
            f"  loop held up {probe.take():.1f} ms",
            flush=True,
        )
        start = time.perf_counter()
    purged = api.ask("POST", f"{QUEUE}/purge")["purged"]
    print(
        f"purged {purged:,} in {time.perf_counter() - start:.1f} s"
        f"  loop held up {probe.take():.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
