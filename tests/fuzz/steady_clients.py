"""Well-behaved clients that hostile clients must not affect.

Each client exchanges numbered messages on connections that it never reopens. A message that is
missing, duplicated or out of order, a disconnect, or a reply after more than TIMEOUT_SECONDS
ends it, and sets `failure`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Final

import msgspec

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.protocols.jmq.packets import Status
from sluicemq.protocols.msglite.gateway import ADDRESS
from tests.protocols.jmq.raw import RawJmq, status_of

TIMEOUT_SECONDS: Final = 30.0
"""Distinguishes a slow machine from a broker that hangs."""

_BURST: Final = 5
_PAUSE: Final = 0.002


class SteadyClient(threading.Thread, ABC):
    """A client that exchanges messages in a thread until `finish`."""

    def __init__(self, broker: LocalBroker) -> None:
        super().__init__(daemon=True)
        self.failure: Exception | None = None
        self.exchanged = 0
        self.slowest = 0.0
        """Seconds that the slowest exchange took."""
        self._stopping = threading.Event()
        self.connect(broker)

    def run(self) -> None:
        try:
            while not self._stopping.wait(_PAUSE):
                before = time.monotonic()
                self.exchange()
                self.slowest = max(self.slowest, time.monotonic() - before)
            self.close()
        except Exception as failure:  # reported by `check`
            self.failure = failure

    def wait_for_first(self) -> None:
        """Wait until messages have been exchanged; a gateway worker has no client of its own."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self.exchanged and not isinstance(self, GatewayWorker):
            self.check()
            assert time.monotonic() < end, f"{type(self).__name__} exchanges nothing"
            time.sleep(0.02)

    def finish(self) -> None:
        """Stop the client, and raise its failure."""
        self._stopping.set()
        self.join(3 * TIMEOUT_SECONDS)
        assert not self.is_alive(), f"{type(self).__name__} hangs"
        self.check()

    def check(self) -> None:
        """Raise the failure of the client, if there is one."""
        if self.failure is not None:
            raise AssertionError(
                f"{type(self).__name__} failed after {self.exchanged}: {self.failure!r}"
            ) from self.failure

    @abstractmethod
    def connect(self, broker: LocalBroker) -> None:
        """Open the connections."""

    @abstractmethod
    def exchange(self) -> None:
        """Send messages and check those received."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections properly."""


class PhpmqPair(SteadyClient):
    """A producer and a consumer of one queue."""

    def connect(self, broker: LocalBroker) -> None:
        port = broker.port("phpmq")
        self._producer = BlockingClient(PhpmqClient.connect, port=port)
        self._consumer = BlockingClient(PhpmqClient.connect, port=port)
        self._consumer.subscribe("steady phpmq", 2 * _BURST)

    def exchange(self) -> None:
        numbers = range(self.exchanged, self.exchanged + _BURST)
        for number in numbers:
            self._producer.send("steady phpmq", b"%d" % number)
        for number in numbers:
            message = self._consumer.receive(TIMEOUT_SECONDS)
            assert message.body == b"%d" % number
            message.ack()
            self.exchanged += 1

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class JmqPair(SteadyClient):
    """A sender and a consumer of JMS that wait for every confirmation."""

    def connect(self, broker: LocalBroker) -> None:
        port = broker.port("jmq")
        self._producer = RawJmq.login(port)
        self._consumer = RawJmq.login(port)
        assert status_of(self._consumer.consume("steady.jmq")) == Status.OK

    def exchange(self) -> None:
        bodies = [b"%d" % number for number in range(self.exchanged, self.exchanged + _BURST)]
        for number in self._producer.send_all("steady.jmq", bodies):
            assert status_of(self._producer.reply_to(number)) == Status.OK
        for body in bodies:
            message = self._consumer.receive(TIMEOUT_SECONDS)
            assert message.body == body
            assert self._consumer.acknowledge(message) == Status.OK
            self.exchanged += 1

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class MsglitePair(SteadyClient):
    """A requester and a replier of msglite, each in a thread."""

    def connect(self, broker: LocalBroker) -> None:
        port = broker.port("msglite")
        self._client = BlockingClient(MsgliteClient.connect, port=port)
        self._worker = _MsgliteReplier(port)
        self._worker.start()

    def exchange(self) -> None:
        body = b"%d" % self.exchanged
        reply = self._client.query("steady.msglite", body, timeout=int(TIMEOUT_SECONDS))
        assert reply is not None, f"no reply to {body!r}"
        assert reply.body == body[::-1]
        self.exchanged += 1

    def close(self) -> None:
        self._client.send("steady.msglite", b"", timeout=int(TIMEOUT_SECONDS))
        self._worker.join(TIMEOUT_SECONDS)
        assert not self._worker.is_alive()
        if self._worker.failure is not None:
            raise self._worker.failure
        self._client.close()


class _MsgliteReplier(threading.Thread):
    """Replies to every request with the reversed body, until an empty one arrives."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.failure: Exception | None = None
        self._client = BlockingClient(MsgliteClient.connect, port=port)

    def run(self) -> None:
        try:
            while True:
                request = self._client.ready("steady.msglite", timeout=3600)
                assert request is not None
                if request.reply_to is None:
                    break
                self._client.send(
                    request.reply_to, request.body[::-1], timeout=int(TIMEOUT_SECONDS)
                )
            self._client.close()
        except Exception as failure:  # reported by `check`
            self.failure = failure


class GatewayWorker(SteadyClient):
    """Replies to all requests of the HTTP gateway, and checks that they are well-formed."""

    def connect(self, broker: LocalBroker) -> None:
        self._client = BlockingClient(MsgliteClient.connect, port=broker.port("msglite"))

    def exchange(self) -> None:
        request = self._client.ready(ADDRESS, timeout=1)
        if request is None:
            return
        request_fields = msgspec.json.decode(request.body)
        assert set(request_fields) == {"method", "url", "protocol", "headers", "bodyAddr"}
        assert request.reply_to is not None
        self._client.ready(request_fields["bodyAddr"], timeout=0)
        self._client.send(request.reply_to, b'["200",["X","y"]]', timeout=10)
        self._client.send(request.reply_to, b"", timeout=10)
        self.exchanged += 1

    def close(self) -> None:
        self._client.close()
