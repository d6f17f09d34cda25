"""What the authentication needs to know of the configuration, of a listener and of a connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class AuthSettings(Protocol):
    """Settings of users and logins; the configuration reference describes them.

    Times in seconds.
    """

    @property
    def required(self) -> str: ...
    @property
    def admin_token_file(self) -> Path | None: ...
    @property
    def audit_log(self) -> bool: ...
    @property
    def min_password_length(self) -> int: ...
    @property
    def max_login_failures(self) -> int: ...
    @property
    def max_login_failure_entries(self) -> int: ...
    @property
    def login_failure_window(self) -> float: ...
    @property
    def login_backoff(self) -> float: ...
    @property
    def login_backoff_max(self) -> float: ...
    @property
    def max_concurrent_password_checks(self) -> int: ...
    @property
    def max_queued_logins(self) -> int: ...
    @property
    def password_cache_size(self) -> int: ...


class AuthConfig(Protocol):
    """Configuration of the authentication.

    insecure_public  True if public listeners are treated as the others
    """

    @property
    def auth(self) -> AuthSettings: ...
    @property
    def users_file(self) -> Path: ...
    @property
    def insecure_public(self) -> bool: ...


class ListenerUrl(Protocol):
    """URL of a listener. `public`: other machines can reach it."""

    @property
    def public(self) -> bool: ...


class ListenerOptions(Protocol):
    """Listener that a connection was accepted by. `user` is the user of its clients, "" = none."""

    @property
    def url(self) -> ListenerUrl: ...
    @property
    def user(self) -> str: ...


class ClientConnection(Protocol):
    """Connection of a client.

    peer       address of the client
    peer_user  user that the client's certificate names, "" = none
    """

    @property
    def peer(self) -> str: ...
    @property
    def peer_user(self) -> str: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        """Call `callback` in `delay` seconds, in an event loop iteration."""

    def disconnect(self, reason: str) -> None:
        """Close the connection with a reason for the client."""


def is_open(url: ListenerUrl, user: str, required: str, insecure_public: bool) -> bool:
    """Return whether clients without a certificate may do everything at a listener of a protocol
    without logins, whether or not there are users.

    `user` is that of the listener, "" for none; the others are `auth.required` and
    `insecure_public`.
    """
    return not user and required != "always" and (insecure_public or not url.public)
