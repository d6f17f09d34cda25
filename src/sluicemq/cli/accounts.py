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
from typing import Any, NamedTuple

from sluicemq.cli.api import Api, BrokerLocation, OperationCaller
from sluicemq.cli.serve import load_flags
from sluicemq.management.broker import LIST_SETTINGS, ConfigurationQuery
from sluicemq.management.operation import AnswerT, ApiOperation, ParametersT, implementations
from sluicemq.security.access import is_open
from sluicemq.security.passwords import hash_password
from sluicemq.security.records import Database, Preparation, UserStore
from sluicemq.security.user_service import UserService
from sluicemq.server.address import Url
from sluicemq.server.config import Config
from sluicemq.server.listener_settings import WITH_LOGINS


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


@contextmanager
def accounts_at(place: BrokerLocation) -> Iterator[ApiAccounts | FileAccounts]:
    """Open the users of the broker at `place`. Their methods raise the API's errors or
    AccessError."""
    if place.local and not _answers(place.socket()):
        yield FileAccounts(load_flags(place.config, place.data_dir).config)
        return
    with ApiAccounts(place.target()) as api:
        yield api


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


class ApiAccounts(Api):
    """Accounts that are managed through the API of a running broker."""

    def login_policy(self) -> LoginPolicy:
        """Return which listeners require a login."""
        items = self.items(LIST_SETTINGS, ConfigurationQuery())
        settings: dict[str, Any] = {item.name: item.value for item in items}
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


class FileUsers:
    """User database in the file of a stopped broker; implements `UserDirectory` and `UserCall`.
    Changes are recorded under the system user's name."""

    def __init__(self, config: Config) -> None:
        self._minimum = config.auth.min_password_length
        self._store = UserStore(config.users_file)
        self.note = ""
        self.status = 0

    @property
    def database(self) -> Database:
        """Current users and roles."""
        return self._store.read()

    @property
    def by(self) -> str:
        """Author of the changes, for the audit log."""
        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            name = str(os.getuid())
        return f"{name} on the command line"

    def hash(self, password: str) -> str:
        """Return the hash of a new password. Raises AccessError."""
        return hash_password(password, self._minimum)

    def now(self) -> int:
        """Return the time in seconds since the epoch."""
        return int(time.time())

    async def apply(self, prepare: Preparation, by: str) -> None:
        """Apply a change to the file. Raises AccessError."""
        change = prepare()
        self._store.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.change(change, by)


class FileAccounts(OperationCaller):
    """Accounts in the file of the user database."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._users = FileUsers(config)
        self._methods = dict(implementations(UserService(self._users)))

    def login_policy(self) -> LoginPolicy:
        """Return which listeners require a login."""
        required, insecure = self._config.auth.required, self._config.insecure_public
        found = [
            str(each.url)
            for each in self._config.listeners
            if _stays_open(each.url, each.user, each.client_certificate, required, insecure)
        ]
        return LoginPolicy(False, required, found)

    def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        # On the file, no operation waits, so that its coroutine ends at the first step and needs no
        # event loop: the caller may be inside one.
        steps = self._methods[operation](self._users, parameters).__await__()
        try:
            next(steps)
        except StopIteration as stop:
            answer: AnswerT = stop.value
            return answer
        raise RuntimeError(f"{operation.operation_id} waited although the users are in a file")


def _stays_open(
    url: Url, user: str, certificate: str | None, required: str, insecure_public: bool
) -> bool:
    """Return whether all clients of a listener have all permissions although there are users."""
    return (
        url.protocol not in WITH_LOGINS
        and certificate != "required"
        and is_open(url, user, required, insecure_public)
    )


Accounts = ApiAccounts | FileAccounts
