"""Interfaces to the server process that the endpoints use. The server implements them; tests
supply their own implementations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from sluicemq.model.access import Operation, Permission
from sluicemq.model.destination import Address
from sluicemq.model.histogram import Histogram

if TYPE_CHECKING:
    from sluicemq.broker import Consumer


class ConnectionView(NamedTuple):
    """A connection as lists show it.

    id         unique while the process lives
    protocol   protocol of its client
    user       name of its user; "" if anonymous
    listener   URL of its listener
    started    ms since the epoch
    state      connecting | open | blocked (nothing is read from it for now) | slow (it does not
               read) | closing
    """

    id: int
    protocol: str
    peer: str
    user: str
    client_id: str
    listener: str
    started: int
    state: str
    consumers: int
    received_bytes: int
    sent_bytes: int
    tls: bool


class AttachedConsumer(NamedTuple):
    """A consumer of the engine and the id of its connection."""

    connection: int
    protocol: str
    user: str
    consumer: Consumer


class ListenerView(NamedTuple):
    """An open listener: present connections, those accepted and refused since the start, and the
    bytes of all.

    closed  connections closed because of a limit or time-out, by its name
    """

    url: str
    protocol: str
    tls: bool
    connections: int
    max_connections: int
    accepted: int
    refused: int
    received_bytes: int
    sent_bytes: int
    closed: Mapping[str, int] = {}


class InputView(NamedTuple):
    """Unfinished input of all connections: its size and limit in bytes, the number of connections
    that have any, and the number of those whose reading is paused."""

    buffered_bytes: int
    limit_bytes: int
    connections: int
    paused: int


class Connections(Protocol):
    """Connections of all listeners."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ConnectionView]:
        """Iterate over the present connections. The caller may yield to the event loop during
        the iteration; connections that open or close meanwhile may be missing or repeated."""

    def consumers(self) -> Iterator[AttachedConsumer]:
        """Iterate over the consumers of all connections, with the guarantees of `__iter__`."""

    def by_protocol(self) -> dict[str, int]:
        """Return the number of connections by protocol."""

    def listeners(self) -> list[ListenerView]:
        """Return the open listeners in the order of the configuration."""

    def input(self) -> InputView:
        """Return the memory used by unfinished input."""

    def get(self, number: int) -> ConnectionView | None:
        """Return the connection with that id; None if there is none."""

    def close(self, number: int, reason: str) -> bool:
        """Send the client the reason in the terms of its protocol, and close the connection after
        a few seconds at most. Return False if there is no such connection."""


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """An effective setting. `value` is null for a secret.

    name     dotted, as in the configuration file; those of a listener as `listeners[0].url`
    unit     of numbers: bytes, ms, s; "" for others
    source   `default`, a file, an environment variable, or the command line
    description  in a sentence
    """

    name: str
    value: bool | int | float | str | None
    default: bool | int | float | str | None
    unit: str
    source: str
    description: str


State = Literal["starting", "serving", "stopping", "failed"]


class Configuration(Protocol):
    """Effective settings."""

    def settings(self) -> list[SettingView]:
        """Return the settings in the order of the documentation, without those of destinations,
        which may be many."""

    def declares(self, address: Address) -> bool:
        """Return whether the configuration file declares the destination."""


class Vitals(Protocol):
    """State and resource usage of the server process."""

    version: str
    compiled: bool
    lag: Histogram
    """Event loop lag: delay of timers."""

    def uptime(self) -> float:
        """Return the seconds since the start."""

    def memory(self) -> int:
        """Return the resident memory in bytes."""

    def state(self) -> State:
        """Return the state of the broker."""


class PermissionView(msgspec.Struct, frozen=True):
    """Operations on all destinations whose names match; `ignore_case`: in any letter case."""

    pattern: str
    operations: list[Operation]
    ignore_case: bool


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret. Times in seconds since the epoch; `expires` 0 = never."""

    id: str
    label: str
    created: int
    expires: int


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """A user, without secrets. `has_password` and `allow_digest`: whether it can log in by that.
    `password_scheme`: argon2id, bcrypt (taken over, until the first login) or "" for no password.
    The permissions are its own, without those of its roles. Times in seconds since the epoch."""

    name: str
    superuser: bool
    has_password: bool
    password_scheme: str
    allow_digest: bool
    roles: list[str]
    permissions: list[PermissionView]
    tokens: list[TokenView]
    created: int
    updated: int


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions with a name, and the users who have them."""

    name: str
    permissions: list[PermissionView]
    users: list[str]


