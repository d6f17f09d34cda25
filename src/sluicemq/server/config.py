"""The configuration: one schema, what may be left out, and which combinations are refused.

    Config
    ├── broker: BrokerSettings       data directory, memory, automatic destinations
    │   └── default_destination: DestinationSettings
    ├── journal: JournalOptions      segments and retention
    ├── identity: IdentitySettings   users and logins
    ├── limits: Limits               what one connection may cost; defaults of the listeners
    ├── listeners: Listener …        where clients connect
    ├── logging: LoggingSettings
    ├── destinations: name → DestinationSettings, declared at start
    └── insecure_public: bool

Where the values come from is `loading`'s business.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from sluicemq.journal import JournalOptions
from sluicemq.model.destination import Address, DestinationSettings
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability
from sluicemq.server.address import MAX_SOCKET_PATH, Url
from sluicemq.server.identity.passwords import read_secret_file
from sluicemq.server.identity.records import Database
from sluicemq.server.identity.store import UserStore
from sluicemq.server.settings import about
from sluicemq.server.units import Unit

SERVED: Final = frozenset(
    {"auto", "msglite", "msglite-http", "phpmq", "phpmq-maintenance", "vibemq"}
)
"""Protocols that this version has a session for."""

WITH_LOGINS: Final = frozenset({"vibemq", "jmq", "http"})
"""Protocols whose clients can say who they are."""

DEFAULT_LISTENERS: Final = ("msglite://", "phpmq://", "phpmq-maintenance://", "vibemq://")


ASKING: Final = WITH_LOGINS | {"auto"}
"""Listeners of these protocols may ask their clients who they are."""

MIN_ADMIN_TOKEN: Final = 16
"""Characters; what people make up is shorter."""

MIN_SEGMENT: Final = 64 * 1024
"""Bytes; smaller ones cost more files than they free space."""


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
            "Directory of the journal and the status socket. Without it: `/var/lib/sluicemq` for "
            "root, else `sluicemq` in `$XDG_STATE_HOME` (`~/.local/state`)."
        ),
    ] = msgspec.field(default_factory=default_data_dir)
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
    idle_timeout: Annotated[
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
            "Messages in memory at which messages that are not journaled are refused.",
            Unit.BYTES,
            ge=1024**2,
        ),
    ] = 1024**3
    stop_deadline: Annotated[
        float,
        about("Time for connections to finish when the broker stops.", Unit.SECONDS, le=3600),
    ] = 10.0
    default_destination: DestinationSettings = DestinationSettings()


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True):
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
    login_failures: Annotated[
        int, about("Failed logins of an address or at a user that cost no waiting time.", le=1000)
    ] = 5
    login_delay: Annotated[
        float,
        about(
            "Waiting time after the next failure, twice as long after each further one; attempts "
            "before its end are refused.",
            Unit.SECONDS,
        ),
    ] = 1.0
    login_delay_max: Annotated[float, about("Longest waiting time.", Unit.SECONDS, le=86_400)] = (
        60.0
    )
    login_memory: Annotated[
        float, about("Failures are forgotten when there was none for so long.", Unit.SECONDS)
    ] = 900.0
    audit: Annotated[
        bool,
        about("Log logins, refusals and changes of users (logger `sluicemq.audit`), at any level."),
    ] = True


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection may cost the broker. Each listener may say otherwise."""

    max_connections: Annotated[
        int, about("Connections of one listener at a time; more are closed at once.", ge=1)
    ] = 10_000
    max_frame_bytes: Annotated[
        int, about("Largest message body accepted.", Unit.BYTES, ge=1, le=1024**3)
    ] = 64 * 1024**2
    max_header_bytes: Annotated[
        int, about("Longest command line or frame header accepted.", Unit.BYTES, ge=64, le=1024**2)
    ] = 64 * 1024
    max_name_bytes: Annotated[
        int, about("Longest name of a destination.", Unit.BYTES, ge=1, le=65_535)
    ] = 1024
    idle_timeout: Annotated[
        float,
        about(
            "A connection silent in both directions for so long is closed; 0 = never.", Unit.SECONDS
        ),
    ] = 0.0
    output_high_water: Annotated[
        int,
        about(
            "Bytes waiting for a slow reader at which it gets no more deliveries.",
            Unit.BYTES,
            ge=1024,
        ),
    ] = 1024**2
    output_timeout: Annotated[
        float,
        about(
            "A peer that takes nothing of what waits for it for so long is cut off; 0 = never.",
            Unit.SECONDS,
        ),
    ] = 60.0


