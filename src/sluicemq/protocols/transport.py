"""The contract between a protocol session and the connection that carries it.

A session never touches a socket. The server passes it received bytes and reports the state of the
connection; the session replies through its `Transport`. All calls happen on one thread, and none of
them may block. The server writes a session's output in one system call at the end of the event loop
iteration, so that the broker never splits a frame from its header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from sluicemq.broker import Consumer


class Timer(Protocol):
    """Scheduled call."""

    def cancel(self) -> None: ...


Result = TypeVar("Result")


class Job(Protocol):
    """Work in another thread."""

    def cancel(self) -> object:
        """Cancel the work if it has not started."""


class Background(Protocol):
    """Worker threads, for work that would block the event loop."""

    def submit(self, work: Callable[[], Result], callback: Callable[[Result], None]) -> Job:
        """Call `work`, which must not raise, in a thread, then `callback` on the event loop."""


class Process(Protocol):
    """Values of the server process that the engine does not know."""

    version: str
    """Version of SluiceMQ."""

    def uptime(self) -> float:
        """Return the seconds since the start."""

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""

    def clients(self) -> int:
        """Return the number of connections to all listeners."""


class Transport(Protocol):
    """Connection of a session, as the session sees it."""

    peer: str
    """Address of the peer, for logs."""

    peer_user: str
    """User named by the peer's verified TLS certificate; "" without one."""

    def write(self, chunks: Iterable[bytes]) -> None:
        """Queue bytes; all are sent together at the end of the event loop iteration."""

    def close(self, reason: str = "") -> None:
        """Stop reading, send the queued bytes, then close. `reason` is logged."""

    def abort(self, reason: str) -> None:
        """Close without sending the queued bytes, so that the peer sees a reset.

        `reason` is logged. `Session.closed` follows.
        """

    def quick_ack(self) -> None:
        """Acknowledge received TCP data at once instead of after up to 40 ms.

        For clients that write in small pieces with Nagle on: they do not send the second
        piece until the first is acknowledged. Not needed if a response is written at once.
        """

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`: back-pressure on the peer."""

    def resume_reading(self) -> None: ...

    @property
    def is_suspended(self) -> bool:
        """True while the broker does not read, because the memory for input is exhausted."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` in `delay` seconds (>= 0)."""

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call `callback` in an iteration of the broker; an error ends only this connection.

        For functions of the session that the engine is to call, such as after a sync.
        """

    def disconnect(self, reason: str) -> None:
        """Close the connection through `Session.disconnect`, which sends `reason` if it can."""

    def replace_session(self, session: Session) -> None:
        """Let another session take the place of this one, which is not called any more."""

    def claim_user(self, user: str) -> None:
        """Count this connection as one of `user`; "" is the anonymous user.

        Call it once the client is authenticated and before the client is notified. Raises
        TooManyConnections if the user has reached its limit of connections.
        """


class Alarm:
    """One scheduled call of a session, which can be replaced or cancelled.

    timer  the scheduled call; None if there is none
    """

    __slots__ = ("_transport", "timer")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.timer: Timer | None = None

    def set(self, delay: float, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay` seconds (>= 0), instead of an earlier callback."""
        self.cancel()
        self.timer = self._transport.call_later(delay, partial(self._expire, callback))

    def _expire(self, callback: Callable[[], None]) -> None:
        self.timer = None
        callback()

    def cancel(self) -> None:
        """Cancel the call, if one is scheduled."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Login(Enum):
    """State of a client's login. It decides which limits apply to the client's input.

    NONE      no login needed, but no valid command yet or the protocol is not detected yet: the
              input limit before login applies, without a deadline
    DUE       login needed: the input limit before login and the deadline apply
    CHECKING  credentials are being checked: the input limit applies, the deadline is paused
    DONE      logged in, or a valid command of a protocol without logins was received
    """

    NONE = 1
    DUE = 2
    CHECKING = 3
    DONE = 4


class SessionInfo(NamedTuple):
    """Protocol, user, client id and state of a session.

    protocol   name as in listener URLs; `auto` until the protocol is detected
    user       user name; "" for the anonymous user
    client_id  name that the client chose or the broker assigned; or ""
    state      `connecting` until the client may send requests; the connection adds other states
    """

    protocol: str
    user: str = ""
    client_id: str = ""
    state: Literal["connecting", "open"] = "open"


class Session(Protocol):
    """Server side of one connection, sans-I/O."""

    @property
    def buffered(self) -> int:
        """Bytes of input that the session cannot process yet: an unfinished frame, or requests
        after a pending one.

        The server reads it after each `receive`, so it must be cheap.
        """

    @property
    def incomplete(self) -> bool:
        """True if a frame has been received in part."""

    @property
    def login(self) -> Login:
        """State of the client's login."""

    def discard_input(self) -> None:
        """Drop the unfinished frame: the connection is closed or `Transport.close` was called.

        Complete requests that are still to be processed stay.
        """

    def receive(self, data: bytes) -> None:
        """Process bytes from the peer. Invalid input is answered with an error, never raised."""

    def end_of_input(self) -> None:
        """Handle EOF: the peer sends no more, but may still read. Must end in `Transport.close`."""

    def flushed(self) -> None:
        """Handle that the operating system has accepted everything written so far.

        Deliveries that `pause_delivery` has stopped go on: the peer has caught up.
        """

    def pause_delivery(self) -> None:
        """Stop deliveries until `flushed`, because the peer reads too slowly."""

    def closed(self) -> None:
        """Release all resources of the closed connection. Called exactly once.

        The session must be freed afterwards without a garbage collector run: no reference cycles.
        """

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Close the connection for an administrator, or because the broker is `stopping`.

        Send `reason`, one sentence in one line, if the protocol can, then call `Transport.close`.
        """

    def session_info(self) -> SessionInfo:
        """Return protocol, user, client id and state of the session."""

    def consumers(self) -> Iterable[Consumer]:
        """Return the current consumers of the session."""


class NoConsumers:
    """Methods of a `Session` that has no consumers, to inherit."""

    __slots__ = ()

    def flushed(self) -> None:
        """Do nothing."""

    def pause_delivery(self) -> None:
        """Do nothing: the session delivers no messages."""

    def consumers(self) -> tuple[()]:
        """Return no consumers."""
        return ()
