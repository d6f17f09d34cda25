"""Schema of the configuration, defaults, and checks of combinations of settings.

    Config
    ├── broker: BrokerSettings       data directory, memory, automatic destinations
    │   └── default_destination: DestinationSettings
    ├── journal: JournalOptions      segments and retention
    ├── auth: AuthSettings           users and logins
    ├── limits: ListenerLimits       limits of a connection; defaults of the listeners
    ├── jmq: JmqSettings             settings of all JMS clients
    ├── http: HttpSettings           sessions of the console, limits of requests
    ├── metrics: MetricsSettings
    ├── tracing: TracingSettings
    ├── listeners: Listener …        addresses that clients connect to
    ├── logging: LoggingSettings
    ├── destinations: name → DestinationSettings, declared at start
    └── insecure_public: bool

`loading` reads the values from their sources.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from sluicemq.journal import JournalOptions
from sluicemq.journal.files import JOURNAL_NAME
from sluicemq.management.settings import HttpSettings
from sluicemq.model.destination import Address, DestinationSettings, Overflow, is_temporary
from sluicemq.model.engine_options import EngineOptions
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.setting import about
from sluicemq.model.url import MAX_SOCKET_PATH
from sluicemq.security.access import AuthSettings
from sluicemq.security.files import read_secret_file
from sluicemq.security.records import USERS_NAME, Database, UserStore
from sluicemq.server.listener_settings import (
    OFFERS_LOGIN,
    JmqSettings,
    Listener,
    ListenerLimits,
    default_listeners,
    tls_problems,
)
from sluicemq.server.settings import Unit, format_quantity

MIN_ADMIN_TOKEN: Final = 16
"""Minimum length of the admin token in characters; invented passwords are usually shorter."""

MAX_INSTANCE: Final = 64
"""Maximum length of `jmq.instance` in characters: the first line of the port mapper has to fit into
small buffers of old clients."""

_INSTANCE: Final = re.compile(rf"[\x21-\x7e]{{1,{MAX_INSTANCE}}}\Z")


def default_data_dir() -> Path:
    """Return /var/lib/sluicemq for root, else `sluicemq` in the user's state directory (XDG)."""
    if os.geteuid() == 0:
        return Path("/var/lib/sluicemq")
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "sluicemq"


class BrokerSettings(EngineOptions, frozen=True, kw_only=True):
    """Settings of the broker as a whole."""

    data_dir: Annotated[
        Path,
        about(
            "Directory of the journal and the admin socket. Without it: `/var/lib/sluicemq` for "
            "root, else `sluicemq` in `$XDG_STATE_HOME` (`~/.local/state`)."
        ),
    ] = msgspec.field(default_factory=default_data_dir)
    backup_dir: Annotated[
        Path | None,
        about(
            "Directory in which the broker creates the backups that are requested over HTTP; "
            "without it such requests are rejected."
        ),
    ] = None
    admin_socket: Annotated[
        Path | None,
        about(
            "Unix socket with the HTTP API, for the command line. Only the broker's user and root "
            "may open it, and they have all permissions. Without it: `admin.sock` in the data "
            "directory."
        ),
    ] = None
    ephemeral: Annotated[bool, about("Keep all data in memory; nothing survives a restart.")] = (
        False
    )
    input_memory_limit: Annotated[
        int,
        about(
            "Memory for incomplete input of all connections. Beyond it, the broker reads only "
            "from the connection with the oldest incomplete frame.",
            Unit.BYTES,
            ge=1024**2,
        ),
    ] = 256 * 1024**2
    input_stall_timeout: Annotated[
        float,
        about(
            "Time after which a connection is closed that sends neither the end of an incomplete "
            "frame nor 1/128 of `input_memory_limit` (at least 16 KiB) more of it although the "
            "broker reads from it, while that limit is exceeded.",
            Unit.SECONDS,
            ge=0.1,
            le=3600,
        ),
    ] = 30.0
    scan_budget: Annotated[
        int,
        about(
            "Maximum time for scans (browsing, lists, moving and purging messages, evaluation of "
            "new selectors, large transactions) in each iteration of the event loop; scans "
            "continue in the next iteration.",
            Unit.MILLISECONDS,
            ge=1,
            le=1000,
        ),
    ] = 5
    shutdown_timeout: Annotated[
        float,
        about(
            "Time for connections to finish when the broker stops; 0 = they are closed at once.",
            Unit.SECONDS,
            le=3600,
        ),
    ] = 10.0


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `/metrics`."""

    max_destinations: Annotated[
        int,
        about(
            "Maximum number of destinations with metrics of their own; the other destinations are "
            "added up.",
            ge=0,
        ),
    ] = 1000


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Traces of messages with OpenTelemetry; needs `sluicemq[tracing]`."""

    endpoint: Annotated[
        str,
        about(
            "URL of the collector of traces, OTLP over HTTP: `http://127.0.0.1:4318/v1/traces`. "
            "Without it tracing is disabled and has no cost."
        ),
    ] = ""
    sample_ratio: Annotated[
        float,
        about(
            "Fraction of the messages without a trace that start one: 0 to 1. Messages with a "
            "trace are traced if their publisher has sampled it.",
            ge=0,
            le=1,
        ),
    ] = 0.01
    rate_limit: Annotated[
        int,
        about(
            "Maximum number of published messages and deliveries that are traced per second; 0 = "
            "no limit.",
            ge=0,
        ),
    ] = 500
    service_name: Annotated[str, about("Service name of the broker in traces.")] = "sluicemq"


class LoggingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Log on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about("Minimum level of log entries."),
    ] = "info"
    format: Annotated[
        Literal["console", "json"],
        about("`console`: text for people; `json`: one JSON object per line."),
    ] = "console"
    notices_per_minute: Annotated[
        int,
        about(
            "Maximum number of log lines per minute about requests of clients that had no effect, "
            "such as options of a queue that exists with different ones; further requests are "
            "only counted."
        ),
    ] = 10


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings that a broker is started with.

    explicit        names of the settings that were set explicitly, by destination: those in its
                    table and those in [broker.default_destination]; for destinations without an
                    entry, the settings that differ from the defaults
    default_fields  names of the settings in [broker.default_destination]
    """

    broker: BrokerSettings = msgspec.field(default_factory=BrokerSettings)
    journal: JournalOptions = msgspec.field(default_factory=JournalOptions)
    auth: AuthSettings = AuthSettings()
    limits: ListenerLimits = ListenerLimits()
    jmq: JmqSettings = JmqSettings()
    http: HttpSettings = HttpSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    listeners: tuple[Listener, ...] = msgspec.field(default_factory=default_listeners)
    logging: LoggingSettings = LoggingSettings()
    destinations: dict[Address, DestinationSettings] = msgspec.field(default_factory=dict)
    explicit: dict[Address, frozenset[str]] = msgspec.field(default_factory=dict)
    default_fields: frozenset[str] = frozenset()
    insecure_public: Annotated[
        bool,
        about(
            "Permit listeners that other machines can reach and that require no login: any client "
            "that reaches such a port may read and send all messages."
        ),
    ] = False

    @property
    def admin_socket(self) -> Path:
        """Unix socket with the HTTP API, for the owner of the data."""
        return self.broker.admin_socket or self.broker.data_dir / "admin.sock"

    @property
    def users_file(self) -> Path:
        """The user database."""
        return self.auth.users_file or self.broker.data_dir / USERS_NAME

    def warnings(self) -> Iterator[str]:
        """Yield warnings about permitted settings. Only for a configuration without problems."""
        for listener in self.listeners:
            if listener.url.tls:
                from sluicemq.server.tls import load

                for warning in load(listener)[1].warnings(datetime.now(UTC)):
                    yield f"{listener.url}: {warning}"
            if listener.authentication == "digest":
                users = UserStore(self.users_file).read().users
                if users and not any(user.digest for user in users.values()):
                    yield (
                        f"{listener.url}: authentication is digest, and no user can log in that "
                        "way: no user has been added with --allow-digest"
                    )
        if self.broker.memory_budget >= self.broker.memory_limit:
            budget, limit = self.broker.memory_budget, self.broker.memory_limit
            yield (
                f"broker.memory_budget ({format_quantity(budget, Unit.BYTES)}) is not below "
                f"memory_limit ({format_quantity(limit, Unit.BYTES)}): a backlog of journaled "
                "messages can reach the limit, and then others and those of transactions are "
                "rejected"
            )
        sections = {"broker.default_destination": self.broker.default_destination}
        sections |= {
            f"destinations.{address}": settings for address, settings in self.destinations.items()
        }
        for section, settings in sections.items():
            if settings.overflow is Overflow.DEAD_LETTER and not settings.dead_letter:
                yield (
                    f"{section}: overflow is redirect-to-dead-letter, and dead_letter is false: "
                    "messages beyond the limits are rejected"
                )

    def problems(self) -> Iterator[str]:
        """Yield why the configuration cannot work or is dangerous, one sentence each."""
        if not self.listeners:
            yield "there is no listener; add one, for example --listen phpmq://127.0.0.1:9100"
        for listener in self.listeners:
            if listener.url.user or listener.url.queue:
                yield (
                    f"{listener.url}: the URL of a listener has neither a user nor a queue; only "
                    "the URLs of clients have"
                )
            problems = list(tls_problems(listener))
            yield from problems
            if listener.url.tls and not problems:
                # Only where there is TLS: the library that reads certificates is slow to load.
                from sluicemq.server.tls import load

                try:
                    load(listener)
                except ConfigurationError as error:
                    yield str(error)
        yield from self._auth_problems()
        if not _INSTANCE.match(self.jmq.instance):
            yield (
                f"jmq.instance: {self.jmq.instance!r} is not a valid name: use 1 to "
                f"{MAX_INSTANCE} ASCII characters without blanks"
            )
        for earlier, listener in combinations(self.listeners, 2):
            if listener.url.collides(earlier.url):
                yield f"{listener.url} and {earlier.url} are the same address"
        yield from self._directory_problems()
        endpoint = self.tracing.endpoint
        if endpoint and not endpoint.startswith(("http://", "https://")):
            yield f"tracing.endpoint: {endpoint!r} is not a URL with http:// or https://"
        yield from _destination_problems(
            "broker.default_destination", self.broker.default_destination
        )
        for address, settings in self.destinations.items():
            section = f"destinations.{address}"
            yield from _name_problems(section, address.name)
            yield from _destination_problems(section, settings)

    def _auth_problems(self) -> Iterator[str]:
        settings = self.auth
        if settings.login_backoff > settings.login_backoff_max:
            yield (
                f"auth.login_backoff ({settings.login_backoff:g} s) is above login_backoff_max "
                f"({settings.login_backoff_max:g} s)"
            )
        if settings.login_backoff_max > settings.login_failure_window:
            yield (
                f"auth.login_backoff_max ({settings.login_backoff_max:g} s) is above "
                f"login_failure_window ({settings.login_failure_window:g} s)"
            )
        if settings.admin_token_file is not None:
            try:
                if len(read_secret_file(settings.admin_token_file)) < MIN_ADMIN_TOKEN:
                    yield (
                        f"auth.admin_token_file: the token in {settings.admin_token_file} has "
                        f"less than {MIN_ADMIN_TOKEN} characters"
                    )
            except ConfigurationError as error:
                yield f"auth.admin_token_file: {error}"
        try:
            database = UserStore(self.users_file).read()
        except ConfigurationError as error:
            yield f"auth.users_file: {error}"
            return
        login_required = settings.requires_login(bool(database.users))
        for listener in self.listeners:
            yield from self._user_problems(listener, database, login_required)

    def _user_problems(
        self, listener: Listener, database: Database, login_required: bool
    ) -> Iterator[str]:
        """Yield problems of the clients' user. `login_required` is True if clients whose protocol
        has logins have to log in."""
        url = listener.url
        if listener.user and listener.user not in database.users:
            yield (
                f"{url}: there is no user {listener.user!r} in {self.users_file}; "
                f"{self._user_creation_hint(listener.user)}"
            )
        if (
            listener.user
            or self.insecure_public
            or listener.client_certificate == "required"
            or (login_required and url.protocol in OFFERS_LOGIN)
        ):
            return
        if url.public and url.protocol in OFFERS_LOGIN:
            yield (
                f"{url} can be reached from other machines, and there are no users that could log "
                f"in; {self._user_creation_hint('NAME')}, or accept the risk with "
                "insecure_public = true (--insecure-public)"
            )
        elif url.public:
            yield (
                f"{url} can be reached from other machines, and {url.protocol} has no logins that "
                "authenticate clients. Listen on 127.0.0.1 or a Unix socket, let the clients act "
                f"as a user with few permissions ({url}?user=NAME), or accept the risk with "
                "insecure_public = true (--insecure-public)"
            )
        elif self.auth.required == "always":
            yield (
                f"{url}: auth.required is always, and {url.protocol} has no logins; set the "
                f"user as which its clients act ({url}?user=NAME)"
            )

    def _user_creation_hint(self, name: str) -> str:
        option = f"--data-dir {self.broker.data_dir}"
        return f"add one with `sluicemq users add {name} {option}`"

    def _directory_problems(self) -> Iterator[str]:
        if problem := data_dir_problem(self.broker.data_dir):
            yield problem
        socket = self.admin_socket
        if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
            yield (
                f"broker.admin_socket: {socket} is too long a path for a socket (at most "
                f"{MAX_SOCKET_PATH} bytes); choose a shorter one, or a shorter data directory"
            )
        for listener in self.listeners:
            if listener.url.path and Path(listener.url.path) == socket:
                yield f"{listener.url} is the broker's admin socket; choose another path"


def data_dir_problem(directory: Path) -> str:
    """Return why a data directory can neither be used nor created; "" if it can."""
    candidates = (directory, *directory.parents)
    existing = next(path for path in candidates if os.path.exists(path))
    if not existing.is_dir():
        if existing == directory:
            return f"broker.data_dir: {directory} is not a directory"
        return f"broker.data_dir: {directory} cannot be created: {existing} is not a directory"
    paths = [existing]
    if os.path.exists(directory / JOURNAL_NAME):
        paths.append(directory / JOURNAL_NAME)
    for path in paths:
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            return (
                f"broker.data_dir: this user may not read and write {path}; run the broker as the "
                "owner of that directory, or choose another data directory (--data-dir)"
            )
    return ""


def _name_problems(setting: str, name: str) -> Iterator[str]:
    if is_temporary(name):
        yield f"{setting}: {name} is reserved for temporary destinations, which clients create"


def _destination_problems(section: str, settings: DestinationSettings) -> Iterator[str]:
    yield from _name_problems(f"{section}.dead_letter_queue", settings.dead_letter_queue)
    if settings.retry_delay > settings.retry_delay_max:
        yield (
            f"{section}: retry_delay ({settings.retry_delay} ms) is above retry_delay_max "
            f"({settings.retry_delay_max} ms)"
        )
    if settings.max_consumers and settings.active_consumers > settings.max_consumers:
        yield (
            f"{section}: active_consumers ({settings.active_consumers}) is above max_consumers "
            f"({settings.max_consumers})"
        )
