"""The pipeline on a cluster: a standalone master, two workers, and submitted programs.

The programs read the journal over HTTPS with a token. All processes use the same Python, as if it
was installed on the nodes.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sluicemq
import sluicemq.cli.__main__ as cli
from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.pipeline.delta import INTERPRETED
from sluicemq.pipeline.jars import DELTA, find_java, jars, local_home
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.typed.definition import load_definition
from tests.faults.processes import command_of, descendants, kill_if_running
from tests.pipeline import cluster_driver as program
from tests.pipeline.airflow_stub import load_dag
from tests.pipeline.java_options import WITH_ARCHIVE
from tests.pipeline.recomputed import compare
from tests.pipeline.sink.published_messages import published
from tests.pipeline.test_examples import EXAMPLES
from tests.server.authority import Authority

HOME = local_home()
ROWS = 600
TIMEOUT_SECONDS = 600.0
"""Seconds for anything here; it takes a few of them on a machine of one's own."""
LOOPBACK = "127.0.0.1"
SETTINGS = {
    "spark.driver.extraJavaOptions": WITH_ARCHIVE,
    "spark.executor.extraJavaOptions": WITH_ARCHIVE,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.memory": "512m",
    "spark.driver.host": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    # for two cores
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    **INTERPRETED,
}
"""Settings of all programs.

Each of their small jobs would compile many plans. Generated code is tested by tests/s3 and
test_pipeline_kill.py."""
DEFINITION = """
[[table]]
name = "numbers"
destination = "cluster.in"
format = "json"
schema = "number BIGINT, part BIGINT"
key = ["number"]

[[table.expect]]
name = "small"
check = "number < 500"
action = "quarantine"

[[gold]]
name = "parts"
sql = "SELECT part, count(*) AS numbers, sum(number) AS total FROM silver.numbers GROUP BY part"
keys = ["part"]
refresh = "incremental"
"""


class Cluster:
    """A master and its workers, each in a process."""

    def __init__(self, work: Path, token: str) -> None:
        self._work = work
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": WITH_ARCHIVE,
            "SPARK_WORKER_DIR": str(work / "work"),
            "PYSPARK_PYTHON": sys.executable,
            # where executors look too, whatever directory they are started in
            "PYTHONPATH": str(Path(sluicemq.__file__).parents[1]),
            "SLUICEMQ_TOKEN": token,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self, workers: int) -> None:
        log = self._daemon("master.Master")
        self.master = self._wait_for(log, r"spark://127\.0\.0\.1:\d+")
        for number in range(workers):
            self._start_worker(number)

    def submit(
        self, script: str, *arguments: str, libraries: str = "", executors: int = program.EXECUTORS
    ) -> subprocess.Popen[bytes]:
        """Start spark-submit with a script."""
        jar_paths = libraries or ",".join(map(str, jars(DELTA)))
        settings = SETTINGS | {"spark.cores.max": str(executors)}
        options = [f"--conf={name}={value}" for name, value in settings.items()]
        command = [str(HOME / "bin/spark-submit"), "--master", self.master, *options]
        return self._start([*command, f"--jars={jar_paths}", script, *arguments], self.driver_log)

    def run(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run a command of `sluicemq pipeline` with --master; its process is the driver."""
        options = [word for pair in SETTINGS.items() for word in ("--conf", "=".join(pair))]
        command = [sys.executable, cli.__file__, "pipeline", *arguments, "--master", self.master]
        return self._start([*command, *options], self.driver_log)

    @property
    def driver_log(self) -> Path:
        return self._work / "driver.log"

    def executors(self) -> list[int]:
        """Return the processes of the executors."""
        descendant_pids = {pid for process in self._processes for pid in descendants(process.pid)}
        return [pid for pid in descendant_pids if "CoarseGrainedExecutorBackend" in command_of(pid)]

    def kill_worker(self) -> None:
        """Kill a worker and its executors, as if its machine had failed; start another one."""
        worker = next(
            process for process in self._processes[1:] if "worker.Worker" in command_of(process.pid)
        )
        family = [worker.pid, *descendants(worker.pid)]
        for pid in family:
            kill_if_running(pid)
        worker.wait(TIMEOUT_SECONDS)
        self._start_worker(len(self._processes))

    def stop(self) -> None:
        """Stop all processes and their children."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start_worker(self, number: int) -> None:
        log = self._daemon("worker.Worker", self.master, "-c", "1", "-m", "600m", number=number)
        self._wait_for(log, "Successfully registered with master")

    def _daemon(self, name: str, *arguments: str, number: int = 0) -> Path:
        log = self._work / f"{name}-{number}.log"
        address = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}"]
        self._start([*command, *address, *arguments], log)
        return log

    def _start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env=self._environment,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _wait_for(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (match := re.search(pattern, log.read_text(errors="replace"))) is None:
            assert self._processes[-1].poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
        return match[0]


class Journal:
    """A broker with a superuser, and the queue that the programs read."""

    def __init__(self, broker: LocalBroker, authority: Path, token: str) -> None:
        self.directory = broker.directory
        self.url = f"https://127.0.0.1:{broker.port('http+tls')}?ca={authority}"
        self.token = token
        self.filled = 0
        self._port = broker.port("phpmq")

    def fill(self, rows: int) -> None:
        with BlockingClient(PhpmqClient.connect, port=self._port) as client:
            for number in range(self.filled, self.filled + rows):
                client.send(program.IN, b'{"number": %d, "part": %d}' % (number, number % 7))
        self.filled += rows


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    work = tmp_path_factory.mktemp("broker")
    data = work / "data"
    data.mkdir()
    assert (
        main(["users", "add", "root", "--superuser", "--no-password", "--data-dir", str(data)]) == 0
    )
    output = io.StringIO()
    with redirect_stdout(output):
        assert main(["users", "token", "add", "root", "--json", "--data-dir", str(data)]) == 0
    token = json.loads(output.getvalue())["token"]
    authority = Authority(work)
    certificate = authority.pem(authority.issue())
    listen = ["phpmq://127.0.0.1:0?user=root", f"http+tls://127.0.0.1:0?certificate={certificate}"]
    with LocalBroker(data, listen) as broker:
        journal = Journal(broker, authority.ca_file, token)
        journal.fill(ROWS)
        yield journal


@pytest.fixture(scope="module")
def cluster(journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), journal.token)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start(workers=2)
        yield cluster


