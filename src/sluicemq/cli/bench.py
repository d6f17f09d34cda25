"""Commands that run brokers of their own, in temporary directories.

`sluicemq bench` measures the speed of each protocol on this machine, briefly. Each measurement
starts a broker process in a temporary directory ($TMPDIR chooses the disk), unless --url names a
running broker. The Python clients send and receive in this process and need more processor time per
message than the broker does, so that they limit the rate. The load generators in `benchmarks/` of
the source tree measure what the broker alone can do.

`sluicemq demo` runs real clients against a broker that is killed and restarted, and prints a table
of the results. Every step verifies its result; the command exits with code 1 if a verification
fails.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Column as TableColumn
from rich.table import Table

from sluicemq.cli import send_receive
from sluicemq.cli.api import list_result, print_result
from sluicemq.cli.console import (
    Column,
    Exit,
    JsonFlag,
    check_number,
    err,
    exit_on_signals,
    number,
    out,
)
from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient, connect
from sluicemq.journal.files import JOURNAL_NAME
from sluicemq.journal.inspect import check
from sluicemq.model.errors import ClientError, ConfigurationError, ConnectionLost
from sluicemq.model.url import Url

app = typer.Typer()

# --- `sluicemq bench` -----------------------------------------------------------------------------

CASES: Final = (
    ("phpmq", "sync", 1024),
    ("phpmq", "sync", 100),
    ("vibemq", "sync", 1024),
    ("jmq", "sync", 1024),
    ("msglite", "none", 100),
)
"""Protocol, durability, and bytes of a body."""
OUTSTANDING: Final = 1000
"""Maximum number of messages sent and not yet received."""
_BATCH: Final = 64
_PAUSE: Final = 0.001
_IDLE_TIMEOUT: Final = 30.0
"""Seconds without a message after which a measurement fails."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Transfer(msgspec.Struct, frozen=True):
    """Messages that were sent, received and acknowledged within `seconds`; `latencies` in seconds,
    in ascending order, from the time at which a message was due to its receipt."""

    messages: int
    seconds: float
    latencies: list[float]

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the latencies in ms."""
        return round(1000 * self.latencies[int(share * (len(self.latencies) - 1))], 3)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one protocol.

    rate            messages/s at full speed, acknowledged one by one
    broker_us       processor time of the broker per message in µs; 0 = unknown
    p50_ms, p99_ms  latency at half of that rate
    """

    protocol: str
    durability: str
    size: int
    rate: int
    broker_us: float
    p50_ms: float
    p99_ms: float


_COLUMNS: Final[tuple[Column[Measurement], ...]] = (
    Column("Protocol", lambda item: item.protocol),
    Column("Durability", lambda item: item.durability),
    Column("Bytes", lambda item: number(item.size), align_right=True),
    Column("Rate", lambda item: f"{item.rate:,}/s", align_right=True),
    Column(
        "Broker",
        lambda item: f"{item.broker_us:.1f} µs" if item.broker_us else "",
        align_right=True,
    ),
    Column("p50", lambda item: f"{item.p50_ms:.2f} ms", align_right=True),
    Column("p99", lambda item: f"{item.p99_ms:.2f} ms", align_right=True),
)


