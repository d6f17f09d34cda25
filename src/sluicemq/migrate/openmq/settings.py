"""config.properties: equivalents of a broker's settings.

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
| imq.metrics.topic.interval                | jmq.metrics_interval                                 |
| imq.log.level                             | logging.level                                        |

All other settings of the file are reported, with the reason where there is one.
"""

from __future__ import annotations

from typing import Final

from sluicemq.migrate.openmq.destinations import OVERFLOW
from sluicemq.migrate.openmq.properties import PropertyValue
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage
from sluicemq.model.destination import DestinationSettings, Overflow
from sluicemq.protocols.jmq.destinations import DEAD_MESSAGES

PORT: Final = 7676
UNLIMITED: Final = -1

_BEHAVIOURS: Final = {
    "FLOW_CONTROL": OVERFLOW[0],
    "REMOVE_OLDEST": OVERFLOW[1],
    "REJECT_NEWEST": OVERFLOW[2],
    "REMOVE_LOW_PRIORITY": OVERFLOW[3],
}
_LEVELS: Final = {
    "FORCE": "error",
    "ERROR": "error",
    "WARNING": "warning",
    "INFO": "info",
    "DEBUG": "debug",
    "DEBUGMED": "debug",
    "DEBUGHIGH": "debug",
}
_UNITS: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

DEFAULTS: Final = DestinationSettings(
    max_messages=100_000,
    max_bytes=10 * 1024**3,
    max_message_bytes=10 * 1024**2,
    overflow=Overflow.REJECT,
    dead_letter=True,
    dead_letter_queue=DEAD_MESSAGES.name,
)
"""Open MQ's defaults of destinations that are created on first use."""

_SILENT: Final = frozenset(
    {
        "imq.instanceconfig.version",
        "imq.config.version",
        "imq.instancename",
        "imq.brokerid",
        "imq.service.list",
        "imq.persist.store",
        "imq.persist.file.sync.enabled",
    }
)
"""Settings that are handled elsewhere or have no effect: persistent messages are always on disk."""
_PREFIXES: Final = (
    ("imq.accesscontrol.", "its rules are read from the file"),
    ("imq.authentication.", "the users are read from the file; logins are by digest"),
    ("imq.user_repository.file.", ""),
    ("imq.user_repository.", "users of another repository have to be added: sluicemq users add"),
    ("imq.passfile.", "it holds passwords of Open MQ's own files"),
    ("imq.persist.jdbc.", "only the file store is read: imqdbmgr can back a database up into one"),
    ("imq.persist.file.", "the journal is ours"),
    ("imq.cluster.", "a broker is one process here"),
    ("imq.keystore.", "see ssljms"),
    ("imq.ssljms.", "see ssljms"),
    ("imq.admin.", "the broker is administered by its HTTP API and `sluicemq`"),
    ("imq.ssladmin.", "the broker is administered by its HTTP API and `sluicemq`"),
    ("imq.jmx.", "the broker is watched by its HTTP API and /metrics"),
    ("imq.httpjms.", "JMS over HTTP is not spoken here"),
    ("imq.httpsjms.", "JMS over HTTP is not spoken here"),
    ("imq.wsjms.", "JMS over WebSocket is not spoken here"),
    ("imq.wssjms.", "JMS over WebSocket is not spoken here"),
    ("imq.bridge.", "there are no bridges: all protocols meet in one broker"),
    ("imq.log.", "the broker logs to standard error, where systemd or a container keeps it"),
    ("imq.metrics.", "see /metrics"),
    ("imq.system.", "see broker.memory_limit and the limits of destinations"),
    ("java.util.logging.", "the broker logs to standard error"),
)


