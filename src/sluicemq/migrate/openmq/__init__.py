"""Open MQ: files of a broker's instance directory.

<instance>/props/config.properties      this module
           etc/passwd                   this module
           etc/accesscontrol.properties this module
           lock                         exists while the broker runs
           fs370/destination            store.py     over records.py
                 interest
                 message/<destination>/vrfile, 0, 1, …
                 txnlog                 transactions.py
                 incompleteTxnStore/vrfile, 0, 1, …
                 txn, txnack            (without the new transaction log)

config.properties:

| Open MQ                                   | here                                                 |
|-------------------------------------------|------------------------------------------------------|
| imq.instancename                          | jmq.instance                                         |
| imq.portmapper.port, .hostname            | jmq listener                                         |
| imq.jms.tcp.port, if it is fixed          | another one, for the service                         |
| imq.ssljms...                             | reported: a keystore cannot be read                  |
| imq.message.max_size                      | limits.max_frame_bytes                               |
| imq.autocreate.queue, .topic              | broker.auto_create_queues, auto_create_topics        |
| imq.autocreate.reaptime                   | broker.destination_idle_timeout                      |
| imq.autocreate.destination...., .queue... | broker.default_destination                           |
| imq.ping.interval                         | ping_interval of the listener                        |
| imq.portmapper.sotimeout                  | portmapper_timeout of the listener                   |
| imq.jms.max_threads                       | max_connections of the listener                      |
| imq.metrics.topic.interval                | jmq.metrics_interval                                 |
| imq.log.level                             | logging.level                                        |

All other settings of the file are reported, with the reason where there is one.

The file is one of Java's property files (java.util.Properties, "load"):

    # comment, or ! comment
    key = value      key: value      key value      long value \\
                                                    that continues

Bytes are ISO 8859-1; `\\uXXXX` is any other UTF-16 unit.

The users and their rights are in `passwd` and `accesscontrol.properties`:

    passwd                     name:hash:group:1     hash: MD5 of name:password, a signed number
    accesscontrol.properties   queue|topic.NAME|*.produce|consume|browse.allow|deny.user|group=a,b
                               queue|topic.create.allow|deny.user|group=a,b
                               connection.NORMAL|ADMIN.allow|deny.user|group=a,b

Digest logins are verified with this hash, so users keep their passwords.

Open MQ evaluates the rules from the general ones to the named one, each overriding the one before;
within a rule: all groups, the user's group, all users, the user. SluiceMQ's permissions add up, and
none revokes another. So a user with a right on all destinations is granted it; for other users the
migration evaluates each known destination separately. It never grants more than Open MQ does.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from sluicemq.migrate.configuration import (
    SettingRule,
    SourceSetting,
    SourceSettings,
    log_level,
    number,
    positive,
)
from sluicemq.migrate.openmq.store import BEHAVIORS, KIND, consumer_limits, read_store
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage, SourceError
from sluicemq.model.access import Operation, Permission, is_pattern, is_user_name
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.protocols.jmq.fields import DEAD_MESSAGES
from sluicemq.security.records import UserRecord

PROPERTIES: Final = Path("props", "config.properties")
INSTANCES: Final = "instances"
LOCK: Final = "lock"
ETC: Final = "etc"
PORT: Final = 7676

DEFAULTS: Final = DestinationSettings(
    max_messages=100_000,
    max_bytes=10 * 1024**3,
    max_message_bytes=10 * 1024**2,
    overflow=Overflow.REJECT,
    dead_letter=True,
    dead_letter_queue=DEAD_MESSAGES.name,
)
"""Open MQ's defaults of destinations that are created on first use."""


