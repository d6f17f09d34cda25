"""PHPMQ: its XML configuration and its SQLite store.

| PHPMQ                              | here                                                       |
|------------------------------------|------------------------------------------------------------|
| servers/messagequeue network       | phpmq listener with dispatch version 1                     |
| ... unix, tls                      | the same on a socket, with TLS                             |
| servers/maintenance                | phpmq-maintenance listener                                 |
| storage/sqlite path                | where the messages are taken from                          |
| logging/output loglevel            | logging.level                                              |
| row of `queue`: queueName, content | message of the queue, as it would be sent                  |
| createdAt, in 0.1 ms               | timestamp; the order of the queue                          |
| messageId                          | message id, which protocols with ids show                  |
| dispatched                         | one delivery, so that its next is marked as repeated       |

PHPMQ has no users, and listens on all addresses by default; SluiceMQ requires a user for a port
that other machines can reach. So the migration binds such a listener to loopback, and the operator
changes the address.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote
from xml.parsers import expat

from sluicemq.migrate.configuration import (
    SettingRule,
    SourceSetting,
    SourceSettings,
    log_level,
)
from sluicemq.migrate.plan import Plan, SourceMessage, key_of
from sluicemq.migrate.source_files import (
    ChangeDetector,
    Damage,
    SourceError,
    is_database,
    open_database,
    require_columns,
)
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.model.message import LAST_TIME, BodyKind, Durability, Message, Origin
from sluicemq.protocols.phpmq.wire import WITHOUT_TTL

KIND: Final = "phpmq"
MEMORY: Final = ":memory:"
COLUMNS: Final = frozenset({"messageId", "queueName", "content", "createdAt", "dispatched"})
TICKS: Final = 10
"""Number of `createdAt` units in a millisecond."""

_SERVERS: Final = {"messagequeue": "phpmq", "maintenance": "phpmq-maintenance"}
_TLS: Final = {
    "local_cert": SettingRule("listener.certificate", str),
    "local_pk": SettingRule("listener.key", str),
    "cafile": SettingRule("listener.client_ca", str),
}
"""PHP's names of TLS options, with ours."""


class ConfigElement(NamedTuple):
    """An element `config`, or one with attributes of its own: its position and its values."""

    path: tuple[str, ...]
    attributes: dict[str, str]
    line: int


def inspect_source(source: Path, store: Path | None) -> Plan:
    """Read the source into a plan. Raises SourceError."""
    plan = Plan(kind=KIND, source_path=source.resolve())
    if source.is_dir():
        raise SourceError(f"{source}: this is a directory; name the XML file or the SQLite file")
    if is_database(source):
        store = store or source
    else:
        store = _read_configuration(plan, source, store)
    if store is not None:
        _read_store(plan, store)
    return plan


# --- the configuration -------------------------------------------------------------------------


def read_elements(content: bytes, file: str) -> list[ConfigElement]:
    """Return the elements that have attributes, in order. Raises Damage with the line."""
    elements: list[ConfigElement] = []
    path: list[str] = []
    parser = expat.ParserCreate()

    def start(name: str, attributes: dict[str, str]) -> None:
        path.append(name)
        if len(path) > 16:
            raise Damage(f"{file}, line {parser.CurrentLineNumber}: elements are nested too deep")
        if attributes or len(path) == 4:
            elements.append(ConfigElement(tuple(path), attributes, parser.CurrentLineNumber))

    def end(name: str) -> None:
        path.pop()

    def doctype(*ignored: object) -> None:
        # PHPMQ's files need none, and entities can expand without limit
        raise Damage(f"{file}, line {parser.CurrentLineNumber}: a document type is not accepted")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise Damage(f"{file}, line {error.lineno}: not XML: {reason}") from None
    except (ValueError, LookupError) as error:  # unknown encoding
        raise Damage(f"{file}, line {parser.CurrentLineNumber}: not XML: {error}") from None
    if not elements or any(entry.path[0] != "PHPMQ" for entry in elements):
        raise Damage(f"{file}, line 1: the file is not a configuration of PHPMQ")
    return elements


