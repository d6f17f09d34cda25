"""Loading of the configuration from its sources, and their precedence.

    defaults  <  file  <  environment  <  command line

Each source is a tree of raw values. It is read along the schema, so that every unknown name and
every invalid value is reported, with the source and, in a file, its line. The listeners of a later
source replace all those of an earlier one; other settings are replaced one by one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from sluicemq.journal import JournalOptions
from sluicemq.management.settings import HttpSettings
from sluicemq.model.destination import Address, DestinationSettings, Kind, differing
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.setting import TomlLines
from sluicemq.model.url import Url
from sluicemq.security.access import AuthSettings
from sluicemq.security.files import read_bounded
from sluicemq.server.config import (
    BrokerSettings,
    Config,
    LoggingSettings,
    MetricsSettings,
    TracingSettings,
)
from sluicemq.server.listener_settings import (
    DEFAULT_LISTENERS,
    JmqSettings,
    Listener,
    ListenerLimits,
    check_applies,
    listener_of,
)
from sluicemq.server.settings import Setting, convert, settings_of, unknown

DEFAULT_FILES: Final = (Path("sluicemq.toml"), Path("/etc/sluicemq/sluicemq.toml"))
"""Default files. Without a named file the first existing one is read."""
ENVIRONMENT: Final = "SLUICEMQ_"
CONFIG_VARIABLE: Final = "SLUICEMQ_CONFIG"
"""Environment variable with the path of the file; not a setting."""

_SERVICE_LINK: Final = re.compile(
    r"SLUICEMQ_([A-Z0-9]+_)*"
    r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9]+)*|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\Z"
)
"""Variables that Kubernetes sets in every container for a service whose name begins with
`sluicemq`. They are no settings, which have two underscores after the section."""

SECTIONS: Final[dict[tuple[str, ...], type[msgspec.Struct]]] = {
    ("broker",): BrokerSettings,
    ("broker", "default_destination"): DestinationSettings,
    ("journal",): JournalOptions,
    ("auth",): AuthSettings,
    ("limits",): ListenerLimits,
    ("jmq",): JmqSettings,
    ("http",): HttpSettings,
    ("metrics",): MetricsSettings,
    ("tracing",): TracingSettings,
    ("logging",): LoggingSettings,
}


RawPath = tuple[str | int, ...]
"""Names of tables and of a key, as a file spells them, and indexes of arrays."""


_CONTINUES: Final = re.compile(r"\w|\.\w")
"""Pattern after a name that is only the prefix of a longer name."""


_AT_LINE: Final = re.compile(r"at line (\d+)")
"""Line number in the errors of the TOML parser."""


class Source(NamedTuple):
    """Source of settings.

    `text` is True if all its values are text; `base` is the base directory of relative paths;
    `lines` is None unless the source is a file.
    """

    name: str
    text: bool
    base: Path
    lines: TomlLines | None = None

    def position(self, path: RawPath) -> str:
        """Return the position of a setting: `sluicemq.toml:12`, or the name of the source."""
        line = 0 if self.lines is None else self.lines.number(path)
        return f"{self.name}:{line}" if line else self.name


class LoadedConfig(NamedTuple):
    """Configuration with the sources of its settings.

    origins    for each setting that is not a default the name of its source
    positions  source and path of settings, of listeners by URL, and of destinations
    """

    config: Config
    origins: dict[str, str]
    positions: dict[str, tuple[Source, RawPath]]

    def locate(self, problem: str, subject: str = "") -> str:
        """Return a problem of the configuration, preceded by source and line of its `subject`, by
        default the setting or URL with which the problem begins."""
        text = subject or problem
        names = [
            name
            for name in self.positions
            if text.startswith(name) and not _CONTINUES.match(text, len(name))
        ]
        if not names:
            return problem
        source, path = self.positions[max(names, key=len)]
        return f"{source.position(path)}: {problem}"

    def problems(self) -> Iterator[str]:
        """Yield the problems of `Config.problems`, with source and line."""
        return map(self.locate, self.config.problems())

    def check(self) -> None:
        """Raise ConfigurationError with every problem on a line of its own, if there is one."""
        if problems := list(self.problems()):
            raise ConfigurationError("\n".join(problems))


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    listen: Sequence[str] = (),
) -> LoadedConfig:
    """Read all sources, as `examine` does. Does not call `LoadedConfig.check`.

    Raises ConfigurationError with every error on a line of its own."""
    loaded_config, errors = examine(file, environ, flags, listen)
    if errors:
        raise ConfigurationError("\n".join(errors))
    return loaded_config


def examine(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    listen: Sequence[str] = (),
) -> tuple[LoadedConfig, list[str]]:
    """Read all sources. Return the valid settings, and the errors of the others. Raises
    ConfigurationError if the file cannot be read at all.

    file     configuration file; None = the first of DEFAULT_FILES that exists, if any
    environ  environment variables; those not beginning with SLUICEMQ_ are ignored
    flags    settings from the command line by dotted name; those that are None are ignored
    listen   URLs of listeners from the command line; empty = those of the other sources
    """
    collector = _Collector()
    if file is None:
        file = next((candidate for candidate in DEFAULT_FILES if candidate.exists()), None)
    if file is not None:
        tree, lines = _parse_file(file)
        # not `resolve`: where the file is a link, such as in Kubernetes, its target may be replaced
        source = Source(str(file), False, file.absolute().parent, lines)
        collector.read_section((), (), tree, source)
    collector.read_environment(environ or {})
    command_line = Source("command line", True, Path())
    for name, value in (flags or {}).items():
        if value is not None:
            collector.set(tuple(name.split(".")), value, command_line)
    if listen:
        collector.set_listeners([(url, command_line) for url in listen])
    return collector.finish(), collector.errors


def environment_name(path: tuple[str, ...]) -> str:
    """Return the environment variable of a setting: its path joined by two underscores."""
    return ENVIRONMENT + "__".join(path).upper()


def setting_paths() -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Yield the settings with a single value: without listeners and destinations."""
    for path, struct in SECTIONS.items():
        for name, setting in settings_of(struct).items():
            if (*path, name) not in SECTIONS:
                yield (*path, name), setting
    yield ("insecure_public",), settings_of(Config)["insecure_public"]


