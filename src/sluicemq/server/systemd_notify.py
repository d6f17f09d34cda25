"""Notifications of the process state for systemd, as sd_notify(3) sends them.

A notification is a datagram of `NAME=value` lines to the socket in NOTIFY_SOCKET. Without that
variable, which only a service of Type=notify has, nothing is sent. If WATCHDOG_USEC is set, systemd
regards the process as hung when no notification arrives for that time. The event loop sends one
twice per interval, so missing notifications mean that the loop is blocked.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Self


class Notifier:
    """Sender of notifications to the service manager. Errors of the socket are ignored."""

    def __init__(
        self,
        address: str = "",
        watchdog: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send to `address`: a socket's path, or "@" and an abstract name; "" sends nothing.

        `watchdog` is the interval of systemd's watchdog in seconds, 0 = no watchdog.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._every = watchdog / 2
        self._clock = clock
        self._next = 0.0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Return a notifier for the variables that systemd has set.

        Removes the variables, because child processes must not use them.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        usec = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        is_addressee = not pid or pid == str(os.getpid())
        watchdog = int(usec) / 1e6 if usec.isdecimal() and is_addressee else 0.0
        return cls(address, watchdog)

    def ready(self, status: str) -> None:
        """Report that the broker has started. `status` is a sentence for the administrator."""
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """Report that the broker is shutting down."""
        self._send("STOPPING=1", f"STATUS={status}")

    def alive(self) -> None:
        """Notify the watchdog if half its interval has passed. Call this about every second."""
        if self._every and self._clock() >= self._next:
            self._next = self._clock() + self._every
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to,
        ):
            to.setblocking(False)
            to.sendto("\n".join(lines).encode(), self._address)
