"""The configuration: one schema, what may be left out, and which combinations are refused.

    Config
    ├── broker: BrokerSettings       data directory, memory, automatic destinations
    │   └── default_destination: DestinationSettings
    ├── journal: JournalOptions      segments and retention
    ├── auth: AuthSettings           users and logins
    ├── limits: ListenerLimits       what one connection may cost; defaults of the listeners
    ├── jmq: JmqSettings             what all JMS clients share
    ├── http: HttpSettings           sessions of the console, and what needs no login
    ├── metrics: MetricsSettings
    ├── tracing: TracingSettings
    ├── listeners: Listener …        where clients connect
    ├── logging: LoggingSettings
    ├── destinations: name → DestinationSettings, declared at start
    └── insecure_public: bool

Where the values come from is `loading`'s business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from sluicemq.journal import JournalOptions
from sluicemq.model.destination import Address, DestinationSettings
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.address import MAX_SOCKET_PATH
from sluicemq.server.identity.passwords import read_secret_file
from sluicemq.server.identity.records import Database
from sluicemq.server.identity.store import UserStore
from sluicemq.server.listener_settings import (
    OFFERS_LOGIN,
    Listener,
    ListenerLimits,
    address_problems,
    default_listeners,
    tls_problems,
)
from sluicemq.server.settings import about
from sluicemq.server.units import Unit

MIN_ADMIN_TOKEN: Final = 16
"""Characters; what people make up is shorter."""

MIN_SEGMENT: Final = 64 * 1024
"""Bytes; smaller ones cost more files than they free space."""


MAX_INSTANCE: Final = 64
"""Characters; the port mapper's first line has to fit into small buffers of old clients."""

_INSTANCE: Final = re.compile(rf"[\x21-\x7e]{{1,{MAX_INSTANCE}}}\Z")


