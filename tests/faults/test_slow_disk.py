"""A disk with occasional slow syncs. No message is delivered before it is on disk, none is lost,
the order is kept, and clients that do not wait for the disk are not affected."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from tests.faults.load import MAX_LEAD, Client, Load, MsgliteLoad, drain, drain_msglite
from tests.faults.machine import SLOW_SECONDS
from tests.faults.plan import SMALL_SEGMENTS, machine, seeded_random, size
from tests.faults.recorder import Recorder

LISTEN = (
    "phpmq://127.0.0.1:0",
    "msglite+unix://{}",
    "msglite://127.0.0.1:0?durability=sync",
)
RUN_SECONDS = size(1.5, 5.0)
ROUND_TRIPS = 150
"""Minimum round trips of the transient client in each run of the broker."""
BROKER_RUNS = size(2, 12)


class TransientClient(Client):
    """Sends transient messages to itself, and counts round trips as slow as a sync."""

    def __init__(self, path: Path) -> None:
        self.round_trips = 0
        self.slow_round_trips = 0
        self.until = time.monotonic() + RUN_SECONDS
        self._client = BlockingClient(MsgliteClient.connect, path=str(path))
        super().__init__()

    def work(self) -> None:
        with self._client as client:
            while (before := time.monotonic()) < self.until or self.round_trips < ROUND_TRIPS:
                client.send("transient", b"%d" % self.round_trips, 60)
                message = client.ready("transient", timeout=60)
                assert message is not None
                assert message.body == b"%d" % self.round_trips
                self.round_trips += 1
                self.slow_round_trips += time.monotonic() - before > SLOW_SECONDS[0]


def test_slow_disk_loses_nothing_and_delays_no_transient_messages(tmp_path: Path) -> None:
    rng = seeded_random()
    phpmq_recorder, msglite_recorder = Recorder(), Recorder()
    path = tmp_path / "transient.socket"
    listen = [url.format(path) for url in LISTEN]
    next_number = next_msglite = 0
    round_trips = slow_total = 0
    with ExitStack() as stack:
        for iteration in range(BROKER_RUNS):
            program = machine("volatile", f"slow:{rng.randrange(1 << 32)}")
            broker = LocalBroker(tmp_path, listen, environment=SMALL_SEGMENTS, program=program)
            stack.callback(broker.stop)
            broker.start()
            load = Load(
                broker.port("phpmq"), next_number, phpmq_recorder, rng, 200, MAX_LEAD[iteration % 2]
            )
            msglite_load = MsgliteLoad(broker.port("msglite"), next_msglite, msglite_recorder)
            transient_client = TransientClient(path)
            transient_client.finish()
            round_trips += transient_client.round_trips
            slow_total += transient_client.slow_round_trips
            broker.kill()  # probably while clients wait for the disk
            next_number, next_msglite = load.end(), msglite_load.end()
        broker.start()
        drain(broker.port("phpmq"), phpmq_recorder)
        drain_msglite(broker.port("msglite"), msglite_recorder)
        phpmq_recorder.drained()
        msglite_recorder.drained()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
    print(f"{slow_total} of {round_trips} round trips through memory were slow")
    assert round_trips >= ROUND_TRIPS * BROKER_RUNS
    # other processes may delay a few; one sync in four is slow
    assert slow_total <= round_trips / 20
