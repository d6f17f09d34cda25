"""VibeMQ: appsettings.json, vibemq.db and the users of auth.db.

| VibeMQ                               | here                                                     |
|--------------------------------------|----------------------------------------------------------|
| Port, Tls                            | vibemq listener                                          |
| MaxConnections, MaxMessageSize       | options of the listener                                  |
| CompressionThreshold, RateLimit      | the same                                                 |
| QueueDefaults.EnableAutoCreate       | broker.auto_create_queues                                |
| AuthToken (to 1.7)                   | a token of the superuser `vibemq`                        |
| users and permissions of auth.db     | the same, with their passwords (bcrypt)                  |
| queues                               | queues, and topics for the fan-out modes                 |
| messages                             | the same, with id, headers, priority, attempts; rows that|
|                                      | are no waiting messages go into a file (store.py)        |
| dead_letters                         | messages in the queue's dead-letter queue                |

The settings of the server come from several sources. Later sources override earlier ones:

    appsettings.{DOTNET_ENVIRONMENT}.json    Production, unless the environment says otherwise
    environment                              VibeMQ__Tls__Enabled=true stands for VibeMQ:Tls:Enabled
    the file that VIBEMQ_CONFIG_PATH names
    appsettings.json

So the settings file overrides the environment, contrary to most .NET programs, because VibeMQ's
server does so. Names are case-insensitive.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from sluicemq.migrate.configuration import (
    PartlyMigrated,
    SettingRule,
    SourceSetting,
    SourceSettings,
    boolean,
    log_level,
    number,
    positive,
    text,
)
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import (
    Damage,
    SourceError,
    column_text,
    columns,
    is_database,
    open_database,
)
from sluicemq.migrate.vibemq.store import read_store
from sluicemq.model.access import Operation, Permission, is_pattern, is_user_name
from sluicemq.protocols.vibemq.commands import OPERATIONS
from sluicemq.protocols.vibemq.queues import Mode, protocol_name
from sluicemq.protocols.vibemq.wire import NO_LIMIT
from sluicemq.security.passwords import COSTS, bcrypt_cost
from sluicemq.security.records import TokenRecord, UserRecord

SETTINGS: Final = "appsettings.json"
STORE: Final = "vibemq.db"
PORT: Final = 2925
TOKEN_USER: Final = "vibemq"
"""User that clients with the shared token of old versions log in as."""
AUTHORIZATION: Final = "vibemq.authorization."
"""Prefix of settings for users. If there is one, clients have to log in."""

_CONFIG_PATH: Final = "vibemq_config_path"
_ENVIRONMENT: Final = "dotnet_environment"
_SECTIONS: Final = ("vibemq", "logging")
"""Sections of the settings that are read."""

Values = dict[str, SourceSetting]
"""Settings by their dotted name in lower case; the items of a list by their index, as .NET has
them, or as one value."""
_UNKNOWN: Final = (
    "there are no settings and no user database here, so it is unknown whether clients had to log "
    "in. If they had, name the database with --auth-db FILE, or the environment with --env FILE"
)


def inspect_source(
    source: Path,
    store: Path | None,
    *,
    settings: Path | None = None,
    environment: Path | None = None,
    users: Path | None = None,
    without_users: bool = False,
    strict: bool = False,
    fan_out_rows: bool = False,
) -> Plan:
    """Read the source into a plan.

    store         SQLite file, if it is not the one that `source` names
    settings      the only settings file to read
    environment   file with the variables that VibeMQ was started with
    users         user database, if it is not in a default location
    strict, fan_out_rows  as in `read_store`

    Raises SourceError.
    """
    plan = Plan(kind="vibemq", source_path=source.resolve())
    directory = source if source.is_dir() else source.parent
    ignore_config_path = settings is not None
    if is_database(source):
        store = store or source
    elif not source.is_dir():
        if settings is not None:
            raise SourceError(f"{source} and {settings}: name one settings file only")
        settings = source
    default_store = source / STORE if (source / STORE).exists() else None
    if settings is None and (directory / SETTINGS).exists():
        settings = directory / SETTINGS
    values = read_layers(
        plan, directory, settings, environment, ignore_config_path=ignore_config_path
    )
    if values is None and store is None and default_store is None:
        raise SourceError(f"{source}: there is neither {SETTINGS} nor {STORE}")
    source_settings = SourceSettings(plan, values or {})
    store = find_store(source_settings, directory, store, default_store)
    directories = [directory, *(file.parent for file in (store, settings) if file is not None)]
    read_users(plan, users, directories, source_settings.values, without_users)
    if values is not None:
        migrate_settings(source_settings, directory)
    elif not plan.users and not without_users:
        plan.skip("users", "all, if there were any", _UNKNOWN)
    if store is None:
        plan.skip(
            "messages",
            "all",
            "their store is unknown. If there is an SQLite file, name it with --store. Messages in "
            "memory or in Redis are not migrated: point the publishers here first, and see the "
            "guide for the messages that are still ready there",
        )
    else:
        read_store(plan, store, strict=strict, fan_out_rows=fan_out_rows)
    return plan


# --- sources -----------------------------------------------------------------------------------


def read_layers(
    plan: Plan,
    directory: Path,
    settings: Path | None,
    environment: Path | None,
    *,
    ignore_config_path: bool,
) -> Values | None:
    """Read the settings of a server that was started in `directory`. None = there are none.

    `settings` is its settings file and `environment` a file with the variables it was started with,
    if there are such files. With `ignore_config_path`, VIBEMQ_CONFIG_PATH has no effect. Adds a
    note about variables that the settings file overrides. Raises SourceError.
    """
    variables = _read_variables(plan, environment) if environment is not None else {}
    name = variables.pop(_ENVIRONMENT, None)
    staged_file = directory / f"appsettings.{name.value if name else 'Production'}.json"
    base_layers = [_read_file(plan, staged_file)] if staged_file.exists() else []
    path = variables.pop(_CONFIG_PATH, None)
    files: list[Values] = []
    if path is not None and not ignore_config_path:
        named_file = resolve_path(directory, path.value)
        if not named_file.exists():
            raise SourceError(
                f"{path.location}: VIBEMQ_CONFIG_PATH names {path.value} as the settings, and "
                "there is no such file here; copy it, and name it with --settings FILE"
            )
        files.append(_read_file(plan, named_file))
    if settings is not None:
        files.append(_read_file(plan, settings))
    if environment is None and not base_layers and not files:
        return None
    by_environment = {key: value for key, value in variables.items() if _is_setting(key)}
    names = sorted(
        value.name
        for key, value in by_environment.items()
        if any(
            key in file and str(file[key].value).lower() != value.value.lower() for file in files
        )
    )
    if names:
        plan.notes.append(
            f"the settings file has other values than the environment for {', '.join(names)}; "
            "its own are taken, as by VibeMQ's server"
        )
    return _merge([*base_layers, by_environment, *files])


def resolve_path(directory: Path, path: str) -> Path:
    """Return the file that a server started in `directory` calls `path`. If it does not exist, the
    function searches for its name alone, because paths within a container are invalid outside."""
    file = directory / path
    by_name = directory / file.name
    return by_name if not file.exists() and by_name.exists() else file


def _read_file(plan: Plan, file: Path) -> Values:
    tree = decode_json(plan.change_detector.read_settings(file), str(file))
    if not isinstance(tree, dict):
        raise Damage(f"{file}, line 1: the file is not a JSON object")
    return {name.lower(): SourceSetting(name, value, str(file)) for name, value in _flatten(tree)}


def _flatten(tree: dict[str, Any] | list[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the values by dotted name. Lists and objects without items are values."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, list)) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_variables(plan: Plan, file: Path) -> Values:
    """Read the variables of a file in the format of `docker run --env-file`, or of `env`: a line is
    NAME=VALUE, blank, or begins with #. Quotes around a value are removed, as Compose does."""
    try:
        lines = plan.change_detector.read_settings(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise Damage(f"{file}, byte {error.start}: the file is not UTF-8") from None
    variables = {}
    for line_number, line in enumerate(lines, 1):
        raw = line.strip()
        name, separator, value = raw.partition("=")
        name = name.strip().replace("__", ".").replace(":", ".")
        if not raw or raw.startswith("#"):
            continue
        if separator:
            value = re.sub(r"""^(["'])(.*)\1$""", r"\2", value.strip())
            variables[name.lower()] = SourceSetting(name, value, str(file))
        elif _is_setting(name.lower()) or name.lower() in (_CONFIG_PATH, _ENVIRONMENT):
            # other lines belong to the multi-line value of another variable
            raise Damage(f"{file}, line {line_number}: {raw} has no value; write NAME=VALUE")
    return variables


def _is_setting(name: str) -> bool:
    return name.partition(".")[0] in _SECTIONS


def _merge(layers: Iterable[Values]) -> Values:
    """Merge to one value for each name. Lists are merged by index, as .NET does."""
    merged: Values = {}
    lists: dict[str, dict[int, SourceSetting]] = {}
    for layer in layers:
        for key, value in layer.items():
            stem, _, index = key.rpartition(".")
            if stem and index.isdecimal():
                lists.setdefault(stem, {})[int(index)] = value
            else:
                merged[key] = value
    for stem, items in lists.items():
        first = next(iter(items.values()))
        ordered = [items[index].value for index in sorted(items)]
        merged[stem] = first._replace(name=first.name.rpartition(".")[0], value=ordered)
    return merged


_STRING_OR_COMMENT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_NOT_A_LINE_END: Final = re.compile(rb"[^\n]")
_OFFSET: Final = re.compile(r"\(byte (\d+)\)")
_BOM: Final = b"\xef\xbb\xbf"


def decode_json(content: bytes, file: str) -> Any:
    """Return the value of JSON in the dialect of .NET's configuration: with comments, and commas
    before a closing bracket. Raises Damage with the line."""
    content = content.removeprefix(_BOM)
    plain_json = _STRING_OR_COMMA.sub(_blank_out, _STRING_OR_COMMENT.sub(_blank_out, content))
    try:
        return msgspec.json.decode(plain_json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        match = _OFFSET.search(str(error))
        line = content.count(b"\n", 0, int(match[1])) + 1 if match else 1
        raise Damage(f"{file}, line {line}: not JSON: {error}") from None


def _blank_out(match: re.Match[bytes]) -> bytes:
    """Return a string unchanged and other matches as blanks, so that errors keep their position."""
    token: bytes = match[0]
    return token if token.startswith(b'"') else _NOT_A_LINE_END.sub(b" ", token)


# --- conversions -------------------------------------------------------------------------------

_ALGORITHMS: Final = {"gzip": "gzip", "1": "gzip", "brotli": "Brotli", "2": "Brotli"}
"""Supported compressions, by name and number of VibeMQ."""
_TLS_VERSIONS: Final = {"tls12": "1.2", "3072": "1.2", "tls13": "1.3", "12288": "1.3"}
_SYSTEMS_CHOICE: Final = frozenset({"none", "0", ""})
_MODES: Final = {
    spelling: protocol_name(mode)
    for mode in Mode
    for spelling in (protocol_name(mode).lower(), str(mode.value))
}


def _lower_words(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [str(item).strip().lower() for item in values]


def _compression(value: object) -> bool | PartlyMigrated | None:
    supported = {_ALGORITHMS[word] for word in _lower_words(value) if word in _ALGORITHMS}
    if len(supported) == 1:
        return PartlyMigrated(
            None,
            "gzip and Brotli are both offered, and the list of each client decides; "
            "compression = false offers none",
        )
    return None if supported else False


def _delivery_mode(value: object) -> str | PartlyMigrated:
    mode = _MODES.get(next(iter(_lower_words(value)), ""))
    return mode or PartlyMigrated(None, "there is no such delivery mode")


def _queue_size(value: object) -> int | PartlyMigrated:
    """Convert a size: 0 and less are 1, as there."""
    try:
        return min(max(1, number(value)), NO_LIMIT)
    except ValueError:
        return PartlyMigrated(None, "the value is not a number")


def _tls_versions(value: object) -> str | PartlyMigrated | None:
    """Convert names separated by commas, or one number."""
    names = [name.strip() for word in _lower_words(value) for name in word.split(",")]
    lowest_version = min(
        (_TLS_VERSIONS[name] for name in names if name in _TLS_VERSIONS), default=None
    )
    other_versions = [
        name for name in names if name not in _TLS_VERSIONS and name not in _SYSTEMS_CHOICE
    ]
    if other_versions:
        return PartlyMigrated(
            lowest_version, f"TLS 1.2 and 1.3 are offered here, not {', '.join(other_versions)}"
        )
    return lowest_version


def _disabled(value: object) -> bool | None:
    return None if boolean(value) else False


_RULES: Final = {
    "vibemq.maxconnections": SettingRule("listener.max_connections", number),
    "vibemq.maxmessagesize": SettingRule("listener.max_frame_bytes", number),
    "vibemq.compressionthreshold": SettingRule("listener.compression_threshold", number),
    "vibemq.supportedcompressions": SettingRule("listener.compression", _compression),
    "vibemq.queuedefaults.defaultdeliverymode": SettingRule(
        "listener.default_mode", _delivery_mode
    ),
    "vibemq.queuedefaults.maxqueuesize": SettingRule(
        "listener.default_max_queue_size", _queue_size
    ),
    "vibemq.queuedefaults.enableautocreate": SettingRule("broker.auto_create_queues", _disabled),
    "logging.loglevel.default": SettingRule("logging.level", log_level),
}
_RATE_RULES: Final = {
    "vibemq.ratelimit.maxmessagesperclientpersecond": SettingRule("listener.rate_limit", positive),
}
_TLS_RULES: Final = {
    "vibemq.tls.sslprotocols": SettingRule("listener.tls_min_version", _tls_versions),
}

_REASONS: Final = {
    "vibemq.ratelimit.maxconnectionsperipperwindow": "connections are limited by max_connections; "
    "failed logins by [auth]",
    "vibemq.ratelimit.maxmessagesperclientpersecond": "RateLimit is not enabled",
    "vibemq.ratelimit.connectionwindow": "see RateLimit.MaxConnectionsPerIpPerWindow",
    "vibemq.authorization.superuserpassword": "the superuser keeps the password of the user "
    "database",
    "vibemq.authorization.superuserusername": "the users are taken from the user database",
    "vibemq.tls.restrictcertificatepathtoworkingdirectory": "certificates may be anywhere",
    "vibemq.tls.allowedcertificatedirectories": "certificates may be anywhere",
    "vibemq.tls.sslprotocols": "TLS is not enabled",
    "vibemq.tls.certificatepassword": "write it into a file of its own and name that with "
    "password_file",
    "vibemq.sqlitestorage.enablewal": "the journal is ours",
    "vibemq.sqlitestorage.busytimeoutms": "the journal is ours",
}


# --- settings ----------------------------------------------------------------------------------


def find_store(
    settings: SourceSettings,
    directory: Path,
    explicit_store: Path | None,
    default_store: Path | None,
) -> Path | None:
    """Return the SQLite file: `explicit_store`, the configured one, or `default_store`. None =
    there is none."""
    kind = settings.take("vibemq.storagetype", text, "").lower()
    path = settings.take("vibemq.sqlitestorage.databasepath", text, "")
    if explicit_store is not None:
        return explicit_store
    if kind == "redis":
        settings.plan.skip("messages", "in Redis", "Redis storage is not migrated: see the guide")
        return None
    configured = resolve_path(directory, path or STORE) if kind == "sqlite" or path else None
    return (
        configured
        if configured is not None and (configured.exists() or not default_store)
        else default_store
    )


def migrate_settings(settings: SourceSettings, directory: Path) -> None:
    """Fill in settings and listeners. The plan has the users of the user database already;
    `directory` is the working directory of the server, usually that of its settings."""
    plan = settings.plan
    port = settings.take("vibemq.port", number, PORT)
    settings.apply(_RULES)
    if settings.take("vibemq.ratelimit.enabled", boolean, True):
        settings.apply(_RATE_RULES)
    _migrate_token(settings)
    tls = settings.take("vibemq.tls.enabled", boolean, False)
    certificate = settings.take("vibemq.tls.certificatepath", text, "")
    requires_certificate = settings.take("vibemq.tls.requireclientcertificate", boolean, False)
    if tls:
        settings.apply(_TLS_RULES)
        # absolute, because the broker may be started in another directory; links are not followed,
        # because a certificate may be replaced by changing one
        settings.options["certificate"] = os.path.abspath(directory / certificate)
        if requires_certificate:
            plan.skip(
                "setting",
                "Tls.RequireClientCertificate",
                "set client_ca to the certificate authority that is trusted, and "
                "client_certificate = required",
            )
    url = settings.url("vibemq+tls" if tls else "vibemq", "", port)
    plan.listen(url, "VibeMQ:Port", **settings.options)
    settings.report_unmigrated(_REASONS)


def _migrate_token(settings: SourceSettings) -> None:
    plan = settings.plan
    authorized = any(name.startswith(AUTHORIZATION) for name in settings.values)
    settings.take(f"{AUTHORIZATION}databasepath", text, "")
    token = settings.take("vibemq.authtoken", text, "")
    is_required = settings.take("vibemq.enableauthentication", boolean, False)
    if token and (authorized or plan.users):
        plan.skip("token", "AuthToken", "VibeMQ ignores it where there is Authorization")
    elif token and is_required:
        now = int(time.time())
        digest = sha256(token.encode()).hexdigest()
        record = TokenRecord(id=digest[:8], sha256=digest, label="AuthToken", created=now)
        plan.users[TOKEN_USER] = UserRecord(
            superuser=True, tokens=(record,), created=now, updated=now
        )
    elif token:
        plan.skip("token", "AuthToken", "EnableAuthentication is off, so no client is asked for it")


# --- users -------------------------------------------------------------------------------------

USERS: Final = "auth.db"
_COLUMNS: Final = frozenset({"username", "password_hash", "is_superuser", "created_at"})

_OPERATIONS: Final[dict[object, Operation]] = {
    spelling: operation
    for number, (name, operation) in enumerate(OPERATIONS.items())
    for spelling in (number, name.lower())
}
"""Permissions by number, as stored, and by name."""


def read_users(
    plan: Plan,
    database: Path | None,
    directories: list[Path],
    values: Values,
    without_users: bool,
) -> None:
    """Add the users to the plan. If no database is given, it is searched for in `directories`, by
    the path and the name in the settings, then by its default name.

    A broker whose clients had to log in is migrated without its users only at the request of the
    command line (`without_users`): anyone who reached the new broker could do everything. Raises
    SourceError if there were users and none can be added.
    """
    authorized = any(name.startswith(AUTHORIZATION) for name in values)
    configured = values.get(f"{AUTHORIZATION}databasepath")
    names = [str(configured.value)] if configured is not None and configured.value else []
    candidates = [
        resolve_path(directory, name) for name in [*names, USERS] for directory in directories
    ]
    file = database or next((candidate for candidate in candidates if candidate.exists()), None)
    if without_users:
        if authorized or file is not None:
            plan.skip("users", "all", "--without-users was given; `sluicemq users add` adds some")
        return
    if file is None:
        if authorized:
            raise SourceError(
                f"{plan.source_path}: VibeMQ has users (its settings have a section "
                f"Authorization), and their database, {names[0] if names else USERS}, is not here. "
                "Name it with --auth-db FILE; in a container without a DatabasePath it is "
                "/app/auth.db (docker "
                "cp copies it and the files beside it). --without-users migrates without them"
            )
        return
    count = _read_user_rows(plan, file)
    if not plan.users and (count or authorized):
        reasons = [
            f"; {item.name!r}: {item.reason}" for item in plan.skipped if item.what == "user"
        ]
        raise SourceError(
            f"{file}: none of its {count} users can be migrated{''.join(reasons[:3])}. Correct a "
            "copy of it and name that with --auth-db FILE; --without-users migrates without them"
        )
    if plan.users:
        plan.notes.append(f"the users are those of {file}")


def _read_user_rows(plan: Plan, file: Path) -> int:
    """Add the users to the plan. Returns their number, including those that cannot be added."""
    now = int(time.time())
    count = 0
    with open_database(file, plan.change_detector) as connection:
        if not columns(connection, "users") >= _COLUMNS:
            raise Damage(
                f"{file}: there is no table `users` as VibeMQ has it. A database that was copied "
                f"from a running broker is incomplete without {file.name}-wal beside it"
            )
        permissions: dict[str, list[Permission]] = {}
        for name, pattern, operations in connection.execute(
            "SELECT CAST(username AS BLOB), CAST(queue_pattern AS BLOB), CAST(operations AS BLOB)"
            " FROM permissions ORDER BY id"
        ):
            user, glob = column_text(name), column_text(pattern)
            permission = _read_permission(plan, file, user, glob, operations)
            if permission is not None:
                permissions.setdefault(user, []).append(permission)
        rows = connection.execute(
            "SELECT CAST(username AS BLOB), CAST(password_hash AS BLOB), is_superuser, created_at"
            " FROM users ORDER BY 1"
        )
        for name, password_hash, superuser, created in rows:
            count += 1
            user = column_text(name)
            if not is_user_name(user):
                plan.skip("user", user, "a name has 1 to 64 letters, digits and - _ . @")
                continue
            plan.users[user] = UserRecord(
                password=_keep_password(plan, user, column_text(password_hash)),
                superuser=bool(superuser),
                permissions=tuple(permissions.get(user, ())),
                created=created if isinstance(created, int) and 0 <= created <= now else now,
                updated=now,
            )
    return count


def _keep_password(plan: Plan, user: str, password_hash: str) -> str:
    """Return the hash to keep; "" if it can never be verified, which is reported."""
    if bcrypt_cost(password_hash):
        return password_hash
    plan.skip(
        "password",
        user,
        f"its hash is not bcrypt's with a cost of {COSTS[0]} to {COSTS[-1]}, the only ones that "
        f"are verified: set a new one with `sluicemq users passwd {user}`",
    )
    return ""


def _read_permission(
    plan: Plan, file: Path, user: str, pattern: str, raw: bytes | None
) -> Permission | None:
    try:
        operations: Any = msgspec.json.decode(raw or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damage(f"{file}: permission of {user} on {pattern}: not JSON: {error}") from None
    granted_operations = set()
    for name in operations if isinstance(operations, list) else [operations]:
        spelling = name.lower() if isinstance(name, str) else name
        if type(spelling) not in (str, int) or spelling not in _OPERATIONS:
            plan.skip(
                "permission", f"{name!r} of {user} on {pattern}", "no operation has that name"
            )
        else:
            granted_operations.add(_OPERATIONS[spelling])
    if not is_pattern(pattern):
        plan.skip("permission", f"{user} on {pattern}", "a pattern has 1 to 256 characters")
        return None
    return Permission(pattern, frozenset(granted_operations), ignore_case=True)
