"""kill -9 at random moments, under load and during recovery: nothing that was visible or confirmed
is lost, nothing that was durably acknowledged comes back, and the order is kept."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

from sluicemq.cli.local import PROGRAM, LocalBroker
from tests.faults.jmsload import JmsLoad, drain_jms
from tests.faults.load import MAX_LEAD, TIMEOUT_SECONDS, Load, MsgliteLoad, drain, drain_msglite
from tests.faults.plan import SMALL_SEGMENTS, machine, seeded_random, size
from tests.faults.recorder import Recorder
from tests.support.polling import wait_until

KILLS = size(20, 200)
"""Under load; about a third as many during a start."""
LISTEN = (
    "phpmq://127.0.0.1:0",
    "msglite://127.0.0.1:0?durability=sync",
    "jmq://127.0.0.1:0?services=jms",
)


def test_kill_at_random_moments(tmp_path: Path) -> None:
    chance = seeded_random()
    # a killed process keeps its written data; a loss of power only the synced data
    brokers = [
        LocalBroker(tmp_path, LISTEN, environment=SMALL_SEGMENTS, program=program)
        for program in (PROGRAM, machine("volatile"))
    ]
    numbered, msglite, jms = Recorder(), Recorder(), Recorder()
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.stop)
        following = following_msglite = following_jms = 0
        for turn in range(KILLS):
            broker = brokers[turn // 2 % 2]
            _interrupt_starts(broker, chance)
            broker.start()
            body, max_lead = chance.choice((0, 100, 1000)), MAX_LEAD[turn % 2]
            load = Load(broker.port("phpmq"), following, numbered, chance, body, max_lead)
            msglite_load = MsgliteLoad(broker.port("msglite"), following_msglite, msglite)
            orders = JmsLoad(broker.port("jmq"), following_jms, jms, chance, body)
            time.sleep(chance.uniform(0.02, 0.6))
            if turn == KILLS - 1:  # on a slow machine, none of the others may have come so far
                wait_until(
                    lambda: (
                        min(recorder.highest for recorder in (numbered, msglite, jms)) > 0
                        and bool(msglite.confirmed_numbers and jms.confirmed_numbers)
                        and bool(jms.confirmed_acks)
                    ),
                    seconds=TIMEOUT_SECONDS,
                )
            broker.kill()
            following, following_msglite = load.end(), msglite_load.end()
            following_jms = orders.end()
        broker = brokers[0].start()
        drain(broker.port("phpmq"), numbered)
        drain_msglite(broker.port("msglite"), msglite)
        drain_jms(broker.port("jmq"), jms)
        for recorder in (numbered, msglite, jms):
            assert recorder.highest > 0
            recorder.drained()
        assert msglite.confirmed_numbers
        assert jms.confirmed_numbers
        assert jms.confirmed_acks
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()


def _interrupt_starts(broker: LocalBroker, chance: random.Random) -> None:
    """Kill the process while it starts, sometimes more than once."""
    while broker.start_seconds and chance.random() < 0.25:
        broker.launch()
        time.sleep(chance.uniform(0.3, 1.1) * broker.start_seconds)
        broker.kill()