def default_data_dir() -> Path:
    """/var/lib/sluicemq for root, else `sluicemq` in the user's state directory (XDG)."""
    if os.geteuid() == 0:
        return Path("/var/lib/sluicemq")
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "sluicemq"


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The broker as a whole."""

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
            "Directory in which the broker makes backups that are asked for over HTTP; without it, "
            "it makes none."
        ),
    ] = None
    admin_socket: Annotated[
        Path | None,
        about(
            "Unix socket with the HTTP API, for the command line: only the broker's own user (and "
            "root) may open it, and may do everything. Without it: `admin.sock` in the data "
            "directory."
        ),
    ] = None
    ephemeral: Annotated[bool, about("Keep everything in memory; nothing survives the broker.")] = (
        False
    )
    auto_create_queues: Annotated[
        bool, about("A queue comes into being when it is first used.")
    ] = True
    auto_create_topics: Annotated[
        bool, about("A topic comes into being when it is first used.")
    ] = True
    max_destinations: Annotated[int, about("Queues and topics that may exist at a time.", ge=1)] = (
        100_000
    )
    max_destinations_per_user: Annotated[
        int,
        about(
            "Queues and topics, temporary ones included, that one user has created and that still "
            "exist; clients without a login count as one user, superusers and `[destinations]` are "
            "exempt. 0 = no limit."
        ),
    ] = 10_000
    max_subscriptions_per_user: Annotated[
        int,
        about("Durable subscriptions that one user has; superusers are exempt. 0 = no limit."),
    ] = 1000
    max_temporary_destinations_per_connection: Annotated[
        int, about("Temporary destinations of a connection at a time; 0 = no limit.")
    ] = 1000
    destination_idle_timeout: Annotated[
        int,
        about(
            "An automatically created destination that has neither messages nor consumers goes "
            "after this time; 0 = never.",
            Unit.MILLISECONDS,
        ),
    ] = 120_000
    memory_budget: Annotated[
        int,
        about(
            "Messages kept in memory, 512 bytes counted for each beside its body; beyond it the "
            "bodies of durable ones are read back from the journal when they are delivered.",
            Unit.BYTES,
            ge=1024**2,
        ),
    ] = 256 * 1024**2
    memory_limit: Annotated[
        int,
        about(
            "Messages in memory, those of open transactions included, at which messages that are "
            "not journaled or belong to a transaction are refused.",
            Unit.BYTES,
            ge=1024**2,
        ),
    ] = 1024**3
    input_memory_limit: Annotated[
        int,
        about(
            "Unfinished input of all connections together; beyond it only the connection with the "
            "oldest unfinished frame is read on, one after the other.",
            Unit.BYTES,
            ge=1024**2,
        ),
    ] = 256 * 1024**2
    input_stall_timeout: Annotated[
        float,
        about(
            "While that limit is exceeded, a connection that could be read on and sends nothing "
            "for so long is closed.",
            Unit.SECONDS,
            ge=0.1,
            le=3600,
        ),
    ] = 30.0
    max_transaction_bytes: Annotated[
        int,
        about(
            "Messages in a transaction that is not committed, 512 bytes counted for each beside "
            "its body and headers; further ones are refused. 0 = no limit.",
            Unit.BYTES,
        ),
    ] = 64 * 1024**2
    max_transaction_messages: Annotated[
        int,
        about(
            "Messages in a transaction that is not committed; further ones are refused. "
            "0 = no limit."
        ),
    ] = 0
    max_batch_writers: Annotated[
        int,
        about(
            "Writers of batches (streaming queries, batch jobs) that are remembered, each for 30 "
            "days: what one of them repeats is not published twice.",
            ge=1,
        ),
    ] = 10_000
    dead_letter_retry: Annotated[
        int,
        about(
            "A message whose dead-letter queue is full stays in its queue, and is offered again "
            "after this time.",
            Unit.MILLISECONDS,
            ge=100,
            le=3_600_000,
        ),
    ] = 5_000
    scan_budget: Annotated[
        int,
        about(
            "Time for scans (browsing, lists, moving and purging messages, new selectors tried on "
            "waiting messages) in each iteration of the event loop; what is left waits for the "
            "next one.",
            Unit.MILLISECONDS,
            ge=1,
            le=1000,
        ),
    ] = 5
    max_selector_bytes: Annotated[
        int,
        about("Longest text of a message selector, in UTF-8.", Unit.BYTES, ge=1, le=65_536),
    ] = 8 * 1024
    max_selector_nodes: Annotated[
        int,
        about(
            "Identifiers, literals and operations of a message selector; a string of `IN` counts "
            "as 1, a part of a `LIKE` pattern between two `%` as 8 and, if it has a `_`, each of "
            "its characters as 8 more.",
            ge=1,
            le=65_536,
        ),
    ] = 512
    max_destination_selector_nodes: Annotated[
        int,
        about(
            "The same of all selectors of a destination that one message may have to be evaluated "
            "with; 0 = not limited. Selectors that demand different values of one property "
            "(`id = 17`) do not add up.",
            ge=0,
        ),
    ] = 12_000
    shutdown_timeout: Annotated[
        float,
        about("Time for connections to finish when the broker stops.", Unit.SECONDS, le=3600),
    ] = 10.0
    default_destination: DestinationSettings = DestinationSettings()


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Users and logins."""

    users_file: Annotated[
        Path | None,
        about(
            "File of the user database, which `sluicemq users` and `sluicemq permissions` change. "
            "Without it: `users.json` in the data directory."
        ),
    ] = None
    required: Annotated[
        Literal["auto", "always", "never"],
        about(
            "Whether clients have to say who they are. `auto`: as soon as there is a user, where "
            "the protocol has logins. `always`: before there is one, too, and listeners of "
            "protocols without logins need a `user`. `never`: they are not asked."
        ),
    ] = "auto"
    admin_token_file: Annotated[
        Path | None,
        about(
            "File whose first line, at least 16 characters, admits whoever shows it as token or "
            "password, and as a superuser: to manage the users of a broker that has none yet."
        ),
    ] = None
    min_password_length: Annotated[
        int,
        about(
            "Characters that a new password has at least; 0 = no minimum. Shorter ones than 12 are "
            "accepted with a warning.",
            le=1024,
        ),
    ] = 0
    max_login_failures: Annotated[
        int,
        about(
            "Failed logins in a row of a user from one address (IPv6: from one /64) after which "
            "further ones of that pair are refused for a time.",
            ge=1,
            le=1000,
        ),
    ] = 10
    login_backoff: Annotated[
        float,
        about("That time; it doubles with each further failure.", Unit.SECONDS, le=86_400),
    ] = 1.0
    login_backoff_max: Annotated[
        float, about("Longest time for which logins are refused.", Unit.SECONDS, le=86_400)
    ] = 60.0
    login_failure_window: Annotated[
        float,
        about("Failures are forgotten when there was none for so long.", Unit.SECONDS),
    ] = 900.0
    max_login_failure_entries: Annotated[
        int,
        about(
            "Entries (user and address) in the table of failed logins. When it is full, the "
            "entries of the address with the most become one for all of its users.",
            ge=1,
        ),
    ] = 10_000
    max_concurrent_password_checks: Annotated[
        int,
        about(
            "Passwords that are checked at a time, each with 19 MiB of memory and one processor. "
            "This bounds how fast anybody can guess.",
            ge=1,
            le=64,
        ),
    ] = 2
    max_queued_logins: Annotated[
        int,
        about("Logins that wait for their check; more are told to try again later.", ge=1),
    ] = 1000
    password_cache_size: Annotated[
        int,
        about(
            "Passwords that have been right before, of a user at an address, that are remembered "
            "(as keyed digests in memory) so that they need no check.",
            ge=1,
        ),
    ] = 10_000
    audit_log: Annotated[
        bool,
        about("Log logins, refusals and changes of users (logger `sluicemq.audit`), at any level."),
    ] = True


class JmqSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all JMS clients share, whichever listener they come by."""

    instance: Annotated[
        str,
        about(
            "The broker's name, as its port mapper gives it: printable characters without blanks."
        ),
    ] = "sluicemq"
    metrics_interval: Annotated[
        float,
        about(
            "Between two messages of a topic `mq.metrics.…` that somebody subscribes to; 0 = none.",
            Unit.SECONDS,
        ),
    ] = 60.0
    transaction_timeout: Annotated[
        int,
        about(
            "A transaction that is neither ended nor prepared after this time is rolled back; "
            "0 = never.",
            Unit.MILLISECONDS,
        ),
    ] = 0
    detached_timeout: Annotated[
        int,
        about(
            "A transaction that is not prepared, and that no connection uses any more, is rolled "
            "back after this time; 0 = never.",
            Unit.MILLISECONDS,
        ),
    ] = 600_000
    broker_list: Annotated[
        str,
        about(
            "Brokers that clients may go to instead when they lose this one: "
            "`mq://host:port/`, separated by commas."
        ),
    ] = ""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all HTTP listeners share."""

    session_idle_timeout: Annotated[
        float,
        about(
            "A session of the console ends when it has not been used for so long.",
            Unit.SECONDS,
            ge=1,
        ),
    ] = 1800.0
    session_lifetime: Annotated[
        float,
        about("It ends after this time, however much it is used.", Unit.SECONDS, ge=1),
    ] = 43_200.0
    max_sessions: Annotated[
        int,
        about("Sessions at a time; beyond it the one that has been unused the longest ends.", ge=1),
    ] = 1000
    secure_cookies: Annotated[
        bool,
        about(
            "Browsers send the cookie of a session over TLS only, which is so at `http+tls` "
            "anyway: for a listener that they reach through a proxy which speaks TLS."
        ),
    ] = False
    max_event_streams: Annotated[
        int, about("Streams of live statistics (`/api/v1/events`) of a listener at a time.", ge=0)
    ] = 32
    max_publish_bytes: Annotated[
        int,
        about("Largest body of a message that is published over the API.", Unit.BYTES, ge=0),
    ] = 4 * 1024 * 1024
    max_batch_destinations: Annotated[
        int,
        about("Destinations that the rows of one part of a batch may name; 0 = any number."),
    ] = 1000
    max_scan_messages: Annotated[
        int,
        about(
            "Messages that one request with a selector looks at; what it has found by then is its "
            "answer, and the next request goes on.",
            ge=1,
        ),
    ] = 50_000
    max_scan_time: Annotated[float, about("The same in time.", Unit.SECONDS, ge=0)] = 2.0
    max_action_time: Annotated[
        float,
        about(
            "How long one request moves, copies or deletes messages; then the next one goes on.",
            Unit.SECONDS,
            ge=0,
        ),
    ] = 10.0
    public_metrics: Annotated[
        bool, about("`/metrics` is shown to those who have not logged in, too.")
    ] = False


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is told at `/metrics`."""

    max_destinations: Annotated[
        int,
        about(
            "Destinations that have figures of their own; those of all others are summed up.", ge=0
        ),
    ] = 1000


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The ways of messages as OpenTelemetry traces; needs `sluicemq[tracing]`."""

    endpoint: Annotated[
        str,
        about(
            "Where traces are sent, by OTLP over HTTP: `http://127.0.0.1:4318/v1/traces`. Without "
            "it nothing is traced, and tracing costs nothing."
        ),
    ] = ""
    sample_ratio: Annotated[
        float,
        about(
            "Of the messages that belong to no trace, the part that begins one: 0 to 1. Those that "
            "belong to one are traced if their sender has sampled it.",
            ge=0,
            le=1,
        ),
    ] = 0.01
    rate_limit: Annotated[
        int,
        about(
            "Messages taken in and deliveries that are traced in a second, at most; 0 = as many as "
            "come.",
            ge=0,
        ),
    ] = 500
    service_name: Annotated[str, about("What the broker is called in traces.")] = "sluicemq"


class LoggingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker says on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], about("The least important that is said.")
    ] = "info"
    format: Annotated[
        Literal["console", "json"], about("For people, or one JSON object a line for machines.")
    ] = "console"
    notices_per_minute: Annotated[
        int,
        about(
            "Lines in a minute about requests of clients that had no effect, such as options of a "
            "queue that exists with others; more of them are only counted."
        ),
    ] = 10


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker is started with.

    explicit   names of the settings that were set on purpose, by destination: those in its table,
               and those that [broker.default_destination] sets; of
               destinations without an entry, what differs from the usual
    default_fields   names of the settings that [broker.default_destination] sets
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
            "Permit listeners that other machines can reach and that ask nobody who they are: "
            "whoever reaches such a port may read and send everything."
        ),
    ] = False

    @property
    def admin_socket(self) -> Path:
        """Unix socket with the HTTP API, for the owner of the data."""
        return self.broker.admin_socket or self.broker.data_dir / "admin.sock"

    @property
    def users_file(self) -> Path:
        """The user database."""
        return self.auth.users_file or self.broker.data_dir / "users.json"

    def check(self) -> None:
        """Refuse what cannot work or is dangerous. Raises ConfigurationError with every problem
        on a line of its own.
        """
        if problems := list(self.problems()):
            raise ConfigurationError("\n".join(problems))

    def warnings(self) -> Iterator[str]:
        """What `check` lets pass but its users may regret. Only for a configuration without
        problems."""
        for listener in self.listeners:
            if listener.url.tls:
                from sluicemq.server import tls

                yield from tls.warnings(listener)
            if listener.authentication == "digest":
                users = UserStore(self.users_file).read().users
                if users and not any(user.digest for user in users.values()):
                    yield (
                        f"{listener.url}: authentication is digest, and nobody can log in by that: "
                        "no user has been added with --allow-digest"
                    )

    def problems(self) -> Iterator[str]:
        """Whatever `check` would refuse, one sentence each."""
        if not self.listeners:
            yield "there is no listener; add one, for example --listen phpmq://127.0.0.1:9100"
        for listener in self.listeners:
            yield from address_problems(listener)
            yield from tls_problems(listener)
        yield from self._auth_problems()
        if not _INSTANCE.match(self.jmq.instance):
            yield (
                f"jmq.instance: {self.jmq.instance!r} cannot be a name: it has 1 to "
                f"{MAX_INSTANCE} ASCII characters without blanks"
            )
        for index, listener in enumerate(self.listeners):
            for earlier in self.listeners[:index]:
                if listener.url.collides(earlier.url):
                    yield f"{listener.url} and {earlier.url} are the same address"
        yield from self._directory_problems()
        yield from self._journal_problems()
        yield from self._tracing_problems()
        yield from _destination_problems(
            "broker.default_destination", self.broker.default_destination
        )
        for address, settings in self.destinations.items():
            yield from _destination_problems(f"destinations.{address}", settings)

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
        has_token = settings.admin_token_file is not None
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
        asked = settings.required == "always" or (
            settings.required == "auto" and (has_token or bool(database.users))
        )
        for listener in self.listeners:
            yield from self._user_problems(listener, database, asked)

    def _user_problems(self, listener: Listener, database: Database, asked: bool) -> Iterator[str]:
        """`asked`: clients whose protocol has logins have to log in."""
        url = listener.url
        if listener.user and listener.user not in database.users:
            yield (
                f"{url}: there is no user {listener.user!r} in {self.users_file}; "
                f"{self._how_to_add(listener.user)}"
            )
        if (
            listener.user
            or self.insecure_public
            or listener.client_certificate == "required"
            or (asked and url.protocol in OFFERS_LOGIN)
        ):
            return
        if url.public and url.protocol in OFFERS_LOGIN:
            yield (
                f"{url} can be reached from other machines, and there are no users that could log "
                f"in; {self._how_to_add('NAME')}, or accept the risk with "
                "insecure_public = true (--insecure-public)"
            )
        elif url.public:
            yield (
                f"{url} can be reached from other machines, and {url.protocol} has no logins: "
                "nothing would ask who they are. Listen on 127.0.0.1 or a Unix socket, let its "
                f"clients act as a user with few permissions ({url}?user=NAME), or accept the risk "
                "with insecure_public = true (--insecure-public)"
            )
        elif self.auth.required == "always":
            yield (
                f"{url}: auth.required is always, and {url.protocol} has no logins; say whom "
                f"its clients act as ({url}?user=NAME)"
            )

    def _how_to_add(self, name: str) -> str:
        place = f"--data-dir {self.broker.data_dir}"
        return f"add one with `sluicemq users add {name} {place}`"

    def _tracing_problems(self) -> Iterator[str]:
        endpoint = self.tracing.endpoint
        if endpoint and not endpoint.startswith(("http://", "https://")):
            yield f"tracing.endpoint: {endpoint!r} is no URL with http:// or https://"

    def _journal_problems(self) -> Iterator[str]:
        options = self.journal
        if options.segment_bytes < MIN_SEGMENT:
            yield f"journal.segment_bytes: {options.segment_bytes} is below {MIN_SEGMENT}"
        if options.compaction_threshold > 1:
            yield f"journal.compaction_threshold: {options.compaction_threshold} is above 1"
        if options.disk_free_limit_percent > 100:
            yield f"journal.disk_free_limit_percent: {options.disk_free_limit_percent} is above 100"
        if options.slot_limit_bytes < 1:
            yield "journal.slot_limit_bytes: a slot that may hold nothing back is none; at least 1"
        if options.slot_idle_timeout < 0:
            yield "journal.slot_idle_timeout: at least 0, which is no limit"

    def _directory_problems(self) -> Iterator[str]:
        directory = self.broker.data_dir
        if directory.exists() and not directory.is_dir():
            yield f"broker.data_dir: {directory} is not a directory"
        socket = self.admin_socket
        if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
            yield (
                f"broker.admin_socket: {socket} is too long a path for a socket (at most "
                f"{MAX_SOCKET_PATH} bytes); choose a shorter one, or a shorter data directory"
            )
        for listener in self.listeners:
            if listener.url.path and Path(listener.url.path) == socket:
                yield f"{listener.url} is the broker's admin socket; choose another path"


def _destination_problems(where: str, settings: DestinationSettings) -> Iterator[str]:
    if settings.retry_delay > settings.retry_delay_max:
        yield (
            f"{where}: retry_delay ({settings.retry_delay} ms) is above retry_delay_max "
            f"({settings.retry_delay_max} ms)"
        )
    if settings.max_consumers and settings.active_consumers > settings.max_consumers:
        yield (
            f"{where}: active_consumers ({settings.active_consumers}) is above max_consumers "
            f"({settings.max_consumers})"
        )
