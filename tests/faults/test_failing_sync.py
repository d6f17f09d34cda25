"""A sync that fails once. The kernel has forgotten the data by then and reports success from then
on, so a broker that tried again would confirm what is lost: it must stop instead."""

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
REFUSED = 1
SYNCS_OF_A_START = 8
"""Maximum syncs of a start; the broker does not start if one of these fails."""


def test_a_sync_that_fails_once(tmp_path: Path) -> None:
    chance = seeded_random()
    numbered, msglite = Recorder(), Recorder()
    intact_broker = LocalBroker(tmp_path, LISTEN, environment=SMALL_SEGMENTS)
    following = following_msglite = 0
    failures = 0
    with ExitStack() as stack:
        stack.callback(intact_broker.stop)
        for turn in range(size(5, 60)):
            number = int(2 ** chance.uniform(0, 9)) + (SYNCS_OF_A_START if turn % 4 else 0)
            broker = LocalBroker(
                tmp_path, LISTEN, environment=SMALL_SEGMENTS, program=machine(f"eio:{number}")
            )
            stack.callback(broker.stop)
            try:
                broker.start()
            except ConnectionLost:
                assert broker.wait() in (REFUSED, JOURNAL_FAILED)
                continue
            load, msglite_load = None, None
            with suppress(ConnectionLost):  # it may fail before they have all connected
                body, max_lead = chance.choice((0, 100, 1000)), MAX_LEAD[turn % 2]
                load = Load(broker.port("phpmq"), following, numbered, chance, body, max_lead)
                msglite_load = MsgliteLoad(broker.port("msglite"), following_msglite, msglite)
            assert broker.wait() == JOURNAL_FAILED
            failures += 1
            following = load.end() if load else following
            following_msglite = msglite_load.end() if msglite_load else following_msglite
        intact_broker.start()
        drain(intact_broker.port("phpmq"), numbered)
        drain_msglite(intact_broker.port("msglite"), msglite)
        numbered.drained()
        msglite.drained()
        assert failures
        assert intact_broker.stop() == 0
        log = intact_broker.log.read_text()
        assert os.strerror(5) in log
        assert "Traceback" not in log
