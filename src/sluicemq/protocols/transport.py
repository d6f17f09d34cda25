"""The contract between a protocol session and the connection that carries it.

A session never touches a socket. The server gives it bytes and tells it what became of the
connection; the session answers through its `Transport`. All calls happen on one thread, and none of
them may block. What a session writes leaves in one system call at the end of the turn, so
that neither a frame nor its header is ever split by the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from sluicemq.broker import Consumer


class Timer(Protocol):
    """A call that will be made later."""

    def cancel(self) -> None: ...


Result = TypeVar("Result")


class Job(Protocol):
    """Work in another thread."""

    def cancel(self) -> object:
        """Do not begin it, if that is still possible."""


class Background(Protocol):
    """Other threads, for work that would hold up the event loop."""

    def submit(self, work: Callable[[], Result], done: Callable[[Result], None]) -> Job:
        """Call `work`, which does not raise, there, and then `done` on the event loop."""


class Transport(Protocol):
    """What a session may do with its connection."""

    peer: str
    """Who is at the other end, for logs."""

    peer_user: str
    """Whom the certificate of the other end names, which has been verified; "" without one."""

    def write(self, chunks: Iterable[bytes]) -> None:
        """Queue bytes; they leave together at the end of the turn."""

    def close(self, reason: str = "") -> None:
        """Send what is queued, then close. `reason` is logged. Nothing is received any more."""

    def abort(self, reason: str) -> None:
        """Close without sending what is queued, so that the peer sees a reset and no end of the
        output. `reason` is logged. `Session.closed` follows."""

    def quick_ack(self) -> None:
        """Confirm to the peer's kernel what has been read, now and not in 40 ms.

        For clients that write in small pieces and leave Nagle's algorithm on: until the first
        piece is confirmed they do not send the second. Needless where an answer leaves at once.
        """

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`: back-pressure on the peer."""

    def resume_reading(self) -> None: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back in `delay` seconds (>= 0)."""

    def disconnect(self, reason: str) -> None:
        """Have the session say `reason` in the protocol's terms (`Session.dismiss`), and close."""

    def claim_user(self, user: str) -> None:
        """Count this connection as one of `user`, "" for nobody in particular. To be called when
        the client has proven who it is, before it is told so.

        Raises TooManyConnections if the user has as many connections as it may have.
        """


class Login(Enum):
    """How far a client is with proving who it is. It decides which limits hold for its input.

    NONE      it need not log in, but has not sent a valid command yet, or its protocol is not
              known yet: the limit for input before the login holds, and no deadline runs
    DUE       it has to log in: that limit holds, and the deadline runs
    CHECKING  its credentials are being checked: that limit holds, and the deadline stands still
    DONE      it has logged in, or has sent a valid command of a protocol without logins
    """

    NONE = 1
    DUE = 2
    CHECKING = 3
    DONE = 4


State = Literal["connecting", "open", "closing"]


class SessionInfo(NamedTuple):
    """What a session knows of who is at the other end.

    protocol   as listeners call it; `auto` until it is recognised
    user       whom it acts as; "" for nobody in particular
    client_id  what the client calls itself, or is called by the broker; or ""
    state      `connecting` until it may do something
    """

    protocol: str
    user: str = ""
    client_id: str = ""
    state: State = "open"


class Session(Protocol):
    """The server side of one connection, sans-I/O."""

    @property
    def buffered(self) -> int:
        """Bytes of input that the session holds because it cannot carry them out yet: an unfinished
        frame, or requests behind one that waits. 0 if there are none. Read after each `receive`,
        so it must be cheap."""

    @property
    def incomplete(self) -> bool:
        """Whether a frame has begun to arrive and has not ended."""

    @property
    def login(self) -> Login:
        """How far the client is with its login."""

    def discard_input(self) -> None:
        """Drop the unfinished frame: `Transport.close` has been called or the connection is gone.
        Complete requests that are still to be carried out stay."""

    def receive(self, data: bytes) -> None:
        """Bytes from the peer. Bad ones are answered in the protocol's terms, never raised."""

    def end_of_input(self) -> None:
        """The peer will send no more (EOF); it may still read. Must end in `Transport.close`."""

    def flushed(self) -> None:
        """Everything written so far has left for the operating system."""

    def pause_delivery(self) -> None:
        """The peer reads too slowly: no more deliveries until `resume_delivery`."""

    def resume_delivery(self) -> None:
        """The peer has caught up."""

    def closed(self) -> None:
        """The connection is gone; release everything it holds. Called exactly once, and the session
        must be free afterwards without a run of the garbage collector: no reference cycles."""

    def shutdown(self) -> None:
        """The broker stops: say goodbye if the protocol can, then `Transport.close`."""

    def disconnect(self, reason: str) -> None:
        """Close the connection for an administrator: send the reason if the protocol can, then call
        `Transport.close`.
        `reason` is a sentence for people, in one line."""

    def session_info(self) -> SessionInfo:
        """Who it serves."""

    def consumers(self) -> Iterable[Consumer]:
        """What it receives by, at this moment."""
