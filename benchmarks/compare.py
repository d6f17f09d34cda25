"""Compare RabbitMQ and SluiceMQ alternately in one run: medians and ratios. See README.md here."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from benchmarks import amqp, jmq
from benchmarks.amqp import Mode
from benchmarks.load import machine
from benchmarks.load.load import Load
from benchmarks.load.meter import Meter
from benchmarks.load.phpmq import Phpmq
from benchmarks.load.result import TransferResult
from benchmarks.load.server import dialect, start_broker
from benchmarks.load.sockets import BrokerAddress
from benchmarks.rabbitmq import Rabbit, free_ports, rabbitmq

PIPELINE = 16
RECEIVERS = 16
START_SECONDS = 20.0


class Contender(NamedTuple):
    """A product and mode that a case compares. `run` takes the number of messages."""

    name: str
    run: Callable[[int], TransferResult]


class Case(NamedTuple):
    name: str
    title: str
    contenders: list[Contender]


def by_rabbitmq(rabbit: Rabbit, size: int, mode: Mode) -> Contender:
    name = "RabbitMQ, " + ("confirms, " if mode.confirms else "no confirms, ")
    name += f"acks of {mode.batch}" if mode.batch else "no acks"

    def run(messages: int) -> TransferResult:
        meter = Meter(rabbit.pid)
        seconds = amqp.flood(rabbit.port, messages=messages, size=size, mode=mode)
        # connecting is not measured
        result = meter.read(messages)
        return msgspec.structs.replace(result, seconds=seconds, rate=round(messages / seconds))

    return Contender(name, run)


def by_rabbitmq_in_turns(rabbit: Rabbit, size: int, producers: int, consumers: int) -> Contender:
    """Measure producers that wait for a confirm before each send."""
    mode = Mode(persistent=True, batch=1)

    def run(messages: int) -> TransferResult:
        meter = Meter(rabbit.pid)
        seconds = amqp.one_by_one(
            rabbit.port,
            messages=messages,
            size=size,
            mode=mode,
            producers=producers,
            consumers=consumers,
        )
        result = meter.read(messages)
        return msgspec.structs.replace(result, seconds=seconds, rate=round(messages / seconds))

    return Contender("RabbitMQ, confirms, acks of 1", run)


def by_sluicemq(
    protocol: str,
    transport: str,
    size: int,
    *,
    producers: int = 1,
    consumers: int = 1,
    window: int,
) -> Contender:
    name = f"SluiceMQ, {protocol}, {transport}"
    if protocol == "msglite":
        name += f", {window} ready" if window > 1 else ", one ready"
    durability = "none" if protocol == "msglite" else "sync"

    def run(messages: int) -> TransferResult:
        with start_broker(protocol, transport, durability) as server:
            client_dialect = dialect(protocol, size, queue=server.queue, window=window)
            with Load(
                server.target,
                client_dialect,
                producers=producers,
                consumers=consumers,
                pid=server.pid,
            ) as load:
                return load.flood(messages=messages)

    return Contender(name, run)


def by_rabbitmq_transactions(rabbit: Rabbit, size: int, each: int) -> Contender:
    def run(messages: int) -> TransferResult:
        meter = Meter(rabbit.pid)
        messages -= messages % each
        seconds = amqp.transactions(rabbit.port, messages=messages, size=size, each=each)
        result = meter.read(messages)
        return msgspec.structs.replace(result, seconds=seconds, rate=round(messages / seconds))

    return Contender(f"RabbitMQ, transactions of {each:,}", run)


def by_jmq_transactions(size: int, each: int) -> Contender:
    def run(messages: int) -> TransferResult:
        with start_broker("jmq", "tcp", "sync") as server:
            return jmq.transactions(server, messages=messages, size=size, each=each)

    return Contender(f"SluiceMQ, jmq, transactions of {each:,}", run)


def by_limit(program: Path, size: int) -> Contender:
    def run(messages: int) -> TransferResult:
        with (
            limit_program(program) as (port, pid),
            Load(BrokerAddress(port), Phpmq(size), pid=pid) as load,
        ):
            return load.flood(messages=messages)

    return Contender(program.name, run)


@contextmanager
def limit_program(program: Path) -> Iterator[tuple[int, int]]:
    """Run a Python program that serves PHPMQ on the given port, in a temporary directory."""
    (port,) = free_ports(1)
    with (
        tempfile.TemporaryDirectory(prefix="compare-") as directory,
        subprocess.Popen([sys.executable, str(program), str(port)], cwd=directory) as process,
    ):
        try:
            end = time.monotonic() + START_SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        sys.exit(f"{program} does not listen on the port of its argument")
                    time.sleep(0.02)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGKILL)


def all_cases(rabbit: Rabbit, limit: Path | None) -> list[Case]:
    persistent = Mode(persistent=True)
    cases = []
    for name, title, size in (
        ("phpmq-1k", "persistent, 1 KB", 1024),
        ("phpmq-100", "persistent, 100 B", 100),
    ):
        contenders = [
            by_rabbitmq(rabbit, size, persistent),
            by_sluicemq("phpmq", "tcp", size, window=1000),
        ]
        if limit is not None:
            contenders.append(by_limit(limit, size))
        cases.append(Case(name, title, contenders))
    sluicemq_contender = by_sluicemq("vibemq", "tcp", 1024, window=256)
    title = "persistent, 1 KB, 256 PublishAcks outstanding"
    cases.append(
        Case("vibemq-1k", title, [by_rabbitmq(rabbit, 1024, persistent), sluicemq_contender])
    )
    sluicemq_contender = by_sluicemq("vibemq", "tcp", 128, producers=4, consumers=2, window=1)
    rabbitmq_contender = by_rabbitmq_in_turns(rabbit, 128, 4, 2)
    title = "persistent, 128 B, 4 producers with 1 outstanding, 2 consumers"
    cases.append(Case("vibemq-turns", title, [rabbitmq_contender, sluicemq_contender]))
    for name, title, size in (
        ("jmq-1k", "persistent, 1 KB, 1,000 SEND_REPLYs outstanding, DUPS_OK", 1024),
        ("jmq-100", "persistent, 100 B, 1,000 SEND_REPLYs outstanding, DUPS_OK", 100),
    ):
        sluicemq_contender = by_sluicemq("jmq", "tcp", size, window=1000)
        cases.append(Case(name, title, [by_rabbitmq(rabbit, size, persistent), sluicemq_contender]))
    rabbitmq_contender, sluicemq_contender = (
        by_rabbitmq_transactions(rabbit, 1024, 1000),
        by_jmq_transactions(1024, 1000),
    )
    title = "persistent, 1 KB, one transaction after the other"
    contenders = [rabbitmq_contender, by_rabbitmq(rabbit, 1024, persistent), sluicemq_contender]
    cases.append(Case("jmq-transaction", title, contenders))
    transient = [
        by_rabbitmq(rabbit, 100, Mode(persistent=False)),
        by_rabbitmq(rabbit, 100, Mode(persistent=False, confirms=False)),
        by_rabbitmq(rabbit, 100, Mode(persistent=False, confirms=False, batch=0)),
    ]
    for transport in ("tcp", "unix"):
        for window in (1, PIPELINE):
            name = "msglite-" + transport + ("-pipelined" if window > 1 else "")
            sluicemq_contender = by_sluicemq(
                "msglite", transport, 100, consumers=RECEIVERS, window=window
            )
            title = f"transient, 100 B, {RECEIVERS} receivers"
            cases.append(Case(name, title, [*transient, sluicemq_contender]))
    return cases


def measure(case: Case, *, runs: int, messages: int) -> dict[str, object]:
    """Run all contenders in turn, print the results, and return them for the document."""
    results: list[list[TransferResult]] = [[] for _ in case.contenders]
    for _ in range(runs):
        for contender, contender_runs in zip(case.contenders, results, strict=True):
            contender_runs.append(contender.run(messages))
    medians = [statistics.median(run.rate for run in contender_runs) for contender_runs in results]
    rivals = [
        i for i, contender in enumerate(case.contenders) if contender.name.startswith("RabbitMQ")
    ]
    best_rabbitmq = max(medians[i] for i in rivals)
    print(f"\n{case.name}: {case.title}")
    heads = "".join(f"{head:>10}" for head in ("median/s", "min", "max"))
    print(f"  {'':40}{heads}{'ratio':>7}{'broker µs':>10}{'load µs':>9}")
    for contender, contender_runs, median in zip(case.contenders, results, medians, strict=True):
        rates = [run.rate for run in contender_runs]
        print(
            f"  {contender.name:40}{median:10,.0f}{min(rates):10,}{max(rates):10,}"
            f"{median / best_rabbitmq:7.2f}"
            f"{statistics.median(run.broker_us for run in contender_runs):10.1f}"
            f"{statistics.median(run.generator_us for run in contender_runs):9.2f}"
        )
    return {
        "case": case.name,
        "title": case.title,
        "contenders": [
            {
                "name": contender.name,
                "median": median,
                "to_best_rabbitmq": round(median / best_rabbitmq, 3),
                "runs": msgspec.to_builtins(contender_runs),
            }
            for contender, contender_runs, median in zip(
                case.contenders, results, medians, strict=True
            )
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--messages", type=int, default=100_000, help="of a run (default 100,000)")
    parser.add_argument("--only", default="", help="comma-separated names of cases")
    parser.add_argument(
        "--limit",
        type=Path,
        help="a Python program that serves PHPMQ on the port that is its argument: a third "
        "contender that shows the speed limit of the language",
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.runs < 1 or arguments.messages < 1:
        parser.error("--runs and --messages are at least 1")
    if arguments.limit and not arguments.limit.is_file():
        parser.error(f"--limit: there is no file {arguments.limit}")
    limit = arguments.limit.resolve() if arguments.limit else None
    # listing the names needs no running RabbitMQ
    names = [case.name for case in all_cases(Rabbit(0, 0), limit)]
    selected_names = arguments.only.split(",") if arguments.only else names
    if unknown := [name for name in selected_names if name not in names]:
        parser.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(names)}")
    with rabbitmq() as rabbit:
        results = [
            measure(case, runs=arguments.runs, messages=arguments.messages)
            for case in all_cases(rabbit, limit)
            if case.name in selected_names
        ]
    if arguments.json:
        document = {
            "schema": 1,
            "machine": msgspec.to_builtins(machine.describe()),
            "messages": arguments.messages,
            "cases": results,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
