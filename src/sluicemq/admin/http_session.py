"""One HTTP connection: between the broker's connection and the application.

uvicorn's protocol class parses HTTP/1.1 (with h11, which bounds heads) and runs the application;
sockets, TLS, idle times and the number of connections are the broker's own, as for every other
protocol. Its transport is a `protocols.transport.Transport`.

    transport ──receive──> Http11.data_received ──> application
         <──write──── UvicornTransport <───────── its response

Who sends slowly is cut off by a look every PATIENCE_SECONDS: when a head is not complete that was
not so at the look before, and when of a body that is read less than SLOWEST bytes a second have
come since then.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

import h11
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from sluicemq.admin.caller import Caller
from sluicemq.admin.errors import MEDIA_TYPE, document
from sluicemq.admin.strict_http import StrictReceiveBuffer
from sluicemq.protocols.access import Access
from sluicemq.protocols.transport import Login, SessionInfo, Timer, Transport

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from sluicemq.admin.app import Application

KEEP_ALIVE_SECONDS: Final = 75
"""How long a connection stays without a request after the first one."""
PATIENCE_SECONDS: Final = 30.0
"""Between two looks; so the head of a request may take at least so long, and at most twice."""
SLOWEST: Final = 1024
"""Bytes of a body in a second."""

log = structlog.get_logger("sluicemq.http")


class _Forward(logging.Handler):
    """What uvicorn has to say goes where everything else does. Its warnings tell of bad requests,
    which are nobody's concern here."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on."""
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            log.error(record.getMessage().strip(), exc_info=error)
        else:
            log.debug(record.getMessage().strip())


class HttpService:
    """What all HTTP connections of a listener share."""

    def __init__(
        self, application: Application, head: int, patience: float = PATIENCE_SECONDS
    ) -> None:
        """`head` is how many bytes the head of a request may have; `patience` in seconds."""
        self.config = Config(
            application,
            http=Http11,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=head,
        )
        self.config.load()
        self.state = ServerState()
        self.patience = patience
        said = logging.getLogger("uvicorn.error")
        if not any(isinstance(handler, _Forward) for handler in said.handlers):
            said.addHandler(_Forward())
            said.propagate = False


class UvicornTransport(asyncio.Transport):
    """Present a session's transport to uvicorn as an asyncio transport."""

    def __init__(self, transport: Transport, tls: bool) -> None:
        super().__init__({"sslcontext": tls})
        self._transport = transport
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Leaves at the end of the turn."""
        if data and not self._closing:
            self._transport.write((bytes(data),))

    def close(self) -> None:
        """When everything has left."""
        if not self._closing:
            self._closing = True
            self._transport.close()

    def is_closing(self) -> bool:
        """Nothing is written any more."""
        return self._closing

    def pause_reading(self) -> None:
        """Pause reading unless the connection is closing."""
        if not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading unless the connection is closing."""
        if not self._closing:
            self._transport.resume_reading()


