"""kill -9 at random times, under load and during recovery: no delivered or confirmed message is
lost, no durably acknowledged message is redelivered, and the order is kept."""

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
"""Kills under load; about a third as many occur during starts."""
LISTEN = (
    "phpmq://127.0.0.1:0",
    "msglite://127.0.0.1:0?durability=sync",
    "jmq://127.0.0.1:0?services=jms",
)


def test_kill_at_random_times_loses_nothing(tmp_path: Path) -> None:
    rng = seeded_random()
    # a kill keeps written data, a power failure only synced data
    brokers = [
        LocalBroker(tmp_path, LISTEN, environment=SMALL_SEGMENTS, program=program)
        for program in (PROGRAM, machine("volatile"))
    ]
    phpmq_recorder, msglite_recorder, jms_recorder = Recorder(), Recorder(), Recorder()
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.stop)
        next_number = next_msglite = next_jms = 0
        for iteration in range(KILLS):
            broker = brokers[iteration // 2 % 2]
            _interrupt_starts(broker, rng)
            broker.start()
            body, max_lead = rng.choice((0, 100, 1000)), MAX_LEAD[iteration % 2]
            load = Load(broker.port("phpmq"), next_number, phpmq_recorder, rng, body, max_lead)
            msglite_load = MsgliteLoad(broker.port("msglite"), next_msglite, msglite_recorder)
            jms_load = JmsLoad(broker.port("jmq"), next_jms, jms_recorder, rng, body)
            time.sleep(rng.uniform(0.02, 0.6))
            if (
                iteration == KILLS - 1
            ):  # on a slow machine, earlier iterations may have ended too early
                wait_until(
                    lambda: (
                        min(
                            recorder.highest
                            for recorder in (phpmq_recorder, msglite_recorder, jms_recorder)
                        )
                        > 0
                        and bool(
                            msglite_recorder.confirmed_numbers and jms_recorder.confirmed_numbers
                        )
                        and bool(jms_recorder.confirmed_acks)
                    ),
                    seconds=TIMEOUT_SECONDS,
                )
            broker.kill()
            next_number, next_msglite = load.end(), msglite_load.end()
            next_jms = jms_load.end()
        broker = brokers[0].start()
        drain(broker.port("phpmq"), phpmq_recorder)
        drain_msglite(broker.port("msglite"), msglite_recorder)
        drain_jms(broker.port("jmq"), jms_recorder)
        for recorder in (phpmq_recorder, msglite_recorder, jms_recorder):
            assert recorder.highest > 0
            recorder.drained()
        assert msglite_recorder.confirmed_numbers
        assert jms_recorder.confirmed_numbers
        assert jms_recorder.confirmed_acks
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()


def _interrupt_starts(broker: LocalBroker, rng: random.Random) -> None:
    """Kill the process while it starts, sometimes more than once."""
    while broker.start_seconds and rng.random() < 0.25:
        broker.launch()
        time.sleep(rng.uniform(0.3, 1.1) * broker.start_seconds)
        broker.kill()
