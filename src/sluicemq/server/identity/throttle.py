"""Who has failed to log in too often, and how long they have to wait.

Failures are counted by name: of an address, of a user. The first few are free; each further one
doubles the wait, up to a limit, and attempts before its end are refused unseen. Failures are
forgotten when there has been none for a while. A success takes nothing back, because otherwise
whoever has one account could guess at others for ever in between.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_NAMES: Final = 10_000
"""Names with failures that are remembered; beyond it the one that failed the longest ago goes."""


class Throttle:
    """See the module. Times are in seconds of `clock`, which never goes back."""

    __slots__ = ("_clock", "_delay", "_delay_max", "_failures", "_free", "_memory")

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        free: int,
        delay: float,
        delay_max: float,
        memory: float,
    ) -> None:
        """`free` failures cost nothing, the next `delay` seconds, then twice as much each time up
        to `delay_max`; after `memory` seconds without one they are forgotten."""
        self._clock = clock
        self._free = free
        self._delay = delay
        self._delay_max = delay_max
        self._memory = memory
        self._failures: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """Name: failures, time of the last, end of the wait; the last that failed at the end."""

    def wait(self, name: str) -> float:
        """Seconds until another attempt is looked at; 0 = now."""
        entry = self._failures.get(name)
        return max(0.0, entry[2] - self._clock()) if entry is not None else 0.0

    def fail(self, name: str) -> float:
        """An attempt has failed. Returns the seconds to wait."""
        now = self._clock()
        failures, last, _ = self._failures.pop(name, (0, now, 0.0))
        if now - last > self._memory:
            failures = 0
        failures += 1
        over = failures - self._free
        # 2.0 ** 1024 would be an error
        wait = min(self._delay * 2.0 ** min(over - 1, 60), self._delay_max) if over > 0 else 0.0
        self._failures[name] = (failures, now, now + wait)
        if len(self._failures) > MOST_NAMES:
            self._failures.popitem(last=False)
        return wait


def address_of(peer: str) -> str:
    """Whom to blame at the other end of a connection, of `Link.peer`; "" for a Unix socket.

    An IPv6 address stands for its /64, of which one client has as many addresses as it likes.
    """
    host, colon, _ = peer.rpartition(":")
    if not colon:
        return ""
    if ":" in host:
        try:
            address = ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            return host
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return host
