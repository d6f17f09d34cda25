"""Honest clients beside the hostile ones: whatever those do, these must not notice.

Each witness keeps exchanging numbered messages on connections it never makes anew. What it may not
see - a message missing, twice or out of order, a disconnect, an answer after more than PATIENCE -
ends it, and `failure` tells.
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

PATIENCE: Final = 30.0
"""Seconds. Not what a broker should need, but what tells a slow machine from one that hangs."""

_BURST: Final = 5
_PAUSE: Final = 0.002


class Witness(threading.Thread, ABC):
    """Exchanges messages until `finish`."""

    def __init__(self, broker: LocalBroker) -> None:
        super().__init__(daemon=True)
        self.failure: Exception | None = None
        self.exchanged = 0
        self.slowest = 0.0
        """Seconds that the slowest exchange took."""
        self._over = threading.Event()
        self.connect(broker)

    def run(self) -> None:
        try:
            while not self._over.wait(_PAUSE):
                before = time.monotonic()
                self.exchange()
                self.slowest = max(self.slowest, time.monotonic() - before)
            self.close()
        except Exception as failure:  # for the thread that looks after it to report
            self.failure = failure

    def wait_for_first(self) -> None:
        """Wait until messages have been exchanged; a gateway worker has no client of its own."""
        end = time.monotonic() + PATIENCE
        while not self.exchanged and not isinstance(self, GatewayWorker):
            self.check()
            assert time.monotonic() < end, f"{type(self).__name__} exchanges nothing"
            time.sleep(0.02)

    def finish(self) -> None:
        """End, and fail if anything was not as it should be."""
        self._over.set()
        self.join(3 * PATIENCE)
        assert not self.is_alive(), f"{type(self).__name__} hangs"
        self.check()

    def check(self) -> None:
        """Fail if something has been noticed."""
        if self.failure is not None:
            raise AssertionError(
                f"{type(self).__name__} noticed after {self.exchanged}: {self.failure!r}"
            ) from self.failure

    @abstractmethod
    def connect(self, broker: LocalBroker) -> None:
        """Make the connections."""

    @abstractmethod
    def exchange(self) -> None:
        """Send something, and look at what comes."""

    @abstractmethod
    def close(self) -> None:
        """End the connections in good order."""


class PhpmqPair(Witness):
    """A producer and a consumer of one queue."""

    def connect(self, broker: LocalBroker) -> None:
        port = broker.port("phpmq")
        self._producer = BlockingClient(PhpmqClient.connect, port=port)
        self._consumer = BlockingClient(PhpmqClient.connect, port=port)
        self._consumer.subscribe("witness of phpmq", 2 * _BURST)

    def exchange(self) -> None:
        numbers = range(self.exchanged, self.exchanged + _BURST)
        for number in numbers:
            self._producer.send("witness of phpmq", b"%d" % number)
        for number in numbers:
            message = self._consumer.receive(PATIENCE)
            assert message.body == b"%d" % number
            message.ack()
            self.exchanged += 1

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class JmqPair(Witness):
    """A sender whose messages are confirmed, and a consumer whose acknowledgements are."""

    def connect(self, broker: LocalBroker) -> None:
        port = broker.port("jmq")
        self._producer = RawJmq.login(port)
        self._consumer = RawJmq.login(port)
        assert status_of(self._consumer.consume("witness.of.jmq")) == Status.OK

    def exchange(self) -> None:
        bodies = [b"%d" % number for number in range(self.exchanged, self.exchanged + _BURST)]
        for number in self._producer.send_all("witness.of.jmq", bodies):
            assert status_of(self._producer.reply_to(number)) == Status.OK
        for body in bodies:
            message = self._consumer.receive(PATIENCE)
            assert message.body == body
            assert self._consumer.acknowledge(message) == Status.OK
            self.exchanged += 1

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class MsglitePair(Witness):
    """One who queries and one who replies, in one thread each."""

    def connect(self, broker: LocalBroker) -> None:
        port = broker.port("msglite")
        self._client = BlockingClient(MsgliteClient.connect, port=port)
        self._worker = _Replier(port)
        self._worker.start()

    def exchange(self) -> None:
        body = b"%d" % self.exchanged
        reply = self._client.query("witness.of.msglite", body, timeout=int(PATIENCE))
        assert reply is not None, f"no reply to {body!r}"
        assert reply.body == body[::-1]
        self.exchanged += 1

    def close(self) -> None:
        self._client.send("witness.of.msglite", b"", timeout=int(PATIENCE))
        self._worker.join(PATIENCE)
        assert not self._worker.is_alive()
        if self._worker.failure is not None:
            raise self._worker.failure
        self._client.close()


class _Replier(threading.Thread):
    """Sends every question back, turned round, until an empty one comes."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.failure: Exception | None = None
        self._client = BlockingClient(MsgliteClient.connect, port=port)

    def run(self) -> None:
        try:
            while True:
                question = self._client.ready("witness.of.msglite", timeout=3600)
                assert question is not None
                if question.reply_to is None:
                    break
                self._client.send(question.reply_to, question.body[::-1], timeout=int(PATIENCE))
            self._client.close()
        except Exception as failure:  # for the thread that looks after it to report
            self.failure = failure


class GatewayWorker(Witness):
    """Answers whatever comes through the HTTP gateway, and sees well-formed announcements only."""

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
