"""The Java client of Open MQ under load, compared with the speed of the disk and with RabbitMQ.

python -m benchmarks.jms --runs 3 --json benchmarks/results/jms.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from benchmarks.load import machine
from benchmarks.load.meter import Meter
from benchmarks.rabbitmq import rabbitmq

from sluicemq.cli.local import LocalBroker

HERE = Path(__file__).parent
PROJECT = HERE.parent / "tests" / "interop" / "jms"
"""Maven project that selects the client."""
RABBIT_CLIENT = ("com.rabbitmq:amqp-client:5.22.0", "org.slf4j:slf4j-api:1.7.36")
SIZE = 1024
WARMUP = 5000
STARTED = "jmq://127.0.0.1:0"


class Case(NamedTuple):
    """A case. `measure` is the compared field of the load program's output."""

    name: str
    title: str
    measure: str
    messages: int
    arguments: tuple[str, ...]
    pairs: int
    """Number of senders, and of receivers."""


CASES = (
    Case("turns", "persistent, one outstanding, AUTO", "rate", 20_000, (), 1),
    Case("pairs", "persistent, 16 senders, 16 receivers, AUTO", "rate", 40_000, (), 16),
    Case(
        "dups",
        "non-persistent, DUPS_OK",
        "receive_rate",
        90_000,
        ("mode=non-persistent", "acknowledge=dups"),
        1,
    ),
)


def compile_load_program(directory: Path) -> list[str]:
    """Return the command that runs the load program."""
    command = ["mvn", "-q", "-B", "-f", str(PROJECT), "package", f"-Dout={directory}"]
    subprocess.run([*command, f"-Dsources={HERE / 'jms' / 'src'}"], check=True)
    client = directory / "jakarta"
    path = os.pathsep.join([str(client / "classes"), str(client / "lib" / "*")])
    return ["java", "-Xmx1g", "-cp", path, "load.Load"]


def run_load_program(java: list[str], address: str, case: Case, pid: int | None) -> dict[str, Any]:
    """Run the load program once; `broker_us` is processor time of `pid` per message, and
    `client_us` that of the load program, Java's own start included."""
    arguments = [
        f"messages={case.messages}",
        f"warmup={WARMUP}",
        f"size={SIZE}",
        f"senders={case.pairs}",
        f"receivers={case.pairs}",
        f"queue={case.name}",
        *case.arguments,
    ]
    meter = Meter(pid)
    before = os.times()
    process = subprocess.run([*java, address, *arguments], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(process.stdout)
    # the warm-up counts as work
    messages = case.messages + WARMUP
    after = os.times()
    cpu_seconds = after.children_user + after.children_system
    cpu_seconds -= before.children_user + before.children_system
    result["client_us"] = round(cpu_seconds / messages * 1e6)
    result["broker_us"] = meter.read(messages).broker_us
    return result


def disk_rate(messages: int, directory: Path) -> float:
    """Return the number of SIZE-byte writes per second, one after another, each followed by
    fdatasync, into a preallocated file."""
    path = directory / "disk"
    path.write_bytes(bytes(SIZE * messages))
    with path.open("r+b", buffering=0) as file:
        os.fsync(file.fileno())
        started = time.perf_counter()
        for _ in range(messages):
            file.write(bytes(SIZE))
            os.fdatasync(file.fileno())
        return messages / (time.perf_counter() - started)


def rabbit_client(directory: Path) -> list[str]:
    """Return the command that runs the same load with RabbitMQ's Java client."""
    for artifact in RABBIT_CLIENT:
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        subprocess.run([*command, f"-DoutputDirectory={directory}"], check=True)
    source = HERE / "jms" / "rabbitmq" / "load" / "Rabbit.java"
    path = os.pathsep.join([str(directory), str(directory / "*")])
    subprocess.run(["javac", "-cp", path, "-d", str(directory), str(source)], check=True)
    return ["java", "-Xmx1g", "-cp", path, "load.Rabbit"]


def rabbit_pairs(java: list[str], case: Case) -> int:
    """Measure RabbitMQ: the same number of producers with one unconfirmed message each, and of
    consumers."""
    with rabbitmq() as rabbit:
        numbers = (rabbit.port, case.pairs, case.messages, WARMUP, SIZE)
        process = subprocess.run([*java, *map(str, numbers)], stdout=subprocess.PIPE, check=True)
    return int(process.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="cases, separated by commas")
    parser.add_argument("--url", default="", help="HOST:PORT of a broker that runs already")
    parser.add_argument("--rabbitmq", action="store_true", help="measure RabbitMQ, too")
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    options = parser.parse_args()
    cases = [case for case in CASES if case.name in (options.only or case.name).split(",")]
    results = []
    with tempfile.TemporaryDirectory(prefix="jms-") as temporary:
        directory = Path(temporary)
        java = compile_load_program(directory / "compiled")
        rabbit = rabbit_client(directory / "rabbitmq") if options.rabbitmq else []
        for case in cases:
            values, costs, clients, disk_rates, rabbit_rates = [], [], [], [], []
            for number in range(options.runs):
                if options.url:
                    result = run_load_program(java, options.url, case, None)
                else:
                    with LocalBroker(directory / f"{case.name}{number}", [STARTED]) as broker:
                        address = f"127.0.0.1:{broker.port('jmq')}"
                        result = run_load_program(java, address, case, broker.pid)
                disk_rates.append(disk_rate(5000, directory))
                if options.rabbitmq and case.name == "pairs":
                    rabbit_rates.append(rabbit_pairs(rabbit, case))
                    result["rabbitmq"] = rabbit_rates[-1]
                values.append(result[case.measure])
                costs.append(result["broker_us"])
                clients.append(result["client_us"])
                results.append({"case": case.name, "disk": round(disk_rates[-1]), **result})
            median = statistics.median(values)
            line = f"{case.title}: {median:,.0f}/s ({min(values):,} to {max(values):,})"
            line += f", broker {statistics.median(costs):.0f} µs a message"
            line += f", client {statistics.median(clients):.0f} µs"
            line += f", disk {statistics.median(disk_rates):,.0f} synced writes/s"
            line += f": {median / statistics.median(disk_rates):.2f} of it"
            if rabbit_rates:
                rate = statistics.median(rabbit_rates)
                line += f", RabbitMQ {rate:,.0f}/s: {median / rate:.2f} of it"
            print(line, flush=True)
    if options.json:
        document = {
            "machine": msgspec.to_builtins(machine.describe()),
            "command": sys.argv,
            "results": results,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