class Listener(Limits, frozen=True, kw_only=True):
    """One address that clients connect to, with its own limits."""

    url: Url
    durability: Annotated[
        Durability | None,
        about(
            "What a sender waits for: `sync` = its message is on disk, `lazy` = it is on its way "
            "there, `none` = memory only. Without it: `none` for msglite, `sync` for the others."
        ),
    ] = None
    generation: Annotated[
        int,
        about(
            "Of the PHPMQ protocol: 2 sends the remaining life with each message, 1 does not "
            "(for clients that know only three packets).",
            ge=1,
            le=2,
        ),
    ] = 2
    request_address: Annotated[
        str, about("Of the msglite HTTP gateway: the queue that requests are sent to.")
    ] = "msglite.httpRequests"
    window: Annotated[
        int,
        about("Of the VibeMQ protocol: messages a subscription may hold unacknowledged.", ge=1),
    ] = 256
    window_bytes: Annotated[
        int,
        about("Of the VibeMQ protocol: the same in bytes of their payloads.", Unit.BYTES, ge=1),
    ] = 1024**2
    ack_timeout: Annotated[
        float,
        about(
            "Of the VibeMQ protocol: time for the acknowledgement of the message that a "
            "subscription has to handle next, in queues without an `ack_timeout` of their own; "
            "0 = for ever.",
            Unit.SECONDS,
        ),
    ] = 30.0
    compression: Annotated[
        bool, about("Of the VibeMQ protocol: large frames are compressed for clients that ask.")
    ] = True
    compression_threshold: Annotated[
        int, about("Of the VibeMQ protocol: what is large; 0 = everything.", Unit.BYTES)
    ] = 1024
    strict_create: Annotated[
        bool,
        about(
            "Of the VibeMQ protocol: CreateQueue fails for a queue that exists, even if it is to "
            "be as it is."
        ),
    ] = False
    rate_limit: Annotated[
        int,
        about(
            "Of the VibeMQ protocol: requests of a connection in a second, acknowledgements and "
            "pings not counted; 0 = as many as it likes."
        ),
    ] = 0
    user: Annotated[
        str,
        about(
            "Of protocols without logins: whom their clients act as, with that user's permissions. "
            "Without it they may do everything, and only on loopback and Unix sockets."
        ),
    ] = ""
    certificate: Annotated[
        Path | None,
        about(
            "For `+tls`: PEM file with the certificate and its chain, or PKCS#12 (`.p12`, `.pfx`) "
            "with the key too."
        ),
    ] = None
    key: Annotated[
        Path | None, about("PEM file with the private key, if not in the certificate's file.")
    ] = None
    password_file: Annotated[
        Path | None, about("File whose first line decrypts the private key.")
    ] = None
    tls_min: Annotated[Literal["1.2", "1.3"], about("The oldest version of TLS accepted.")] = "1.2"
    ciphers: Annotated[
        str | None,
        about(
            "Cipher suites of TLS 1.2, as for `openssl ciphers`. Without it: those that Python "
            "thinks sound. TLS 1.3 has its own, which all are."
        ),
    ] = None
    client_certificate: Annotated[
        Literal["none", "optional", "required"],
        about("Whether clients are asked for a certificate, and turned away without one."),
    ] = "none"
    client_ca: Annotated[
        Path | None, about("PEM file with the authorities whose client certificates are trusted.")
    ] = None
    client_user: Annotated[
        Literal["cn", "san-dns", "san-email", "subject"],
        about(
            "What in a client's certificate is the user's name: the common name, the first "
            "alternative name of a kind, or the whole subject (RFC 4514)."
        ),
    ] = "cn"
    mode: Annotated[
        int, about("File mode of a Unix socket: who may connect.", Unit.MODE, le=0o777)
    ] = 0o660