class UserChange(NamedTuple):
    """Changes to a user; None = unchanged. An empty password removes the password. `allow_digest`:
    True if the data that digest logins need is stored."""

    password: str | None = None
    superuser: bool | None = None
    roles: tuple[str, ...] | None = None
    allow_digest: bool | None = None


class UserDirectory(Protocol):
    """User database. Changes are on disk when the method returns; `by` is the user who makes the
    change, for the audit log. Methods raise UserNotFound, UserExists, AccessDenied (the last
    superuser), AccessError."""

    def names(self) -> list[str]:
        """Return the names of all users, sorted."""

    def user(self, name: str) -> UserView | None: ...

    def role_names(self) -> list[str]:
        """Return the names of all roles, sorted."""

    def roles(self, names: Collection[str]) -> list[RoleView]:
        """Return the roles among `names` that exist, sorted."""

    def rights(self, name: str) -> list[PermissionView]:
        """Return a user's permissions including those of its roles; none if anonymous."""

    async def add(self, by: str, name: str, requested: UserChange) -> list[str]:
        """Add a user. Return warnings about its password."""

    async def alter(self, by: str, name: str, requested: UserChange) -> list[str]:
        """Alter a user. Return warnings about its new password."""

    async def set_password(self, by: str, name: str, password: str) -> None:
        """Set a user's password. A user with digest data gets new digest data."""

    async def remove(self, by: str, name: str, force: bool) -> None:
        """Remove a user. `force` permits removing the last user and the last superuser."""

    async def grant(self, by: str, name: str, permission: Permission) -> None:
        """Grant a permission; it replaces the user's permission with the same pattern."""

    async def revoke(self, by: str, name: str, pattern: str) -> None: ...

    async def assign(self, by: str, role: str, name: str) -> None: ...

    async def withdraw(self, by: str, role: str, name: str) -> None: ...

    async def add_token(self, by: str, name: str, label: str, expires: int) -> tuple[str, str]:
        """Create a token; return its id and the token, which cannot be retrieved later."""

    async def remove_token(self, by: str, name: str, token: str) -> None: ...

    async def add_role(self, by: str, role: str) -> None: ...

    async def remove_role(self, by: str, role: str) -> None: ...

    async def grant_role(self, by: str, role: str, permission: Permission) -> None: ...

    async def revoke_role(self, by: str, role: str, pattern: str) -> None: ...


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the audit log. `time` in ms since the epoch.

    event       login | login failed | login refused | denied | change | user added | user changed |
                user removed | role added | role changed | role removed
    peer, user  who, from where; of changes of users, `changed_by` says that and `user` who it is
    method      password | token | digest
    reason      a login was refused
    retry_after  s until another attempt is looked at
    operation   was asked for
    result      done, or the status it was refused with
    """

    time: int
    event: str
    peer: str = ""
    user: str = ""
    method: str = ""
    reason: str = ""
    retry_after: float = 0.0
    operation: str = ""
    result: str = ""
    role: str = ""
    changed: str = ""
    changed_by: str = ""


class AuditLog(Protocol):
    """Audit log: logins, denied requests and changes."""

    counts: dict[str, int]
    """Number of lines since the start by event, also counted while the log is disabled."""

    def acted(self, peer: str, user: str, what: str, result: str) -> None:
        """Log a requested change as one line. `result` is `done` or the reason for the refusal."""

    def recent(self, limit: int) -> list[AuditEntry]:
        """Return the last lines, the latest first."""


class Backups(Protocol):
    """Files of a backup besides the journal, and the directory of backups.

    directory      directory of backups requested over HTTP; None = disabled
    users_file     user database; may not exist
    configuration  settings in force, as the text of a TOML file
    """

    @property
    def directory(self) -> Path | None: ...

    @property
    def users_file(self) -> Path: ...

    @property
    def configuration(self) -> str: ...

    def sources(self) -> dict[str, bytes]:
        """Return the contents of the files by name. Raises OSError."""
