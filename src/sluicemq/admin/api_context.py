"""What all endpoints are given. One for each HTTP listener; all but `limits` is shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sluicemq.admin.browser_sessions import BrowserSessions
    from sluicemq.admin.history import History
    from sluicemq.admin.metrics.scrape_state import ScrapeState
    from sluicemq.admin.server_interface import (
        AuditLog,
        Backups,
        Configuration,
        Connections,
        UserDirectory,
        Vitals,
    )
    from sluicemq.broker import Broker
    from sluicemq.broker.clock import Clock

BODY_BYTES: Final = 64 * 1024 * 1024
BESIDES_BYTES: Final = 16 * 1024 * 1024
"""Of a part of a batch, beside one message of the largest size that its listener accepts."""


class ApiLimits(NamedTuple):
    """What a listener accepts, in bytes: a part of a batch, a destination's name, a message, and
    one that is published over the API; how many streams of events at a time; how many messages, and
    for how long, one request may look at, and for how long it may act on them; and how many
    destinations a part of a batch may have, 0 = any number."""

    part: int = BODY_BYTES + BESIDES_BYTES
    name: int = 1024
    body: int = BODY_BYTES
    streams: int = 32
    publish: int = 4 * 1024 * 1024
    scan: int = 50_000
    scan_seconds: float = 2.0
    action_seconds: float = 10.0
    targets: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """See the module.

    broker         the engine; `broker.wake()` before anything that depends on the time
    connections    of all listeners
    configuration  the settings in force
    vitals         of the process
    users          who may log in, and what they may do
    sessions       of browsers that have logged in
    audit          what has been done, and by whom
    history        samples of the last hour
    figures        what /metrics counts from one scrape to the next
    backups        what they hold beside the journal; None = none are made
    """

    broker: Broker
    connections: Connections
    configuration: Configuration
    vitals: Vitals
    users: UserDirectory
    sessions: BrowserSessions
    audit: AuditLog
    history: History
    figures: ScrapeState
    backups: Backups | None = None
    limits: ApiLimits = field(default_factory=ApiLimits)

    @property
    def clock(self) -> Clock:
        """Wall and steady time in ms, as of the broker's turn."""
        return self.broker.clock