def inspect_source(source: Path, ignore_lock: bool, skip_damaged: bool) -> Plan:
    """Read the instance into a plan.

    ignore_lock   a lock file is left over from a broker that was killed
    skip_damaged  report damage in the store and continue

    Raises SourceError.
    """
    instance = locate(source)
    lock = instance / LOCK
    if lock.exists() and not ignore_lock:
        raise SourceError(
            f"{lock}: the broker is running. Stop it first (imqcmd shutdown bkr); if it was "
            "killed, start and stop it once, or give --ignore-lock"
        )
    plan = Plan(kind=KIND, source_path=instance)
    file = instance / PROPERTIES
    properties = read_properties(file, plan) if file.exists() else {}
    settings = SourceSettings(
        plan,
        {
            key: setting._replace(value=setting.value.strip() or None)
            for key, setting in properties.items()
        },
    )

    def on_damage(error: Damage) -> None:
        if not skip_damaged:
            # no Damage, which an outer step would handle by this policy again
            raise SourceError(f"{error}. With --skip-damaged it is reported and not migrated")
        plan.skip("damage", "in the store", str(error))

    if settings.take("imq.persist.store", str, "file") == "file":
        read_store(plan, instance, on_damage)
    else:
        plan.skip(
            "messages",
            "all",
            "they are in a database; only the file store is read. Let consumers drain the "
            "destinations before the migration, or publish the remaining messages again",
        )
    _read_access(settings, instance)
    migrate_settings(settings, instance.name)
    return plan


def locate(source: Path) -> Path:
    """Return the instance's directory: `source` itself, the only instance in the directory of all
    instances, or the one of its config.properties. Raises SourceError."""
    directory = source.resolve()
    if directory.is_file():
        if directory.parts[-2:] != PROPERTIES.parts:
            raise SourceError(
                f"{source}: name the directory of the instance, or its {PROPERTIES}: the store "
                "and the users are in that directory"
            )
        return directory.parent.parent
    if not directory.is_dir():
        raise SourceError(f"{source}: there is no such file or directory")
    if (directory / PROPERTIES).exists() or any(directory.glob("fs3?0")):
        return directory
    parent = directory / INSTANCES if (directory / INSTANCES).is_dir() else directory
    instances = sorted(file.parent.parent for file in parent.glob(f"*/{PROPERTIES}"))
    if len(instances) == 1:
        return instances[0]
    if instances:
        names = ", ".join(instance.name for instance in instances)
        raise SourceError(f"{source}: there are several instances ({names}); name one of them")
    raise SourceError(
        f"{source}: the directory is not an instance of Open MQ: it has no {PROPERTIES}"
    )


# --- conversions -------------------------------------------------------------------------------

_UNITS: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _parse_size(value: str) -> int:
    """Convert a size such as `10m` to bytes; -1 is no limit."""
    digits = value.lower()
    try:
        return max(0, int(digits.rstrip("bkmg")) * _UNITS.get(digits[-1:], 1))
    except ValueError:
        raise ValueError("is not a size") from None


def is_true(value: str) -> bool:
    """Convert a boolean as Java reads it: only `true` is true."""
    return value.lower() == "true"


def _disabled(value: str) -> bool | None:
    """Return False if a setting that is enabled by default is disabled."""
    return None if is_true(value) else False


def _parse_seconds(value: str) -> int | None:
    seconds = positive(value)
    return seconds * 1000 if seconds else None


def _parse_behavior(value: str) -> Overflow:
    try:
        return BEHAVIORS[value.upper()]
    except KeyError:
        raise ValueError("is not a limit behavior") from None


