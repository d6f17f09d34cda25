"""The configuration: one schema, what may be left out, and which combinations are refused.

    Config
    ├── broker: BrokerSettings       data directory, memory, automatic destinations
    │   └── default_destination: DestinationSettings
    ├── journal: JournalOptions      segments and retention
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
from sluicemq.server.settings import about
from sluicemq.server.units import Unit

SERVED: Final = frozenset({"auto", "msglite", "msglite-http", "phpmq", "phpmq-maintenance"})
"""Protocols that this version has a session for."""

DEFAULT_LISTENERS: Final = ("msglite://", "phpmq://", "phpmq-maintenance://")


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
    certificate: Annotated[
        Path | None, about("PEM file with the certificate and its chain, for `+tls`.")
    ] = None
    key: Annotated[
        Path | None, about("PEM file with the private key, if not in the certificate's file.")
    ] = None
    password_file: Annotated[
        Path | None, about("File whose first line decrypts the private key.")
    ] = None
    mode: Annotated[
        int, about("File mode of a Unix socket: who may connect.", Unit.MODE, le=0o777)
    ] = 0o660


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
    limits: Limits = Limits()
    listeners: tuple[Listener, ...] = msgspec.field(default_factory=default_listeners)
    logging: LoggingSettings = LoggingSettings()
    destinations: dict[Address, DestinationSettings] = msgspec.field(default_factory=dict)
    insecure_public: Annotated[
        bool,
        about(
            "Permit listeners that other machines can reach. The protocols served so far have no "
            "logins: whoever reaches such a port may read and send everything."
        ),
    ] = False

    @property
    def status_socket(self) -> Path:
        """Unix socket on which the running broker describes itself."""
        return self.broker.data_dir / "status.sock"

    def check(self) -> None:
        """Refuse what cannot work or is dangerous. Raises ConfigurationError with every problem
        on a line of its own.
        """
        if problems := list(self.problems()):
            raise ConfigurationError("\n".join(problems))

    def problems(self) -> Iterator[str]:
        """Whatever `check` would refuse, one sentence each."""
        if not self.listeners:
            yield "there is no listener; add one, for example --listen phpmq://127.0.0.1:9100"
        for listener in self.listeners:
            yield from _address_problems(listener, self.insecure_public)
            yield from _tls_problems(listener)
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


def _address_problems(listener: Listener, insecure_public: bool) -> Iterator[str]:
    url = listener.url
    if url.protocol not in SERVED:
        served = ", ".join(sorted(SERVED))
        yield f"{url}: this version does not serve {url.protocol} yet; it serves {served}"
    if url.user or url.queue:
        yield f"{url}: a listener has neither a user nor a queue; leave them to the clients"
    if url.options:
        names = ", ".join(name for name, _ in url.options)
        yield f"{url}: the options {names} were not applied"
    if url.public and not insecure_public:
        yield (
            f"{url} can be reached from other machines, and nothing on it asks who they are: "
            "its protocol has no logins yet. Listen on 127.0.0.1 or a Unix socket, or accept "
            "the risk with insecure_public = true (--insecure-public)"
        )
    if listener.generation not in (1, 2):
        yield f"{url}: generation is 1 or 2, not {listener.generation}"
    if not 0 <= listener.mode <= 0o777:
        yield f"{url}: mode is three octal digits (0660), not 0{listener.mode:o}"


def _tls_problems(listener: Listener) -> Iterator[str]:
    url = listener.url
    files = {
        "certificate": listener.certificate,
        "key": listener.key,
        "password_file": listener.password_file,
    }
    if url.tls and listener.certificate is None:
        yield f"{url}: TLS needs a certificate; add certificate=/path/to/chain.pem"
    for name, path in files.items():
        if path is None:
            continue
        if not url.tls:
            secure = url._replace(tls=True)
            yield f"{url}: {name} has a meaning only with TLS; write {secure}"
        elif not path.is_file():
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
