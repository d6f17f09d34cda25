"""kill -9 of the driver, a Python worker or the broker at random moments, while continuous queries
read the journal and write to queues and a table: in the end each row is there once, and equals what
a batch makes of the same journal afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ClientError
from tests.faults import pipeline_driver as program
from tests.faults.load import make_body, number_of
from tests.faults.plan import SMALL_SEGMENTS, repeatable, size
from tests.faults.processes import command_of, descendants, kill_if_there
from tests.pipeline.sink.witness import published
from tests.protocols.sockets import unused_port

KILLS = size(2, 30)
BATCHES = 1
"""Batches that each query has to finish between two kills."""
PATIENCE = 600.0
"""Seconds for that; a driver needs several to start."""
RESTARTS = 5
"""Maximum restarts of a driver that ends by itself, without a kill in between."""
TOO_SLOW = "Python worker failed to connect back"
PAUSE = 0.1
"""Seconds between the bursts of the producer."""
BURST = 20


class Producer(threading.Thread):
    """Sends numbered messages without end, to the current process of the broker."""

    def __init__(self, broker: LocalBroker, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self._broker = broker
        self._chance = chance
        self._next = 0
        self.start()

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with BlockingClient(PhpmqClient.connect, port=self._broker.port("phpmq")) as client:
                    while not self.stop.wait(PAUSE):
                        for _ in range(BURST):
                            body = self._chance.choice((0, 100, 1000))
                            client.send(program.IN, make_body(self._next, body))
                            self._next += 1
            except (ClientError, KeyError):
                self.stop.wait(PAUSE)


class Driver:
    """A process of the program, with the processes that it starts."""

    def __init__(self, mode: str, broker: LocalBroker, url: str, work: Path, rows: int) -> None:
        self.log = work / "driver.log"
        self._work = work
        arguments = [mode, str(broker.directory), url, str(work), str(rows)]
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(arguments)}\n".encode())
            self._process = subprocess.Popen(
                [sys.executable, program.__file__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def batches(self) -> list[int]:
        """Return the batches finished by each query in all runs. (Spark keeps the last hundred.)"""
        return [
            max(
                (int(file.name) + 1 for file in (self._work / name).glob("commits/[0-9]*")),
                default=0,
            )
            for name in program.CHECKPOINTS
        ]

    def kill(self, chance: random.Random) -> None:
        """Kill the JVM, or Python, which the JVM does not survive; both have ended on return."""
        family = list(descendants(self._process.pid))
        java = [pid for pid in family if "java" in command_of(pid).partition(" ")[0]]
        os.kill(chance.choice([self._process.pid, *java]), signal.SIGKILL)
        self._process.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while any(command_of(pid) for pid in family):
            assert time.monotonic() < until, "processes of a killed driver live on"
            time.sleep(0.01)

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one of the Python workers of the JVM; return whether there was one."""
        workers = [pid for pid in descendants(self._process.pid) if "pyspark" in command_of(pid)]
        workers = [pid for pid in workers if "java" not in command_of(pid).partition(" ")[0]]
        if workers:
            kill_if_there(chance.choice(workers))
        return bool(workers)

    def wait(self) -> bool:
        """Wait for its successful end. Return False if Spark gave up on a Python process that had
        not started within its ten seconds, as on a busy machine."""
        if self._process.wait(5 * PATIENCE) == 0:
            return True
        assert TOO_SLOW in self.output(), self.output()
        return False

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-8000:]


def wait_for_batches(driver: Driver, expected_batches: Sequence[int]) -> bool:
    """Wait until the queries have finished so many batches; return False if the driver ended."""
    until = time.monotonic() + PATIENCE
    while any(have < want for have, want in zip(driver.batches(), expected_batches, strict=True)):
        if not driver.runs:
            return False
        assert time.monotonic() < until, f"the queries do not go on:\n{driver.output()}"
        time.sleep(0.05)
    return True


def test_kill_anything_at_random_moments(tmp_path: Path) -> None:
    chance = repeatable()
    url = f"http://127.0.0.1:{unused_port()}"
    broker = LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0", url], (), SMALL_SEGMENTS)
    victims = ["driver", "worker", "broker"] * -(-KILLS // 3)
    chance.shuffle(victims)
    with ExitStack() as stack:
        stack.enter_context(broker)
        producer = Producer(broker, random.Random(chance.random()))
        stack.callback(producer.stop.set)

        def start(mode: str = "run") -> Driver:
            rows = chance.choice((50, 500, 5000)) if mode == "run" else 10_000
            return Driver(mode, broker, url, tmp_path, rows)

        driver = start()
        stack.callback(lambda: driver.runs and driver.kill(chance))
        for victim in victims[:KILLS]:
            expected_batches = [have + BATCHES for have in driver.batches()]
            for _ in range(RESTARTS):
                if wait_for_batches(driver, expected_batches):
                    break
                driver = start()  # as a supervisor would
            else:
                raise AssertionError(f"the driver fails again and again:\n{driver.output()}")
            time.sleep(chance.uniform(0, 1.0))
            print(f"after {driver.batches()} batches: kill {victim}")
            if victim == "broker":
                broker.kill()
                time.sleep(chance.uniform(0, 1.0))
                broker.start()
            elif victim == "driver" and driver.runs:
                driver.kill(chance)
                driver = start()
            elif driver.runs:
                assert driver.kill_worker(chance)
        producer.stop.set()
        producer.join(PATIENCE)
        if driver.runs:
            driver.kill(chance)
        for _ in range(RESTARTS):
            driver = start("finish")
            if driver.wait():
                break
        else:
            raise AssertionError(f"the driver fails again and again:\n{driver.output()}")
        assert broker.stop() == 0
    check_copied(tmp_path)
    check_silver(tmp_path)


def check_copied(work: Path) -> None:
    """Check that the queue has the rows of the batch, each once."""
    rows = pq.read_table(work / program.BATCH_COPIED).to_pylist()
    assert rows
    expected = {row["message_id"]: (row["body"], dict(row["properties"])) for row in rows}
    found = published(work / "data", program.COPIED)
    assert len(found) == len({message.message_id for message in found}), "rows are there twice"
    assert expected == {
        message.message_id: (
            message.body,
            {name: str(value) for name, value in (message.properties or {}).items()},
        )
        for message in found
    }
    for message in found:
        number_of(message.body)


def check_silver(work: Path) -> None:
    """Check the same for the other queue and the table."""
    rows = pq.read_table(work / program.BATCH_SILVER).to_pylist()
    expected = {row["message_sequence"]: row for row in rows}
    assert len(expected) == len(rows)
    written = DeltaTable(str(work / program.TABLE)).to_pyarrow_table().to_pylist()
    assert len(written) == len(rows)
    assert {row["message_sequence"]: row for row in written} == expected
    messages = published(work / "data", program.SILVER)
    assert len(messages) == len(rows)
    for message in messages:
        row = expected[int(message.message_id)]
        body = json.loads(message.body)
        assert (body["message_sequence"], body["size"]) == (row["message_sequence"], row["size"])