@app.command()
def bench(
    seconds: Annotated[
        float,
        typer.Option(min=0.05, max=3600, callback=check_number, help="Duration of each timed run."),
    ] = 2.0,
    url: Annotated[
        str | None,
        typer.Option(
            help="A running broker (phpmq://, msglite://, vibemq://, jmq://) instead of new ones."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure throughput, latency and processor time of each protocol, in half a minute."""
    results = []
    with exit_on_signals(), err().status("") as status:
        if url is not None:
            target = Url.parse(url)
            if target.queue:
                raise ConfigurationError(f"{target}: bench uses a queue of its own")
            status.update(str(target))
            queue = f"bench-{os.urandom(4).hex()}"
            results.append(_measure(target._replace(queue=queue), "", 1024, seconds, None))
        for protocol, durability, size in CASES if url is None else ():
            status.update(f"{protocol}, {durability}, {size:,} bytes")
            listen = f"{protocol}://127.0.0.1:0?durability={durability}"
            with (
                tempfile.TemporaryDirectory(prefix="sluicemq-bench-") as directory,
                LocalBroker(Path(directory), [listen]) as broker,
            ):
                target = Url(protocol, port=broker.port(protocol), queue="bench")
                results.append(_measure(target, durability, size, seconds, broker.pid))
    print_result(list_result(results, _COLUMNS), as_json)


def _measure(url: Url, durability: str, size: int, seconds: float, pid: int | None) -> Measurement:
    before = _cpu_seconds(pid)
    flood = asyncio.run(transfer(url, size, seconds=seconds))
    cpu_seconds = _cpu_seconds(pid) - before
    rate = round(flood.messages / flood.seconds)
    steady = asyncio.run(transfer(url, size, seconds=seconds, rate=max(1, rate // 2)))
    return Measurement(
        protocol=url.protocol,
        durability=durability,
        size=size,
        rate=rate,
        broker_us=round(1e6 * cpu_seconds / flood.messages, 1),
        p50_ms=steady.quantile_ms(0.5),
        p99_ms=steady.quantile_ms(0.99),
    )


async def transfer(
    url: Url, size: int, *, seconds: float = 3600.0, messages: int = 1 << 40, rate: int = 0
) -> Transfer:
    """Send messages through the URL's queue, and acknowledge each: for `seconds`, at most
    `messages` and at least one, `rate` per second by the clock or, if that is 0, as fast as they
    are received.

    Raises ConfigurationError, ClientError.
    """
    sender = await send_receive.open_client(url, _IDLE_TIMEOUT)
    receiver = await send_receive.open_client(url, _IDLE_TIMEOUT)
    body = b"x" * size
    due_times: deque[float] = deque()
    latencies: list[float] = []
    await receiver.receive(0, 1)  # subscribes
    started = time.perf_counter()

    async def send() -> None:
        sent = 0
        while sent < messages:
            now = time.perf_counter() - started
            if sent and now >= seconds:
                break
            count = int(now * rate) + 1 - sent if rate else _BATCH
            count = min(count, messages - sent, OUTSTANDING - len(due_times))
            if count > 0:
                due_times.extend((sent + i) / rate if rate else now for i in range(count))
                await sender.send([body] * count, 0)
                sent += count
            await asyncio.sleep(_PAUSE if rate or count <= 0 else 0)

    sending = asyncio.create_task(send())
    last = 0.0
    while due_times or not sending.done():
        batch = await receiver.receive(0.5, _BATCH)
        await receiver.acknowledge(batch)
        now = time.perf_counter() - started
        latencies += [now - due_times.popleft() for _ in batch]
        last = now if batch else last
        if now - last > _IDLE_TIMEOUT:
            raise ConnectionLost(f"no message from {url} within {_IDLE_TIMEOUT:g} s")
    await sending
    await sender.confirm()
    await sender.close()
    await receiver.close()
    return Transfer(len(latencies), last, sorted(latencies))


def _cpu_seconds(pid: int | None) -> float:
    """Return user and system time of a process; 0 if `pid` is None. Raises OSError."""
    if pid is None:
        return 0.0
    # the program's name is in parentheses and may contain spaces
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


# --- `sluicemq demo` ------------------------------------------------------------------------------

LISTEN: Final = (
    "msglite://127.0.0.1:0?durability=sync",
    "phpmq://127.0.0.1:0",
    "phpmq-maintenance://127.0.0.1:0",
    "vibemq://127.0.0.1:0",
    "jmq://127.0.0.1:0",
)
MARKER_FILE: Final = ".sluicemq-demo"
"""Name of the file that marks a directory the demonstration has created and may empty."""
ORDERS: Final = 200
BACKLOG: Final = 500
ACKED: Final = 120
FLOOD: Final = 50_000
PAYMENTS: Final = [b"payment %d" % number for number in range(BACKLOG)]
MESSAGE_TIMEOUT: Final = 10.0
"""Timeout for each message, in seconds."""


class StepFailed(Exception):
    """A step's verification failed."""


@app.command()
def demo(
    keep: Annotated[
        Path, typer.Option(help="Directory for the results; one of an earlier run is replaced.")
    ] = Path("sluicemq-demo"),
) -> None:
    """Show the broker at work: four protocols, a crash, nothing lost, and a lake of the traffic."""
    console = out()
    _clear_directory(keep)
    with ExitStack() as stack:
        stack.enter_context(exit_on_signals())
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


def _clear_directory(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER_FILE).exists():
            raise ConfigurationError(
                f"{directory.absolute()} is not empty, and was not created by this command. "
                "Name another directory with --keep."
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER_FILE).touch()


class Demonstration:
    """The steps in order, and the table of their results."""

    def __init__(self, console: Console, broker: LocalBroker, keep: Path) -> None:
        self._console = console
        self._broker = broker
        self._keep = keep
        self._report = keep / "report.html"
        self._spark = find_spec("pyspark") is not None
        self._table = Table(
            TableColumn("step", ratio=5),
            TableColumn("result", ratio=4),
            TableColumn("ms", justify="right"),
            title="Results",
            title_justify="left",
            header_style="bold",
            box=SIMPLE_HEAD,
        )

    def run(self) -> None:
        """Run every step. Raises StepFailed, ClientError."""
        steps: list[tuple[str, Callable[[], str]]] = [
            ("start a broker", self._start),
            (
                f"{ORDERS} messages from msglite to PHPMQ",
                partial(self._cross, "msglite", "phpmq", "orders"),
            ),
            (
                f"{ORDERS} messages from PHPMQ to msglite",
                partial(self._cross, "phpmq", "msglite", "invoices"),
            ),
            ("msglite: a query, answered by a worker", self._query),
            ("PHPMQ: a message is given up", self._dead_letter),
            ("JMS: a transaction, rolled back and committed, read by PHPMQ", self._jms),
            (
                f"{ORDERS} messages from VibeMQ to JMS",
                partial(self._cross, "vibemq", "jmq", "prices"),
            ),
            (f"PHPMQ: {BACKLOG} messages, {ACKED} acknowledged, kill -9", self._backlog_and_kill),
            ("start again on the same journal", self._restart),
            ("PHPMQ: consume what is left", self._consume_rest),
            (f"PHPMQ: {FLOOD:,} messages of 1 KB, persistent", self._flood),
            ("check the journal, record by record", self._check),
        ]
        if self._spark:
            steps += [
                ("Spark: the journal into bronze, silver and gold tables", self._fill_lake),
                ("check the tables", self._check_tables),
                ("draw the report", self._write_report),
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
                title="Next steps",
                title_align="left",
                expand=False,
            )
        )
        if self._spark:
            self._console.print(
                f"The journal is in {self._keep}, the tables in its directory lake."
            )
            self._console.print(f"The report: {self._report.absolute().as_uri()}")
        else:
            self._console.print("For tables and a report: pip install 'sluicemq[pipeline]'")

    # --- the steps ---------------------------------------------------------------------------

    def _start(self) -> str:
        self._broker.start()
        names = {"msglite": "msglite", "PHPMQ": "phpmq", "VibeMQ": "vibemq", "JMS": "jmq"}
        return ", ".join(f"{name} on {self._broker.port(key)}" for name, key in names.items())

    def _cross(self, sender: str, receiver: str, queue: str) -> str:
        bodies = [b'{"number":%d}' % number for number in range(ORDERS)]
        self._send(sender, queue, bodies)
        self._receive(receiver, queue, bodies)
        return "all, in order, acknowledged"

    def _query(self) -> str:
        def work() -> None:
            with self._connect("msglite") as worker:
                request = worker.ready("capitals", timeout=int(MESSAGE_TIMEOUT))
                if request is not None and request.reply_to is not None:
                    worker.send(request.reply_to, b"Ouagadougou", timeout=10)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        with self._connect("msglite") as client:
            reply = client.query("capitals", b"Burkina Faso?", timeout=int(MESSAGE_TIMEOUT))
        _expect(reply.body if reply else None, b"Ouagadougou")
        thread.join(MESSAGE_TIMEOUT)
        return "Burkina Faso? Ouagadougou."

    def _dead_letter(self) -> str:
        with self._connect("phpmq") as client:
            client.send("letters", b"cannot be read")
            client.subscribe("letters", 1)
            client.receive(MESSAGE_TIMEOUT).dead_letter()
        self._receive("phpmq", "letters.dlq", [b"cannot be read"])
        return "found in its dead-letter queue"

    def _jms(self) -> str:
        with self._connect("jmq") as client:
            session = client.session(transacted=True)
            producer = session.producer("shipments")
            producer.send("not to be shipped")
            session.rollback()
            producer.send({"order": 7, "weight": 2.5}, properties={"urgent": True})
            session.commit()
        self._receive("phpmq", "shipments", [b'{"order":7,"weight":2.5}'])
        return "only the committed message, a MapMessage as JSON"

    def _backlog_and_kill(self) -> str:
        self._send("phpmq", "payments", PAYMENTS)
        self._receive("phpmq", "payments", PAYMENTS[:ACKED])
        self._wait_until_left("payments", BACKLOG - ACKED)
        # it is written to the journal after the acknowledgements
        self._send("phpmq", "fence", [b"confirmed"])
        self._broker.kill()
        return "the broker is gone"

    def _restart(self) -> str:
        self._broker.start()
        return f"serves after {self._broker.start_seconds * 1000:.0f} ms"

    def _consume_rest(self) -> str:
        self._receive("phpmq", "payments", PAYMENTS[ACKED:])
        with send_receive.connect(self._url("phpmq", "payments"), MESSAGE_TIMEOUT) as client:
            _expect(client.receive(0.3, 1), [])
        return f"{BACKLOG - ACKED}: none lost, none twice, in order"

    def _flood(self) -> str:
        result = asyncio.run(transfer(self._url("phpmq", "bench"), 1024, messages=FLOOD))
        return f"{result.messages / result.seconds:,.0f}/s, sent to acknowledged"

    def _check(self) -> str:
        self._wait_until_left("bench", 0)
        report = check(self._broker.directory / JOURNAL_NAME)
        if report.problems:
            raise StepFailed(f"the journal is damaged: {report.problems[0]}")
        return f"{report.records:,} records, no problem"

    def _fill_lake(self) -> str:
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

    def _check_tables(self) -> str:
        traffic = self._lake.gold.read(self._session).groupBy("destination")
        sums = traffic.sum("published", "acknowledged").collect()
        counts = {row[0]: (row[1], row[2]) for row in sums}
        sent = {"orders": ORDERS, "payments": BACKLOG, "prices": ORDERS, "bench": FLOOD}
        for destination, count in sent.items():
            _expect(counts.get(destination), (count, count))
        messages = self._lake.silver.read(self._session).groupBy("state").count().collect()
        states = {row[0]: row[1] for row in messages}
        _expect(states.get("dead-lettered"), 1)
        total = sum(states.values())
        return f"{total:,} messages, each once; {states['acknowledged']:,} acknowledged"

    def _write_report(self) -> str:
        from sluicemq.pipeline.report import report_lake

        report_lake(self._session, self._lake, self._report, title="The demonstration")
        self._session.stop()
        return f"{self._report.stat().st_size // 1024:,} KB, one file"

    # --- helpers -----------------------------------------------------------------------------

    def _url(self, protocol: str, queue: str = "") -> Url:
        return Url(protocol, port=self._broker.port(protocol), queue=queue)

    def _connect(self, protocol: str) -> BlockingClient:
        return connect(self._url(protocol).format())

    def _send(self, protocol: str, queue: str, bodies: list[bytes]) -> None:
        """Send messages, and wait until the broker has accepted them."""
        with send_receive.connect(self._url(protocol, queue), MESSAGE_TIMEOUT) as client:
            client.send(bodies, 0)
            client.confirm()

    def _receive(self, protocol: str, queue: str, bodies: list[bytes]) -> None:
        """Receive and acknowledge messages with these bodies."""
        url = self._url(protocol, queue)
        with send_receive.connect(url, MESSAGE_TIMEOUT, len(bodies)) as client:
            for body in bodies:
                messages = client.receive(MESSAGE_TIMEOUT, 1)
                _expect([message.body for message in messages], [body])
                client.acknowledge(messages)

    def _wait_until_left(self, queue: str, count: int) -> None:
        """Wait until a queue has so many ready and unacked messages."""
        end = time.monotonic() + MESSAGE_TIMEOUT
        while count != sum(
            item["ready"] + item["unacked"]
            for item in self._broker.status()["destinations"]
            if item["name"] == queue
        ):
            if time.monotonic() > end:
                raise StepFailed(f"timed out after {MESSAGE_TIMEOUT:g} s")
            time.sleep(0.01)


def _expect(actual: object, expected: object) -> None:
    if actual != expected:
        raise StepFailed(f"expected {expected!r}, found {actual!r}")
