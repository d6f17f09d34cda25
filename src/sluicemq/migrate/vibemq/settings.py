"""VibeMQ's server settings, from any source (`layers`), converted to the plan."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sluicemq.migrate.plan import NewUser, Plan
from sluicemq.migrate.source_files import Damage
from sluicemq.migrate.vibemq.layers import Values, beside
from sluicemq.migrate.vibemq.listener import CONVERSIONS, TLS_CONVERSIONS, ConvertedOptions
from sluicemq.security.records import TokenRecord, UserRecord

TOKEN_USER: Final = "vibemq"
"""User that clients with the shared token of old versions log in as."""
PORT: Final = 2925
STORE: Final = "vibemq.db"

AUTHORIZATION: Final = "vibemq.authorization."
"""Prefix of settings for users. If there is one, clients have to log in."""

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
    "logins by [auth]",
    "ratelimit.maxmessagesperclientpersecond": "RateLimit is not enabled",
    "ratelimit.connectionwindow": "see RateLimit.MaxConnectionsPerIpPerWindow",
    "authorization.superuserpassword": "the superuser keeps the password of the user database",
    "authorization.superuserusername": "the users are taken from the user database",
    "tls.restrictcertificatepathtoworkingdirectory": "certificates may be anywhere",
    "tls.allowedcertificatedirectories": "certificates may be anywhere",
    "tls.sslprotocols": "TLS is not enabled",
    "tls.certificatepassword": "write it into a file of its own and name that with password_file",
    "sqlitestorage.enablewal": "the journal is ours",
    "sqlitestorage.busytimeoutms": "the journal is ours",
}


class SettingsReader:
    """Removes the settings that are migrated; the rest has no equivalent. Raises SourceError.

    directory  where the server was started, most often where its settings are
    """

    def __init__(self, plan: Plan, directory: Path, values: Values) -> None:
        self._plan = plan
        self._directory = directory
        self._values = values

    def _take(self, name: str, kind: type, default: Any) -> Any:
        given = self._values.pop(f"vibemq.{name}", None)
        if given is None or given.value is None:
            return default
        value = given.value
        # environment variables and .NET write numbers and booleans as text, too
        if isinstance(value, str) and kind is int and value.strip().isdigit():
            value = int(value)
        elif isinstance(value, str) and kind is bool and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if type(value) is not kind:
            raise Damage(f"{given.origin}: {given.name}: {value!r} is no {kind.__name__}")
        return value

    def read(self) -> None:
        """Fill in settings and listeners. The plan has the users of the user database."""
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
        self._identity()
        self._listen(port, options, guarded=bool(plan.users))
        level = self._values.pop("logging.loglevel.default", None)
        if level is not None and str(level.value).lower() in _LEVELS:
            plan.set("logging.level", _LEVELS[str(level.value).lower()], "Logging:LogLevel:Default")
        for name, given in self._values.items():
            reason = _KNOWN_ABSENT.get(name.removeprefix("vibemq."), "there is no equivalent")
            plan.leave("setting", given.name, reason)

    def _convert(
        self,
        options: dict[str, str | int | bool],
        conversions: dict[str, Callable[[list[str]], ConvertedOptions]],
    ) -> None:
        for name, convert in conversions.items():
            given = self._values.pop(f"vibemq.{name}", None)
            if given is None or given.value is None:
                continue
            values = given.value if isinstance(given.value, list) else [given.value]
            texts = [str(value).strip() for value in values]
            converted = convert(texts)
            options.update(converted.options)
            if converted.left:
                self._plan.leave("setting", f"{given.name}={','.join(texts)}", converted.left)

    def _place(self, path: str) -> Path:
        """Return an absolute path, because the broker may be started in another directory.

        The original resolves a relative path from its working directory, most often that of the
        settings. Links are not followed: a certificate may be replaced by changing one.
        """
        return Path(os.path.abspath(self._directory / path))

    def _identity(self) -> None:
        plan = self._plan
        authorized = any(name.startswith(AUTHORIZATION) for name in self._values)
        self._take("authorization.databasepath", str, "")
        token = self._take("authtoken", str, "")
        asked = self._take("enableauthentication", bool, False)
        if token and (authorized or plan.users):
            plan.leave("token", "AuthToken", "VibeMQ ignores it where there is Authorization")
        elif token and asked:
            now = int(time.time())
            digest = sha256(token.encode()).hexdigest()
            record = TokenRecord(id=digest[:8], sha256=digest, label="AuthToken", created=now)
            user = UserRecord(superuser=True, tokens=(record,), created=now, updated=now)
            plan.users.append(NewUser(TOKEN_USER, user))
        elif token:
            plan.leave(
                "token", "AuthToken", "EnableAuthentication is off, so no client is asked for it"
            )

    def store(self, named: Path | None) -> Path | None:
        """Return the SQLite file: `named`, or the configured one. None = none is configured."""
        kind = self._take("storagetype", str, "").lower()
        path = self._take("sqlitestorage.databasepath", str, "")
        if named is not None:
            return named
        if kind == "redis":
            self._plan.leave("messages", "in Redis", "Redis storage is not covered: see the guide")
            return None
        if kind == "sqlite" or path:
            return beside(self._directory, path or STORE)
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
                    "set client_ca to the authority whose certificates are trusted, and "
                    "client_certificate = required",
                )
        host = "0.0.0.0" if guarded else "127.0.0.1"
        if not guarded:
            plan.leave("listener", f"port {port} on all addresses", _PUBLIC)
        scheme = "vibemq+tls" if tls else "vibemq"
        plan.listen(f"{scheme}://{host}:{port}", "VibeMQ:Port", **options)


_PUBLIC: Final = (
    "no login is required, so anyone who reaches the port could read and send everything. It is "
    "written for 127.0.0.1; add users and change the address, or set insecure_public = true"
)
