"""Login of one connection: its check, which takes time, and the end of one that is refused."""

from __future__ import annotations

from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from sluicemq.model.access import Identity
from sluicemq.model.errors import AccessError, TooManyConnections
from sluicemq.protocols.channel.connection import Channel
from sluicemq.protocols.transport import Login, Timer
from sluicemq.security.access import Credentials

REFUSED_SECONDS: Final = 0.25
"""Seconds between a refused login and the end of the connection."""

Frame = TypeVar("Frame")


class LoginSession(Protocol[Frame]):
    """What a protocol adds to the login. `Frame` is its request."""

    def answer_login(self, request: Frame, result: Identity | AccessError) -> None:
        """Answer the request. With an identity, the channel acts as that user already."""

    def process_held(self, frames: list[Frame]) -> None:
        """Process the frames that were received behind a request whose check took time."""


class LoginCheck(Generic[Frame]):
    """Checks the logins of one connection.

    logged_in  the client has logged in; it stays so if a further login fails
    """

    __slots__ = ("_channel", "_refused", "_request", "_session", "logged_in")

    def __init__(self, channel: Channel[Frame], session: LoginSession[Frame]) -> None:
        self._channel = channel
        self._session: LoginSession[Frame] | None = session
        self._request: Frame | None = None
        """Login in progress."""
        self._refused: Timer | None = None
        self.logged_in = False

    @property
    def state(self) -> Login:
        """State of the login, for the limits of a connection's input."""
        if self.logged_in or self._channel.closed:
            return Login.DONE
        return Login.DUE if self._request is None else Login.CHECKING

    def check(self, request: Frame, credentials: Credentials) -> None:
        """Check the credentials of a request. If that takes time, the channel holds frames."""
        channel = self._channel
        self._request = request
        guest = channel.access.guest
        if guest is not None and not any(credentials):
            self._checked(guest)
        else:
            channel.access.login(channel.transport.peer, credentials, self._checked)
        if self._request is request:
            channel.hold([], 0)

    def _checked(self, result: Identity | AccessError) -> None:
        request, self._request = self._request, None
        channel = self._channel
        late = channel.held is not None
        held = channel.release()
        session = self._session
        if request is None or session is None or channel.closed:
            return
        if isinstance(result, Identity):
            try:
                channel.transport.claim_user(result.name)
            except TooManyConnections as error:
                result = error
            else:
                channel.identity = result
                self.logged_in = True
        session.answer_login(request, result)
        if late and not channel.closed:
            session.process_held(held)

    def close_later(self, reason: str) -> None:
        """Close the connection REFUSED_SECONDS from now, because its login is refused."""
        transport = self._channel.transport
        self._refused = transport.call_later(REFUSED_SECONDS, partial(transport.close, reason))

    def release(self) -> None:
        """End the check in progress and drop the reference to the session, after its end."""
        self._channel.access.cancel_login()
        if self._refused is not None:
            self._refused.cancel()
        self._session = None