_COMMON: Final = "imq.autocreate.destination."
_RULES: Final = {
    "imq.message.max_size": SettingRule(
        "limits.max_frame_bytes", lambda value: _parse_size(value) or None
    ),
    "imq.autocreate.queue": SettingRule("broker.auto_create_queues", _disabled),
    "imq.autocreate.topic": SettingRule("broker.auto_create_topics", _disabled),
    "imq.autocreate.reaptime": SettingRule("broker.destination_idle_timeout", _parse_seconds),
    "imq.metrics.topic.interval": SettingRule("jmq.metrics_interval", positive),
    "imq.metrics.topic.enabled": SettingRule(
        "jmq.metrics_interval", lambda value: None if is_true(value) else 0
    ),
    "imq.log.level": SettingRule("logging.level", log_level),
    f"{_COMMON}maxNumMsgs": SettingRule(
        "default.max_messages", lambda value: max(0, number(value))
    ),
    f"{_COMMON}maxTotalMsgBytes": SettingRule("default.max_bytes", _parse_size),
    f"{_COMMON}maxBytesPerMsg": SettingRule("default.max_message_bytes", _parse_size),
    f"{_COMMON}limitBehavior": SettingRule("default.overflow", _parse_behavior),
    f"{_COMMON}useDMQ": SettingRule("default.dead_letter", is_true),
    "imq.ping.interval": SettingRule("listener.ping_interval", positive),
    "imq.portmapper.sotimeout": SettingRule(
        # a listener accepts up to 60 s
        "listener.portmapper_timeout",
        lambda value: f"{min(max(0, number(value)), 60_000)}ms",
    ),
    # Open MQ uses one thread per connection
    "imq.jms.max_threads": SettingRule("listener.max_connections", positive),
}

# --- settings that are not migrated ------------------------------------------------------------

_CONSOLE: Final = "the broker is administered by its HTTP API and `sluicemq`"
_OVER_HTTP: Final = "JMS over HTTP is not supported"
_OVER_WEBSOCKET: Final = "JMS over WebSocket is not supported"
_DIGEST: Final = "the users are read from the file; logins are by digest"
_REASONS: Final = {
    "imq.instanceconfig.version": "",
    "imq.config.version": "",
    "imq.brokerid": "",
    "imq.service.list": "",
    "imq.persist.file.sync.enabled": "",  # persistent messages are always on disk
    "imq.accesscontrol.": "its rules are read from the file",
    "imq.authentication.": _DIGEST,
    "imq.user_repository.file.": "",
    "imq.user_repository.": "users of another repository have to be added: sluicemq users add",
    "imq.passfile.": "it holds passwords of Open MQ's own files",
    "imq.persist.jdbc.": "only the file store is read: imqdbmgr can back up a database into one",
    "imq.persist.file.": "the journal replaces it",
    "imq.cluster.": "a broker is a single process",
    "imq.keystore.": "see ssljms",
    "imq.ssljms.": "see ssljms",
    "imq.admin.": _CONSOLE,
    "imq.ssladmin.": _CONSOLE,
    "imq.jmx.": "the broker is monitored by its HTTP API and /metrics",
    "imq.httpjms.": _OVER_HTTP,
    "imq.httpsjms.": _OVER_HTTP,
    "imq.wsjms.": _OVER_WEBSOCKET,
    "imq.wssjms.": _OVER_WEBSOCKET,
    "imq.bridge.": "there are no bridges: all protocols meet in one broker",
    "imq.log.": "the broker logs to standard error, where systemd or a container keeps it",
    "imq.metrics.": "see /metrics",
    "imq.system.": "see broker.memory_limit and the limits of destinations",
    "imq.transaction.": "see jmq.transaction_timeout",
    "imq.destination.DMQ.truncateBody": "see JMS_SUN_TRUNCATE_MSG_BODY, a property of messages",
    "java.util.logging.": "the broker logs to standard error",
}
_KEYSTORE: Final = (
    "the password of its keystore is unknown. Export it (keytool -importkeystore "
    "-srckeystore keystore -destkeystore broker.p12 -deststoretype PKCS12), then add a listener "
    "jmq+tls:// with certificate and password_file"
)


def migrate_settings(settings: SourceSettings, instance: str) -> None:
    """Fill the plan's settings and listeners. The plan has the users already."""
    plan = settings.plan
    name = settings.take("imq.instancename", str, instance)
    if name.isascii() and name.isprintable() and " " not in name and name:
        plan.settings["jmq.instance"] = name[:64], "the instance's name"
    settings.apply(_RULES)
    active = settings.take("imq.autocreate.queue.maxNumActiveConsumers", number, -1)
    backup_consumers = settings.take("imq.autocreate.queue.maxNumBackupConsumers", number, 0)
    active_consumers, max_consumers = consumer_limits(active, backup_consumers)
    plan.defaults = replace(
        DEFAULTS,
        **settings.defaults,
        active_consumers=active_consumers,
        max_consumers=max_consumers,
        dead_letter_queue=DEAD_MESSAGES.name if settings.defaults.get("dead_letter", True) else "",
    )
    _add_listeners(settings)
    settings.report_unmigrated(_REASONS)


