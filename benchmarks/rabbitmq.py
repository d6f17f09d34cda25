"""Temporary RabbitMQ node: its data in a temporary directory, all its ports unused ones, so that it
runs beside another node."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import amqp

START_SECONDS = 60.0


class Rabbit(NamedTuple):
    """A running node."""

    port: int
    pid: int


def free_ports(number: int) -> list[int]:
    """Return distinct unused loopback ports."""
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def rabbitmq() -> Iterator[Rabbit]:
    """Start a node and stop it on exit. Installs Debian's package if necessary and permitted."""
    if shutil.which("rabbitmq-server") is None:
        if os.geteuid() != 0:
            sys.exit("rabbitmq-server is missing. Install it: sudo apt install rabbitmq-server")
        subprocess.run(["apt-get", "install", "-y", "-q", "rabbitmq-server"], check=True)
    port, distribution = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="compare-", ignore_cleanup_errors=True) as directory:
        if os.geteuid() == 0:
            user = pwd.getpwnam("rabbitmq")
            os.chown(directory, user.pw_uid, user.pw_gid)
        pid_file = Path(directory) / "pid"
        environment = {
            **os.environ,
            "RABBITMQ_NODENAME": f"compare{port}@localhost",
            "RABBITMQ_MNESIA_BASE": directory,
            "RABBITMQ_LOG_BASE": directory,
            "RABBITMQ_PID_FILE": str(pid_file),
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
            yield Rabbit(port, int(pid_file.read_text()))
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
