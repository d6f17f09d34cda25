"""Access to users and roles for the commands: through the API of a running broker or, if no broker
runs, in the file of the user database. Both return the same results and raise the same errors."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sluicemq.cli.api import Api, below
from sluicemq.cli.broker_location import BrokerLocation
from sluicemq.cli.serve import load_flags
from sluicemq.model.access import Operation, Permission
from sluicemq.security.passwords import hash_password, scheme_of
from sluicemq.security.records import UserRecord
from sluicemq.security.settings import is_open
from sluicemq.security.store import UserStore
from sluicemq.security.user_operations import Preparation, UserChange, UserOperations
from sluicemq.server.address import Url
from sluicemq.server.config import Config
from sluicemq.server.listener_settings import WITH_LOGINS

Item = dict[str, Any]


class LoginPolicy(NamedTuple):
    """Listeners that require a login once the broker has users.

    running         whether the broker runs
    required        `auth.required`
    open_listeners  URLs of the listeners of protocols without logins, whose clients have all
                    permissions even if there are users
    """

    running: bool
    required: str
    open_listeners: list[str]


class Accounts(Protocol):
    """Operations on users and roles that the commands use. Users and roles have the form that the
    API returns. All methods raise the API's errors or AccessError."""

    def login_policy(self) -> LoginPolicy:
        """Return which listeners require a login."""

    def users(self) -> list[Item]:
        """Return the users without their secrets, sorted by name."""

    def add(
        self, name: str, password: str, superuser: bool, roles: list[str], allow_digest: bool
    ) -> None:
        """Add a user; an empty `password` creates the user without one."""

    def remove(self, name: str, force: bool) -> None:
        """Remove a user. `force` also removes the last superuser and the last user."""

    def set_password(self, name: str, password: str, allow_digest: bool | None) -> None:
        """Set a user's password. `allow_digest` None keeps the present setting."""

    def add_token(self, name: str, label: str, expires: int) -> Item:
        """Create a token. Return its `id`, `token` and `expires` (seconds since the epoch; 0 =
        never)."""

    def remove_token(self, name: str, token: str) -> None:
        """Revoke a user's token by its id."""

    def grant(self, name: str, permission: Permission) -> None:
        """Grant operations to a user; replaces an existing grant for exactly that pattern."""

    def revoke(self, name: str, pattern: str) -> None:
        """Remove a user's grant for exactly that pattern."""

    def roles(self) -> list[Item]:
        """Return the roles, sorted by name."""

    def add_role(self, role: str) -> None:
        """Create a role without permissions."""

    def remove_role(self, role: str) -> None:
        """Remove a role that is assigned to no user."""

    def grant_role(self, role: str, permission: Permission) -> None:
        """Grant operations to a role; replaces an existing grant for exactly that pattern."""

    def revoke_role(self, role: str, pattern: str) -> None:
        """Remove a role's grant for exactly that pattern."""

    def assign(self, role: str, name: str) -> None:
        """Assign a role to a user."""

    def unassign(self, role: str, name: str) -> None:
        """Remove a role from a user."""


@contextmanager
def accounts_at(place: BrokerLocation) -> Iterator[Accounts]:
    """Open the users of the broker at `place`."""
    if place.local and not _answers(place.socket()):
        yield FileAccounts(load_flags(place.config, place.data_dir).config)
        return
    with Api(place.target()) as api:
        yield ApiAccounts(api)


def _answers(path: Path) -> bool:
    """Return whether a process listens on the socket; a socket without access permission counts."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError:
            return True
    return True


class ApiAccounts:
    """Accounts that are managed through the API of a running broker."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def login_policy(self) -> LoginPolicy:
        items = self._api.items("/configuration")
        settings: Item = {item["name"]: item["value"] for item in items}
        required, insecure = settings["auth.required"], settings["insecure_public"]
        found: list[str] = []
        for name, value in settings.items():
            if name.startswith("listeners[") and name.endswith("].url"):
                listener = name.removesuffix("url")
                user = settings.get(f"{listener}user") or ""
                certificate = settings.get(f"{listener}client_certificate")
                if _stays_open(Url.parse(value), user, certificate, required, insecure):
                    found.append(value)
        return LoginPolicy(True, required, found)

    def users(self) -> list[Item]:
        return list(self._api.items("/users"))

    def add(
        self, name: str, password: str, superuser: bool, roles: list[str], allow_digest: bool
    ) -> None:
        body: Item = {"superuser": superuser, "roles": roles}
        if password:
            body |= {"password": password, "allow_digest": allow_digest}
        self._api.put(below("/users", name), body, expect="new")

    def remove(self, name: str, force: bool) -> None:
        self._api.delete(below("/users", name), force=force)

    def set_password(self, name: str, password: str, allow_digest: bool | None) -> None:
        body: Item = {"password": password}
        if allow_digest is not None:
            body["allow_digest"] = allow_digest
        self._api.put(below("/users", name), body, expect="existing")

    def add_token(self, name: str, label: str, expires: int) -> Item:
        found: Item = self._api.post(
            below("/users", name) / "tokens", {"label": label, "expires": expires}
        )
        return found

    def remove_token(self, name: str, token: str) -> None:
        self._api.delete(below("/users", name) / "tokens" / token)

    def grant(self, name: str, permission: Permission) -> None:
        self._api.put(below("/users", name) / "permissions", permission)

    def revoke(self, name: str, pattern: str) -> None:
        self._api.delete(below("/users", name) / "permissions", pattern=pattern)

    def roles(self) -> list[Item]:
        return list(self._api.items("/roles"))

    def add_role(self, role: str) -> None:
        self._api.put(below("/roles", role), expect="new")

    def remove_role(self, role: str) -> None:
        self._api.delete(below("/roles", role))

    def grant_role(self, role: str, permission: Permission) -> None:
        self._api.put(below("/roles", role) / "permissions", permission)

    def revoke_role(self, role: str, pattern: str) -> None:
        self._api.delete(below("/roles", role) / "permissions", pattern=pattern)

    def assign(self, role: str, name: str) -> None:
        self._api.put(below("/users", name) / "roles" / role)

    def unassign(self, role: str, name: str) -> None:
        self._api.delete(below("/users", name) / "roles" / role)


