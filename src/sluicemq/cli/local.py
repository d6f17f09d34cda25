"""A broker of one's own for a while: a process on loopback, on ports the system chooses, in a
directory that is given. For the demonstration, the benchmark and the tests."""

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

from sluicemq.cli.api import Api
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.pipeline.http_client import HttpTarget

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
END_SECONDS: Final = 300.0
"""For a process that ends by itself, when it has come so far."""
STATUS_SECONDS: Final = 30.0
SAID_BYTES: Final = 4000
"""Of the log, in the error that says why a broker did not start."""
PROGRAM: Final = ("-m", "sluicemq.cli")
LISTEN: Final = ("msglite://127.0.0.1:0", "phpmq://127.0.0.1:0", "phpmq-maintenance://127.0.0.1:0")


class LocalBroker:
    """Starts on `start` (or `with`), stops on `stop`; `kill` is SIGKILL, and `start` again
    continues with the same directory."""

    def __init__(
        self,
        directory: Path,
        listen: Sequence[str] = LISTEN,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """`listen` are URLs, best with port 0; `options` are further options of `serve`; `program`
        is what Python runs, which takes the arguments of `sluicemq`."""
        self.directory = directory
        self._listen = listen
        self._options = options
        self._environment = environment or {}
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self.started_in = 0.0
        """Seconds from the start of the process until it served."""

    @property
    def log(self) -> Path:
        """What the broker says on standard error, all starts together."""
        return self.directory / "broker.log"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start, and do not wait for anything."""
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
        """Start and wait until it serves. Raises ConnectionLost with what it said otherwise."""
        before = time.monotonic()
        self.launch()
        assert self._process is not None
        while not self._serves():
            if self._process.poll() is not None:
                raise ConnectionLost(
                    f"the broker ended with exit code {self._process.returncode}:\n{self._said()}"
                )
            if time.monotonic() - before > START_SECONDS:
                self.kill()
                raise ConnectionLost(f"the broker did not start within {START_SECONDS:g} s")
            time.sleep(0.01)
        self.started_in = time.monotonic() - before
        self._ports = {}
        with Api(self._target(), STATUS_SECONDS) as api:
            listeners = api.get("/overview", fresh=True)["listeners"]
        for listener in listeners:
            scheme, _, rest = listener["url"].partition("://")
            if "+unix" not in scheme:
                port = int(rest.partition("?")[0].rpartition(":")[2])
                self._ports.setdefault(scheme, port)
        return self

    def port(self, scheme: str) -> int:
        """The port of the first listener with that scheme (phpmq, phpmq+tls, ...)."""
        return self._ports[scheme]

    def status(self) -> dict[str, Any]:
        """The broker's own account of itself, as `/overview` has it, with its `destinations` and
        its `pid`. Raises ConnectionLost if it does not answer."""
        with Api(self._target(), STATUS_SECONDS) as api:
            pid = api.get("/status")["pid"]
            overview = api.get("/overview", fresh=True)
            destinations = list(api.items("/destinations"))
        return {**overview, "pid": pid, "destinations": destinations}

    def _serves(self) -> bool:
        """Whether it is this process, and no other that has left its socket behind, that answers
        and is through with its start."""
        try:
            with Api(self._target(), STATUS_SECONDS) as api:
                ready = api.get("/health/ready")["state"] == "serving"
                return ready and bool(api.get("/status")["pid"] == self.pid)
        except (ClientError, OSError):
            return False

    def _target(self) -> HttpTarget:
        return HttpTarget("localhost", 0, path=str(self.directory / "admin.sock"))

    def _said(self) -> str:
        """The end of the log."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - SAID_BYTES))
            return log.read(SAID_BYTES).decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to write anything."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait. Returns the exit code."""
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