def _add_listeners(settings: SourceSettings) -> None:
    plan = settings.plan
    port = settings.take("imq.portmapper.port", number, PORT)
    service = settings.take("imq.jms.tcp.port", number, 0)
    default_host = settings.take("imq.hostname", str, "")
    mapper_host = settings.take("imq.portmapper.hostname", str, default_host)
    service_host = settings.take("imq.jms.tcp.hostname", str, default_host)
    options = settings.options
    mapper = settings.url("jmq", mapper_host, port)
    if service > 0:
        plan.listen(mapper, "imq.portmapper.port", **options, services="portmapper")
        url = settings.url("jmq", service_host, service)
        plan.listen(url, "imq.jms.tcp.port", **options, services="jms")
    else:
        plan.listen(mapper, "imq.portmapper.port", **options)
    active = [
        name.strip() for name in settings.take("imq.service.activelist", str, "jms").split(",")
    ]
    if "jms" not in active:
        plan.notes.append("jms is not in imq.service.activelist; clients can connect here")
    if "ssljms" in active:
        plan.skip("listener", "ssljms", _KEYSTORE)
    for service_name in active:
        if service_name not in ("jms", "ssljms", "admin", "ssladmin", ""):
            plan.skip("listener", service_name, "this service is not supported")


# --- property files ----------------------------------------------------------------------------

