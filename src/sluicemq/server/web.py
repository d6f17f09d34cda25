"""The HTTP room: what connections of one HTTP listener share, and their sessions.

Only imported by a broker that has such a listener: the libraries behind it take time to load.
"""

from __future__ import annotations

from sluicemq.admin.app import Application
from sluicemq.admin.batches import BESIDES_BYTES, Limits
from sluicemq.admin.session import Http, HttpSession
from sluicemq.broker import Broker
from sluicemq.protocols.link import Link, Session
from sluicemq.server.identity.gate import Gate
from sluicemq.server.listening import Listener


class HttpRoom:
    """Makes the session of a new connection of one listener."""

    def __init__(self, broker: Broker, gate: Gate) -> None:
        self._broker = broker
        self._gate = gate
        self._http: Http | None = None

    def __call__(self, link: Link, options: Listener) -> Session:
        """See `rooms.Room`."""
        if self._http is None:
            part = options.max_frame_bytes + BESIDES_BYTES
            limits = Limits(part=part, name=options.max_name_bytes)
            self._http = Http(Application(self._broker, limits), options.max_header_bytes)
        access = self._gate.open(link, options, logs_in=True)
        url = options.url
        # behind TLS a page's own name has no certificate here; who listens publicly has accepted
        # that whoever reaches the port may use it, by whatever name
        name = "" if url.public or url.tls else url.host
        return HttpSession(link, self._http, access, host=name, tls=url.tls)
