"""What the endpoints ask of the process around the broker. The server gives it; tests have their
own."""

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
    protocol   that its client speaks, whatever the listener offers
    user       whom it acts as; "" for nobody in particular
    listener   URL of the listener it came by
    since      ms since the epoch
    state      connecting | open | blocked (nothing is read from it for now) | slow (it does not
               read) | closing
    """

    id: int
    protocol: str
    peer: str
    user: str
    client_id: str
    listener: str
    since: int
    state: str
    consumers: int
    bytes_in: int
    bytes_out: int
    tls: bool


class AttachedConsumer(NamedTuple):
    """A consumer of the engine, and whose it is: `connection` is the id."""

    connection: int
    protocol: str
    user: str
    consumer: Consumer


class ListenerView(NamedTuple):
    """An open listener: connections now, accepted and refused since the start, and their bytes.

    closed  connections closed because of a limit or a deadline, by its name
    """

    url: str
    protocol: str
    tls: bool
    connections: int
    max_connections: int
    accepted: int
    refused: int
    bytes_in: int
    bytes_out: int
    closed: Mapping[str, int] = {}


class InputView(NamedTuple):
    """The unfinished input of all connections: bytes, how many there may be, the connections that
    hold it, and how many of them are not read until there is room."""

    bytes: int
    limit: int
    connections: int
    suspended: int


class Connections(Protocol):
    """Connections of all listeners."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ConnectionView]:
        """All of them as they are now; whoever iterates gives the loop back in between, and may
        see some twice or not that come and go meanwhile."""

    def consumers(self) -> Iterator[AttachedConsumer]:
        """What all of them receive by; as with `__iter__`."""

    def by_protocol(self) -> dict[str, int]:
        """How many speak what."""

    def listeners(self) -> list[ListenerView]:
        """Open listeners, in the order of the configuration."""

    def input(self) -> InputView:
        """The memory of unfinished input."""

    def get(self, number: int) -> ConnectionView | None:
        """The connection with that id."""

    def close(self, number: int, reason: str) -> bool:
        """Tell its client why, in the terms of its protocol, and end it: after a few seconds
        whatever the client does. False if there is none (any more)."""


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in force. Of a secret, `value` is null.

    name     dotted, as in the configuration file; those of a listener as `listeners[0].url`
    unit     of numbers: bytes, ms, s; "" for others
    source   `default`, a file, an environment variable, or the command line
    meaning  in a sentence
    """

    name: str
    value: bool | int | float | str | None
    default: bool | int | float | str | None
    unit: str
    source: str
    meaning: str


State = Literal["starting", "serving", "stopping", "failed"]


class Configuration(Protocol):
    """The settings in force."""

    def settings(self) -> list[SettingView]:
        """All of them, in the order of the documentation; not those of destinations, which may be
        many."""

    def declares(self, address: Address) -> bool:
        """Whether the destination stands in the configuration file."""


class Vitals(Protocol):
    """Of the process."""

    version: str
    compiled: bool
    lag: Histogram
    """How late the event loop comes to what is due."""

    def uptime(self) -> float:
        """Seconds since the start."""

    def memory(self) -> int:
        """Resident bytes."""

    def state(self) -> State:
        """What the broker is doing."""


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
    """A user, without secrets. `password` and `digest`: whether it can log in by that.
    `password_scheme`: argon2id, bcrypt (taken over, until the first login) or "" for no password.
    The permissions are its own, without those of its roles. Times in seconds since the epoch."""

    name: str
    superuser: bool
    password: bool
    password_scheme: str
    digest: bool
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
    """What a user is to be; None = as it is. A password of "" is none; `allow_digest`: whether what
    digest logins need is kept."""

    password: str | None = None
    superuser: bool | None = None
    roles: tuple[str, ...] | None = None
    allow_digest: bool | None = None


class UserDirectory(Protocol):
    """The user database. Changes are on disk when they return; `by` says who makes them, for the
    audit log. UserNotFound, UserExists, AccessDenied (the last superuser), AccessError."""

    def names(self) -> list[str]:
        """Of all users, sorted."""

    def user(self, name: str) -> UserView | None: ...

    def role_names(self) -> list[str]:
        """Of all roles, sorted."""

    def roles(self, names: Collection[str]) -> list[RoleView]:
        """Those of these that exist, sorted."""

    def rights(self, name: str) -> list[PermissionView]:
        """A user's permissions, those of its roles included; none of nobody."""

    async def add(self, by: str, name: str, wanted: UserChange) -> list[str]:
        """Add a user. Return warnings about its password."""

    async def alter(self, by: str, name: str, wanted: UserChange) -> list[str]:
        """Alter a user. Return warnings about its new password."""

    async def set_password(self, by: str, name: str, password: str) -> None:
        """As `alter`: who has a digest keeps one."""

    async def remove(self, by: str, name: str, force: bool) -> None:
        """`force`: even the last user, and the last superuser."""

    async def grant(self, by: str, name: str, permission: Permission) -> None:
        """Instead of what the user had for exactly that pattern."""

    async def revoke(self, by: str, name: str, pattern: str) -> None: ...

    async def assign(self, by: str, role: str, name: str) -> None: ...

    async def withdraw(self, by: str, role: str, name: str) -> None: ...

    async def add_token(self, by: str, name: str, label: str, expires: int) -> tuple[str, str]:
        """Its id, and the token, which is told this once."""

    async def remove_token(self, by: str, name: str, token: str) -> None: ...

    async def add_role(self, by: str, role: str) -> None: ...

    async def remove_role(self, by: str, role: str) -> None: ...

    async def grant_role(self, by: str, role: str, permission: Permission) -> None: ...

    async def revoke_role(self, by: str, role: str, pattern: str) -> None: ...


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the audit log. `at` in ms since the epoch.

    event       login | login failed | login refused | denied | change | user added | user changed |
                user removed | role added | role changed | role removed
    peer, user  who, from where; of changes of users, `changed_by` says that and `user` who it is
    how         password | token | digest
    why         a login was refused
    wait        s until another attempt is looked at
    what        was asked for
    result      done, or the status it was refused with
    """

    at: int
    event: str
    peer: str = ""
    user: str = ""
    how: str = ""
    why: str = ""
    wait: float = 0.0
    what: str = ""
    result: str = ""
    role: str = ""
    changed: str = ""
    changed_by: str = ""


class AuditLog(Protocol):
    """What has been done, and by whom."""

    counts: dict[str, int]
    """Lines since the start, by event; those of a log that is switched off, too."""

    def acted(self, peer: str, user: str, what: str, result: str) -> None:
        """Log a requested change as one line. `result` is `done` or the reason for the refusal."""

    def recent(self, limit: int) -> list[AuditLine]:
        """The last lines, the latest first."""


class Backups(Protocol):
    """What goes into a backup beside the journal, and where to.

    directory      for backups that are asked for over HTTP; None = there are none
    users_file     the user database, which need not exist
    configuration  the settings in force, as a TOML file
    """

    @property
    def directory(self) -> Path | None: ...

    @property
    def users_file(self) -> Path: ...

    @property
    def configuration(self) -> str: ...

    def sources(self) -> dict[str, bytes]:
        """Files by name. Raises OSError."""
