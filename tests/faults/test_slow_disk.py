"""A disk that is slow now and then. No message is visible before it is on disk, none is lost,
the order is kept, and whoever does not wait for the disk does not notice."""

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
TIMEOUT_SECONDS = size(1.5, 5.0)
TURNS = 150
"""Round trips of the witness in each life, at the least; a slow machine takes longer for them."""
LIVES = size(2, 12)


class TransientClient(Client):
    """Sends transient messages to itself, and counts those that took as long as a disk write."""

    def __init__(self, path: Path) -> None:
        self.turns = 0
        self.late = 0
        self.until = time.monotonic() + TIMEOUT_SECONDS
        self._client = BlockingClient(MsgliteClient.connect, path=str(path))
        super().__init__()

    def work(self) -> None:
        with self._client as client:
            while (before := time.monotonic()) < self.until or self.turns < TURNS:
                client.send("witness", b"%d" % self.turns, 60)
                message = client.ready("witness", timeout=60)
                assert message is not None
                assert message.body == b"%d" % self.turns
                self.turns += 1
                self.late += time.monotonic() - before > SLOW_SECONDS[0]


def test_a_slow_disk(tmp_path: Path) -> None:
    chance = seeded_random()
    numbered, msglite = Recorder(), Recorder()
    path = tmp_path / "witness.socket"
    listen = [url.format(path) for url in LISTEN]
    following = following_msglite = 0
    turns = late_turns = 0
    with ExitStack() as stack:
        for turn in range(LIVES):
            program = machine("volatile", f"slow:{chance.randrange(1 << 32)}")
            broker = LocalBroker(tmp_path, listen, environment=SMALL_SEGMENTS, program=program)
            stack.callback(broker.stop)
            broker.start()
            load = Load(broker.port("phpmq"), following, numbered, chance, 200, MAX_LEAD[turn % 2])
            msglite_load = MsgliteLoad(broker.port("msglite"), following_msglite, msglite)
            witness = TransientClient(path)
            witness.finish()
            turns += witness.turns
            late_turns += witness.late
            broker.kill()  # most likely while something waits for the disk
            following, following_msglite = load.end(), msglite_load.end()
        broker.start()
        drain(broker.port("phpmq"), numbered)
        drain_msglite(broker.port("msglite"), msglite)
        numbered.drained()
        msglite.drained()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
    print(f"{late_turns} of {turns} round trips through memory took long")
    assert turns >= TURNS * LIVES
    # others may keep the processor for so long; the disk is late for 1 in 4
    assert late_turns <= turns / 20
