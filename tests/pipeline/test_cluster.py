"""The same code on a cluster: Spark's own master and two workers, and a program that is submitted
to them. Packages are "installed on the nodes": all processes have the same Python."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

import sluicemq
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.pipeline.java import find_java
from sluicemq.pipeline.tables import table
from tests.faults.processes import command_of, descendants, kill_if_there
from tests.pipeline import cluster_driver as program
from tests.pipeline.sink.witness import published

HOME = Path(pyspark.__file__).parent
ROWS = 1500
PATIENCE = 600.0
"""Seconds for anything here; it takes a few of them on a machine of one's own."""
LOOPBACK = "127.0.0.1"


class Cluster:
    """A master and its workers, each a process."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(work / "work"),
            "PYSPARK_PYTHON": sys.executable,
            # where executors look too, whatever directory they are started in
            "PYTHONPATH": str(Path(sluicemq.__file__).parents[1]),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self, workers: int) -> None:
        log = self._daemon("master.Master")
        self.master = self._wait_for(log, r"spark://127\.0\.0\.1:\d+")
        for number in range(workers):
            log = self._daemon("worker.Worker", self.master, "-c", "1", "-m", "600m", number=number)
            self._wait_for(log, "Successfully registered with master")

    def submit(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        """spark-submit, as somebody would type it."""
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.memory": "512m",
            "spark.driver.host": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }
        given = [f"--conf={name}={value}" for name, value in settings.items()]
        command = [str(HOME / "bin/spark-submit"), "--master", self.master, *given]
        return self._start([*command, script, *arguments], self.driver_log)

    @property
    def driver_log(self) -> Path:
        return self._work / "driver.log"

    def executors(self) -> list[int]:
        """Their processes, which the workers have started."""
        started = {pid for each in self._processes for pid in descendants(each.pid)}
        return [pid for pid in started if "CoarseGrainedExecutorBackend" in command_of(pid)]

    def stop(self) -> None:
        """All of them, with what they have started."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _daemon(self, name: str, *arguments: str, number: int = 0) -> Path:
        log = self._work / f"{name}-{number}.log"
        where = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}"]
        self._start([*command, *where, *arguments], log)
        return log

    def _start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as opened:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
                env=self._environment,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _wait_for(self, log: Path, pattern: str) -> str:
        until = time.monotonic() + PATIENCE
        while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
            assert self._processes[-1].poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.05)
        return found[0]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with ExitStack() as stack:
        stack.callback(made.stop)
        made.start(workers=2)
        yield made


def fill(port: int) -> None:
    """The queue that the program reads."""
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        for number in range(ROWS):
            client.send(program.IN, b"%d" % number)


def wait_for_batches(work: Path, count: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the stream has finished so many."""
    until = time.monotonic() + PATIENCE
    commits = work / program.CHECKPOINT / "commits"
    while sum(not file.name.startswith(".") for file in commits.glob("*")) < count:
        assert process.poll() is None, log.read_text(errors="replace")[-8000:]
        assert time.monotonic() < until, log.read_text(errors="replace")[-8000:]
        time.sleep(0.02)


def test_a_program_on_two_workers(cluster: Cluster, tmp_path: Path) -> None:
    """Source, sink and table, by both executors; one of which is killed while a stream runs."""
    listen = ["phpmq://127.0.0.1:0", "http://127.0.0.1:0"]
    with LocalBroker(tmp_path / "data", listen) as broker:
        fill(broker.port("phpmq"))
        url = f"http://127.0.0.1:{broker.port('http')}"
        process = cluster.submit(program.__file__, url, str(tmp_path))
        wait_for_batches(tmp_path, 2, process, cluster.driver_log)
        kill_if_there(random.choice(cluster.executors()))
        output = cluster.driver_log.read_text(errors="replace")
        assert process.wait(PATIENCE) == 0, output[-8000:]
    expected = sorted(range(ROWS))
    for queue in (program.BATCH, program.STREAM):
        messages = published(tmp_path / "data", queue)
        assert sorted(int(message.body) for message in messages) == expected
    rows = table("delta", str(tmp_path / program.TABLE)).read(columns=["body"])
    assert sorted(map(int, rows["body"].to_pylist())) == expected
    assert len(json.loads((tmp_path / program.RESULT_FILE).read_text())) == 2
