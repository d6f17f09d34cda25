"""A client that sends messages in a transaction without committing it: messages beyond the limit
are rejected, memory stays bounded, other clients are served, and COMMIT delivers the accepted
ones."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.protocols.jmq.packets import PacketType, Status
from tests.faults.jmsload import consume_all, send_in_bursts
from tests.faults.plan import LONG, size
from tests.protocols.jmq.raw import RawJmq, number_of, status_of

MIB: Final = 1 << 20
LIMIT: Final = size(2, 64)
"""MiB. In the long form it is the default."""
ENVIRONMENT: Final = {} if LONG else {"SLUICEMQ_BROKER__MAX_TRANSACTION_BYTES": f"{LIMIT}MiB"}
MESSAGES: Final = size(3000, 150_000)
BODY: Final = 2000
LEAST_ACCEPTED: Final = LIMIT * MIB // 3000
"""Messages: a message counts with 512 bytes, its body and its headers."""
GROWTH: Final = 3 * LIMIT * MIB + size(64 * MIB, 0)
"""Maximum growth of the resident memory; without a limit the long form needs 400 MiB, and twice
that to commit."""
LONGEST_ROUND_TRIP: Final = 1.0
"""Seconds; checked in the long form."""
TIMEOUT_SECONDS: Final = 30
QUEUE: Final = "unbounded"


class OtherClient(threading.Thread):
    """Another client of the broker, which sends messages to itself until it is stopped.

    round_trips  duration of each round trip in seconds
    peak         maximum resident memory of the broker in bytes
    """

    def __init__(self, broker: LocalBroker) -> None:
        super().__init__()
        self.round_trips: list[float] = []
        self.peak = 0
        self._broker = broker
        self._stopped = threading.Event()

    def run(self) -> None:
        with BlockingClient(MsgliteClient.connect, port=self._broker.port("msglite")) as client:
            while not self._stopped.wait(0.01):
                start = time.monotonic()
                client.send("other", b"", TIMEOUT_SECONDS)
                assert client.ready("other", timeout=TIMEOUT_SECONDS) is not None
                self.round_trips.append(time.monotonic() - start)
                if len(self.round_trips) % 20 == 1:
                    self.peak = max(self.peak, self._broker.status()["resident_memory_bytes"])

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def test_transaction_is_limited_and_can_be_committed(tmp_path: Path) -> None:
    listen = ["jmq://127.0.0.1:0?services=jms", "msglite://127.0.0.1:0"]
    bodies = [b"%0*d" % (BODY, number) for number in range(MESSAGES)]
    with LocalBroker(tmp_path, listen, environment=ENVIRONMENT) as broker:
        port = broker.port("jmq")
        before = broker.status()["resident_memory_bytes"]
        other_client = OtherClient(broker)
        other_client.start()
        try:
            with RawJmq.login(port) as client:
                client.session = client.create_session(None)
                assert status_of(client.produce(QUEUE)) == Status.OK
                start = client.request_transaction(PacketType.START_TRANSACTION)
                transaction = number_of(start, "JMQTransactionID")
                statuses = send_in_bursts(client, QUEUE, bodies, transaction)
                commit = client.request_transaction(
                    PacketType.COMMIT_TRANSACTION, transaction=transaction
                )
                assert status_of(commit) == Status.OK, commit.properties
        finally:
            other_client.stop()
        accepted_count = statuses.count(Status.OK)
        assert LEAST_ACCEPTED < accepted_count < MESSAGES
        assert set(statuses[:accepted_count]) == {Status.OK}
        assert set(statuses[accepted_count:]) == {Status.RESOURCE_FULL}
        other_client.peak = max(other_client.peak, broker.status()["resident_memory_bytes"])
        committed = consume_all(port, QUEUE)
        assert len(committed) == accepted_count
        is_exact = (
            committed == bodies[:accepted_count]
        )  # keeps the list of bodies out of the report
        assert is_exact
        growth = other_client.peak - before
        longest = max(other_client.round_trips)
        print(
            f"{accepted_count} accepted, {growth / MIB:.0f} MiB, round trips up to {longest:.3f} s"
        )
        assert growth < GROWTH
        assert len(other_client.round_trips) > 1
        if LONG:
            assert longest < LONGEST_ROUND_TRIP
    assert "Traceback" not in broker.log.read_text()
