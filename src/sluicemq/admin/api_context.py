"""Context of the endpoints, one per HTTP listener. Listeners share everything but `limits`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sluicemq.admin.browser_sessions import BrowserSessions
    from sluicemq.admin.history import History
    from sluicemq.admin.metrics.scrape_state import ScrapeState
    from sluicemq.admin.server_interface import Backups, Configuration, Connections, Vitals
    from sluicemq.broker import Broker, Clock
    from sluicemq.security.audit import Audit
    from sluicemq.security.management import UserManagement

BODY_BYTES: Final = 64 * 1024 * 1024
BESIDES_BYTES: Final = 16 * 1024 * 1024
"""Size of a part of a batch, in addition to one message of the listener's maximum size."""


class ApiLimits(NamedTuple):
    """Limits of a listener.

    Sizes in bytes: of a part of a batch, a destination's name, a message, and a message published
    over the API. Numbers: event streams, messages that one request may scan, and destinations of a
    part of a batch (0 = unlimited). Times: of scanning and of acting on messages, per request."""

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
    """Interfaces to the broker and the server process.

    broker         the engine; call `broker.wake()` before anything that depends on the time
    connections    connections of all listeners
    configuration  effective settings
    vitals         state of the process
    users          user directory
    sessions       browser sessions
    audit          audit log
    history        samples of the last hour
    figures        state that /metrics keeps between scrapes
    backups        files of a backup besides the journal; None = backups are disabled
    """

    broker: Broker
    connections: Connections
    configuration: Configuration
    vitals: Vitals
    users: UserManagement
    sessions: BrowserSessions
    audit: Audit
    history: History
    figures: ScrapeState
    backups: Backups | None = None
    limits: ApiLimits = field(default_factory=ApiLimits)

    @property
    def clock(self) -> Clock:
        """Return the wall and steady time of the event loop iteration, in ms."""
        return self.broker.clock