class Http11(H11Protocol):
    """uvicorn's, but stricter (see strict.py), and what it refuses itself is told as everything
    else is."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to read requests from `transport`."""
        # h11 has no other way to read more strictly than it does
        self.conn._receive_buffer = StrictReceiveBuffer()
        super().connection_made(transport)

    def send_400_response(self, msg: str) -> None:
        """h11 cannot make sense of what was sent, or it is too large for a head."""
        limit = self.config.h11_max_incomplete_event_size
        self.refuse(
            400,
            "bad-request",
            f"this is not HTTP/1.1, or the head of the request has more than {limit} bytes",
        )

    def conclude(self) -> bool:
        """Close when the request that is there has been answered. False if there is none."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        return True

    def refuse(self, status: int, code: str, said: str) -> None:
        """Say so if nothing has been said yet, and close."""
        if self.cycle is not None:
            # the application may go on, but nobody listens
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = document(code, said)
            headers = [
                ("Content-Type", MEDIA_TYPE),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class HttpSession:
    """See the module, and `sluicemq.protocols.transport.Session` for the contract."""

    __slots__ = (
        "_begun",
        "_body",
        "_caller",
        "_head",
        "_in_body",
        "_patience",
        "_protocol",
        "_received",
        "_timer",
        "_transport",
        "_waiting",
    )

    def __init__(
        self, transport: Transport, http: HttpService, access: Access, *, host: str, tls: bool
    ) -> None:
        """`host` is the only name, beside addresses and `localhost`, by which guests may call the
        broker; "" = they may by any."""
        self._transport = transport
        self._caller = Caller(transport, access, host, tls)
        self._patience = http.patience
        self._protocol = Http11(http.config, http.state, {"caller": self._caller})
        self._protocol.connection_made(UvicornTransport(transport, tls))
        self._waiting = True
        """For the rest of a head; at first for any."""
        self._begun = False
        """It is the one that was waited for at the last look."""
        self._in_body = False
        """A body was being read at the last look."""
        self._received = 0
        """Bytes since then."""
        self._head = 0
        """Bytes of the unfinished head that h11 holds."""
        self._body = 0
        """Bytes received of the body of the request that is being answered."""
        self._timer: Timer = transport.call_later(self._patience, self._look)

    def receive(self, data: bytes) -> None:
        """See Session."""
        self._received += len(data)
        protocol = self._protocol
        in_body = protocol.conn.their_state is h11.SEND_BODY
        protocol.data_received(data)
        connection = protocol.conn
        if in_body or connection.their_state is h11.SEND_BODY:
            self._body += len(data)
        self._settle_body()
        self._head = len(connection.trailing_data[0])
        self._waiting = connection.their_state is h11.IDLE and self._head > 0
        if not self._waiting:
            self._begun = False

    def _settle_body(self) -> None:
        """Count nothing for the body of a request that has been answered."""
        cycle = cast("RequestResponseCycle | None", self._protocol.cycle)
        if self._body and (cycle is None or cycle.response_complete):
            self._body = 0

    @property
    def buffered(self) -> int:
        """See Session. A body counts until its request has been answered."""
        return self._head + self._body

    @property
    def incomplete(self) -> bool:
        """See Session."""
        return self._waiting or self._protocol.conn.their_state is h11.SEND_BODY

    @property
    def login(self) -> Login:
        """Each request says who it is from; the head of the first has to be short."""
        begun = cast("RequestResponseCycle | None", self._protocol.cycle) is not None
        return Login.DONE if begun else Login.NONE

    def discard_input(self) -> None:
        """See Session. What the application has read is its own to drop."""
        self._head = self._body = 0

    def end_of_input(self) -> None:
        """An answer that is under way is still given, unless its login waits for a check."""
        self._caller.access.cancel_login()
        if not self._protocol.conclude():
            self._transport.close()

    def flushed(self) -> None:
        """A request may have been answered."""
        self._settle_body()

    def pause_delivery(self) -> None:
        """See Session."""
        self._protocol.pause_writing()

    def resume_delivery(self) -> None:
        """See Session."""
        self._protocol.resume_writing()

    def closed(self) -> None:
        """See Session."""
        self._timer.cancel()
        self._caller.gone = True
        self._leave()
        self._protocol.connection_lost(None)

    def shutdown(self) -> None:
        """See Session. An answer that is under way is still given."""
        self._leave()
        self._protocol.shutdown()

    def disconnect(self, reason: str) -> None:
        """The same: who has asked something is answered, and that was that."""
        self._leave()
        if not self._protocol.conclude():
            self._transport.close(reason)

    def _leave(self) -> None:
        """Wait neither for long answers nor for the check of a login."""
        self._caller.leaving.set()
        self._caller.access.cancel_login()

    def session_info(self) -> SessionInfo:
        """See Session."""
        return SessionInfo("http", self._caller.user)

    def consumers(self) -> tuple[()]:
        """Return no consumers: HTTP connections have none."""
        return ()

    def _look(self) -> None:
        """Who sends too slowly is cut off."""
        protocol = self._protocol
        received, self._received = self._received, 0
        state = protocol.conn.their_state
        in_body = state is h11.SEND_BODY and not protocol.flow.read_paused
        if in_body and self._in_body and received < self._patience * SLOWEST:
            protocol.refuse(408, "too-slow", f"a body comes at {SLOWEST} bytes in a second or more")
            return
        self._in_body = in_body
        if self._begun:
            said = f"the head of a request has not come within {self._patience:g} s"
            protocol.refuse(408, "too-slow", said)
            return
        self._begun = self._waiting
        self._timer = self._transport.call_later(self._patience, self._look)