VIBEMQ_SETTINGS: Final = (
    "window",
    "window_bytes",
    "ack_timeout",
    "compression",
    "compression_threshold",
    "strict_create",
    "rate_limit",
)
"""Settings of a listener that mean something only to VibeMQ clients."""

TLS_SETTINGS: Final = (
    "certificate",
    "key",
    "password_file",
    "tls_min",
    "ciphers",
    "client_certificate",
    "client_ca",
    "client_user",
)
"""Settings of a listener that mean something only with TLS."""

_UNSAID: Final = {
    field.name: field.default
    for field in msgspec.structs.fields(Listener)
    if field.name in TLS_SETTINGS
}


class LoggingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker says on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], about("The least important that is said.")
    ] = "info"
    format: Annotated[
        Literal["console", "json"], about("For people, or one JSON object a line for machines.")
    ] = "console"


def default_listeners() -> tuple[Listener, ...]:
    """Every served protocol on its traditional loopback port."""
    return tuple(Listener(url=Url.parse(url)) for url in DEFAULT_LISTENERS)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker is started with."""

    broker: BrokerSettings = msgspec.field(default_factory=BrokerSettings)
    journal: JournalOptions = msgspec.field(default_factory=JournalOptions)
    identity: IdentitySettings = IdentitySettings()
    limits: Limits = Limits()
    listeners: tuple[Listener, ...] = msgspec.field(default_factory=default_listeners)
    logging: LoggingSettings = LoggingSettings()
    destinations: dict[Address, DestinationSettings] = msgspec.field(default_factory=dict)
    insecure_public: Annotated[
        bool,
        about(
            "Permit listeners that other machines can reach and that ask nobody who they are: "
            "whoever reaches such a port may read and send everything."
        ),
    ] = False

    @property
    def status_socket(self) -> Path:
        """Unix socket on which the running broker describes itself."""
        return self.broker.data_dir / "status.sock"

    @property
    def users_file(self) -> Path:
        """The user database."""
        return self.identity.users_file or self.broker.data_dir / "users.json"

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

    def problems(self) -> Iterator[str]:
        """Whatever `check` would refuse, one sentence each."""
        if not self.listeners:
            yield "there is no listener; add one, for example --listen phpmq://127.0.0.1:9100"
        for listener in self.listeners:
            yield from _address_problems(listener)
            yield from _tls_problems(listener)
        yield from self._identity_problems()
        for index, listener in enumerate(self.listeners):
            for earlier in self.listeners[:index]:
                if listener.url.collides(earlier.url):
                    yield f"{listener.url} and {earlier.url} are the same address"
        yield from self._directory_problems()
        yield from self._journal_problems()
        yield from _destination_problems(
            "broker.default_destination", self.broker.default_destination
        )
        for address, settings in self.destinations.items():
            yield from _destination_problems(f"destinations.{address}", settings)

    def _identity_problems(self) -> Iterator[str]:
        settings = self.identity
        if settings.login_delay > settings.login_delay_max:
            yield (
                f"identity.login_delay ({settings.login_delay:g} s) is above login_delay_max "
                f"({settings.login_delay_max:g} s)"
            )
        has_token = settings.admin_token_file is not None
        if settings.admin_token_file is not None:
            try:
                if len(read_secret_file(settings.admin_token_file)) < MIN_ADMIN_TOKEN:
                    yield (
                        f"identity.admin_token_file: the token in {settings.admin_token_file} has "
                        f"less than {MIN_ADMIN_TOKEN} characters"
                    )
            except ConfigurationError as error:
                yield f"identity.admin_token_file: {error}"
        try:
            database = UserStore(self.users_file).read()
        except ConfigurationError as error:
            yield f"identity.users_file: {error}"
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
            or (asked and url.protocol in ASKING)
        ):
            return
        if url.public and url.protocol in ASKING:
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
        elif self.identity.required == "always":
            yield (
                f"{url}: identity.required is always, and {url.protocol} has no logins; say whom "
                f"its clients act as ({url}?user=NAME)"
            )

    def _how_to_add(self, name: str) -> str:
        place = f"--data-dir {self.broker.data_dir}"
        return f"add one with `sluicemq users add {name} {place}`"

    def _journal_problems(self) -> Iterator[str]:
        options = self.journal
        if options.segment_bytes < MIN_SEGMENT:
            yield f"journal.segment_bytes: {options.segment_bytes} is below {MIN_SEGMENT}"
        if options.leftover_fraction > 1:
            yield f"journal.leftover_fraction: {options.leftover_fraction} is above 1"
        if options.slot_limit_bytes < 1:
            yield "journal.slot_limit_bytes: a slot that may hold nothing back is none; at least 1"

    def _directory_problems(self) -> Iterator[str]:
        directory = self.broker.data_dir
        if directory.exists() and not directory.is_dir():
            yield f"broker.data_dir: {directory} is not a directory"
        if len(os.fsencode(self.status_socket)) > MAX_SOCKET_PATH:
            yield (
                f"broker.data_dir: {directory} is too long a path for the status socket in it "
                f"(at most {MAX_SOCKET_PATH} bytes with it); choose a shorter one"
            )
        for listener in self.listeners:
            if listener.url.path and Path(listener.url.path) == self.status_socket:
                yield f"{listener.url} is the broker's status socket; choose another path"


def _address_problems(listener: Listener) -> Iterator[str]:
    url = listener.url
    if url.protocol not in SERVED:
        served = ", ".join(sorted(SERVED))
        yield f"{url}: this version does not serve {url.protocol} yet; it serves {served}"
    if url.user or url.queue:
        yield f"{url}: a listener has neither a user nor a queue; leave them to the clients"
    if url.options:
        names = ", ".join(name for name, _ in url.options)
        yield f"{url}: the options {names} were not applied"
    if listener.generation not in (1, 2):
        yield f"{url}: generation is 1 or 2, not {listener.generation}"
    if not 0 <= listener.mode <= 0o777:
        yield f"{url}: mode is three octal digits (0660), not 0{listener.mode:o}"


def _tls_problems(listener: Listener) -> Iterator[str]:
    url = listener.url
    if not url.tls:
        for name in TLS_SETTINGS:
            if getattr(listener, name) != _UNSAID[name]:
                secure = url._replace(tls=True)
                yield f"{url}: {name} has a meaning only with TLS; write {secure}"
        return
    found = list(_tls_file_problems(listener))
    if listener.client_certificate != "none" and listener.client_ca is None:
        found.append(
            f"{url}: client_certificate = {listener.client_certificate} needs client_ca: the "
            "authorities whose certificates are trusted"
        )
    if listener.client_ca is not None and listener.client_certificate == "none":
        found.append(
            f"{url}: client_ca has no effect unless client_certificate is optional or required"
        )
    yield from found
    if not found:
        # Only where there is TLS: the library that reads certificates is slow to load.
        from sluicemq.server import tls

        yield from tls.problems(listener)


def _tls_file_problems(listener: Listener) -> Iterator[str]:
    url = listener.url
    if listener.certificate is None:
        yield f"{url}: TLS needs a certificate; add certificate=/path/to/chain.pem"
    for name in ("certificate", "key", "password_file", "client_ca"):
        path = getattr(listener, name)
        if path is None:
            continue
        if not path.is_file():
            yield f"{url}: {name}: there is no file {path}"
        elif not os.access(path, os.R_OK):
            yield f"{url}: {name}: {path} may not be read by this user"


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