class _Collector:
    """Values by section and name, in the order of the sources: later ones replace earlier ones."""

    def __init__(self) -> None:
        self.settings = dict(setting_paths())
        self.values: dict[tuple[str, ...], dict[str, Any]] = {path: {} for path in ((), *SECTIONS)}
        self.origins: dict[str, str] = {}
        self.positions: dict[str, tuple[Source, RawPath]] = {}
        self.errors: list[str] = []
        self.listeners: list[dict[str, Any]] = [
            {"url": Url.parse(url)} for url in DEFAULT_LISTENERS
        ]
        self.destinations: dict[Address, dict[str, Any]] = {}

    def report(self, error: ConfigurationError, source: Source, raw: RawPath) -> None:
        self.errors.append(f"{source.position(raw)}: {error}")

    def set(
        self, path: tuple[str, ...], value: object, source: Source, raw: RawPath | None = None
    ) -> None:
        """Set one value; `raw` is its path in the source, if that differs from `path`."""
        dotted = ".".join(path)
        raw = path if raw is None else raw
        text = source.text and isinstance(value, str)
        try:
            converted = convert(value, self.settings[path], dotted, text=text, base=source.base)
        except ConfigurationError as error:
            self.report(error, source, raw)
            return
        self.values[path[:-1]][path[-1]] = converted
        self.origins[dotted] = source.name
        self.positions[dotted] = source, raw

    def read_environment(self, environ: Mapping[str, str]) -> None:
        names = {environment_name(path): path for path in self.settings}
        known_names = [*names, environment_name(("listeners",)), CONFIG_VARIABLE]
        for variable, value in sorted(environ.items()):
            # An empty variable counts as unset: compose files and unit files leave them behind.
            is_setting = variable.startswith(ENVIRONMENT) and variable != CONFIG_VARIABLE
            if not (is_setting and value.strip()):
                continue
            source = Source(f"environment variable {variable}", True, Path())
            if variable == environment_name(("listeners",)):
                self.set_listeners([(url, source) for url in value.split()])
            elif variable in names:
                self.set(names[variable], value, source)
            elif not _SERVICE_LINK.match(variable):
                self.errors.append(str(unknown("environment", variable, known_names)))

    def set_listeners(self, given: Sequence[tuple[object, Source]]) -> None:
        self.listeners = []
        for index, (item, source) in enumerate(given):
            raw = ("listeners", index)
            try:
                values = self._listener_values(item, source, raw)
            except ConfigurationError as error:
                self.report(ConfigurationError(f"listeners[{index}]: {error}"), source, raw)
                continue
            self.listeners.append(values)
            self.positions[str(values["url"])] = source, raw
        self.origins["listeners"] = given[0][1].name if given else ""

    def _listener_values(self, item: object, source: Source, raw: RawPath) -> dict[str, Any]:
        """Return the `url` of one listener, without options, and its settings by name.

        Reports invalid settings. Raises ConfigurationError if the whole listener is invalid.
        """
        table_name = f"listeners[{raw[-1]}]"
        if not isinstance(item, str | dict):
            raise ConfigurationError("this must be a table, not a value")
        table = {"url": item} if isinstance(item, str) else dict(item)
        address = table.pop("url", None)
        if not isinstance(address, str):
            raise ConfigurationError("give a url, such as phpmq://127.0.0.1:9100")
        url = Url.parse(address)
        settings = {
            name: setting for name, setting in settings_of(Listener).items() if name != "url"
        }
        values = self._table_values(table, settings, table_name, source, raw)
        text_source = source._replace(text=True)
        options = dict(url.options)
        options_of_url = self._table_values(
            options, settings, f"{table_name} ({url})", text_source, raw
        )
        if duplicates := sorted(values.keys() & options_of_url.keys()):
            raise ConfigurationError(f"{duplicates[0]} is set both in the URL and in the section")
        values |= options_of_url
        url = url._replace(options=())
        for name in values:
            check_applies(settings[name], url)
        values["url"] = url
        return values

    def _table_values(
        self,
        table: Mapping[str, Any],
        settings: Mapping[str, Setting],
        table_name: str,
        source: Source,
        raw: RawPath,
    ) -> dict[str, Any]:
        """Return the valid values of a table by setting, and report the others."""
        values: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            try:
                if name not in settings:
                    raise unknown(table_name, key, list(settings))
                if name in values:
                    raise ConfigurationError(f"{table_name}: {name} is given twice")
                values[name] = convert(
                    value,
                    settings[name],
                    f"{table_name}.{name}",
                    text=source.text,
                    base=source.base,
                )
            except ConfigurationError as error:
                # an option of a URL is not a key of its own
                self.report(error, source, raw if source.text else (*raw, key))
        return values

    def finish(self) -> LoadedConfig:
        limits = ListenerLimits(**self.values[("limits",)])
        default_values = self.values[("broker", "default_destination")]
        default = DestinationSettings(**default_values)
        config = Config(
            broker=BrokerSettings(**self.values[("broker",)], default_destination=default),
            journal=JournalOptions(**self.values[("journal",)]),
            auth=AuthSettings(**self.values[("auth",)]),
            limits=limits,
            jmq=JmqSettings(**self.values[("jmq",)]),
            http=HttpSettings(**self.values[("http",)]),
            metrics=MetricsSettings(**self.values[("metrics",)]),
            tracing=TracingSettings(**self.values[("tracing",)]),
            listeners=tuple(listener_of(values, limits) for values in self.listeners),
            logging=LoggingSettings(**self.values[("logging",)]),
            destinations={
                address: msgspec.structs.replace(default, **values)
                for address, values in self.destinations.items()
            },
            explicit={
                address: differing(default).union(default_values, values)
                for address, values in self.destinations.items()
            },
            default_fields=frozenset(default_values),
            **self.values[()],
        )
        return LoadedConfig(config, self.origins, self.positions)

    def read_section(
        self, section: tuple[str, ...], raw: RawPath, tree: Mapping[str, Any], source: Source
    ) -> None:
        """Read a table, whose path is `section`, and `raw` in the spelling of the source."""
        names = [path[-1] for path in self.settings if path[:-1] == section]
        names += [path[-1] for path in SECTIONS if path[:-1] == section]
        if not section:
            names += ["listeners", "destinations"]
        given: set[str] = set()
        for key, value in tree.items():
            name = key.replace("-", "_")
            path = (*section, name)
            raw_path = (*raw, key)
            dotted = ".".join(path)
            try:
                if name in given:
                    raise ConfigurationError(f"{dotted} is given twice")
                given.add(name)
                if path in SECTIONS:
                    self.read_section(path, raw_path, _table(value, dotted), source)
                elif path in self.settings:
                    self.set(path, value, source, raw_path)
                elif path == ("listeners",):
                    if not isinstance(value, list):
                        raise ConfigurationError(f"{dotted}: write each listener as [[listeners]]")
                    self.set_listeners([(item, source) for item in value])
                elif path == ("destinations",):
                    self._read_destinations(_table(value, dotted), source)
                else:
                    table_name = f"[{'.'.join(section)}]" if section else "top level"
                    raise unknown(table_name, key, names)
            except ConfigurationError as error:
                self.report(error, source, raw_path)

    def _read_destinations(self, tree: Mapping[str, Any], source: Source) -> None:
        for name, table in tree.items():
            table_name = f"destinations.{name}"
            raw = ("destinations", name)
            kind, destination_name = Kind.QUEUE, name
            if name.startswith("topic:"):
                kind, destination_name = Kind.TOPIC, name.removeprefix("topic:")
            try:
                if not destination_name:
                    raise ConfigurationError(f"{table_name}: a destination has a name")
                settings = settings_of(DestinationSettings)
                values = self._table_values(
                    _table(table, table_name), settings, table_name, source, raw
                )
            except ConfigurationError as error:
                self.report(error, source, raw)
                continue
            self.destinations[Address(kind, destination_name)] = values
            self.origins[table_name] = source.name
            self.positions[table_name] = source, raw


def _parse_file(file: Path) -> tuple[dict[str, Any], TomlLines]:
    content = read_bounded(file)
    try:
        text = content.decode()
        return tomllib.loads(text), TomlLines(text)
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # also of int(), for thousands of digits
        match = _AT_LINE.search(str(error))
        last = content.rstrip().count(b"\n") + 1
        line = match[1] if match else last
        raise ConfigurationError(f"{file}:{line}: not TOML: {error}") from None


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name}: this must be a table, not a value")
    return value
