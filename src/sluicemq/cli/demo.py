"""`sluicemq demo`: run real clients against a broker that is killed and restarted, and print a
table of the results.

Every step verifies its result; the command exits with code 1 if a verification fails.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from sluicemq.cli.bench import transfer
from sluicemq.cli.console import Exit, out
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient, connect
from sluicemq.journal.inspect import check
from sluicemq.model.errors import ClientError, ConfigurationError, RequestTimeout
from sluicemq.server.address import Url

LISTEN: Final = (
    "msglite://127.0.0.1:0?durability=sync",
    "phpmq://127.0.0.1:0",
    "phpmq-maintenance://127.0.0.1:0",
    "vibemq://127.0.0.1:0",
    "jmq://127.0.0.1:0",
)
MARK: Final = ".sluicemq-demo"
"""Name of the file that marks a directory the demonstration has created and may empty."""
ORDERS: Final = 200
BACKLOG: Final = 500
ACKED: Final = 120
FLOOD: Final = 50_000
PAYMENTS: Final = [b"payment %d" % number for number in range(BACKLOG)]
PRICES: Final = 100
PATIENCE: Final = 10.0
"""Timeout for each message, in seconds."""


class StepFailed(Exception):
    """A step's verification failed."""


def demo(
    keep: Annotated[
        Path, typer.Option(help="Directory for the results; one of an earlier run is replaced.")
    ] = Path("sluicemq-demo"),
) -> None:
    """Show the broker at work: four protocols, a crash, nothing lost, and a lake of the traffic."""
    console = out()
    _empty(keep)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluicemq-demo-")))
        broker = LocalBroker(directory / "data", LISTEN)
        stack.callback(broker.stop)
        demonstration = Demonstration(console, broker, keep)
        try:
            demonstration.run()
        except (StepFailed, ClientError) as error:
            console.print(f"[bold red]The demonstration failed:[/] {error}")
            console.print(broker.log.read_text(errors="replace")[-3000:], markup=False)
            raise typer.Exit(Exit.REFUSED) from None
        broker.stop()
        shutil.move(directory / "data", keep / "data")
        demonstration.summary()


