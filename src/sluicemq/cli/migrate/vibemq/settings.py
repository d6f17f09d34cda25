"""appsettings.json. Names are taken in any letter case, as .NET does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluicemq.cli.migrate.jsonc import decode
from sluicemq.cli.migrate.plan import NewUser, Plan
from sluicemq.cli.migrate.sources import Damage, read_settings
from sluicemq.cli.migrate.vibemq.listener import CONVERSIONS, TLS_CONVERSIONS, Converted
from sluicemq.server.identity.records import TokenRecord, UserRecord

TOKEN_USER: Final = "vibemq"
"""Who shows the shared token of old versions is that user."""
PORT: Final = 2925
_USERS: Final = "auth.db"

_LEVELS: Final = {
    "trace": "debug",
    "debug": "debug",
    "information": "info",
    "warning": "warning",
    "error": "error",
    "critical": "error",
    "none": "error",
}
_LIMITS: Final = {
    "maxconnections": "max_connections",
    "maxmessagesize": "max_frame_bytes",
    "compressionthreshold": "compression_threshold",
}
_KNOWN_ABSENT: Final = {
    "ratelimit.maxconnectionsperipperwindow": "connections are limited by max_connections; failed "
    "logins by [identity]",
    "ratelimit.maxmessagesperclientpersecond": "RateLimit is not enabled",
    "ratelimit.connectionwindow": "see RateLimit.MaxConnectionsPerIpPerWindow",
    "authorization.superuserpassword": "passwords are set anew",
    "authorization.superuserusername": "the users are taken from the user database",
    "tls.restrictcertificatepathtoworkingdirectory": "certificates may be anywhere",
    "tls.allowedcertificatedirectories": "certificates may be anywhere",
    "tls.sslprotocols": "TLS is not enabled",
    "tls.certificatepassword": "write it into a file of its own and name that with password_file",
    "sqlitestorage.enablewal": "the journal is ours",
    "sqlitestorage.busytimeoutms": "the journal is ours",
}


class Found(NamedTuple):
    """Where other files are, if they are."""

    store: Path | None
    users: Path | None


def read_settings_file(plan: Plan, file: Path) -> Found:
    """Fill in settings and listeners. Raises SourceError."""
    plan.witness.look(file)
    tree = decode(read_settings(file), str(file))
    if not isinstance(tree, dict):
        raise Damage(f"{file}, line 1: this is no JSON object")
    return _Reader(plan, file, dict(_flat(tree, ""))).read()


def _flat(tree: dict[str, Any], before: str) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Values by lower-case dotted name, with the name as it is written."""
    for key, value in tree.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name.lower(), (name, value)