_LINE_END: Final = re.compile(r"\r\n?")
_LINE: Final = re.compile(r"[ \t\f]*+([#!][^\n]*+|(?:[^\n\\]++|\\(?:.|\Z))*+)(?:\n|\Z)", re.DOTALL)
"""A comment, or a logical line: a backslash takes the end of a line into it."""
_CONTINUATION: Final = re.compile(r"(\\[^\n])|\\(?:\n|\Z)[ \t\f]*")
_PAIR: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*+)[ \t\f]*+[=:]?+[ \t\f]*+(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(file: Path, plan: Plan) -> dict[str, SourceSetting]:
    """Read a property file. Raises SourceError."""
    return parse_properties(plan.change_detector.read_settings(file), str(file))


def parse_properties(content: bytes, file: str) -> dict[str, SourceSetting]:
    """Parse values by key; of a repeated key the last one counts. Raises Damage with the line."""
    settings: dict[str, SourceSetting] = {}
    line = 1
    for match in _LINE.finditer(_LINE_END.sub("\n", content.decode("latin-1"))):
        logical_line = _CONTINUATION.sub(lambda continuation: continuation[1] or "", match[1])
        pair = _PAIR.fullmatch(logical_line)
        if pair is not None and logical_line and match[1][0] not in "#!":
            location = f"{file}, line {line}"
            key, value = _unescape(pair[1], location), _unescape(pair[2], location)
            visible_value = "" if "password" in key.lower() else f"={value}"
            settings[key] = SourceSetting(
                key, value, location, f"{key}{visible_value} (line {line})"
            )
        line += match[0].count("\n")
    return settings


def _unescape(raw: str, location: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise Damage(f"{location}: \\u is followed by four hexadecimal digits")
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    units = _ESCAPE.sub(plain, raw)
    # Java encodes one character as a surrogate pair of two units
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- users and rules ---------------------------------------------------------------------------

VERSION: Final = "JMQFileAccessControlModel/100"
UNRESTRICTED: Final = b"""\
connection.NORMAL.allow.user=*
connection.ADMIN.allow.group=admin
queue.*.produce.allow.user=*
queue.*.consume.allow.user=*
queue.*.browse.allow.user=*
topic.*.produce.allow.user=*
topic.*.consume.allow.user=*
queue.create.allow.user=*
topic.create.allow.user=*
"""
"""Rules of a broker without access control: only the group `admin` may administer it."""
ALL: Final = "*"
MAX_NAMED: Final = 500
"""Maximum number of permissions of a user that name individual destinations."""

_HASH: Final = re.compile(r"-?[0-9a-f]{1,32}\Z")
_OPERATIONS: Final = {
    "produce": Operation.PRODUCE,
    "consume": Operation.CONSUME,
    "browse": Operation.BROWSE,
}
_RULE: Final = re.compile(r"(queue|topic)\.(.+)\.(?:produce|consume|browse)\.(?:allow|deny)\.")


def _read_access(settings: SourceSettings, instance: Path) -> None:
    plan = settings.plan
    kind = settings.take("imq.authentication.type", str, "digest")
    repository = settings.take(f"imq.authentication.{kind}.user_repository", str, "file")
    if repository != "file":
        plan.skip("users", f"of the {repository} repository", "add them with `sluicemq users add`")
        return
    if kind != "digest":
        plan.skip("setting", f"imq.authentication.type={kind}", _DIGEST)
    passwd = _find_file(settings, instance, "imq.user_repository.file", "passwd")
    if passwd is None:
        return
    rules = AccessRules(parse_properties(UNRESTRICTED, "without access control"))
    if settings.take("imq.accesscontrol.enabled", is_true, True):
        prefix = "imq.accesscontrol.file"
        access_control = _find_file(settings, instance, prefix, "accesscontrol.properties")
        if access_control is None:
            return  # without the rules the users' rights are unknown
        rules = read_rules(access_control, plan)
    add_accounts(plan, read_accounts(passwd, plan), rules)


def _find_file(
    settings: SourceSettings, instance: Path, prefix: str, default_name: str
) -> Path | None:
    """Return a file of the instance's own directory, or of the configured one."""
    plan = settings.plan
    configured = settings.take(f"{prefix}.dirpath", str, "")
    directory = instance / ETC
    if configured and "${" not in configured:
        directory = Path(configured)
    elif configured:
        plan.skip("setting", f"the directory {configured}", f"{directory} is used instead")
    file = directory / settings.take(f"{prefix}.filename", str, default_name)
    if file.exists():
        return file
    plan.skip("users", str(file), "there is no such file; add users with `sluicemq users add`")
    return None


class OpenmqAccount(NamedTuple):
    """A line of passwd. `group` may be ""."""

    name: str
    digest: str
    group: str
    active: bool


def read_accounts(file: Path, plan: Plan) -> list[OpenmqAccount]:
    """Read the lines of passwd. Raises SourceError."""
    accounts = []
    content = plan.change_detector.read_settings(file).decode("utf-8", "replace")
    for count, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        parts = line.split(":")
        if len(parts) < 2 or not parts[0] or not _HASH.match(parts[1]):
            raise Damage(
                f"{file}, line {count}: the line is not an account: name:hash:group:active"
            )
        name, digest, group, active = (*parts, "", "")[:4]
        accounts.append(OpenmqAccount(name, digest, group.strip(), active == "1"))
    return accounts


class AccessRules:
    """Rules of accesscontrol.properties.

    named_destinations  destinations that rules name, without wildcards of topics
    wildcards           rules for topics by wildcard
    """

    def __init__(self, values: dict[str, SourceSetting]) -> None:
        self._names = {
            key: {part.strip() for part in setting.value.split(",")}
            for key, setting in values.items()
        }
        self.named_destinations: set[Address] = set()
        self.wildcards: list[str] = []
        for key in sorted(values):
            if match := _RULE.match(key):
                kind, name = Kind[match[1].upper()], match[2]
                if not set(name) & set("*>"):
                    self.named_destinations.add(Address(kind, name))
                elif kind is Kind.TOPIC and name != ALL:
                    self.wildcards.append(key)

    def allows(self, account: OpenmqAccount, *rules: str) -> bool:
        """Return whether the last decision of these rules is allow; the general rules come
        first."""
        verdict = False
        subjects = (("group", ALL), ("group", account.group), ("user", ALL), ("user", account.name))
        for rule in rules:
            for subject_type, name in subjects:
                allowed = name in self._names.get(f"{rule}.allow.{subject_type}", ())
                denied = name in self._names.get(f"{rule}.deny.{subject_type}", ())
                if name and allowed != denied:
                    verdict = allowed
        return verdict

    def is_permitted(self, account: OpenmqAccount, kind: Kind, name: str, operation: str) -> bool:
        """Return whether the user may perform the operation on a destination; ALL = one that no
        rule names."""
        kind_name = kind.name.lower()
        return self.allows(account, f"{kind_name}.*.{operation}", f"{kind_name}.{name}.{operation}")


def read_rules(file: Path, plan: Plan) -> AccessRules:
    """Read the rules. Raises SourceError."""
    values = read_properties(file, plan)
    version = values.get("version")
    if version is None or version.value != VERSION:
        raise Damage(f"{file}: its version is not {VERSION}")
    return AccessRules(values)


def add_accounts(plan: Plan, accounts: list[OpenmqAccount], rules: AccessRules) -> None:
    """Add users to the plan."""
    now = int(time.time())
    addresses = {*plan.destinations, *plan.counts, *rules.named_destinations}
    for rule in rules.wildcards:
        plan.skip("permission", rule, "a rule for topics by wildcard; see `sluicemq permissions`")
    for account in accounts:
        if not account.active:
            plan.skip("user", account.name, "it is not active")
        elif not is_user_name(account.name):
            plan.skip("user", account.name, "a name has 1 to 64 letters, digits and - _ . @")
        else:
            record = UserRecord(
                digest=account.digest,
                superuser=rules.allows(account, "connection.*", "connection.ADMIN"),
                permissions=tuple(_permissions_of(plan, account, rules, addresses)),
                created=now,
                updated=now,
            )
            plan.users.setdefault(account.name, record)


def _permissions_of(
    plan: Plan, account: OpenmqAccount, rules: AccessRules, addresses: set[Address]
) -> list[Permission]:
    if not rules.allows(account, "connection.*", "connection.NORMAL"):
        plan.skip(
            "permission",
            f"connection.NORMAL of {account.name}",
            "this user may not connect as a client; it is migrated without permissions",
        )
        return []
    general_operations = set()
    created = [kind for kind in ("queue", "topic") if rules.allows(account, f"{kind}.create")]
    if len(created) == 2:
        general_operations.add(Operation.CREATE)
    elif created:
        plan.skip(
            "permission",
            f"{created[0]}.create of {account.name}",
            "a permission to create is for queues and topics; see `sluicemq permissions`",
        )
    operations_by_name: dict[str, set[Operation]] = {}
    for operation_name, operation in _OPERATIONS.items():
        denied_addresses = {
            address
            for address in addresses
            if not rules.is_permitted(account, address.kind, address.name, operation_name)
        }
        # topics are never browsed, so browsing depends on queues only
        kinds = [Kind.QUEUE] if operation_name == "browse" else list(Kind)
        if (
            all(rules.is_permitted(account, kind, ALL, operation_name) for kind in kinds)
            and not any(address.kind in kinds for address in denied_addresses)
            and not any(f".{operation_name}.deny." in rule for rule in rules.wildcards)
        ):
            general_operations.add(operation)
            continue
        for name in sorted(
            {address.name for address in addresses} - {address.name for address in denied_addresses}
        ):
            if is_pattern(name):
                operations_by_name.setdefault(name, set()).add(operation)
    if operations_by_name:
        plan.notes.append(
            f"{account.name} does not have every permission on all destinations: it is granted "
            "those on the destinations that exist now; grant others with `sluicemq permissions "
            "grant`"
        )
    for name in list(operations_by_name)[MAX_NAMED:]:
        plan.skip("permission", f"{account.name} on {name}", "there are too many")
        del operations_by_name[name]
    permissions = [
        Permission(name, frozenset(operations)) for name, operations in operations_by_name.items()
    ]
    return (
        [Permission(ALL, frozenset(general_operations)), *permissions]
        if general_operations
        else permissions
    )
