"""A broker process with a listener for each protocol, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient

SCHEMES = ("jmq", "phpmq", "msglite", "msglite-http", "vibemq")
LISTEN = (
    *(f"{scheme}://127.0.0.1:0" for scheme in SCHEMES if scheme != "phpmq"),
    "phpmq://127.0.0.1:0?dispatch_version=2",  # whose dispatches contain the time to live
)


class Clients:
    """Clients of one broker; each call opens a new connection."""

    def __init__(self, broker: LocalBroker, stack: ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor())
        self._workers: list[Future[None]] = []

    def jms(self) -> BlockingClient:
        client = BlockingClient(JmqClient.connect, "127.0.0.1", self.broker.port("jmq"))
        return self._stack.enter_context(client)

    def phpmq(self) -> BlockingClient:
        client = BlockingClient(PhpmqClient.connect, port=self.broker.port("phpmq"))
        return self._stack.enter_context(client)

    def msglite(self) -> BlockingClient:
        client = BlockingClient(MsgliteClient.connect, port=self.broker.port("msglite"))
        return self._stack.enter_context(client)

    def vibemq(self) -> BlockingClient:
        client = BlockingClient(VibeMQClient.connect, port=self.broker.port("vibemq"))
        return self._stack.enter_context(client)

    def published(self, queue: str) -> int:
        """Return the number of messages that the broker has accepted for a queue."""
        rows = self.broker.status()["destinations"]
        return sum(row["published"] for row in rows if row["name"] == queue)

    def run_in_thread(self, worker: Callable[[], None]) -> None:
        """Run a worker in a thread; its exception fails the test."""
        self._workers.append(self._pool.submit(worker))

    def join(self) -> None:
        """Wait for the workers, which acknowledge a request after its reply has arrived."""
        for future in self._workers:
            future.result()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Start one broker for all tests of a file, which use different queues."""
    with LocalBroker(tmp_path_factory.mktemp("transcoding") / "broker", LISTEN) as broker:
        yield broker


@pytest.fixture
def clients(broker: LocalBroker) -> Iterator[Clients]:
    with ExitStack() as stack:
        clients = Clients(broker, stack)
        yield clients
        clients.join()


@pytest.fixture
def restartable_clients(tmp_path: Path) -> Iterator[Clients]:
    """Start a broker for the test, which may kill it; yield clients of it."""
    with ExitStack() as stack:
        broker = stack.enter_context(LocalBroker(tmp_path / "broker", LISTEN))
        clients = Clients(broker, stack)
        yield clients
        clients.join()