class _Reader:
    """Takes values out until none is left that has not been looked at."""

    def __init__(self, plan: Plan, file: Path, values: dict[str, tuple[str, Any]]) -> None:
        self._plan = plan
        self._file = file
        self._values = values

    def _take(self, name: str, kind: type, default: Any) -> Any:
        given = self._values.pop(f"vibemq.{name}", None)
        if given is None or given[1] is None:
            return default
        value = given[1]
        # environment variables and .NET write numbers and booleans as text, too
        if isinstance(value, str) and kind is int and value.strip().isdigit():
            value = int(value)
        elif isinstance(value, str) and kind is bool and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if type(value) is not kind:
            raise Damage(f"{self._file}: {given[0]}: {value!r} is no {kind.__name__}")
        return value

    def read(self) -> Found:
        plan = self._plan
        options: dict[str, str | int | bool] = {}
        port = self._take("port", int, PORT)
        for theirs, ours in _LIMITS.items():
            value = self._take(theirs, int, None)
            if value is not None:
                options[ours] = value
        if self._take("ratelimit.enabled", bool, True):
            rate = self._take("ratelimit.maxmessagesperclientpersecond", int, 0)
            if rate:
                options["rate_limit"] = rate
        self._convert(options, CONVERSIONS)
        if not self._take("queuedefaults.enableautocreate", bool, True):
            plan.set("broker.auto_create_queues", False, "VibeMQ:QueueDefaults:EnableAutoCreate")
        users = self._identity()
        store = self._store()
        self._listen(port, options, guarded=bool(plan.users) or users is not None)
        level = self._values.pop("logging.loglevel.default", None)
        if level is not None and str(level[1]).lower() in _LEVELS:
            plan.set("logging.level", _LEVELS[str(level[1]).lower()], "Logging:LogLevel:Default")
        for name, (written, _) in self._values.items():
            reason = _KNOWN_ABSENT.get(name.removeprefix("vibemq."), "there is no equivalent")
            plan.leave("setting", written, reason)
        return Found(store, users)

    def _convert(
        self,
        options: dict[str, str | int | bool],
        conversions: dict[str, Callable[[list[str]], Converted]],
    ) -> None:
        for name, convert in conversions.items():
            given = self._values.pop(f"vibemq.{name}", None)
            if given is None or given[1] is None:
                continue
            values = given[1] if isinstance(given[1], list) else [given[1]]
            texts = [str(value).strip() for value in values]
            converted = convert(texts)
            options.update(converted.options)
            if converted.left:
                self._plan.leave("setting", f"{given[0]}={','.join(texts)}", converted.left)

    def _place(self, said: str) -> Path:
        """The original takes a relative path from where it was started: most often from here.

        It becomes absolute, because the broker may be started elsewhere. Links are not followed: a
        certificate may be replaced by changing one.
        """
        return Path(os.path.abspath(self._file.parent / said))

    def _identity(self) -> Path | None:
        plan = self._plan
        authorized = any(name.startswith("vibemq.authorization") for name in self._values)
        database = self._place(self._take("authorization.databasepath", str, _USERS))
        token = self._take("authtoken", str, "")
        asked = self._take("enableauthentication", bool, False)
        if authorized:
            if token:
                plan.leave("token", "AuthToken", "VibeMQ ignores it where there is Authorization")
            if database.exists():
                return database
            plan.leave(
                "users",
                str(database),
                "there is no such file; add users with `sluicemq users add`",
            )
        elif token and asked:
            now = int(time.time())
            digest = sha256(token.encode()).hexdigest()
            record = TokenRecord(id=digest[:8], sha256=digest, label="AuthToken", created=now)
            user = UserRecord(superuser=True, tokens=(record,), created=now, updated=now)
            plan.users.append(NewUser(TOKEN_USER, user))
        elif token:
            plan.leave(
                "token", "AuthToken", "EnableAuthentication is off, so nobody is asked for it"
            )
        return None

    def _store(self) -> Path | None:
        kind = self._take("storagetype", str, "").lower()
        path = self._take("sqlitestorage.databasepath", str, "")
        if kind == "redis":
            self._plan.leave("messages", "in Redis", "Redis storage is not covered: see the guide")
            return None
        if kind == "sqlite" or path:
            return self._place(path or "vibemq.db")
        return None

    def _listen(self, port: int, options: dict[str, str | int | bool], guarded: bool) -> None:
        plan = self._plan
        tls = self._take("tls.enabled", bool, False)
        certificate = self._take("tls.certificatepath", str, "")
        required = self._take("tls.requireclientcertificate", bool, False)
        if tls:
            self._convert(options, TLS_CONVERSIONS)
            options["certificate"] = str(self._place(certificate))
            if required:
                plan.leave(
                    "setting",
                    "Tls.RequireClientCertificate",
                    "say with client_ca whose certificates are trusted, and set "
                    "client_certificate = required",
                )
        host = "0.0.0.0" if guarded else "127.0.0.1"
        if not guarded:
            plan.leave("listener", f"port {port} on all addresses", _PUBLIC)
        scheme = "vibemq+tls" if tls else "vibemq"
        plan.listen(f"{scheme}://{host}:{port}", "VibeMQ:Port", **options)


_PUBLIC: Final = (
    "nobody has to log in, so whoever reaches the port may read and send everything. It is written "
    "for 127.0.0.1; add users and change the address, or set insecure_public = true"
)
