"""The table of failed logins: which user is refused from which address, and for how long.

Failures in a row are counted for each pair of address and user, whether or not there is such a
user. With failure number `max_login_failures` further logins of the pair are refused for
`login_backoff` seconds, and each failure after that doubles the time, up to `login_backoff_max`. A
success clears the entry; a refused attempt is not checked and does not count. Entries expire
`login_failure_window` seconds after the last failure.

The table has at most `max_login_failure_entries` entries. Which one makes room must not be the
guesser's choice:

- Users of one address are cheap to invent. When the table is full, the address with the most
  entries is therefore folded: one entry, which has the highest count and the latest end of all of
  them, replaces its entries, and from then on counts for every user of that address. Whoever fails
  with many users to get rid of an entry keeps the worst of its own entries and extends it to all of
  its users. A success does not clear a folded entry, because one account would then be enough to
  guess at all others; it expires.
- Addresses are expensive. Only when no address has more than one entry, the address that failed
  longest ago is dropped. To drop an entry of its own this way, a guesser has to fail from as many
  other addresses as the table has entries, and each failure takes the same check and the same turn
  in the queue as a guess: it pays that many checks for `max_login_failures` guesses.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluicemq.security.access import AuthSettings


@dataclass(slots=True)
class _Entry:
    """Failures in a row, the time of the last one, and until when logins are refused."""

    count: int = 0
    last: float = 0.0
    until: float = 0.0


_AddressEntries = OrderedDict[str | None, _Entry]
"""The entries of one address by user, the latest failure last; a folded address has one entry, for
all users, whose key is None."""


@dataclass(slots=True, eq=False)
class FailureTable:
    """The table of one broker, with the limits of the settings. Times are in seconds of the clock,
    which never goes back."""

    _clock: Callable[[], float]
    _settings: AuthSettings
    _addresses: OrderedDict[str, _AddressEntries] = field(default_factory=OrderedDict)
    """The address of the latest failure last."""
    size: int = 0
    """Entries of all addresses."""

    def wait(self, address: str, user: str) -> float:
        """Return the seconds for which logins of the pair are refused; 0.0 if they are not."""
        entries: Mapping[str | None, _Entry] = self._addresses.get(address, {})
        entry = entries.get(None) or entries.get(user)
        return max(0.0, entry.until - self._clock()) if entry is not None else 0.0

    def fail(self, address: str, user: str) -> float:
        """Count a failed login. Return the seconds for which the pair is refused now."""
        now = self._clock()
        settings = self._settings
        self._drop_expired(now)
        entries = self._addresses.setdefault(address, OrderedDict())
        self._addresses.move_to_end(address)
        key = None if None in entries else user
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _Entry()
            self.size += 1
        elif now - entry.last > settings.login_failure_window:
            entry.count = 0
        entries.move_to_end(key)
        entry.count += 1
        entry.last = now
        excess = entry.count - settings.max_login_failures
        # 2.0 ** 1024 would raise OverflowError
        wait = settings.login_backoff * 2.0 ** min(excess, 60) if excess >= 0 else 0.0
        wait = min(wait, settings.login_backoff_max)
        entry.until = now + wait
        while self.size > settings.max_login_failure_entries:
            self._evict()
        return wait

    def clear(self, address: str, user: str) -> None:
        """Forget the failures of the pair after a success, unless its address is folded."""
        entries = self._addresses.get(address)
        if entries is not None and entries.pop(user, None) is not None:
            self.size -= 1
            if not entries:
                del self._addresses[address]

    def _drop_expired(self, now: float) -> None:
        while self._addresses:
            address, entries = next(iter(self._addresses.items()))
            newest_entry = next(reversed(entries.values()))
            if now - newest_entry.last <= self._settings.login_failure_window:
                break
            self.size -= len(entries)
            del self._addresses[address]

    def _evict(self) -> None:
        """Fold the address with the most entries; drop the oldest one if all have one entry."""
        entries = max(self._addresses.values(), key=len)
        if len(entries) == 1:
            self._addresses.popitem(last=False)
            self.size -= 1
            return
        self.size -= len(entries) - 1
        summary = _Entry(
            max(entry.count for entry in entries.values()),
            max(entry.last for entry in entries.values()),
            max(entry.until for entry in entries.values()),
        )
        entries.clear()
        entries[None] = summary


def address_of(peer: str) -> str:
    """Return the address that stands for the client at `Transport.peer`; "" for a Unix socket.

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