def _read_configuration(plan: Plan, source: Path, store: Path | None) -> Path | None:
    """Fill in settings; return the path of the store if it is not known already."""
    listeners: dict[tuple[str, str], dict[str, SourceSetting]] = {}
    for entry in read_elements(plan.change_detector.read_settings(source), str(source)):
        location = f"{'/'.join(entry.path)} in line {entry.line}"
        name = entry.attributes.get("name", "")
        value = entry.attributes.get("value", "")
        match entry.path[1:]:
            case ("servers", server, listener_type, *_) if server in _SERVERS:
                options = listeners.setdefault((server, listener_type), {})
                if name:
                    label = f"servers/{server}/{listener_type}: {name}"
                    options[name] = SourceSetting(name, value, location, label)
            case ("storage", "sqlite", "config") if name == "path":
                store = store or _store_path(plan, source, entry)
            case ("storage", "redis", "config"):
                if name == "host" and store is None:
                    plan.skip("messages", "in Redis", _REDIS)
            case ("logging", "output", *_):
                if level := log_level(entry.attributes.get("loglevel", "")):
                    plan.settings["logging.level"] = level, "logging/output"
            case ("logging", "logfile", *_):
                plan.skip(
                    "setting",
                    f"logging/logfile in line {entry.line}",
                    "the broker logs to standard error, where systemd or a container keeps it",
                )
            case _:
                plan.skip("setting", location, "it has no effect")
    for (server, listener_type), values in listeners.items():
        _add_listener(SourceSettings(plan, values), server, listener_type)
    return store


_REDIS: Final = (
    "only SQLite stores are read; let PHPMQ's consumers drain its queues before the migration, or "
    "publish the rest again"
)


def _store_path(plan: Plan, source: Path, entry: ConfigElement) -> Path | None:
    path = entry.attributes.get("value", "")
    if path == MEMORY:
        plan.skip(
            "messages",
            "in memory",
            "the store is :memory:, so its messages are lost when PHPMQ stops; let consumers drain "
            "its queues first",
        )
        return None
    # PHPMQ resolves a relative path against its working directory, which is unknown here
    for file in (source.parent / path, Path(path)):
        if file.exists():
            return file
    raise SourceError(
        f"{source}, line {entry.line}: there is no store {path}, relative to {source.parent} or to "
        "the current directory; name it with --store"
    )


def _add_listener(settings: SourceSettings, server: str, listener_type: str) -> None:
    plan = settings.plan
    scheme = _SERVERS[server]
    section = f"servers/{server}/{listener_type}"
    options = settings.options
    if scheme == "phpmq":
        options["dispatch_version"] = 1  # its released clients support no other version
    if listener_type == "unix":
        path = quote(settings.take("path", str, ""))
        plan.listen(f"{scheme}+unix://{path}", section, **options)
    elif listener_type in ("network", "tls"):
        host, port = settings.take("host", str, ""), settings.take("port", str, "")
        if listener_type == "tls":
            scheme += "+tls"
            settings.apply(_TLS)
            verifies_peer = settings.take("verify_peer", str, "").lower() in ("1", "true")
            if verifies_peer and "client_ca" in options:
                options["client_certificate"] = "required"
            else:
                options.pop("client_ca", None)
        plan.listen(settings.url(scheme, host, port), section, **options)
    else:
        plan.skip("listener", section, "there is no such type of listener")
        return
    settings.report_unmigrated(_OPTIONS)


_OPTIONS: Final = {
    "passphrase": "write it into a file of its own and name that with password_file",
}


# --- the store ---------------------------------------------------------------------------------


def _read_store(plan: Plan, store: Path) -> None:
    change_detector = plan.change_detector
    with open_database(store, change_detector) as connection:
        require_columns(connection, store, "PHPMQ", "queue", COLUMNS)
        for name, count in connection.execute(
            "SELECT CAST(queueName AS BLOB), COUNT(*) FROM queue GROUP BY 1"
        ):
            plan.counts[_address(name)] += count
    plan.read_messages = lambda: _read_messages(store, change_detector)


def _address(name: object) -> Address:
    return Address(Kind.QUEUE, decode_name(name if isinstance(name, bytes) else b""))


def _read_messages(store: Path, change_detector: ChangeDetector) -> Iterator[SourceMessage]:
    with open_database(store, change_detector) as connection:
        rows = connection.execute(
            "SELECT rowid, CAST(messageId AS BLOB), CAST(queueName AS BLOB), CAST(content AS BLOB),"
            " createdAt, dispatched FROM queue ORDER BY queueName, createdAt, rowid"
        )
        for number, identity, queue, content, created, dispatched in rows:
            if not isinstance(created, int) or not identity:
                raise Damage(f"{store}, row {number} of `queue`: it has no message id, or no time")
            address = _address(queue)
            message = Message(
                address,
                content or b"",
                BodyKind.BYTES,
                Origin.PHPMQ,
                Durability.SYNC,
                min(max(created // TICKS, 0), LAST_TIME),
                message_id=identity.decode("utf-8", "replace"),
                native=WITHOUT_TTL,  # the released server has no TTL
            )
            deliveries = 1 if dispatched else 0
            yield SourceMessage(message, key_of(KIND, address, identity), {"": deliveries})
