"""Kill drivers, workers and the broker at random times while queries read the journal."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ClientError
from tests.faults.processes import command_of, descendants, kill_if_running

VICTIMS = ["driver"] * 20 + ["broker"] * 10 + ["worker"] * 5
TIMEOUT = 600.0
"""Seconds for a batch of each query between two kills; a driver needs several to start."""
RESTARTS = 5
"""Maximum restarts of a driver that ends by itself, without a kill in between."""
_SPARK = re.compile(r"\S*java (?!.* org\.apache\.spark\.launcher).* org\.apache\.spark\.deploy")
_TOO_SLOW = "Python worker failed to connect back"
PAUSE = 0.1
"""Seconds between the bursts of the producer."""

Burst = Callable[[BlockingClient], None]


class Producer(threading.Thread):
    """Calls `burst` repeatedly with a client of the current broker process."""

    def __init__(self, broker: LocalBroker, prepare: Burst, burst: Burst) -> None:
        super().__init__(daemon=True)
        self._stop_requested = threading.Event()
        self._broker = broker
        self._prepare = prepare
        self._burst = burst
        self.start()

    def run(self) -> None:
        while not self._stop_requested.is_set():
            try:
                with BlockingClient(PhpmqClient.connect, port=self._broker.port("phpmq")) as client:
                    self._prepare(client)
                    while not self._stop_requested.wait(PAUSE):
                        self._burst(client)
            except (ClientError, KeyError):
                self._stop_requested.wait(PAUSE)

    def end(self) -> None:
        self._stop_requested.set()
        self.join(TIMEOUT)
        assert not self.is_alive()


class Driver:
    """Process of a program, and the processes that it starts.

    checkpoints  directory with the checkpoints of its queries
    """

    def __init__(self, command: Sequence[str], checkpoints: Path, log: Path) -> None:
        self.log = log
        self._checkpoints = checkpoints
        with log.open("ab") as file:
            file.write(f"--- {' '.join(command)}\n".encode())
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def batches(self) -> dict[str, int]:
        """Return the batches finished by each query in all runs. (Spark keeps the last hundred.)"""
        return {
            query.name: max(
                (int(file.name) + 1 for file in (query / "commits").glob("[0-9]*")), default=0
            )
            for query in self._checkpoints.glob("*")
        }

    def kill(self, rng: random.Random) -> None:
        """Kill the JVM, or Python, whose end also ends the JVM; both have ended on return."""
        self._kill(rng.choice([self.process.pid, *self._java()]))

    def kill_java(self) -> None:
        """Kill the JVM as soon as it has started; Python has ended on return, too."""
        deadline = time.monotonic() + TIMEOUT
        while not (java := self._java()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self._kill(java[0])

    def _java(self) -> list[int]:
        """Return the id of Spark's JVM if it runs, not of the short-lived JVMs started before it.

        Programs that the JVM starts, which have its command line at first, follow it in the list.
        """
        family = descendants(self.process.pid)
        return [pid for pid in family if _SPARK.match(command_of(pid))][:1]

    def _kill(self, pid: int) -> None:
        family = list(descendants(self.process.pid))
        os.kill(pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while any(command_of(pid) for pid in family):
            assert time.monotonic() < deadline, "processes of a killed driver are still running"
            time.sleep(0.01)

    def kill_worker(self, rng: random.Random) -> None:
        """Kill one of the Python workers of the JVM."""
        workers = [pid for pid in descendants(self.process.pid) if "pyspark" in command_of(pid)]
        workers = [pid for pid in workers if "java" not in command_of(pid).partition(" ")[0]]
        assert workers
        kill_if_running(rng.choice(workers))

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-8000:]


def wait_for_batches(driver: Driver, before: dict[str, int], queries: int) -> bool:
    """Wait until each query has finished a batch since `before`; False if the driver ended."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        now = driver.batches()
        if len(now) == queries and all(now[name] > before.get(name, 0) for name in now):
            return True
        if not driver.is_running:
            return False
        assert time.monotonic() < deadline, f"a query has stopped:\n{driver.output()}"
        time.sleep(0.05)


def kill_at_random(
    broker: LocalBroker,
    start: Callable[[], Driver],
    queries: int,
    kills: int,
    rng: random.Random,
) -> Driver:
    """Kill the driver, a Python worker or the broker repeatedly, and restart them.

    queries  number of the driver's queries
    kills    number of victims, at most all VICTIMS

    Returns the last driver, which may have ended.
    """
    driver = start()
    try:
        for victim in rng.sample(VICTIMS, kills):
            before = driver.batches()
            for _ in range(RESTARTS):
                if wait_for_batches(driver, before, queries):
                    break
                driver = start()  # as a supervisor would
            else:
                raise AssertionError(f"the driver failed repeatedly:\n{driver.output()}")
            time.sleep(rng.uniform(0, 1.0))
            print(f"after {driver.batches()} batches: kill {victim}")
            if victim == "broker":
                broker.kill()
                time.sleep(rng.uniform(0, 1.0))
                broker.start()
            elif victim == "driver" and driver.is_running:
                driver.kill(rng)
                driver = start()
            elif driver.is_running:
                driver.kill_worker(rng)
    except BaseException:
        if driver.is_running:
            driver.kill(rng)
        raise
    return driver


def finish(start: Callable[[], Driver]) -> None:
    """Run a driver to its end; repeat if a worker process started too slowly for Spark.

    Spark waits ten seconds for its start, which can take longer on a busy machine.
    """
    for _ in range(RESTARTS):
        driver = start()
        if driver.process.wait(5 * TIMEOUT) == 0:
            return
        assert _TOO_SLOW in driver.output(), driver.output()
    raise AssertionError(f"the driver failed repeatedly:\n{driver.output()}")
