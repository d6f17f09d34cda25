"""Notifications that the service manager gets, on a socket like its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.server.run import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def heard(manager: socket.socket) -> dict[str, str]:
    lines = manager.recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def silent(manager: socket.socket) -> bool:
    manager.setblocking(False)
    try:
        manager.recv(4096)
    except BlockingIOError:
        return True
    finally:
        manager.settimeout(60)
    return False


def test_a_broker_says_when_it_serves_lives_and_stops(
    tmp_path: Path, manager: socket.socket
) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "2000000"}
    broker = LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0"], environment=environment)
    broker.launch()
    try:
        ready = heard(manager)
        assert ready["READY"] == "1"
        assert "serving" in ready["STATUS"]
        assert heard(manager) == {"WATCHDOG": "1"}
        assert heard(manager) == {"WATCHDOG": "1"}
    finally:
        assert broker.stop() == 0
    while "STOPPING" not in (last := heard(manager)):
        assert last == {"WATCHDOG": "1"}


def test_nothing_is_sent_without_a_manager() -> None:
    notifier = Notifier.from_environment({})
    notifier.ready("serving")
    notifier.alive()


def test_a_manager_that_has_gone_is_no_error(tmp_path: Path, manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname(), watchdog=True)
    (tmp_path / "notify").unlink()
    notifier.ready("serving")
    notifier.alive()
    notifier.stopping("stopping")


@pytest.mark.parametrize(
    ("variables", "notified"),
    [
        ({}, False),
        ({"WATCHDOG_USEC": "1000000"}, True),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
    ],
)
def test_watchdog_detection(
    manager: socket.socket, variables: dict[str, str], notified: bool
) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "PATH": "/bin", **variables}
    Notifier.from_environment(environment).alive()
    assert silent(manager) != notified
    assert environment == {"PATH": "/bin"}


def test_an_abstract_name() -> None:
    name = f"sluicemq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(60)
        Notifier("@" + name).ready("here")
        assert heard(listening) == {"READY": "1", "STATUS": "here"}