def batches(checkpoint: Path, log: str = "commits") -> int:
    """Return the number of batches that a query has started (`offsets`) or finished."""
    return sum(file.name.isdigit() for file in (checkpoint / log).glob("*"))


def wait_inside_batch(
    checkpoint: Path, after: int, process: subprocess.Popen[bytes], log: Path
) -> None:
    """Wait until the query has finished so many batches and is in the middle of another one."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while batches(checkpoint) < after or batches(checkpoint, "offsets") == batches(checkpoint):
        assert process.poll() is None, log.read_text(errors="replace")[-8000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-8000:]
        time.sleep(0.02)


def expect_success(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.wait(TIMEOUT_SECONDS) == 0, log.read_text(errors="replace")[-8000:]


def test_pipeline_commands_on_cluster(
    cluster: Cluster, journal: Journal, tmp_path: Path, spark: SparkSession
) -> None:
    """By spark-submit, as the DAG of the examples, and with --master. Every table equals a
    recomputation, although an executor and a worker are killed in the middle of batches.

    One comparison at the end is enough: no later step repairs a row that an earlier one lost,
    repeated or changed."""
    lake = Lake(tmp_path / "lake")
    definition = tmp_path / "pipeline.toml"
    definition.write_text(DEFINITION)
    report = tmp_path / "report.html"
    values = {"BROKER": journal.url, "LAKE": str(lake), "REPORT": str(report)}
    dag = load_dag(EXAMPLES / "airflow" / "sluicemq_lake.py", values)
    tasks = {task.task_id: task.application_args for task in dag.tasks}
    libraries = str(jars(DELTA)[0].parent / "*.jar")  # as in the DAG
    options = ("--definition", str(definition), "--max-rows", "500")

    process = cluster.submit(cli.__file__, *tasks["backfill"], *options, libraries=libraries)
    wait_inside_batch(Path(lake.checkpoint("tables")), 1, process, cluster.driver_log)
    kill_if_running(random.choice(cluster.executors()))
    expect_success(process, cluster.driver_log)
    backfilled_messages = lake.silver.read(spark).count()

    journal.fill(100)
    process = cluster.run("run", "--url", journal.url, "--lake", str(lake), *options, "--json")
    previous = batches(Path(lake.checkpoint("tables")))
    wait_inside_batch(Path(lake.checkpoint("tables")), previous, process, cluster.driver_log)
    cluster.kill_worker()
    journal.fill(100)
    wait_for_progress(process, cluster.driver_log)
    process.terminate()
    expect_success(process, cluster.driver_log)

    for task in ("maintain", "report"):
        process = cluster.submit(cli.__file__, *tasks[task], libraries=libraries, executors=1)
        expect_success(process, cluster.driver_log)
    assert program.IN in report.read_text()
    counts = compare(spark, lake, journal.directory, load_definition(definition))
    assert counts["silver"] >= backfilled_messages + 200
    assert counts["silver.numbers"] == 500
    assert counts["gold.parts"] == 7

    where = f"destination = '{program.IN}' AND text LIKE '%\"part\": 3}}'"
    process = cluster.run(
        *("replay", "--url", journal.url, "--lake", str(lake), "--where", where, "--to", "again")
    )
    expect_success(process, cluster.driver_log)
    bodies = [message.body for message in published(journal.directory, program.IN)]
    replayed = [message.body for message in published(journal.directory, "again")]
    assert replayed == [body for body in bodies if json.loads(body)["part"] == 3]


def wait_for_progress(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until `run --json` reports that nothing is unread."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        lines = [line for line in log.read_text(errors="replace").splitlines() if '"lag"' in line]
        if lines and json.loads(lines[-1]).get("lag") == 0:
            return
        assert process.poll() is None, log.read_text(errors="replace")[-8000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-8000:]
        time.sleep(0.1)


def test_submitted_program_with_source_and_sink(
    cluster: Cluster, journal: Journal, tmp_path: Path
) -> None:
    """The program loses an executor in the middle of a batch."""
    process = cluster.submit(program.__file__, journal.url, str(tmp_path))
    wait_inside_batch(tmp_path / program.CHECKPOINT, 2, process, cluster.driver_log)
    kill_if_running(random.choice(cluster.executors()))
    expect_success(process, cluster.driver_log)
    for queue in (program.BATCH, program.STREAM):
        messages = published(journal.directory, queue)
        numbers = sorted(json.loads(message.body)["number"] for message in messages)
        assert numbers == list(range(journal.filled))
    assert len(json.loads((tmp_path / program.RESULT_FILE).read_text())) == 2
