"""Notifications to the service manager of systemd (`sd_notify`)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.server.run import Notifier


@pytest.fixture
def notify_socket(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def receive_notification(notify_socket: socket.socket) -> dict[str, str]:
    lines = notify_socket.recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def is_silent(notify_socket: socket.socket) -> bool:
    notify_socket.setblocking(False)
    try:
        notify_socket.recv(4096)
    except BlockingIOError:
        return True
    finally:
        notify_socket.settimeout(60)
    return False


def test_notifies_ready_watchdog_and_stopping(tmp_path: Path, notify_socket: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": notify_socket.getsockname(), "WATCHDOG_USEC": "2000000"}
    broker = LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0"], environment=environment)
    broker.launch()
    try:
        ready = receive_notification(notify_socket)
        assert ready["READY"] == "1"
        assert "serving" in ready["STATUS"]
        assert receive_notification(notify_socket) == {"WATCHDOG": "1"}
        assert receive_notification(notify_socket) == {"WATCHDOG": "1"}
    finally:
        assert broker.stop() == 0
    while "STOPPING" not in (last := receive_notification(notify_socket)):
        assert last == {"WATCHDOG": "1"}


def test_nothing_is_sent_without_a_manager() -> None:
    notifier = Notifier({})
    notifier.ready("serving")
    notifier.alive()


def test_missing_notify_socket_is_ignored(tmp_path: Path, notify_socket: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": notify_socket.getsockname(), "WATCHDOG_USEC": "1"})
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
    notify_socket: socket.socket, variables: dict[str, str], notified: bool
) -> None:
    environment = {"NOTIFY_SOCKET": notify_socket.getsockname(), "PATH": "/bin", **variables}
    Notifier(environment).alive()
    assert is_silent(notify_socket) != notified
    assert environment == {"PATH": "/bin"}


def test_abstract_socket_address() -> None:
    name = f"sluicemq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(60)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready("here")
        assert receive_notification(listening) == {"READY": "1", "STATUS": "here"}