def _empty(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            raise ConfigurationError(
                f"{directory.absolute()} is not empty, and no earlier demonstration made it. "
                "Name another directory with --keep."
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()


class Demonstration:
    """The steps in order, and the table of their results."""

    def __init__(self, console: Console, broker: LocalBroker, keep: Path) -> None:
        self._console = console
        self._broker = broker
        self._keep = keep
        self._report = keep / "report.html"
        self._spark = find_spec("pyspark") is not None
        self._table = Table(
            title="What happened", title_justify="left", header_style="bold", box=SIMPLE_HEAD
        )
        self._table.add_column("step", ratio=5)
        self._table.add_column("result", ratio=4)
        self._table.add_column("ms", justify="right")

    def run(self) -> None:
        """Run every step. Raises StepFailed, ClientError."""
        steps: list[tuple[str, Callable[[], str]]] = [
            ("start a broker", self._start),
            (f"{ORDERS} messages from msglite to PHPMQ", self._msglite_to_phpmq),
            (f"{ORDERS} messages from PHPMQ to msglite", self._phpmq_to_msglite),
            ("msglite: a query, answered by a worker", self._query),
            ("PHPMQ: a message is given up", self._dead_letter),
            ("JMS: a transaction, rolled back and committed, read by PHPMQ", self._jms),
            (f"{PRICES} messages from VibeMQ to JMS", self._vibemq_to_jms),
            (f"PHPMQ: {BACKLOG} messages, {ACKED} acknowledged, kill -9", self._backlog_and_kill),
            ("start again on the same journal", self._restart),
            ("PHPMQ: consume what is left", self._consume_rest),
            (f"PHPMQ: {FLOOD:,} messages of 1 KB, persistent", self._flood),
            ("check the journal, record by record", self._check),
        ]
        if self._spark:
            steps += [
                ("Spark: the journal into bronze, silver and gold tables", self._tables),
                ("look into the tables", self._look),
                ("draw the report", self._draw),
            ]
        for title, action in steps:
            before = time.perf_counter()
            with self._console.status(title):
                result = action()
            elapsed = (time.perf_counter() - before) * 1000
            self._table.add_row(title, result, f"{elapsed:,.0f}")

    def summary(self) -> None:
        """Print the table and the commands to try next."""
        self._console.print(self._table)
        self._console.print(
            Panel(
                "sluicemq serve                                            start a broker\n"
                "sluicemq send phpmq://127.0.0.1:9100/orders 'hello'       send a message\n"
                "sluicemq receive msglite://127.0.0.1:9813/orders          receive it\n"
                "sluicemq top                                              watch the queues",
                title="Now you",
                title_align="left",
                expand=False,
            )
        )
        if self._spark:
            self._console.print(f"The tables are in {self._keep / 'lake'}, the journal beside it.")
            self._console.print(f"The report: {self._report.absolute().as_uri()}")
        else:
            self._console.print("For tables and a report: pip install 'sluicemq[pipeline]'")

    # --- the steps ---------------------------------------------------------------------------

    def _start(self) -> str:
        self._broker.start()
        names = {"msglite": "msglite", "PHPMQ": "phpmq", "VibeMQ": "vibemq", "JMS": "jmq"}
        return ", ".join(f"{name} on {self._broker.port(key)}" for name, key in names.items())

    def _msglite_to_phpmq(self) -> str:
        bodies = [b"order %d" % number for number in range(ORDERS)]
        with self._connect("msglite") as sender, self._connect("phpmq") as consumer:
            consumer.subscribe("orders", window=50)
            for body in bodies:
                sender.send("orders", body, timeout=60)
            _receive(consumer, bodies)
        return "all, in order, acknowledged"

    def _phpmq_to_msglite(self) -> str:
        bodies = [b"invoice %d" % number for number in range(ORDERS)]
        with self._connect("phpmq") as sender, self._connect("msglite") as receiver:
            for body in bodies:
                sender.send("invoices", body)
            for body in bodies:
                message = receiver.ready("invoices", timeout=int(PATIENCE))
                _expect(message.body if message else None, body)
        return "all, in order"

    def _query(self) -> str:
        def work() -> None:
            with self._connect("msglite") as worker:
                request = worker.ready("capitals", timeout=int(PATIENCE))
                if request is not None and request.reply_to is not None:
                    worker.send(request.reply_to, b"Ouagadougou", timeout=10)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        with self._connect("msglite") as client:
            reply = client.query("capitals", b"Burkina Faso?", timeout=int(PATIENCE))
        _expect(reply.body if reply else None, b"Ouagadougou")
        thread.join(PATIENCE)
        return "Burkina Faso? Ouagadougou."

    def _dead_letter(self) -> str:
        with self._connect("phpmq") as client:
            client.send("letters", b"cannot be read")
            client.subscribe("letters", 1)
            client.receive(PATIENCE).dead_letter()
            client.subscribe("letters.dlq", 1)
            _receive(client, [b"cannot be read"])
        return "found in its dead-letter queue"

    def _jms(self) -> str:
        with self._connect("jmq") as client, self._connect("phpmq") as consumer:
            session = client.session(transacted=True)
            producer = session.producer("shipments")
            producer.send("not to be shipped")
            session.rollback()
            producer.send({"order": 7, "weight": 2.5}, properties={"urgent": True})
            session.commit()
            consumer.subscribe("shipments", 2)
            _receive(consumer, [b'{"order":7,"weight":2.5}'])
        return "what was committed came, a MapMessage as JSON"

    def _vibemq_to_jms(self) -> str:
        with self._connect("vibemq") as sender, self._connect("jmq") as client:
            consumer = client.session().consumer("prices")
            for number in range(PRICES):
                sender.publish("prices", {"article": number, "price": number / 4})
            for number in range(PRICES):
                message = consumer.receive(PATIENCE)
                _expect(json.loads(str(message.body))["article"], number)
        return "all, in order, as JSON text"

    def _backlog_and_kill(self) -> str:
        with self._connect("phpmq") as client:
            for body in PAYMENTS:
                client.send("payments", body)
            client.subscribe("payments", 200)
            _receive(client, PAYMENTS[:ACKED])
        self._wait_until_left("payments", BACKLOG - ACKED)
        # a message of its own that is written to the journal after the acknowledgements
        with self._connect("phpmq") as client:
            client.send("fence", b"")
            client.subscribe("fence", 1)
            client.receive(PATIENCE)
        self._broker.kill()
        return "the broker is gone"

    def _restart(self) -> str:
        self._broker.start()
        return f"serves after {self._broker.started_in * 1000:.0f} ms"

    def _consume_rest(self) -> str:
        with self._connect("phpmq") as client:
            client.subscribe("payments", 100)
            _receive(client, PAYMENTS[ACKED:])
            with suppress(RequestTimeout):
                surplus = client.receive(0.3)
                raise StepFailed(f"{surplus.body!r} came although all messages had been consumed")
        return f"{BACKLOG - ACKED}: none lost, none twice, in order"

    def _flood(self) -> str:
        target = Url("phpmq", port=self._broker.port("phpmq"), queue="bench")
        result = asyncio.run(transfer(target, 1024, messages=FLOOD))
        return f"{result.messages / result.seconds:,.0f}/s, sent to acknowledged"

    def _check(self) -> str:
        self._wait_until_left("bench", 0)
        report = check(self._broker.directory / "journal")
        if report.problems:
            raise StepFailed(f"the journal is damaged: {report.problems[0]}")
        return f"{report.records:,} records, no problem"

    def _tables(self) -> str:
        # imported here so that the other steps run without Spark
        from sluicemq.pipeline.jobs.lake import Lake
        from sluicemq.pipeline.jobs.maintain import find_anomalies
        from sluicemq.pipeline.jobs.run import PipelineJob, Supervisor
        from sluicemq.pipeline.session import SHORT_JOB, session

        self._lake = Lake(self._keep / "lake")
        settings = {"spark.driver.extraJavaOptions": SHORT_JOB}
        self._session = session("sluicemq-demo", settings, self._lake.log)
        job = PipelineJob(source={"path": str(self._broker.directory)}, lake=self._lake)
        events = Supervisor(self._session, job).run(interval=None)
        find_anomalies(self._session, self._lake)
        return f"{events:,} events"

    def _look(self) -> str:
        traffic = self._lake.gold.read(self._session).groupBy("destination")
        sums = traffic.sum("published", "acknowledged").collect()
        found = {row[0]: (row[1], row[2]) for row in sums}
        sent = {"orders": ORDERS, "payments": BACKLOG, "prices": PRICES, "bench": FLOOD}
        for destination, count in sent.items():
            _expect(found.get(destination), (count, count))
        messages = self._lake.silver.read(self._session).groupBy("state").count().collect()
        states = {row[0]: row[1] for row in messages}
        _expect(states.get("dead-lettered"), 1)
        total = sum(states.values())
        return f"{total:,} messages, each once; {states['acknowledged']:,} acknowledged"

    def _draw(self) -> str:
        from sluicemq.pipeline.report import report_lake

        report_lake(self._session, self._lake, self._report, title="The demonstration")
        self._session.stop()
        return f"{self._report.stat().st_size // 1024:,} KB, one file"

    # --- helpers -----------------------------------------------------------------------------

    def _connect(self, protocol: str) -> BlockingClient:
        return connect(f"{protocol}://127.0.0.1:{self._broker.port(protocol)}")

    def _wait_until_left(self, queue: str, count: int) -> None:
        """Wait until a queue has so many ready and unacked messages."""
        end = time.monotonic() + PATIENCE
        while count != sum(
            item["ready"] + item["unacked"]
            for item in self._broker.status()["destinations"]
            if item["name"] == queue
        ):
            if time.monotonic() > end:
                raise StepFailed(f"timed out after {PATIENCE:g} s")
            time.sleep(0.01)


def _receive(consumer: BlockingClient, bodies: Iterable[bytes]) -> None:
    """Receive and acknowledge messages with these bodies."""
    for body in bodies:
        message = consumer.receive(PATIENCE)
        _expect(message.body, body)
        message.ack()


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise StepFailed(f"expected {expected!r}, found {found!r}")
