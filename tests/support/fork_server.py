"""A process that has imported the broker, and from which the tests fork their brokers.

Imports take most of the start of a broker, and the tests start hundreds of them. `install` makes
`LocalBroker` fork its process, unless the test starts another program, limits the size of files, or
sets variables that Python or its libraries read when they start. Apart from its imports, a forked
broker is like any other: it has a process, a session, an environment and standard streams of its
own.

One socket connects each process of pytest to its server. A request is a JSON document with the
command, the environment and the working directory; the descriptors of the log and of a socket are
attached to it. On that socket the server sends the process id, and later the exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from sluicemq.cli.local import PROGRAM, LocalBroker
from sluicemq.cli.main import run

REQUEST_BYTES: Final = 1 << 20
NUMBER_BYTES: Final = 16
PRELOADED: Final = ("sluicemq.cli.configuration", "sluicemq.server.run")
BROKER_VARIABLES: Final = ("SLUICEMQ_", "SLUICE_", "PYTEST_")
"""Prefixes of the variables that neither Python nor its libraries read at their start."""


def serve(server: socket.socket) -> None:
    """Fork a broker for each request, until the other end is closed.

    Returns in the process of the broker too, after replacing its streams and its environment."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes in between are not waited for
    while True:
        data, descriptors, _, _ = socket.recv_fds(server, REQUEST_BYTES, 2)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            _start(json.loads(data), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _start(request: dict[str, Any], log: int, answers: int) -> None:
    """Fork a broker and return in it. The calling process waits until the broker ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        os.close(log)
        _send_number(answers, pid)
        _, status = os.waitpid(pid, 0)
        _send_number(answers, os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]


def _send_number(descriptor: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the tests have ended
        os.write(descriptor, str(number).encode().ljust(NUMBER_BYTES))


class ForkedProcess:
    """A forked broker, with those attributes of `subprocess.Popen` that `LocalBroker` uses."""

    def __init__(self, pid: int, answers: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = int(self._answers.recv(NUMBER_BYTES, socket.MSG_WAITALL))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("sluicemq serve", timeout or 0) from None
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server() -> socket.socket:
    """Start the server and return the socket for requests."""
    requests, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other_end:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(other_end.fileno())],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[other_end.fileno()],
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(requests.close)
    return requests


def _fork(arguments: list[str], environment: dict[str, str], log: int) -> ForkedProcess:
    """Start `sluicemq` with these arguments."""
    request = {"arguments": arguments, "environment": environment, "directory": os.getcwd()}
    answers, other_end = socket.socketpair()
    with other_end:
        descriptors = [log, other_end.fileno()]
        socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
    pid = answers.recv(NUMBER_BYTES, socket.MSG_WAITALL)
    assert pid, "the fork server has ended"
    return ForkedProcess(int(pid), answers)


def _without_broker_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if not k.startswith(BROKER_VARIABLES)}


_original_launch: Final = LocalBroker.launch
_original_environment: Final = _without_broker_variables(os.environ)
_original_limit: Final = resource.getrlimit(resource.RLIMIT_FSIZE)


def _launch(broker: LocalBroker) -> None:
    """Start the process without waiting until it is ready."""
    environment = {**os.environ, **broker._environment}
    if (
        broker._program is not PROGRAM
        or _without_broker_variables(environment) != _original_environment
        or resource.getrlimit(resource.RLIMIT_FSIZE) != _original_limit
    ):
        _original_launch(broker)
        return
    broker.directory.mkdir(parents=True, exist_ok=True)
    arguments = ["serve", "--data-dir", str(broker.directory)]
    for url in broker._listen:
        arguments += ["--listen", url]
    with broker.log.open("ab") as log:
        process = _fork([*arguments, *broker._options], environment, log.fileno())
    broker._process = cast(Any, process)


def install() -> None:
    """Make `LocalBroker` fork its processes."""
    if sys.platform == "linux":
        broker_class: Any = LocalBroker
        broker_class.launch = _launch


if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    serve(socket.socket(fileno=int(sys.argv.pop())))
    run()
