"""RabbitMQ and SluiceMQ, alternately, in one run: medians and ratios. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import amqp

from sluicemq.cli.bench import msglite, phpmq
from sluicemq.cli.local import LocalBroker

START_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def rabbitmq() -> Iterator[int]:
    """A RabbitMQ of our own; gives its port."""
    if shutil.which("rabbitmq-server") is None:
        if os.geteuid() != 0:
            sys.exit("rabbitmq-server is missing. Install it: sudo apt install rabbitmq-server")
        subprocess.run(["apt-get", "install", "-y", "-q", "rabbitmq-server"], check=True)
    port, distribution = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="compare-", ignore_cleanup_errors=True) as directory:
        if os.geteuid() == 0:
            user = pwd.getpwnam("rabbitmq")
            os.chown(directory, user.pw_uid, user.pw_gid)
        environment = {
            **os.environ,
            "RABBITMQ_NODENAME": f"compare{port}@localhost",
            "RABBITMQ_MNESIA_BASE": directory,
            "RABBITMQ_LOG_BASE": directory,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
        }
        server = subprocess.Popen(
            ["rabbitmq-server"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_for(port)
            yield port
        finally:
            subprocess.run(
                ["rabbitmqctl", "-n", environment["RABBITMQ_NODENAME"], "stop"],
                capture_output=True,
                timeout=60,
                check=False,
            )
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            amqp.Connection(port).socket.close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    sys.exit(f"RabbitMQ did not start within {START_SECONDS:g} s")


@contextmanager
def sluicemq(listen: str) -> Iterator[int]:
    with (
        tempfile.TemporaryDirectory(prefix="compare-") as directory,
        LocalBroker(Path(directory), [listen], ["--log-level", "warning"]) as broker,
    ):
        yield broker.port(listen.partition("://")[0])


def by_phpmq(messages: int, size: int) -> float:
    with sluicemq("phpmq://127.0.0.1:0") as port:
        load = phpmq.Bench(
            "127.0.0.1", port, messages=messages, size=size, window=1000, outstanding=4000
        )
        result = load.flood()
        load.close()
        return result.rate


def by_msglite(messages: int, size: int) -> float:
    with sluicemq("msglite://127.0.0.1:0") as port:
        return msglite.flood(
            "127.0.0.1", port, messages=messages, size=size, receivers=16, outstanding=4000
        ).rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write the results here too")
    arguments = parser.parse_args()
    messages = arguments.messages
    results = []
    with rabbitmq() as port:
        for title, size, persistent, ours in (
            ("persistent, 1 KB, PHPMQ", 1024, True, by_phpmq),
            ("persistent, 100 B, PHPMQ", 100, True, by_phpmq),
            ("transient, 100 B, msglite, 16 receivers", 100, False, by_msglite),
        ):
            theirs, mine = [], []
            for _ in range(arguments.runs):
                theirs.append(amqp.flood(port, messages=messages, size=size, persistent=persistent))
                mine.append(ours(messages, size))
            a, b = statistics.median(theirs), statistics.median(mine)
            print(f"{title:42} RabbitMQ {a:9,.0f}/s  SluiceMQ {b:9,.0f}/s  ratio {b / a:.2f}")
            results.append({"scenario": title, "rabbitmq": theirs, "sluicemq": mine})
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