class OpenmqSettings:
    """The values; each is removed by the function that handles it."""

    def __init__(self, plan: Plan, values: dict[str, PropertyValue], where: str) -> None:
        self._plan = plan
        self._left = dict(values)
        self._values = values
        self._where = where

    def text(self, name: str, usual: str = "") -> str:
        """Remove a value and return it without surrounding blanks."""
        value = self._left.pop(name, None) or self._values.get(name)
        return value.text.strip() if value is not None else usual

    def number(self, name: str, usual: int) -> int:
        """Remove a number. Raises Damage with the line."""
        text = self.text(name)
        if not text:
            return usual
        try:
            return int(text)
        except ValueError:
            raise self._damage(name, "is no number") from None

    def size(self, name: str, usual: int) -> int:
        """Remove a size such as `10m`, in bytes; plain numbers are bytes. Raises Damage."""
        text = self.text(name).lower()
        if not text:
            return usual
        try:
            return int(text.rstrip("bkmg")) * _UNITS.get(text[-1], 1)
        except ValueError:
            raise self._damage(name, "is no size") from None

    def truth(self, name: str, usual: bool) -> bool:
        """Remove a boolean as Java reads it: only `true` is true."""
        text = self.text(name)
        return text.lower() == "true" if text else usual

    def _damage(self, name: str, what: str) -> Damage:
        value = self._values[name]
        return Damage(f"{self._where}, line {value.line}: {name}={value.text} {what}")

    def transfer(self, instance: str, guarded: bool) -> None:
        """Fill the plan's settings and listeners. `guarded`: clients will have to log in."""
        plan = self._plan
        name = self.text("imq.instancename") or instance
        if name.isascii() and name.isprintable() and " " not in name and name:
            plan.set("jmq.instance", name[:64], "the instance's name")
        size = self.size("imq.message.max_size", 0)
        if size > 0:
            plan.set("limits.max_frame_bytes", size, "imq.message.max_size")
        for theirs, ours in (("queue", "auto_create_queues"), ("topic", "auto_create_topics")):
            if not self.truth(f"imq.autocreate.{theirs}", True):
                plan.set(f"broker.{ours}", False, f"imq.autocreate.{theirs}")
        reap = self.number("imq.autocreate.reaptime", 0)
        if reap > 0:
            plan.set("broker.destination_idle_timeout", reap * 1000, "imq.autocreate.reaptime")
        interval = self.number("imq.metrics.topic.interval", 0)
        if not self.truth("imq.metrics.topic.enabled", True):
            plan.set("jmq.metrics_interval", 0, "imq.metrics.topic.enabled")
        elif interval > 0:
            plan.set("jmq.metrics_interval", interval, "imq.metrics.topic.interval")
        level = _LEVELS.get(self.text("imq.log.level").upper())
        if level:
            plan.set("logging.level", level, "imq.log.level")
        plan.defaults = self._defaults()
        self._listen(guarded)
        self._report_unused()

    def _defaults(self) -> DestinationSettings:
        common = "imq.autocreate.destination."
        queue = "imq.autocreate.queue."
        active = self.number(f"{queue}maxNumActiveConsumers", UNLIMITED)
        standing_by = self.number(f"{queue}maxNumBackupConsumers", 0)
        behaviour = self.text(f"{common}limitBehavior").upper()
        dead = self.truth(f"{common}useDMQ", True)
        if behaviour and behaviour not in _BEHAVIOURS:
            raise self._damage(f"{common}limitBehavior", "is none there is")
        return DestinationSettings(
            max_messages=max(0, self.number(f"{common}maxNumMsgs", DEFAULTS.max_messages)),
            max_bytes=max(0, self.size(f"{common}maxTotalMsgBytes", DEFAULTS.max_bytes)),
            max_message_bytes=max(
                0, self.size(f"{common}maxBytesPerMsg", DEFAULTS.max_message_bytes)
            ),
            overflow=_BEHAVIOURS.get(behaviour, DEFAULTS.overflow),
            active_consumers=max(0, active),
            max_consumers=active + standing_by if active > 0 and standing_by >= 0 else 0,
            dead_letter=dead,
            dead_letter_queue=DEAD_MESSAGES.name if dead else "",
        )

    def _listen(self, guarded: bool) -> None:
        plan = self._plan
        port = self.number("imq.portmapper.port", PORT)
        service = self.number("imq.jms.tcp.port", 0)
        everywhere = self.text("imq.hostname")
        mapper_host = self.text("imq.portmapper.hostname") or everywhere
        service_host = self.text("imq.jms.tcp.hostname") or everywhere
        options: dict[str, str | int | bool] = {}
        ping = self.number("imq.ping.interval", 0)
        if ping > 0:
            options["ping_interval"] = ping
        limit = self.number("imq.jms.max_threads", 0)
        if limit > 0:  # Open MQ uses one thread per connection
            options["max_connections"] = limit
        active = [each.strip() for each in self.text("imq.service.activelist", "jms").split(",")]
        mapper = self._host(mapper_host, f"port {port}", guarded)
        if service > 0:
            comment = "imq.portmapper.port"
            plan.listen(f"jmq://{mapper}:{port}", comment, **options, services="portmapper")
            host = self._host(service_host, f"port {service}", guarded)
            plan.listen(f"jmq://{host}:{service}", "imq.jms.tcp.port", **options, services="jms")
        else:
            plan.listen(f"jmq://{mapper}:{port}", "imq.portmapper.port", **options)
        if "jms" not in active:
            plan.notes.append("jms is not in imq.service.activelist; clients can connect here")
        if "ssljms" in active:
            plan.leave("listener", "ssljms", _KEYSTORE)
        for each in active:
            if each not in ("jms", "ssljms", "admin", "ssladmin", ""):
                plan.leave("listener", each, "this service is not offered here")

    def _host(self, host: str, what: str, guarded: bool) -> str:
        if guarded or host in ("127.0.0.1", "localhost", "::1"):
            return f"[{host}]" if ":" in host else host or "0.0.0.0"
        self._plan.leave("listener", f"{what} on {host or 'all addresses'}", _PUBLIC)
        return "127.0.0.1"

    def _report_unused(self) -> None:
        for name, value in self._left.items():
            if name in _SILENT:
                continue
            reason = "there is no equivalent"
            for prefix, known_reason in _PREFIXES:
                if name.startswith(prefix):
                    reason = known_reason
                    break
            if reason:
                value_text = "" if "password" in name.lower() else f"={value.text}"
                self._plan.leave("setting", f"{name}{value_text} (line {value.line})", reason)


_KEYSTORE: Final = (
    "its keystore has a password that is not here. Export it (keytool -importkeystore "
    "-srckeystore keystore -destkeystore broker.p12 -deststoretype PKCS12), then add a listener "
    "jmq+tls:// with certificate and password_file"
)
_PUBLIC: Final = (
    "no user is migrated, so anyone who reaches the port could read and send everything. It is "
    "written for 127.0.0.1; add users (sluicemq users add) and change the address"
)
