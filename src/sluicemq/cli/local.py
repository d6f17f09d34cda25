"""Temporary local broker: a process on loopback, on ports that the system chooses, in a given
directory. Used by the demonstration, the benchmark and the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec.structs import asdict

from sluicemq.cli.api import Api
from sluicemq.clients.http import HttpTarget
from sluicemq.management.broker import GET_OVERVIEW, GET_READINESS, GET_STATUS, OverviewQuery
from sluicemq.management.destinations import LIST_DESTINATIONS, DestinationQuery
from sluicemq.management.operation import NoParameters
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.model.url import Url

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
END_SECONDS: Final = 300.0
"""Timeout for a process that ends by itself."""
STATUS_SECONDS: Final = 30.0
LOG_TAIL_BYTES: Final = 4000
"""Number of bytes of the log in the error raised when a broker does not start."""
PROGRAM: Final = ("-m", "sluicemq.cli")
LISTEN: Final = ("msglite://127.0.0.1:0", "phpmq://127.0.0.1:0", "phpmq-maintenance://127.0.0.1:0")


class LocalBroker:
    """Local broker process. Starts on `start` (or `with`) and stops on `stop`; `kill` sends
    SIGKILL, and `start` continues with the same directory."""

    def __init__(
        self,
        directory: Path,
        listen: Sequence[str] = LISTEN,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Set up the broker. `listen` are URLs, usually with port 0; `options` are further options
        of `serve`; `program` are the Python arguments that run `sluicemq`."""
        self.directory = directory
        self._listen = listen
        self._options = options
        self._environment = environment or {}
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        """Port of the first listener with each scheme."""
        self.start_seconds = 0.0
        """Seconds from the start of the process until it was ready."""

    @property
    def log(self) -> Path:
        """Standard error of the broker, appended by all of its starts."""
        return self.directory / "broker.log"

    @property
    def pid(self) -> int:
        """Return the process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *self._program, "serve", "--data-dir", str(self.directory)]
        for url in self._listen:
            command += ["--listen", url]
        command += self._options
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    def start(self) -> Self:
        """Start the process and wait until it is ready. Raises ConnectionLost with the end of its
        log. An error or Ctrl-C leaves no process behind."""
        before = time.monotonic()
        self.launch()
        try:
            self._wait_until_ready(before + START_SECONDS)
            self.start_seconds = time.monotonic() - before
            with self._api() as api:
                listeners = api.call(GET_OVERVIEW, OverviewQuery(fresh=True)).listeners
        except BaseException:
            assert self._process is not None
            if self._process.poll() is None:  # `wait` returns the exit code of one that has ended
                self.kill()
            raise
        urls = [Url.parse(listener.url) for listener in reversed(listeners)]
        self._ports = {
            f"{url.protocol}+tls" if url.tls else url.protocol: url.port
            for url in urls
            if not url.path
        }
        return self

    def _wait_until_ready(self, until: float) -> None:
        assert self._process is not None
        while not self._is_serving():
            if self._process.poll() is not None:
                raise ConnectionLost(
                    f"the broker ended with exit code {self._process.returncode}:\n"
                    f"{self._log_tail()}"
                )
            if time.monotonic() > until:
                raise ConnectionLost(f"the broker did not start within {START_SECONDS:g} s")
            time.sleep(0.01)

    def port(self, scheme: str) -> int:
        """Return the port of the first listener with that scheme (phpmq, phpmq+tls, ...)."""
        return self._ports[scheme]

    def status(self) -> dict[str, Any]:
        """Return the broker's `/overview`, with its `destinations` and its `pid`. Raises
        ConnectionLost if the broker does not respond."""
        with self._api() as api:
            document: dict[str, Any] = msgspec.to_builtins(
                {
                    **asdict(api.call(GET_OVERVIEW, OverviewQuery(fresh=True))),
                    "pid": api.call(GET_STATUS, NoParameters()).pid,
                    "destinations": list(api.items(LIST_DESTINATIONS, DestinationQuery())),
                }
            )
            return document

    def _is_serving(self) -> bool:
        """Return whether this process, not a predecessor that left its socket behind, responds and
        has finished its start."""
        try:
            with self._api() as api:
                ready = api.call(GET_READINESS, NoParameters()).state == "serving"
                return ready and api.call(GET_STATUS, NoParameters()).pid == self.pid
        except (ClientError, OSError):
            return False

    def _api(self) -> Api:
        target = HttpTarget(path=str(self.directory / "admin.sock"))
        return Api(target, timeout=STATUS_SECONDS)

    def _log_tail(self) -> str:
        """Return the end of the log, which may be long, or a device without an end."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            return log.read(LOG_TAIL_BYTES).decode(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL: the process cannot write anything more."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM and wait. Returns the exit code."""
        return self._signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for the process to end by itself. Returns the exit code."""
        process, self._process = self._process, None
        assert process is not None
        return process.wait(END_SECONDS)

    def _signal(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ConnectionLost(f"the broker did not stop within {STOP_SECONDS:g} s") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
