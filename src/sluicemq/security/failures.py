"""Table of failed logins: the users whose logins from an address are rejected for some time.

The table counts consecutive failures of each pair of address and user, also for unknown users.
After `max_login_failures` of them, further logins of the pair are rejected for `login_backoff`
seconds. Each further failure doubles the time, up to `login_backoff_max`. A successful login
removes the entry. Rejected logins are neither checked nor counted. An entry expires
`login_failure_window` seconds after its last failure.

The table has at most `max_login_failure_entries` entries. An attacker must not be able to choose
the entry that is evicted:

- An attacker can invent any number of users. If the table is full, the entries of the address with
  the most entries are therefore merged: one entry with the highest count and the latest end
  replaces them, and counts for all users of the address. An attacker who fails with many users to
  get rid of an entry is then blocked for all of them. A successful login does not remove a merged
  entry, because one known password would then allow guesses at all other users; it expires.
- Addresses are expensive. Only if no address has more than one entry, the entry of the address that
  failed longest ago is removed. To remove an own entry this way, an attacker has to fail from as
  many other addresses as the table has entries, and each failure takes as long as a guess.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluicemq.security.access import AuthSettings


@dataclass(slots=True)
class _Entry:
    """Consecutive failures, time of the last one, and time until which logins are rejected."""

    count: int = 0
    last: float = 0.0
    until: float = 0.0


_AddressEntries = OrderedDict[str | None, _Entry]
"""Entries of one address by user, the latest failure last. A merged entry, which is for all users,
has the key None."""


@dataclass(slots=True, eq=False)
class FailureTable:
    """Table of one broker. Times are in seconds of the clock, which never goes back."""

    _clock: Callable[[], float]
    _settings: AuthSettings
    _addresses: OrderedDict[str, _AddressEntries] = field(default_factory=OrderedDict)
    """Entries by address, the address of the latest failure last."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(map(len, self._addresses.values()))

    def wait(self, address: str, user: str) -> float:
        """Return the seconds for which logins of the pair are rejected; 0.0 if they are not."""
        entries: Mapping[str | None, _Entry] = self._addresses.get(address, {})
        entry = entries.get(None) or entries.get(user)
        return max(0.0, entry.until - self._clock()) if entry is not None else 0.0

    def fail(self, address: str, user: str) -> float:
        """Count a failed login. Return the seconds for which the pair is rejected now."""
        now = self._clock()
        settings = self._settings
        self._drop_expired(now)
        entries = self._addresses.setdefault(address, OrderedDict())
        self._addresses.move_to_end(address)
        key = None if None in entries else user
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _Entry()
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
        """Remove the entry of the pair after a successful login, unless it is a merged one."""
        entries = self._addresses.get(address)
        if entries is not None:
            entries.pop(user, None)
            if not entries:
                del self._addresses[address]

    def _drop_expired(self, now: float) -> None:
        while self._addresses:
            address, entries = next(iter(self._addresses.items()))
            newest_entry = next(reversed(entries.values()))
            if now - newest_entry.last <= self._settings.login_failure_window:
                break
            del self._addresses[address]

    def _evict(self) -> None:
        """Merge the entries of the address with the most; remove the oldest if all have one."""
        entries = max(self._addresses.values(), key=len)
        if len(entries) == 1:
            self._addresses.popitem(last=False)
            return
        merged_entry = _Entry(
            max(entry.count for entry in entries.values()),
            max(entry.last for entry in entries.values()),
            max(entry.until for entry in entries.values()),
        )
        entries.clear()
        entries[None] = merged_entry


def address_of(peer: str) -> str:
    """Return the address by which logins of the client at `Transport.peer` are counted; "" for a
    Unix socket, whose peer has no colon.

    For an IPv6 address, it is the /64 network, because a client can use any address in it.
    """
    host = peer.rpartition(":")[0]
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))
