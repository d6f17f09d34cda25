"""Sessions of one HTTP listener, and the state that its connections share.

Only imported by a broker that has such a listener: the libraries behind it take time to load.
"""

from __future__ import annotations

from dataclasses import replace

from sluicemq.admin.api_context import BESIDES_BYTES, ApiContext, ApiLimits
from sluicemq.admin.app import Application
from sluicemq.admin.http_session import HttpService, HttpSession
from sluicemq.protocols.transport import Session, Transport
from sluicemq.security.authenticator import Authenticator
from sluicemq.server.listener_settings import HttpSettings, Listener


class HttpSessionFactory:
    """Session factory of one HTTP listener."""

    def __init__(
        self,
        context: ApiContext,
        authenticator: Authenticator,
        options: Listener,
        settings: HttpSettings,
        *,
        local: bool = False,
    ) -> None:
        """`local`: only the owner of the data can connect. Creating the application takes some
        time, which the first to connect need not wait for."""
        self._authenticator = authenticator
        self._local = local
        body = options.max_frame_bytes
        limits = ApiLimits(
            targets=settings.max_batch_destinations,
            part=body + BESIDES_BYTES,
            name=options.max_name_bytes,
            streams=settings.max_event_streams,
            publish=min(body, settings.max_publish_bytes),
            scan=settings.max_scan_messages,
            scan_seconds=settings.max_scan_time,
            action_seconds=settings.max_action_time,
        )
        self._http = HttpService(
            Application(replace(context, limits=limits)), options.max_header_bytes
        )

    def __call__(self, transport: Transport, options: Listener) -> Session:
        """Return the session of a new connection."""
        if self._local:
            access = self._authenticator.open_local(transport)
        else:
            access = self._authenticator.open(transport, options, logs_in=True)
        url = options.url
        # behind TLS a page's own name has no certificate here; a public listener has accepted
        # that every client that reaches the port may use it, by any name
        name = "" if url.public or url.tls else url.host
        return HttpSession(transport, self._http, access, host=name, tls=url.tls)
