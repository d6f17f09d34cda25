"""Audit log of logins, refusals and changes; it never contains a secret.

Each event is one line of the logger `sluicemq.audit`, regardless of `logging.level`. The last lines
are kept in memory for the HTTP API.

Clients can cause failed and refused logins, denied operations and refused changes without any
permission. So that they cannot fill the disk, an address causes MAX_PER_MINUTE lines of such an
event per minute at most. The first entry after that minute is preceded by a line with the number of
omitted ones.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import structlog

from sluicemq.management.broker import AuditEntry
from sluicemq.model.access import is_user_name
from sluicemq.security.failures import address_of
from sluicemq.security.records import Database

LOGGER: Final = "sluicemq.audit"
ANONYMOUS_USER: Final = "(anonymous)"
"""Name of users without a login; not a valid user name."""
_MAX_NAME: Final = 300
"""Maximum number of characters of a name given by a client."""
_COMMON_EVENTS: Final = ("login", "login failed", "login refused", "denied", "change")
"""Events whose counters exist from the start, so that a monitor sees the first increment."""
_MAX_LINES: Final = 1000
"""Lines in memory."""
MAX_PER_MINUTE: Final = 100
"""Lines per minute of one limited event from one address."""
MAX_SOURCES: Final = 1000
"""Pairs of a limited event and an address that are counted separately."""


class Audit:
    """Audit log; it writes nothing if it is not `enabled`. `counts` has the number of events by
    kind, written or not. `clock` returns seconds and never goes back."""

    def __init__(self, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[str, int] = dict.fromkeys(_COMMON_EVENTS, 0)
        self._clock = clock
        self._minute_end = 0.0
        self._sources: Counter[tuple[str, str]] = Counter()
        """Limited events of this minute, by event and address."""
        self._entries: deque[AuditEntry] = deque(maxlen=_MAX_LINES)
        self._log: Any = None
        if enabled:
            logger_class = structlog.make_filtering_bound_logger(logging.DEBUG)
            self._log = structlog.wrap_logger(None, wrapper_class=logger_class).bind(logger=LOGGER)

    def log_login(self, peer: str, user: str, method: str) -> None:
        """Log a login of a user that exists; `method` is password, digest or token."""
        self._write("login", peer=peer, user=user, method=method)

    def log_failed_login(self, peer: str, user: str, method: str, wait: float) -> None:
        """Log wrong credentials; further attempts are refused for `wait` seconds from now on."""
        self._write_limited(
            "login failed",
            peer,
            user=audited_user(user),
            method=method,
            retry_after=round(wait, 1),
        )

    def log_refused_login(self, peer: str, user: str, reason: str) -> None:
        """Log a login that was not checked.

        `reason` is "too many failures" (of the user from that address), "too many waiting" or
        "connection closed" (before the check).
        """
        self._write_limited("login refused", peer, user=audited_user(user), reason=reason)

    def log_denied(self, peer: str, user: str, operation: str) -> None:
        """Log an operation that was denied to a user."""
        self._write_limited(
            "denied", peer, user=user or ANONYMOUS_USER, operation=_printable(operation)
        )

    def log_change(self, peer: str, user: str, action: str, operation: str, result: str) -> None:
        """Log a requested change: the id of the operation, and what was requested; `result` is
        `done` or the reason for the refusal."""
        write = self._write if result == "done" else self._write_limited
        write(
            "change",
            peer=peer,
            user=user or ANONYMOUS_USER,
            operation=_printable(operation),
            action=action,
            result=result,
        )

    def recent(self) -> list[AuditEntry]:
        """Return the last entries, latest first."""
        self._report_omitted()
        return list(reversed(self._entries))

    def log_differences(self, before: Database, after: Database) -> None:
        """Log the differences of two user databases; the author is in `after`."""
        author = _printable(after.changed_by)
        for kind, old, new in (
            ("user", before.users, after.users),
            ("role", before.roles, after.roles),
        ):
            for name in sorted({*old, *new}):
                if name not in new:
                    self._write(f"{kind} removed", **{kind: name, "changed_by": author})
                elif name not in old:
                    self._write(f"{kind} added", **{kind: name, "changed_by": author})
                elif new[name] != old[name]:
                    self._write(
                        f"{kind} changed",
                        **{kind: name, "changed": _difference(old[name], new[name])},
                        changed_by=author,
                    )

    def _write(self, event: str, **fields: Any) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1
        self._report_omitted()
        self._append(event, **fields)

    def _write_limited(self, event: str, peer: str, **fields: Any) -> None:
        """Write an event, unless MAX_PER_MINUTE of its kind and address have been written."""
        self._report_omitted()
        source = event, address_of(peer) or peer
        if source not in self._sources and len(self._sources) >= MAX_SOURCES:
            source = event, "other addresses"
        self._sources[source] += 1
        if self._sources[source] <= MAX_PER_MINUTE:
            self._write(event, peer=peer, **fields)
        else:
            self.counts[event] += 1

    def _report_omitted(self) -> None:
        """At the end of a minute, write how many events of each source were omitted in it."""
        now = self._clock()
        if now < self._minute_end:
            return
        self._minute_end = now + 60
        sources, self._sources = self._sources, Counter()
        for (event, address), count in sources.items():
            if count > MAX_PER_MINUTE:
                self._append(event, peer=address, omitted=count - MAX_PER_MINUTE)

    def _append(self, event: str, **fields: Any) -> None:
        if self._log is not None:
            self._entries.append(AuditEntry(time=round(time.time() * 1000), event=event, **fields))
            self._log.info(event, **fields)


def audited_user(name: str) -> str:
    """Return the user name of a client for the log, "" if there is none, or a placeholder for an
    invalid name, which may be a misplaced password."""
    return name if not name or is_user_name(name) else "(not a name)"


def _printable(text: str) -> str:
    text = text[:_MAX_NAME]
    return text if text.isprintable() else ascii(text)[1:-1]


def _difference(old: Any, new: Any) -> str:
    """Return the names of the fields of a user record that differ, without their values."""
    if isinstance(old, tuple):
        return "permissions"
    names = ("password", "digest", "superuser", "permissions", "roles", "tokens")
    return ", ".join(name for name in names if getattr(old, name) != getattr(new, name))