class FileAccounts:
    """Accounts in the file of the user database. Changes are recorded under the system user's
    name."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store = UserStore(config.users_file)
        self._operations = UserOperations(
            lambda password: hash_password(password, config.auth.min_password_length),
            lambda: int(time.time()),
        )

    def login_policy(self) -> LoginPolicy:
        required, insecure = self._config.auth.required, self._config.insecure_public
        found = [
            str(each.url)
            for each in self._config.listeners
            if _stays_open(each.url, each.user, each.client_certificate, required, insecure)
        ]
        return LoginPolicy(False, required, found)

    def users(self) -> list[Item]:
        return [_user(name, user) for name, user in sorted(self._store.read().users.items())]

    def add(
        self, name: str, password: str, superuser: bool, roles: list[str], allow_digest: bool
    ) -> None:
        requested = UserChange(password, superuser, tuple(roles), allow_digest)
        self._apply(self._operations.add(name, requested))

    def remove(self, name: str, force: bool) -> None:
        self._apply(self._operations.remove(name, force))

    def set_password(self, name: str, password: str, allow_digest: bool | None) -> None:
        requested = UserChange(password, allow_digest=allow_digest)
        self._apply(self._operations.alter(name, requested))

    def add_token(self, name: str, label: str, expires: int) -> Item:
        prepare, number, token = self._operations.add_token(name, label, expires)
        self._apply(prepare)
        return {"id": number, "token": token, "expires": expires}

    def remove_token(self, name: str, token: str) -> None:
        self._apply(self._operations.remove_token(name, token))

    def grant(self, name: str, permission: Permission) -> None:
        self._apply(self._operations.grant(name, permission))

    def revoke(self, name: str, pattern: str) -> None:
        self._apply(self._operations.revoke(name, pattern))

    def roles(self) -> list[Item]:
        database = self._store.read()
        return [
            {
                "name": role,
                "permissions": [_permission(each) for each in permissions],
                "users": [
                    name for name, user in sorted(database.users.items()) if role in user.roles
                ],
            }
            for role, permissions in sorted(database.roles.items())
        ]

    def add_role(self, role: str) -> None:
        self._apply(self._operations.add_role(role))

    def remove_role(self, role: str) -> None:
        self._apply(self._operations.remove_role(role))

    def grant_role(self, role: str, permission: Permission) -> None:
        self._apply(self._operations.grant_role(role, permission))

    def revoke_role(self, role: str, pattern: str) -> None:
        self._apply(self._operations.revoke_role(role, pattern))

    def assign(self, role: str, name: str) -> None:
        self._apply(self._operations.assign(role, name))

    def unassign(self, role: str, name: str) -> None:
        self._apply(self._operations.withdraw(role, name))

    def _apply(self, prepare: Preparation) -> None:
        change = prepare()
        self._store.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            name = str(os.getuid())
        self._store.change(change, f"{name} on the command line")


def _stays_open(
    url: Url, user: str, certificate: str | None, required: str, insecure_public: bool
) -> bool:
    """Return whether all clients of a listener have all permissions although there are users."""
    return (
        url.protocol not in WITH_LOGINS
        and certificate != "required"
        and is_open(url, user, required, insecure_public)
    )


def _user(name: str, user: UserRecord) -> Item:
    return {
        "name": name,
        "superuser": user.superuser,
        "has_password": bool(user.password),
        "password_scheme": scheme_of(user.password),
        "allow_digest": bool(user.digest),
        "roles": list(user.roles),
        "permissions": [_permission(each) for each in user.permissions],
        "tokens": [
            {key: getattr(token, key) for key in ("id", "label", "created", "expires")}
            for token in user.tokens
        ],
        "created": user.created,
        "updated": user.updated,
    }


def _permission(permission: Permission) -> Item:
    operations = [str(each) for each in Operation if each in permission.operations]
    return {
        "pattern": permission.pattern,
        "operations": operations,
        "ignore_case": permission.ignore_case,
    }
