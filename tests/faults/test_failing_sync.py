"""A sync that fails once. The kernel drops the data and reports success for later syncs, so a
broker that retried would confirm lost messages. It must stop instead."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConnectionLost
from tests.faults.load import MAX_LEAD, Load, MsgliteLoad, drain, drain_msglite
from tests.faults.plan import SMALL_SEGMENTS, machine, seeded_random, size
from tests.faults.recorder import Recorder

LISTEN = ("phpmq://127.0.0.1:0", "msglite://127.0.0.1:0?durability=sync")
JOURNAL_FAILED = 74
START_FAILED = 1
SYNCS_OF_A_START = 8
"""Maximum syncs of a start; the broker does not start if one of these fails."""


def test_broker_stops_after_a_failed_sync_and_loses_nothing(tmp_path: Path) -> None:
    rng = seeded_random()
    phpmq_recorder, msglite_recorder = Recorder(), Recorder()
    intact_broker = LocalBroker(tmp_path, LISTEN, environment=SMALL_SEGMENTS)
    next_number = next_msglite = 0
    failures = 0
    with ExitStack() as stack:
        stack.callback(intact_broker.stop)
        for iteration in range(size(5, 60)):
            number = int(2 ** rng.uniform(0, 9)) + (SYNCS_OF_A_START if iteration % 4 else 0)
            broker = LocalBroker(
                tmp_path, LISTEN, environment=SMALL_SEGMENTS, program=machine(f"eio:{number}")
            )
            stack.callback(broker.stop)
            try:
                broker.start()
            except ConnectionLost:
                assert broker.wait() in (START_FAILED, JOURNAL_FAILED)
                continue
            load, msglite_load = None, None
            with suppress(ConnectionLost):  # the sync may fail before all clients have connected
                body, max_lead = rng.choice((0, 100, 1000)), MAX_LEAD[iteration % 2]
                load = Load(broker.port("phpmq"), next_number, phpmq_recorder, rng, body, max_lead)
                msglite_load = MsgliteLoad(broker.port("msglite"), next_msglite, msglite_recorder)
            assert broker.wait() == JOURNAL_FAILED
            failures += 1
            next_number = load.end() if load else next_number
            next_msglite = msglite_load.end() if msglite_load else next_msglite
        intact_broker.start()
        drain(intact_broker.port("phpmq"), phpmq_recorder)
        drain_msglite(intact_broker.port("msglite"), msglite_recorder)
        phpmq_recorder.drained()
        msglite_recorder.drained()
        assert failures
        assert intact_broker.stop() == 0
        log = intact_broker.log.read_text()
        assert os.strerror(5) in log
        assert "Traceback" not in log
