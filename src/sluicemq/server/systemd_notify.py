"""Telling the service manager how the process is, as systemd's sd_notify(3) does.

A datagram of `NAME=value` lines to the socket in NOTIFY_SOCKET. Without that variable, which only a
service of Type=notify has, nothing is told. With WATCHDOG_USEC the manager expects to hear from the
process that often, and takes one that is silent for hung: it is told twice as often by what keeps
the event loop's house, so that silence means that the loop stands still.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Self


class Notifier:
    """Says how the process is. What cannot be told is nobody's loss: errors are ignored."""

    def __init__(
        self,
        address: str = "",
        watchdog: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address`: path of a socket, or "@" and an abstract name; "" = nobody is told. `watchdog`
        in seconds, 0 = none."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._every = watchdog / 2
        self._clock = clock
        self._next = 0.0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """As the manager has said. Takes its variables away: they are not for child processes."""
        address = environment.pop("NOTIFY_SOCKET", "")
        usec = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        meant = not pid or pid == str(os.getpid())
        watchdog = int(usec) / 1e6 if usec.isdecimal() and meant else 0.0
        return cls(address, watchdog)

    def ready(self, status: str) -> None:
        """The start is over. `status` is a sentence for people, here and below."""
        self._tell("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._tell("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """What it is doing."""
        self._tell(f"STATUS={status}")

    def alive(self) -> None:
        """The event loop turns. To be called about every second; tells only as often as needed."""
        if self._every and self._clock() >= self._next:
            self._next = self._clock() + self._every
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to,
        ):
            to.setblocking(False)
            to.sendto("\n".join(lines).encode(), self._address)
